"""What a run is reported by: latencies, throughput, queueing, cache and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from pinn.simulator.run import GapRuns, Run
from pinn.units import MILLISECOND

PERCENTILES = (50, 90, 95, 99)


def weighted_percentiles(
    values: Float[np.ndarray, " n"],
    counts: Int[np.ndarray, " n"],
    percents: tuple[int, ...] = PERCENTILES,
) -> list[float]:
    """Percentiles of values that each occur so often, as ``np.percentile`` of all of them.

    >>> weighted_percentiles(np.array([3.0, 1.0]), np.array([1, 3]), (50, 100))
    [1.0, 3.0]
    """
    if len(values) == 0:
        return [float("nan")] * len(percents)
    order = np.argsort(values)
    values, ends = values[order], np.cumsum(counts[order])
    places = np.array(percents) / 100 * (ends[-1] - 1)
    low = values[np.searchsorted(ends, np.floor(places), side="right")]
    high = values[np.searchsorted(ends, np.ceil(places), side="right")]
    return (low + (high - low) * (places - np.floor(places))).tolist()


def run_statistics(run: Run, stage: int | None = None) -> dict[str, Any]:
    """Figures of a run or of one of its stages, under BLIS's names where it has one.

    Figures of steps, batches and the KV cache are of the whole run and left out for a stage.

    Args:
        run: The run.
        stage: Only requests of this stage.
    """
    found = client_statistics(run, stage)
    return found | engine_statistics(run) if stage is None else found


def client_statistics(run: Run, stage: int | None = None) -> dict[str, Any]:
    """Statistics that clients see.

    ``e2e``, ``ttft`` and ``scheduling_delay`` (arrival to first scheduling) are over finished
    requests; ``itl`` is over gaps between tokens, or in a stage over each request's mean gap. Under
    speculative decoding a gap is shared by the tokens that come at its end, ``step_itl`` is over
    the gaps as clients see them, and tokens drafted and accepted are counted, of the whole run.

    Args:
        run: The run.
        stage: Only requests of this stage.
    """
    r = run.requests
    mine = np.ones(len(r), bool) if stage is None else r.stage == stage
    done = mine & r.finished
    found: dict[str, Any] = _counts(run, mine, done)
    for name, seconds in (
        ("e2e", r.e2e_s),
        ("ttft", r.ttft_s),
        ("scheduling_delay", r.scheduled_s - r.arrival_s),
    ):
        found |= latency_statistics(name, seconds[done])
    if stage is None:
        return found | _gaps(run.gaps) | _verification(run)
    means = r.mean_itl_s[done]
    means = means[~np.isnan(means)]
    return found | latency_statistics("itl", means)


def _counts(run: Run, mine: np.ndarray, done: np.ndarray) -> dict[str, Any]:
    r = run.requests
    duration = float(r.finish_s[mine].max() - r.arrival_s[mine].min())
    prompt, cached = int(r.prompt_tokens[mine].sum()), int(r.cached_tokens[mine].sum())
    output = int(r.output_tokens[mine].sum())
    return {
        "injected_requests": int(mine.sum()),
        "completed_requests": int(done.sum()),
        "timed_out_requests": int((r.status[mine] == "timed_out").sum()),
        "rejected_requests": int((r.status[mine] == "rejected").sum()),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "vllm_estimated_duration_s": duration,
        "responses_per_sec": _ratio(int(done.sum()), duration),
        "tokens_per_sec": _ratio(output, duration),
        "preemption_count": int(r.preemptions[mine].sum()),
        "cached_prompt_tokens": cached,
        "cache_hit_rate": _ratio(cached, prompt),
        "recomputed_tokens": _recomputed(run, done),
    }


def _recomputed(run: Run, done: np.ndarray) -> int:
    """Tokens computed more than once, because of preemptions."""
    r = run.requests
    brought = np.minimum(run.workload.transferred_tokens, r.prompt_tokens)
    needed = r.prompt_tokens + r.output_tokens - 1 - np.maximum(r.cached_tokens, brought)
    return int(np.maximum(r.computed_tokens - needed, 0)[done & (r.preemptions > 0)].sum())


def latency_statistics(
    name: str, seconds: Float[np.ndarray, " n"], counts: Int[np.ndarray, " n"] | None = None
) -> dict[str, float]:
    """Mean and percentiles in milliseconds of times that each occur so often, once by default."""
    if counts is None:
        counts = np.ones(len(seconds), np.int64)
    total = counts.sum()
    found = {f"{name}_mean_ms": _ratio(float(seconds @ counts), float(total)) / MILLISECOND}
    for percent, value in zip(PERCENTILES, weighted_percentiles(seconds, counts), strict=True):
        found[f"{name}_p{percent}_ms"] = value / MILLISECOND
    return found


def _gaps(gaps: GapRuns) -> dict[str, float]:
    return latency_statistics("itl", gaps.seconds / gaps.tokens, gaps.count * gaps.tokens)


def _verification(run: Run) -> dict[str, Any]:
    """What drafting brought; nothing without it."""
    r, gaps = run.requests, run.gaps
    drafted, accepted = int(r.drafted_tokens.sum()), int(r.accepted_tokens.sum())
    if drafted == 0:
        return {}
    return latency_statistics("step_itl", gaps.seconds, gaps.count) | {
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance_rate": accepted / drafted,
        "tokens_per_decode": float(gaps.count @ gaps.tokens) / float(gaps.count.sum()),
    }


def engine_statistics(run: Run) -> dict[str, Any]:
    """Statistics of steps, batches and the KV cache."""
    steps = run.steps
    duration = steps["duration_s"]
    busy = float(duration.sum())
    span = float(run.requests.finish_s.max() - run.requests.arrival_s.min())
    groups = len(np.unique(steps["group"]))
    found = latency_statistics("step", duration)
    weights = duration / busy if busy else duration
    return found | {
        "steps": len(steps),
        "busy_share": _ratio(busy, span * groups),
        "requests_per_step": _ratio(float(steps["requests"].sum()), len(steps)),
        "tokens_per_step": _ratio(float(steps["tokens"].sum()), len(steps)),
        "prefill_steps": int((steps["prefill_requests"] > 0).sum()),
        "waiting_mean": float(steps["waiting"] @ weights),
        "waiting_max": int(steps["waiting"].max(initial=0)),
        "running_max": int(steps["running"].max(initial=0)),
        "kv_blocks": run.kv_blocks,
        "kv_usage_mean": float(steps["used_blocks"] @ weights) / run.step_blocks,
        "kv_usage_max": float(steps["used_blocks"].max(initial=0)) / run.step_blocks,
    }


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
