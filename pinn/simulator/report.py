"""Report of a simulation for the terminal: tables and sentences."""

import math
from collections.abc import Mapping, Sequence

from pinn.common.numbers import fixed
from pinn.common.screen import Grid, page
from pinn.simulator.run import Run
from pinn.simulator.sensitivity import Sensitivity
from pinn.simulator.statistics import PERCENTILES, Metrics, percentile_name, run_statistics
from pinn.simulator.steady_state import steady_states, steady_words
from pinn.units import GIB

#: Lower and upper end of a mean latency's 90 % interval, in ms, by name of the latency. The upper
#: end is None if the run with longer times serves no requests.
Ends = Mapping[str, tuple[float, float | None]]
#: Row names in a table of latencies, by latency. Latencies missing from a run are not shown.
LATENCIES = {
    "e2e": "E2E latency",
    "ttft": "TTFT",
    "first_turn_ttft": "  first turns",
    "later_turn_ttft": "  later turns",
    "tpot": "TPOT",
    "itl": "ITL",
    "step_itl": "ITL per chunk",
    "scheduling_delay": "queue time",
    "load_wait": "KV load wait",
    "step": "engine step",
}


def print_report(
    run: Run, statistics: Metrics, intervals: Ends, percentiles: Sequence[float] = PERCENTILES
) -> None:
    """Print latencies, stages, throughput, queueing, cache and steps of a run.

    Args:
        run: Run of the simulator.
        statistics: Values of metrics in the run, by name.
        intervals: Intervals of the run's mean latencies, in milliseconds.
        percentiles: Latency percentiles to print.
    """
    print_latencies(run, statistics, LATENCIES, intervals, percentiles)
    table = Grid.of("", "", text=2)
    facts = served_facts(run, statistics) | _engine_facts(statistics)
    if run.workload.hit_rate is not None:
        facts["prefix cache"] += f" ({100 * run.workload.hit_rate:g} % requested)"
    for name, text in facts.items():
        table.add(name, text)
    page().print(table)


def print_latencies(
    run: Run,
    found: Mapping[str, float],
    rows: Mapping[str, str],
    intervals: Ends,
    percentiles: Sequence[float] = PERCENTILES,
) -> None:
    """Print a table of latencies: means, intervals if known, and percentiles.

    A run with several load stages gets a second table, with one row per stage.
    """
    columns = ["mean", *map(percentile_name, percentiles)]
    headings = ["mean", *["90 % interval"] * bool(intervals), *columns[1:]]
    table = Grid.of("latency (ms)", *headings)
    for key, label in rows.items():
        mean = f"{key}_mean_ms"
        if not math.isfinite(found.get(mean, math.nan)):
            continue
        values = [fixed(found[f"{key}_{column}_ms"]) for column in columns]
        ends = [_ends(intervals[mean]) if mean in intervals else "-"] * bool(intervals)
        table.add(label, values[0], *ends, *values[1:])
    page().print(table)
    if run.workload.stages > 1:
        page().print(_stage_table(run))


def _ends(ends: tuple[float, float | None]) -> str:
    low, high = ends
    return f"{fixed(low)} or more" if high is None else f"{fixed(low)} to {fixed(high)}"


def _stage_table(run: Run) -> Grid:
    """Return a table with the rates and latencies of each load stage."""
    table = Grid.of("stage", "served", "req/s", "E2E", "E2E p99", "TTFT", "TTFT p99", "ITL")
    latencies = ("e2e_mean_ms", "e2e_p99_ms", "ttft_mean_ms", "ttft_p99_ms", "itl_mean_ms")
    columns = ("responses_per_sec", *latencies)
    for stage in range(run.workload.stages):
        found = run_statistics(run, stage)
        served = f"{found['completed_requests']:,}/{found['injected_requests']:,}"
        table.add(str(stage), served, *(fixed(found[name]) for name in columns))
    return table


