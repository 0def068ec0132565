"""Reader of ``aiperf profile`` and ``genai-perf profile`` results: JSON, CSV or JSON lines.

The formats are those in the source code of aiperf 0.13 and genai-perf 0.0.16.
``inter_token_latency`` is TPOT (per request, then averaged); the gaps between stream chunks are
``inter_chunk_latency``. Every metric states its unit. In pre-releases the metrics are under
``records``, with tags ``ttft`` and ``osl``.
"""

import csv
import re

from pinn.common import Json, JsonObject
from pinn.measurements.benchmarks import documents, marks
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, StatedServer
from pinn.measurements.benchmarks.documents import Document, NotUsable
from pinn.measurements.benchmarks.reading import Reading
from pinn.measurements.benchmarks.tree import Tree

#: Tags of each latency in the files: first the tag in releases, then the tag in pre-releases.
_TAGS = {
    "ttft": ("time_to_first_token", "ttft"),
    "tpot": ("inter_token_latency",),
    "itl": ("inter_chunk_latency",),
    "e2e": ("request_latency",),
}
_PROMPT, _OUTPUT = "input_sequence_length", "output_sequence_length"


def _is_summary(document: Document) -> str:
    tags = [tag for tag in _TAGS["ttft"] if _metrics(document.first).find(tag)]
    return f"the key {tags[0]}" if tags else ""


#: Keys that identify JSON files of aiperf and genai-perf: a summary, or one line per request.
is_aiperf = marks.any_of(_is_summary, marks.keys("metrics", "metadata", "error"))


def aiperf_points(document: Document) -> list[list[Tree]]:
    """Split a file into runs: one run per summary, or one run from all request lines."""
    return [document.trees] if "metrics" in document.first else [[document.first]]


#: Header that identifies CSV summaries of aiperf and genai-perf.
is_aiperf_table = marks.pattern("the header Metric,avg", re.compile(r"\AMetric,avg,"))


def aiperf_table(document: Document) -> list[list[Tree]]:
    """Return the data of the single run in a CSV summary, as a list."""
    return [[Tree({"records": _csv_metrics(document.text)})]]


def read_aiperf(point: list[Tree], reading: Reading) -> BenchmarkRun:
    """Read one aiperf run from its summary, or from its lines for individual requests.

    Raises:
        NotUsable: If no request was served, or if the run was cancelled or did not stream tokens.
        PinnError: If data is missing from the file and the user did not supply it.
    """
    summary = point[0]
    if "metrics" in summary:
        return _from_requests(point, reading)
    if summary.values.get("was_cancelled"):
        raise NotUsable("the run was cancelled before its end")
    metrics, config = _metrics(summary), summary.at("input_config")
    served = metrics.at("request_count").count("avg")
    failed = metrics.at("error_request_count").count("avg")
    if not served:
        raise NotUsable("the run has no completed request")
    figures: dict[str, float] = {}
    for latency, tags in _TAGS.items():
        found = next((metrics.find(tag) for tag in tags if metrics.find(tag)), Tree())
        found = Tree({**found.values, "mean": found.values.get("avg")})
        unit_s = documents.unit_seconds(tags[0], found.text("unit") or "ms")
        figures |= documents.statistics_of(latency, found.number, unit_s)
    rates = (metrics.at(f"{each}_throughput").number("avg") for each in ("request", "output_token"))
    figures = documents.streamed(figures | documents.throughputs(*rates))
    concurrency, rate, process = _sending(config)
    lengths = reading.stated_lengths(metrics.at(_PROMPT), metrics.at(_OUTPUT), mean="avg")
    sending = reading.sending(concurrency, rate)
    load = Load(served + failed, *lengths, *sending, process, prefix=reading.prefix())
    return reading.run(load, figures, served, failed, _server(summary, config))


def _metrics(values: Tree) -> Tree:
    return values.find("records") or values


def _sending(config: Tree) -> tuple[int | None, float | None, str]:
    """Return the concurrency, requests/s and arrival process of aiperf's load after warm-up."""
    phases = [p for p in config.trees("phases") if "warm" not in p.text("name")]
    if len(phases) > 1:
        raise NotUsable(f"the summary has {len(phases)} load phases, expected one")
    if phases:
        load, rate, process = phases[0], "rate", "type"
    else:
        load = config.at("loadgen") or config.at("perf_analyzer", "stimulus")
        rate, process = "request_rate", "request_rate_mode"
    spelled = load.text(process)
    known = spelled if spelled in ("poisson", "gamma", "constant") else "poisson"
    return load.count("concurrency") or None, load.number(rate), known


def _server(point: Tree, config: Tree) -> StatedServer:
    names = config.at("endpoint").values.get("model_names") or config.values.get("model_names")
    first = names[0] if isinstance(names, list) and names else ""
    return StatedServer(str(first), _gpu(point.values.get("telemetry_data")))


def _gpu(telemetry: Json) -> str:
    """Return the GPU's name from DCGM telemetry, where it may be nested at any depth."""
    if isinstance(telemetry, list):
        return next(filter(None, map(_gpu, telemetry)), "")
    if not isinstance(telemetry, dict):
        return ""
    named = Tree(telemetry).text("gpu_name", "gpu_model_name")
    return named or next(filter(None, map(_gpu, telemetry.values())), "")


def _csv_metrics(text: str) -> dict[str, JsonObject]:
    r"""Return the metrics of a CSV summary, under their tags in JSON summaries.

    >>> _csv_metrics("Metric,avg,p50\nTime to First Token (ms),2.5,2\n")
    {'time_to_first_token': {'unit': 'ms', 'avg': 2.5, 'p50': 2.0}}
    """
    found: dict[str, JsonObject] = {}
    header: list[str] = []
    for row in csv.reader(text.splitlines()):
        if not row or row[0] == "Metric":
            header = [c.replace("Value", "avg") for c in row[1:]]
            continue
        label, _, unit = row[0].partition(" (")
        numbers = zip(header, row[1:], strict=False)
        cells = {k: float(v.replace(",", "")) for k, v in numbers if v.strip()}
        found[label.lower().replace(" ", "_")] = {"unit": unit.rstrip(")") or "requests", **cells}
    return found


def _from_requests(rows: list[Tree], reading: Reading) -> BenchmarkRun:
    """Read a run from lines for individual requests; the user must specify concurrency or rate."""
    profiled = [r for r in rows if r.at("metadata").text("benchmark_phase") != "warmup"]
    good = [r.at("metrics") for r in profiled if not r.values.get("error")]
    good = [m for m in good if _seconds(m, "ttft") and _seconds(m, "e2e")]
    if not good:
        raise NotUsable("the run has no completed request")
    if not all(_PROMPT in m and _OUTPUT in m for m in good):
        raise NotUsable("the file lacks the prompt or output lengths of some requests")
    prompts, outputs = (tuple(m.at(t).count("value") for m in good) for t in (_PROMPT, _OUTPUT))
    firsts, lasts = ([_seconds(m, latency) for m in good] for latency in ("ttft", "e2e"))
    figures = documents.request_figures(firsts, lasts, outputs)
    lengths = Lengths.listed(prompts), Lengths.listed(outputs)
    load = Load(len(good), *lengths, *reading.sending(), prefix=reading.prefix())
    return reading.run(load, figures, len(good), len(profiled) - len(good))


def _seconds(metrics: Tree, latency: str) -> float:
    for tag in _TAGS[latency]:
        if metric := metrics.at(tag):
            unit_s = documents.unit_seconds(tag, metric.text("unit") or "ms")
            return (metric.number("value") or 0.0) * unit_s
    return 0.0
