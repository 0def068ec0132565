"""A run's figures as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from pinn.simulator.run import Run
from pinn.simulator.statistics import PERCENTILES, run_statistics
from pinn.specs.files.screen import page

_LATENCIES = {
    "e2e": "end to end",
    "ttft": "time to first token",
    "itl": "between tokens",
    "step_itl": "between steps' tokens",
    "scheduling_delay": "arrival to schedule",
    "step": "engine step",
}


def print_report(
    run: Run,
    statistics: dict[str, Any],
    console: Console | None = None,
    intervals: Mapping[str, tuple[float, float | None]] | None = None,
) -> None:
    """Print latencies, stages, throughput, queueing, cache and steps.

    Args:
        run: The run.
        statistics: Of it.
        console: Where to; standard output without one.
        intervals: Name of a mean in milliseconds -> ends of its 90 % interval; no upper one where
            the slow end serves nothing.
    """
    console = console or page()
    console.print(latency_table(statistics, _LATENCIES, intervals or {}))
    if run.workload.stages > 1:
        console.print(stage_table(run))
    console.print(_facts(statistics))


def latency_table(
    found: Mapping[str, Any],
    rows: Mapping[str, str],
    intervals: Mapping[str, tuple[float, float | None]],
) -> Table:
    """Mean, its interval where there are some, and percentiles of figures, under their labels."""
    columns = ["mean", *(f"p{percent}" for percent in PERCENTILES)]
    headings = ["mean", *["90 % interval"] * bool(intervals), *columns[1:]]
    table = _plain("latency (ms)", *headings)
    for key, label in rows.items():
        mean = f"{key}_mean_ms"
        if mean not in found:
            continue
        values = [_number(found[f"{key}_{column}_ms"]) for column in columns]
        ends = [_ends(intervals[mean]) if mean in intervals else "-"] * bool(intervals)
        table.add_row(label, values[0], *ends, *values[1:])
    return table


def _ends(ends: tuple[float, float | None]) -> str:
    low, high = ends
    return f"{_number(low)} or more" if high is None else f"{_number(low)} to {_number(high)}"


def _plain(first: str, *headings: str) -> Table:
    """A table without lines; numbers stand to the right."""
    table = Table(first, box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def stage_table(run: Run) -> Table:
    """Rates and latencies of each load stage."""
    table = _plain("stage", "served", "req/s", "E2E", "E2E p99", "TTFT", "TTFT p99", "ITL")
    for stage in range(run.workload.stages):
        found = run_statistics(run, stage)
        latencies = ("e2e_mean_ms", "e2e_p99_ms", "ttft_mean_ms", "ttft_p99_ms", "itl_mean_ms")
        table.add_row(
            str(stage),
            f"{found['completed_requests']:,}/{found['injected_requests']:,}",
            f"{found['responses_per_sec']:.2f}",
            *(_number(found[name]) for name in latencies),
        )
    return table


def _facts(found: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    lost = [
        f"{found[f'{how}_requests']:,} {how.replace('_', ' ')}"
        for how in ("timed_out", "rejected")
        if found[f"{how}_requests"]
    ]
    served = f"{found['completed_requests']:,} of {found['injected_requests']:,} served"
    rates = (
        f"{found['responses_per_sec']:.2f} requests/s, "
        f"{found['tokens_per_sec']:,.0f} output tokens/s over "
        f"{found['vllm_estimated_duration_s']:,.1f} s"
    )
    rows = {
        "requests": ", ".join([served, *lost]),
        "throughput": rates,
        "queue": f"{found['waiting_mean']:.2f} waiting on average, {found['waiting_max']:,} at "
        f"most; {found['running_max']:,} running at most",
        "preemptions": f"{found['preemption_count']:,} "
        f"({found['recomputed_tokens']:,} tokens computed again)",
        "prefix cache": f"{100 * found['cache_hit_rate']:.1f} % of "
        f"{found['total_input_tokens']:,} prompt tokens",
        "KV cache": f"{100 * found['kv_usage_mean']:.1f} % in use on average, "
        f"{100 * found['kv_usage_max']:.1f} % at most, of {found['kv_blocks']:,} blocks",
        "steps": f"{found['steps']:,} ({found['prefill_steps']:,} with prefill), "
        f"{found['requests_per_step']:.1f} requests and {found['tokens_per_step']:.1f} tokens "
        f"each; busy {100 * found['busy_share']:.1f} % of the time",
    }
    if "drafted_tokens" in found:
        rows["drafts"] = (
            f"{100 * found['acceptance_rate']:.1f} % of {found['drafted_tokens']:,} tokens "
            f"accepted; {found['tokens_per_decode']:.2f} tokens of a request per step"
        )
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2
    return f"{value:,.{digits}f}"