def served_facts(run: Run, found: Mapping[str, float]) -> dict[str, str]:
    """Return table rows for served requests, and for requests and tokens per second, by name."""
    served = f"{found['completed_requests']:,} of {found['injected_requests']:,} served"
    for how in ("timed_out", "rejected"):
        if found[f"{how}_requests"]:
            served += f", {found[f'{how}_requests']:,} {how.replace('_', ' ')}"
    if warm := int(run.requests.warmup.sum()):
        served += f"; {warm:,} more as a warm-up before the measurement"
    rates = (
        f"{fixed(found['responses_per_sec'])} requests/s, "
        f"{_token_rate(run, found)} over "
        f"{found['vllm_estimated_duration_s']:,.1f} s"
    )
    facts = {"requests": served, "throughput": rates}
    if steady := steady_states(run):
        facts["steady state"] = steady_words(steady)
    return facts


def _token_rate(run: Run, found: Mapping[str, float]) -> str:
    """Return output tokens/s as a string, or served prompt tokens/s if no request has output."""
    if run.workload.output_tokens.any():
        return f"{found['tokens_per_sec']:,.0f} output tokens/s"
    prompts = float(run.requests.prompt_tokens[run.requests.finished].sum())
    return f"{prompts / found['vllm_estimated_duration_s']:,.0f} prompt tokens/s"


def _engine_facts(found: Mapping[str, float]) -> dict[str, str]:
    rows = {
        "queue": f"{fixed(found['waiting_mean'])} requests waiting per step on average, "
        f"{found['waiting_max']:,} at most; {found['running_max']:,} running at most",
        "preemptions": f"{found['preemption_count']:,} "
        f"({found['recomputed_tokens']:,} tokens recomputed)",
        "prefix cache": f"hits for {100 * found['cache_hit_rate']:.1f} % of "
        f"{found['total_input_tokens']:,} prompt tokens",
        "KV cache": f"{100 * found['kv_usage_mean']:.1f} % of {found['kv_blocks']:,} blocks in use "
        f"on average, {100 * found['kv_usage_max']:.1f} % at most",
        "steps": f"{found['steps']:,} ({found['prefill_steps']:,} with prefill), "
        f"{found['requests_per_step']:,.1f} requests and {found['tokens_per_step']:,.1f} tokens on "
        f"average; a step of any size is running {100 * found['busy_share']:.1f} % of the time",
    }
    if "host_hit_rate" in found:
        rows |= tier_facts(found)
    if "drafted_tokens" in found:
        rows["drafts"] = (
            f"{100 * found['acceptance_rate']:.1f} % of {found['drafted_tokens']:,} drafted tokens "
            f"accepted; {found['tokens_per_decode']:.2f} tokens per request per decode step"
        )
    return rows


def tier_facts(found: Mapping[str, float]) -> dict[str, str]:
    """Return table rows for hits, loads, stores and evictions of a second KV tier, by name."""
    gib = {name: found[f"host_{name}_bytes"] / GIB for name in ("loaded", "stored", "evicted")}
    held, size = found["host_resident_bytes"] / GIB, found["host_capacity_bytes"] / GIB
    text = (
        f"{100 * found['host_hit_rate']:.1f} % of prompt tokens loaded from host memory; "
        f"{gib['loaded']:,.1f} GiB in {found['host_loads']:,} loads, {gib['stored']:,.1f} GiB in "
        f"{found['host_stores']:,} stores, {gib['evicted']:,.1f} GiB evicted"
    )
    link = (
        f"{held:,.1f} of {size:,.1f} GiB in use; link to the GPU busy "
        f"{100 * found['host_link_busy_share']:.1f} % of the time"
    )
    if found["host_full_stores"]:
        link += f"; {found['host_full_stores']:,} stores failed for lack of room"
    return {"host KV": text, "host memory": link}


#: ``_PRINTED``: minimum elasticity that is printed, in percent per percent. ``_MOST``: maximum
#: number of coefficients that are printed. JSON output has all coefficients.
_PRINTED, _MOST = 0.001, 10


def print_sensitivity(found: Sensitivity) -> None:
    """Print the ten coefficients that change the metric most, and by at least 0.001 % per 1 %."""
    table = Grid.of("coefficient", "change")
    shares = [(name, share.elasticity) for name, share in found.coefficients.items()]
    for name, share in sorted(shares, key=lambda pair: -abs(pair[1]))[:_MOST]:
        if abs(share) >= _PRINTED:
            table.add(name, f"{share:+.3f} %")
    page().print(
        f"{found.figure} is {found.value:,.4g}. Its change if a coefficient increases by 1 %:"
    )
    page().print(table)
