"""Reader of reports of the latency profile generator (LPG), the benchmark of llm-d and GKE.

Each run is one JSON object with ``metrics`` (numbers), ``dimensions`` (strings) and ``config``.
Latencies are in milliseconds under ``STATISTIC_LATENCY_ms``; E2E is called latency. The format is
that of published reports. They do not state which tokens ``per_token_latency`` divides by, so only
ITL is read, not TPOT. A report states the totals of tokens; some also state the number and rate of
requests.
"""

import math

from pinn.measurements.benchmarks import documents, marks
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Load, StatedServer
from pinn.measurements.benchmarks.documents import NotUsable
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree
from pinn.units import MILLISECOND

_LATENCIES = {"ttft": "TTFT_ms", "itl": "ITL_ms", "e2e": "latency_ms"}
_STATISTICS = {"mean": "avg", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
_NEEDED = ("benchmark_time", "total_input_tokens", "total_output_token")

#: Keys that identify reports of the latency profile generator.
is_latency_profile = marks.keys("dimensions", "config", "metrics.throughput_rps")


def read_latency_profile(values: Tree, reading: Reading) -> BenchmarkRun:
    """Read one run from a report of the latency profile generator.

    Raises:
        NotUsable: If no request was served, several models were served, or there is no TTFT.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    metrics, config = values.at("metrics"), values.at("config")
    lacking = [f"metrics.{name}" for name in _NEEDED if name not in metrics]
    if lacking:
        raise NotUsable(f"the file lacks the keys {', '.join(lacking)}")
    if config.count("num_models") > 1:
        raise NotUsable(f"the report has {config.count('num_models')} models, expected one")
    rate = metrics.number("throughput_rps") or 0.0
    counted = rate * (metrics.number("benchmark_time") or 0.0)
    served = metrics.count("num_prompts_succeeded") or round(counted)
    if served < 1:
        raise NotUsable("the run has no completed request")
    sent = max(metrics.count("num_prompts_attempted"), served)
    totals = (metrics.number(name) or 0.0 for name in _NEEDED[1:])
    prompt, output = (total / served or None for total in totals)
    lengths = (
        reading.lengths(reading.needed("prompt_tokens", prompt)),
        reading.lengths(reading.needed("output_tokens", output)),
    )
    load = Load(sent, *lengths, *_sending(metrics, reading), prefix=reading.prefix())
    figures = documents.throughputs(rate, metrics.number("throughput"))
    for latency, key in _LATENCIES.items():
        found = {each: metrics.number(f"{spelled}_{key}") for each, spelled in _STATISTICS.items()}
        figures |= documents.statistics_of(latency, found.get, MILLISECOND)
    return reading.run(load, documents.streamed(figures), served, sent - served, _server(values))


def _sending(metrics: Tree, reading: Reading) -> tuple[int | None, float | None]:
    """Return the concurrency and requests/s; without a rate, all requests are sent at the start."""
    rate = metrics.number("request_rate")
    if rate == math.inf:
        return reading.concurrency(None), reading.or_stated("request_rate", None)
    return reading.sending(None, rate)


def _server(values: Tree) -> StatedServer:
    named = Tree({**values.at("dimensions").values, **values.at("config").values})
    spoken = named.text("model_server", "backend")
    server = StatedServer(named.text("model", "model_id"), engine=spoken)
    if spoken and "engine" not in server.all_flags:
        raise NotUsable(f"the engine was {spoken}, whose scheduler is not simulated")
    return server
