"""Reports of guidellm and of inference-perf."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pinn.common.documents import read_yaml
from pinn.measurements.benchmarks import documents
from pinn.measurements.benchmarks.benchmark_run import (
    BenchmarkRun,
    Lengths,
    Load,
    Reading,
    StatedServer,
)
from pinn.measurements.benchmarks.documents import Document, NotUsable, at
from pinn.specs.flags import given_flags
from pinn.specs.serving import ServingSpec
from pinn.units import MILLISECOND

# guidellm's ``benchmarks.json``: many points a file.
#
# Layout read in the sources of guidellm 0.3 to 0.8. Its inter-token latency, (last - first) / (n
# - 1) weighted by tokens, is the TPOT of other tools; its own "time per output token" divides by
# n and is not read. Request latency is in seconds, the others in milliseconds. Of each metric
# the successful requests count.

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


def read_guidellm(point: Any, reading: Reading) -> BenchmarkRun:
    """One benchmark of the file.

    Raises:
        NotUsable: If nothing was served or the load is not one of the known kinds.
        PinnError: If the user has to say more.
    """
    config = point.get("config") or point.get("args") or {}
    metrics = point.get("metrics") or {}
    served = _count(metrics, "successful")
    if not served:
        raise NotUsable("no request was served")
    rates = (f"{each}_per_second" for each in ("requests", "output_tokens"))
    figures = documents.throughputs(*(_of(metrics, rate).get("mean") for rate in rates))
    for latency, (metric, unit) in _LATENCIES.items():
        found = _of(metrics, metric)
        figures |= documents.statistics_of(latency, partial(_statistic, found), unit)
    figures = documents.streamed(figures)
    concurrency, rate, process = _sending(config.get("strategy") or {})
    failed = _count(metrics, "incomplete") + _count(metrics, "errored")
    prompt, output = (_of(metrics, f"{side}_token_count") for side in ("prompt", "output"))
    lengths = reading.stated_lengths(prompt, output, std="std_dev")
    sending = reading.or_stated("concurrency", concurrency), reading.or_stated("request_rate", rate)
    prefix = reading.prefix(_prefix(point))
    load = Load(served + failed, *lengths, *sending, process, prefix=prefix)
    return reading.run(load, figures, served, failed, _server(point, config))


def _of(metrics: Mapping[str, Any], name: str, status: str = "successful") -> Mapping[str, Any]:
    return (metrics.get(name) or {}).get(status) or {}


def _count(metrics: Mapping[str, Any], status: str) -> int:
    return int(_of(metrics, "request_latency", status).get("count") or 0)


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


def _prefix(point: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Prompts that begin alike, where the synthetic data say so."""
    for data in (point.get("spec") or {}).get("data") or []:
        buckets = data.get("prefix_buckets") if isinstance(data, dict) else None
        if buckets and int(buckets[0].get("prefix_tokens") or 0):
            groups = int(buckets[0].get("prefix_count") or 1)
            each = -(-_count(point["metrics"], "successful") // groups)
            return groups, each, int(buckets[0]["prefix_tokens"])
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


def is_inference_perf(document: Document) -> bool:
    """Whether it is a report of client-side latencies of inference-perf."""
    first = document.first
    return "load_summary" in first and "latency" in (first.get("successes") or {})


def read_inference_perf(document: Document, reading: Reading) -> BenchmarkRun:
    """One stage; its configuration lies beside it.

    Raises:
        NotUsable: If nothing was served, or the report sums up several stages.
        PinnError: If the user has to say more.
    """
    path, report = document.path, document.first
    folder, given = path.parent, reading.given
    stages = folder.glob("stage_*_lifecycle_metrics.json")
    if path.name == "summary_lifecycle_metrics.json" and any(stages):
        raise NotUsable("the summary of stages that have reports of their own")
    summary, successes = report["load_summary"], report["successes"]
    sent, failed = int(summary["count"]), int(at(report, "failures").get("count") or 0)
    if sent <= failed:
        raise NotUsable("no request was served")
    config = _yaml(folder / "config.yaml")
    shared, server = at(config, "data", "shared_prefix"), at(config, "server")
    output = shared.get("output_len") if server.get("ignore_eos") else None
    if output is None and given.output_tokens is None:
        # Versions after 0.6.1 have the server's count.
        output = _mean(successes, "output_tokens", "output_len")
        counted = "output tokens as the tool counted them, up to 20 % too few (--output-tokens)"
        reading.assumed.append(counted)
    prefix = reading.prefix(_shared_prompts(shared))
    rate = summary.get("requested_rate")
    has_rate = rate is not None or given.request_rate is not None
    prompt = reading.needed("prompt_tokens", _mean(successes, "prompt_len", "prompt_tokens"))
    sides = Lengths(float(prompt)), Lengths(float(reading.needed("output_tokens", output)))
    sending = reading.sending(None if has_rate else summary.get("concurrency"), rate)
    load = Load(sent, *sides, *sending, prefix=prefix)
    run = folder.parent if folder.name == "results" else folder
    stated = _stated_server(run / "exp-config.yaml", server.get("model_name"))
    figures = _report_figures(successes, load.output.mean)
    return reading.run(load, figures, sent - failed, failed, stated)


def _report_figures(successes: Mapping[str, Any], output_tokens: float) -> dict[str, float]:
    latency = successes["latency"]
    first, last = at(latency, "time_to_first_token"), latency["request_latency"]
    found = {
        f"{label}_{key}_s": spread.get(key)
        for label, spread in (("ttft", first), ("e2e", last))
        for key in ("mean", "p90", "p99")
    }
    if first and output_tokens > 1:
        found["tpot_mean_s"] = (last["mean"] - first["mean"]) / (output_tokens - 1)
    else:
        found["tpot_mean_s"] = _mean(latency, "time_per_output_token", "inter_token_latency")
    found["requests_per_s"] = at(successes, "throughput").get("requests_per_sec")
    return documents.kept(found)


def _stated_server(file: Path, served: Any) -> StatedServer:
    experiment = _yaml(file)
    named = {"tensor_parallel_size": experiment.get("tensor_parallelism"), **experiment}
    flags = given_flags(ServingSpec, named, str(file))
    return StatedServer(str(experiment.get("model") or served or ""), flags=flags)


def _shared_prompts(shared: Mapping[str, Any]) -> tuple[int, int, int] | None:
    groups, each = shared.get("num_groups"), shared.get("num_prompts_per_group")
    if not (groups and each):
        return None
    return groups, each, shared.get("system_prompt_len") or 0


def _mean(values: Mapping[str, Any], *names: str) -> float | None:
    """Of the first that a report holds."""
    return next((values[name]["mean"] for name in names if values.get(name)), None)


def _yaml(path: Path) -> dict[str, Any]:
    values = read_yaml(path) if path.is_file() else {}
    return values if isinstance(values, dict) else {}
