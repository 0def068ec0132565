"""Reports of guidellm and of inference-perf."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import Field

from pinn.common.documents import read_yaml
from pinn.server.benchmarks.benchmark_run import (
    BenchmarkRun,
    GivenLoad,
    Lengths,
    Load,
    NotUsable,
    SharedPrefix,
    StatedServer,
)
from pinn.server.benchmarks.documents import (
    Document,
    Foreign,
    checked,
    kept,
    statistics_of,
    streamed,
)
from pinn.specs.flags import given_flags
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
# Older versions count two stream chunks per token, so that their time per output token comes out
# near half: it is taken from E2E and TTFT in its place. ``output_len`` counts tokens of the
# re-tokenized text, up to 20 % fewer than were generated. ``config.yaml`` beside it is what the
# tool ran: with ``ignore_eos`` every request generates the tokens that were asked for.
# ``exp-config.yaml`` in the run's folder says what served it.

INFERENCE_PERF = "inference-perf"


class _Spread(Foreign):
    mean: float
    p90: float | None = None
    p99: float | None = None


class _Latency(Foreign):
    request_latency: _Spread
    time_to_first_token: _Spread | None = None
    time_per_output_token: _Spread | None = None
    inter_token_latency: _Spread | None = None


class _Throughput(Foreign):
    requests_per_sec: float


class _Successes(Foreign):
    latency: _Latency
    throughput: _Throughput | None = None
    prompt_len: _Spread | None = None
    prompt_tokens: _Spread | None = None  # replaces ``prompt_len`` after 0.6.1
    output_len: _Spread | None = None
    output_tokens: _Spread | None = None  # the server's count, after 0.6.1


class _Failures(Foreign):
    count: int = 0


class _LoadSummary(Foreign):
    count: int
    requested_rate: float | None = None
    concurrency: int | None = None


class _Report(Foreign):
    load_summary: _LoadSummary
    successes: _Successes
    failures: _Failures = Field(default_factory=_Failures)


def is_inference_perf_report(document: Document) -> bool:
    """Whether it is a report of client-side latencies of inference-perf."""
    first = document.first
    return "load_summary" in first and "latency" in (first.get("successes") or {})


def inference_perf_points(document: Document) -> list[Any]:
    """The report with its path: its configuration lies beside it."""
    return [(document.path, document.first)]


def read_inference_perf_report(
    point: tuple[Path, dict[str, Any]], name: str, given: GivenLoad
) -> BenchmarkRun:
    """One stage.

    Raises:
        NotUsable: If nothing was served, or the report sums up several stages.
        PinnError: If the user has to say more.
    """
    path, content = point
    report, folder = checked(_Report, content), path.parent
    stages = folder.glob("stage_*_lifecycle_metrics.json")
    if path.name == "summary_lifecycle_metrics.json" and any(stages):
        raise NotUsable("the summary of stages that have reports of their own")
    load, successes, failed = report.load_summary, report.successes, report.failures.count
    if load.count <= failed:
        raise NotUsable("no request was served")
    config = _yaml(folder / "config.yaml")
    shared = (config.get("data") or {}).get("shared_prefix") or {}
    server = config.get("server") or {}
    assumed: list[str] = []
    prompt = given.needed(
        "prompt_tokens", _mean(successes.prompt_len or successes.prompt_tokens), name
    )
    output = shared.get("output_len") if server.get("ignore_eos") else None
    if output is None and given.output_tokens is None:
        output = _mean(successes.output_tokens or successes.output_len)
        assumed.append(
            "output tokens as the tool counted them, up to 20 % too few (--output-tokens)"
        )
    prefix = _shared_prompts(shared) or given.prefix(assumed)
    rate = load.requested_rate
    has_rate = rate is not None or given.request_rate is not None
    concurrency = None if has_rate else load.concurrency
    sent = Load(
        load.count,
        Lengths(float(prompt)),
        Lengths(float(given.needed("output_tokens", output, name))),
        *given.sending(concurrency, rate, name),
        prefix=prefix,
    )
    run = folder.parent if folder.name == "results" else folder
    stated = _stated_server(run / "exp-config.yaml", server.get("model_name"))
    figures = _report_figures(successes, sent.output.mean)
    return BenchmarkRun(
        name, INFERENCE_PERF, sent, figures, load.count - failed, failed, stated, tuple(assumed)
    )


def _report_figures(successes: _Successes, output_tokens: float) -> dict[str, float]:
    latency, throughput = successes.latency, successes.throughput
    first, last = latency.time_to_first_token, latency.request_latency
    found = {
        f"{label}_{key}_s": getattr(spread, key, None)
        for label, spread in (("ttft", first), ("e2e", last))
        for key in ("mean", "p90", "p99")
    }
    if first is not None and output_tokens > 1:
        found["tpot_mean_s"] = (last.mean - first.mean) / (output_tokens - 1)
    else:
        reported = latency.time_per_output_token or latency.inter_token_latency
        found["tpot_mean_s"] = _mean(reported)
    return kept(found | {"requests_per_s": throughput and throughput.requests_per_sec})


def _stated_server(file: Path, served: Any) -> StatedServer:
    experiment = _yaml(file)
    named = {"tensor_parallel_size": experiment.get("tensor_parallelism"), **experiment}
    flags = given_flags(ServingSpec, named, str(file))
    return StatedServer(str(experiment.get("model") or served or ""), flags=flags)


def _shared_prompts(shared: Mapping[str, Any]) -> SharedPrefix | None:
    groups, each = shared.get("num_groups"), shared.get("num_prompts_per_group")
    if not (groups and each):
        return None
    return SharedPrefix(groups, each, shared.get("system_prompt_len") or 0)


def _mean(spread: _Spread | None) -> float | None:
    return None if spread is None else spread.mean


def _yaml(path: Path) -> dict[str, Any]:
    values = read_yaml(path) if path.is_file() else {}
    return values if isinstance(values, dict) else {}
