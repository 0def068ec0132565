"""Reader of guidellm's ``benchmarks.json``, which contains several loads per file.

The format is that in the source code of guidellm 0.3 to 0.8. Its inter-token latency is the TPOT of
other tools: (last - first token's time) / (n - 1) for n output tokens, weighted by tokens. Its
"time per output token" divides by n instead, and is not used. Request latency is in seconds, all
other latencies are in milliseconds. Metrics are those of successful requests.
"""

from pinn.measurements.benchmarks import documents
from pinn.measurements.benchmarks.benchmark_run import (
    BenchmarkRun,
    Load,
    SharedPrefix,
    StatedServer,
)
from pinn.measurements.benchmarks.documents import Document, NotUsable
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree
from pinn.units import MILLISECOND

_LATENCIES = {
    "ttft": ("time_to_first_token_ms", MILLISECOND),
    "tpot": ("inter_token_latency_ms", MILLISECOND),
    "e2e": ("request_latency", 1.0),
}


def is_guidellm(document: Document) -> str:
    """Return the keys that identify a guidellm file, as a string; empty for other files."""
    points = document.first.trees("benchmarks")
    is_own = any("request_latency" in point.at("metrics") for point in points)
    return "the key benchmarks with metrics.request_latency inside it" if is_own else ""


def guidellm_points(document: Document) -> list[Tree]:
    """Return the benchmarks in a file, each with the settings that appear once per file."""
    spec = document.first.at("config", "spec") or document.first.at("args")
    points = document.first.trees("benchmarks")
    return [Tree({"spec": spec.values, **point.values}) for point in points]


def read_guidellm(point: Tree, reading: Reading) -> BenchmarkRun:
    """Read one benchmark of guidellm's file as a run.

    Raises:
        NotUsable: If no request was served or the type of load is unknown.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    config, metrics = point.at("config") or point.at("args"), point.at("metrics")
    served = _count(metrics, "successful")
    if not served:
        raise NotUsable("the run has no completed request")
    rates = (f"{each}_per_second" for each in ("requests", "output_tokens"))
    figures = documents.throughputs(*(_of(metrics, rate).number("mean") for rate in rates))
    for latency, (metric, unit_s) in _LATENCIES.items():
        found = _of(metrics, metric)
        spread = Tree({**found.at("percentiles").values, "mean": found.values.get("mean")})
        figures |= documents.statistics_of(latency, spread.number, unit_s)
    figures = documents.streamed(figures)
    concurrency, rate, process = _sending(config.at("strategy"))
    failed = _count(metrics, "incomplete") + _count(metrics, "errored")
    prompt, output = (_of(metrics, f"{side}_token_count") for side in ("prompt", "output"))
    lengths = reading.stated_lengths(prompt, output, std="std_dev")
    sending = reading.concurrency(concurrency), reading.or_stated("request_rate", rate)
    prefix = reading.prefix(_prefix(point), "prompts share prefixes as stated in the file")
    load = Load(served + failed, *lengths, *sending, process, prefix=prefix)
    return reading.run(load, figures, served, failed, _server(point, config))


def _of(metrics: Tree, name: str) -> Tree:
    return metrics.at(name, "successful")


def _count(metrics: Tree, status: str) -> int:
    return metrics.at("request_latency", status).count("count")


def _sending(strategy: Tree) -> tuple[int | None, float | None, str]:
    kind = strategy.text("type_", "kind")
    if kind == "synchronous":
        return 1, None, "poisson"
    if kind in ("concurrent", "throughput"):
        return strategy.count("streams", "max_concurrency") or None, None, "poisson"
    if kind in ("constant", "poisson"):
        return None, strategy.number("rate"), kind
    raise NotUsable(
        f"the type of the load is {kind!r}, expected synchronous, concurrent, throughput, "
        "constant or poisson"
    )


def _prefix(point: Tree) -> SharedPrefix | None:
    """Return the groups of prompts that share a prefix; None if the file states none."""
    for data in point.at("spec").trees("data"):
        for bucket in data.trees("prefix_buckets")[:1]:
            if tokens := bucket.count("prefix_tokens"):
                groups = bucket.count("prefix_count") or 1
                each = -(-_count(point.at("metrics"), "successful") // groups)
                return SharedPrefix(groups, each, tokens)
    return None


def _server(point: Tree, config: Tree) -> StatedServer:
    places = config.at("backend"), point.at("spec", "backend"), point.at("worker", "backend")
    names = (place.text("model", "backend_model") for place in places)
    return StatedServer(next(filter(None, names), ""))
