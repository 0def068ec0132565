"""One lifecycle report of inference-perf, with the configuration beside it.

``pinn.data.traces.readers.inference_perf`` reads the report and puts a halved ITL right;
here it becomes a run. Without ``config.yaml`` beside it the tokens that a request generates are the
tool's count.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pinn.data.benchmarks.benchmark_run import (
    BenchmarkRun,
    Lengths,
    Load,
    SharedPrefix,
    StatedServer,
)
from pinn.data.benchmarks.documents import Document
from pinn.data.benchmarks.figures import kept
from pinn.data.benchmarks.given_load import GivenLoad, NotUsable
from pinn.data.traces.readers.inference_perf import inter_token_latency, read_report
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec

TOOL = "inference-perf"


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
    prefix = _prefix(row) or given.prefix(assumed)
    rate = given.or_stated("request_rate", row["rate_per_s"], name)
    concurrency = row["concurrency"] if rate is None else given.concurrency
    load = Load(
        row["requests"],
        Lengths(float(prompt)),
        Lengths(float(given.needed("output_tokens", output, name))),
        given.needed("concurrency", concurrency, name) if rate is None else concurrency,
        rate,
        prefix=prefix,
    )
    tpot = _tpot_s(row, load.output.mean)
    figures = {k: v for k, v in row.items() if k.startswith(("ttft_", "e2e_"))}
    figures |= {"tpot_mean_s": tpot, "requests_per_s": row["requests_per_s"]}
    flags = {f.name: row[f.name] for f in flags_of(ServingSpec) if row.get(f.name) is not None}
    server = StatedServer(str(row["model"] or ""), flags=flags)
    served = row["requests"] - row["failed"]
    return BenchmarkRun(
        name, TOOL, load, kept(figures), served, row["failed"], server, tuple(assumed)
    )


def _tpot_s(row: dict[str, Any], output_tokens: float) -> float | None:
    """(E2E - TTFT) / (tokens - 1) of the means; older versions count two chunks a token."""
    return inter_token_latency(
        reported_s=row["itl_mean_reported_s"],
        e2e_s=row["e2e_mean_s"],
        ttft_s=row["ttft_mean_s"],
        output_tokens=output_tokens,
    )[1]


def _prefix(row: dict[str, Any]) -> SharedPrefix | None:
    if not (row["prompts"] and row["prompt_groups"]):
        return None
    each = row["prompts"] // row["prompt_groups"]
    return SharedPrefix(row["prompt_groups"], each, row["shared_tokens"] or 0)
