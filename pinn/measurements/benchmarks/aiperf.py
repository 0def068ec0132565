"""``aiperf profile`` and ``genai-perf profile``: JSON, CSV, or JSON lines of requests.

Layout read in the sources of aiperf 0.13 and genai-perf 0.0.16. ``inter_token_latency`` is TPOT
(per request, then averaged); gaps are ``inter_chunk_latency``. Every metric carries its unit.
Pre-releases have the metrics under ``records``, with tags ``ttft`` and ``osl``.
"""

import csv
from collections.abc import Mapping
from typing import Any

from pinn.measurements.benchmarks import documents
from pinn.measurements.benchmarks.benchmark_run import (
    BenchmarkRun,
    Lengths,
    Load,
    Reading,
    StatedServer,
)
from pinn.measurements.benchmarks.documents import Document, NotUsable

#: Latency here -> tags of it, the released one first.
_TAGS = {
    "ttft": ("time_to_first_token", "ttft"),
    "tpot": ("inter_token_latency",),
    "itl": ("inter_chunk_latency",),
    "e2e": ("request_latency",),
}
_PROMPT, _OUTPUT = "input_sequence_length", "output_sequence_length"


def is_aiperf(document: Document) -> bool:
    """Whether aiperf or genai-perf wrote it."""
    first = document.first
    return (
        any(isinstance(_metrics(first).get(tag), dict) for tag in _TAGS["ttft"])
        or ("metrics" in first and "metadata" in first and "error" in first)
        or document.text.startswith("Metric,avg,")
    )


def aiperf_points(document: Document) -> list[Any]:
    """One run a file: a summary, or all the requests of a file of JSON lines."""
    if document.text:
        return [{"records": _csv_metrics(document.text)}]
    return [list(document.values)] if "metrics" in document.first else [document.first]


def read_aiperf(point: Any, reading: Reading) -> BenchmarkRun:
    """One run.

    Raises:
        NotUsable: If nothing was served, the run was cancelled, or it did not stream.
        PinnError: If the user has to say more.
    """
    if isinstance(point, list):
        return _from_requests(point, reading)
    if point.get("was_cancelled"):
        raise NotUsable("the run was cancelled")
    metrics, config = _metrics(point), point.get("input_config") or {}
    served = int(_value(metrics, "request_count") or 0)
    failed = int(_value(metrics, "error_request_count") or 0)
    if not served:
        raise NotUsable("no request was served")
    figures: dict[str, float] = {}
    for latency, tags in _TAGS.items():
        found: dict[str, Any] = next((m for m in map(metrics.get, tags) if isinstance(m, dict)), {})
        by_name = found | {"mean": found.get("avg")}
        unit_s = documents.unit_seconds(tags[0], found.get("unit") or "ms")
        figures |= documents.statistics_of(latency, by_name.get, unit_s)
    rates = (_value(metrics, f"{each}_throughput") for each in ("request", "output_token"))
    figures = documents.streamed(figures | documents.throughputs(*rates))
    concurrency, rate, process = _sending(config)
    sides = metrics.get(_PROMPT) or {}, metrics.get(_OUTPUT) or {}
    lengths = reading.stated_lengths(*sides, mean="avg")
    sending = reading.sending(concurrency, rate)
    load = Load(served + failed, *lengths, *sending, process, prefix=reading.prefix())
    return reading.run(load, figures, served, failed, _server(point, config))


def _metrics(values: Mapping[str, Any]) -> Mapping[str, Any]:
    records = values.get("records")
    return records if isinstance(records, dict) else values


def _value(metrics: Mapping[str, Any], tag: str) -> float | None:
    found = metrics.get(tag)
    return found.get("avg") if isinstance(found, dict) else None


def _sending(config: Mapping[str, Any]) -> tuple[int | None, float | None, str]:
    """Concurrency, rate and arrival process of the profiling phase."""
    phases = [p for p in config.get("phases") or [] if "warm" not in str(p.get("name", ""))]
    if len(phases) > 1:
        raise NotUsable("several load phases in one summary")
    if phases:
        load, rate, process = phases[0], "rate", "type"
    else:
        load = config.get("loadgen") or config.get("perf_analyzer", {}).get("stimulus") or {}
        rate, process = "request_rate", "request_rate_mode"
    spelled = load.get(process)
    known = spelled if spelled in ("poisson", "gamma", "constant") else "poisson"
    return load.get("concurrency"), load.get(rate), known


def _server(point: Mapping[str, Any], config: Mapping[str, Any]) -> StatedServer:
    names = (config.get("endpoint") or {}).get("model_names") or config.get("model_names") or [""]
    return StatedServer(str(names[0]), _gpu(point.get("telemetry_data") or {}))


def _gpu(telemetry: Any) -> str:
    """The GPU's name in DCGM's telemetry, wherever it stands."""
    if isinstance(telemetry, list):
        telemetry = dict(enumerate(telemetry))
    for key, value in telemetry.items() if isinstance(telemetry, dict) else ():
        if key in ("gpu_name", "gpu_model_name") and isinstance(value, str):
            return value
        if found := _gpu(value):
            return found
    return ""


def _csv_metrics(text: str) -> dict[str, dict[str, Any]]:
    r"""The CSV's two tables under the tags of the JSON.

    >>> _csv_metrics("Metric,avg,p50\nTime to First Token (ms),2.5,2\n")
    {'time_to_first_token': {'unit': 'ms', 'avg': 2.5, 'p50': 2.0}}
    """
    found: dict[str, dict[str, Any]] = {}
    header: list[str] = []
    for row in csv.reader(text.splitlines()):
        if not row or row[0] == "Metric":
            header = [c.replace("Value", "avg") for c in row[1:]]
            continue
        label, _, unit = row[0].partition(" (")
        numbers = zip(header, row[1:], strict=False)
        cells = {k: float(v.replace(",", "")) for k, v in numbers if v.strip()}
        found[label.lower().replace(" ", "_")] = {"unit": unit.rstrip(")") or "requests"} | cells
    return found


def _from_requests(rows: list[dict[str, Any]], reading: Reading) -> BenchmarkRun:
    """A run of single requests; how they were sent stands in the summary, so it is asked for."""
    profiled = [r for r in rows if (r.get("metadata") or {}).get("benchmark_phase") != "warmup"]
    good = [r["metrics"] for r in profiled if not r.get("error")]
    good = [m for m in good if _seconds(m, "ttft") and _seconds(m, "e2e")]
    if not good:
        raise NotUsable("no request was served")
    prompts, outputs = (
        tuple(int(m[tag]["value"]) for m in good if tag in m) for tag in (_PROMPT, _OUTPUT)
    )
    if not len(prompts) == len(outputs) == len(good):
        raise NotUsable("requests without lengths")
    firsts, lasts = ([_seconds(m, latency) for m in good] for latency in ("ttft", "e2e"))
    figures = documents.request_figures(firsts, lasts, outputs)
    lengths = Lengths.listed(prompts), Lengths.listed(outputs)
    load = Load(len(good), *lengths, *reading.sending(), prefix=reading.prefix())
    return reading.run(load, figures, len(good), len(profiled) - len(good))


def _seconds(metrics: Mapping[str, Any], latency: str) -> float:
    for tag in _TAGS[latency]:
        if tag in metrics:
            unit_s = documents.unit_seconds(tag, metrics[tag].get("unit", "ms"))
            return float(metrics[tag]["value"]) * unit_s
    return 0.0
