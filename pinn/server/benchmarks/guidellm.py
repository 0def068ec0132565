"""Reports of guidellm and of inference-perf."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pinn.server.benchmarks.benchmark_run import (
    BenchmarkRun,
    GivenLoad,
    Lengths,
    Load,
    NotUsable,
    SharedPrefix,
    StatedServer,
)
from pinn.server.benchmarks.documents import Document, kept, statistics_of, streamed
from pinn.server.readers.inference_perf import inter_token_latency, read_report
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec
from pinn.units import MILLISECOND

# guidellm's ``benchmarks.json``: many points a file.
#
# Layout read in the sources of guidellm 0.3 to 0.8. Its inter-token latency, (last - first) / (n
# - 1) weighted by tokens, is the TPOT of other tools; its own "time per output token" divides by
# n and is not read. Request latency is in seconds, the others in milliseconds. Of each metric
# the successful requests count.

TOOL = "guidellm"
_LATENCIES = {
    "ttft": ("time_to_first_token_ms", MILLISECOND),
    "tpot": ("inter_token_latency_ms", MILLISECOND),
    "e2e": ("request_latency", 1.0),
}


def is_guidellm(document: Document) -> bool:
    """Whether guidellm wrote it."""
    points = document.first.get("benchmarks")
    return isinstance(points, list) and any(
        isinstance(p, dict) and "request_latency" in (p.get("metrics") or {}) for p in points
    )


def guidellm_points(document: Document) -> list[Any]:
    """Its benchmarks, each with what the file says of all."""
    spec = (document.first.get("config") or {}).get("spec") or document.first.get("args") or {}
    return [{"spec": spec, **point} for point in document.first["benchmarks"]]


def read_guidellm(point: Any, name: str, given: GivenLoad) -> BenchmarkRun:
    """One benchmark of the file.

    Raises:
        NotUsable: If nothing was served or the load is not one of the known kinds.
        PinnError: If the user has to say more.
    """
    config = point.get("config") or point.get("args") or {}
    metrics = point.get("metrics") or {}
    served = int(_of(metrics, "request_latency").get("count") or 0)
    if not served:
        raise NotUsable("no request was served")
    figures = kept(
        {
            "requests_per_s": _of(metrics, "requests_per_second").get("mean"),
            "output_tokens_per_s": _of(metrics, "output_tokens_per_second").get("mean"),
        }
    )
    for latency, (metric, unit) in _LATENCIES.items():
        found = _of(metrics, metric)
        figures |= statistics_of(latency, partial(_statistic, found), unit)
    figures = streamed(figures)
    assumed: list[str] = []
    concurrency, rate, process = _sending(config.get("strategy") or {})
    failed = sum(int(_of(metrics, "request_latency", s).get("count") or 0) for s in _OTHERS)
    prompt, output = (_of(metrics, f"{side}_token_count") for side in ("prompt", "output"))
    load = Load(
        served + failed,
        given.stated_lengths("prompt_tokens", prompt, name, std="std_dev"),
        given.stated_lengths("output_tokens", output, name, std="std_dev"),
        given.or_stated("concurrency", concurrency, name),
        given.or_stated("request_rate", rate, name),
        process,
        prefix=_prefix(point) or given.prefix(assumed),
    )
    return BenchmarkRun(
        name, TOOL, load, figures, served, failed, _server(point, config), tuple(assumed)
    )


_OTHERS = ("incomplete", "errored")


def _of(metrics: Mapping[str, Any], name: str, status: str = "successful") -> Mapping[str, Any]:
    return (metrics.get(name) or {}).get(status) or {}


def _statistic(found: Mapping[str, Any], each: str) -> float | None:
    if each == "mean":
        return found.get("mean")
    return (found.get("percentiles") or {}).get(f"p{each[1:]}")


def _sending(strategy: Mapping[str, Any]) -> tuple[int | None, float | None, str]:
    kind = str(strategy.get("type_") or strategy.get("kind") or "")
    if kind == "synchronous":
        return 1, None, "poisson"
    if kind == "concurrent":
        return int(strategy["streams"]), None, "poisson"
    if kind == "throughput":
        return strategy.get("max_concurrency"), None, "poisson"
    if kind in ("constant", "poisson"):
        return None, float(strategy["rate"]), kind
    raise NotUsable(f"load of the kind {kind!r} is not known")


def _prefix(point: Mapping[str, Any]) -> SharedPrefix | None:
    """Prompts that begin alike, where the synthetic data say so."""
    for data in (point.get("spec") or {}).get("data") or []:
        buckets = data.get("prefix_buckets") if isinstance(data, dict) else None
        if buckets and int(buckets[0].get("prefix_tokens") or 0):
            groups = int(buckets[0].get("prefix_count") or 1)
            count = int(_of(point["metrics"], "request_latency").get("count") or 1)
            return SharedPrefix(groups, -(-count // groups), int(buckets[0]["prefix_tokens"]))
    return None


def _server(point: Mapping[str, Any], config: Mapping[str, Any]) -> StatedServer:
    for place in (config.get("backend"), (point.get("spec") or {}).get("backend"),
                  point.get("worker", {}).get("backend")):  # fmt: skip
        if isinstance(place, dict) and (place.get("model") or place.get("backend_model")):
            return StatedServer(str(place.get("model") or place.get("backend_model")))
    return StatedServer()


# One lifecycle report of inference-perf, with the configuration beside it.
#
# ``pinn.server.readers.inference_perf`` reads the report and puts a halved ITL right; here
# it becomes a run. Without ``config.yaml`` beside it the tokens that a request generates are the
# tool's count.

INFERENCE_PERF = "inference-perf"


def is_inference_perf_report(document: Document) -> bool:
    """Whether it is a report of client-side latencies of inference-perf."""
    first = document.first
    return "load_summary" in first and "latency" in (first.get("successes") or {})


def inference_perf_points(document: Document) -> list[Any]:
    """The report with its path: its configuration lies beside it."""
    return [(document.path, document.first)]


def read_inference_perf_report(
    report: tuple[Path, dict[str, Any]], name: str, given: GivenLoad
) -> BenchmarkRun:
    """One stage.

    Raises:
        NotUsable: If nothing was served, or the report sums up several stages.
        PinnError: If the user has to say more.
    """
    path, content = report
    try:
        row = read_report(path, content)
    except ValidationError as error:
        raise NotUsable("no lifecycle report") from error
    stages = sorted(path.parent.glob("stage_*_lifecycle_metrics.json"))
    if row["stage"] == "all" and stages:
        raise NotUsable("the summary of stages that have reports of their own")
    if row["requests"] <= row["failed"]:
        raise NotUsable("no request was served")
    assumed: list[str] = []
    prompt = given.needed("prompt_tokens", row["prompt_tokens"], name)
    output = row["output_tokens"] if row["ignore_eos"] else None
    if output is None and given.output_tokens is None:
        output = row["output_tokens_reported"]
        assumed.append(
            "output tokens as the tool counted them, up to 20 % too few (--output-tokens)"
        )
    prefix = _inference_perf_report_prefix(row) or given.prefix(assumed)
    stated = (row["rate_per_s"], given.request_rate)
    concurrency = row["concurrency"] if stated == (None, None) else None
    load = Load(
        row["requests"],
        Lengths(float(prompt)),
        Lengths(float(given.needed("output_tokens", output, name))),
        *given.sending(concurrency, row["rate_per_s"], name),
        prefix=prefix,
    )
    tpot = _tpot_s(row, load.output.mean)
    figures = {k: v for k, v in row.items() if k.startswith(("ttft_", "e2e_"))}
    figures |= {"tpot_mean_s": tpot, "requests_per_s": row["requests_per_s"]}
    flags = {f.name: row[f.name] for f in flags_of(ServingSpec) if row.get(f.name) is not None}
    server = StatedServer(str(row["model"] or ""), flags=flags)
    served = row["requests"] - row["failed"]
    return BenchmarkRun(
        name, INFERENCE_PERF, load, kept(figures), served, row["failed"], server, tuple(assumed)
    )


def _tpot_s(row: dict[str, Any], output_tokens: float) -> float | None:
    """(E2E - TTFT) / (tokens - 1) of the means; older versions count two chunks a token."""
    return inter_token_latency(
        reported_s=row["itl_mean_reported_s"],
        e2e_s=row["e2e_mean_s"],
        ttft_s=row["ttft_mean_s"],
        output_tokens=output_tokens,
    )[1]


def _inference_perf_report_prefix(row: dict[str, Any]) -> SharedPrefix | None:
    if not (row["prompts"] and row["prompt_groups"]):
        return None
    each = row["prompts"] // row["prompt_groups"]
    return SharedPrefix(row["prompt_groups"], each, row["shared_tokens"] or 0)
