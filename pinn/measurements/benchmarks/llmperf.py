"""Reader of summaries of llmperf's ``token_benchmark_ray.py``: one JSON object per run.

Latencies are in seconds, under ``results_LATENCY_STATISTIC``. The clients are a closed loop of
``num_concurrent_requests``. Lengths are sampled from a normal distribution with the requested mean
and standard deviation. The format is that of published summaries. They do not specify whether
``inter_token_latency_s`` includes the wait for the first token, so TPOT is computed from E2E and
TTFT.
"""

from pinn.measurements.benchmarks import documents, marks
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, StatedServer
from pinn.measurements.benchmarks.documents import NotUsable
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree

_LATENCIES = {"ttft": "ttft_s", "e2e": "end_to_end_latency_s"}

#: Keys that identify llmperf's summaries.
is_llmperf = marks.keys(
    "num_concurrent_requests", "results_num_requests_started", "results_num_completed_requests"
)


def read_llmperf(values: Tree, reading: Reading) -> BenchmarkRun:
    """Read one run from a summary of llmperf.

    Raises:
        NotUsable: If no request was served, or there is no TTFT.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    served = values.count("results_num_completed_requests")
    failed = values.count("results_number_errors")
    if served < 1:
        raise NotUsable("the run has no completed request")
    prompt = _lengths("prompt_tokens", "input", values, reading)
    output = _lengths("output_tokens", "output", values, reading)
    limit, rate = reading.sending(values.count("num_concurrent_requests") or None)
    load = Load(served + failed, prompt, output, limit, rate, prefix=reading.prefix())
    figures = documents.streamed(_figures(values, output.mean))
    return reading.run(load, figures, served, failed, StatedServer(values.text("model")))


def _figures(values: Tree, output_tokens: float) -> dict[str, float]:
    figures: dict[str, float] = {}
    for latency, key in _LATENCIES.items():
        names = {"mean": f"results_{key}_mean"}
        names |= {p: f"results_{key}_quantiles_{p}" for p in ("p50", "p90", "p95", "p99")}
        found = {each: values.number(name) for each, name in names.items()}
        figures |= documents.statistics_of(latency, found.get, 1.0)
    if figures.keys() >= {"ttft_mean_s", "e2e_mean_s"} and output_tokens > 1:
        decoding = figures["e2e_mean_s"] - figures["ttft_mean_s"]
        figures |= documents.kept({"tpot_mean_s": decoding / (output_tokens - 1)})
    requests = values.number("results_num_completed_requests_per_min")
    tokens = values.number("results_mean_output_throughput_token_per_s")
    return figures | documents.throughputs(requests and requests / 60, tokens)


def _lengths(name: str, side: str, values: Tree, reading: Reading) -> Lengths:
    """Return the measured token lengths of prompts or outputs, or else the requested lengths."""
    counted = f"results_number_{side}_tokens"
    mean = values.number(f"{counted}_mean", f"mean_{side}_tokens")
    spread = values.number(f"{counted}_stddev", f"stddev_{side}_tokens")
    return Lengths(reading.needed(name, mean), std=spread or 0.0)
