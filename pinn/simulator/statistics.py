"""Metrics of a run: latencies, throughput, queueing, cache and batches."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, Int

from pinn.common.documents import comma_separated
from pinn.errors import PinnError
from pinn.simulator.run import Run, StepRecords
from pinn.simulator.transfers import tier_statistics
from pinn.units import MILLISECOND

#: Values of metrics by name in JSON; times are in milliseconds.
Metrics: TypeAlias = dict[str, float]

#: Percentiles that are computed for every latency.
PERCENTILES: tuple[float, ...] = (50, 90, 95, 99)


def read_percentiles(text: str) -> tuple[float, ...]:
    """Parse percentiles that are separated by commas.

    Raises:
        PinnError: If a percentile is not a number above 0 and at most 100.

    >>> read_percentiles("50, p99.9")
    (50.0, 99.9)
    """
    found = []
    for word in comma_separated(text):
        with suppress(ValueError):
            found.append(float(word.lower().removeprefix("p")))
            if 0 < found[-1] <= 100:
                continue
        raise PinnError(
            "--percentiles must be numbers above 0 and at most 100, such as 50,90,99.9, got "
            f"{word!r:.60}"
        )
    if not found:
        raise PinnError("--percentiles is empty: write 50,90,99.9, or omit --percentiles")
    return tuple(dict.fromkeys(found))


def percentile_name(percent: float) -> str:
    """Return the name of a percentile in JSON and tables, such as ``p99.9``."""
    return f"p{percent:.10g}"


def weighted_percentiles(
    values: Float[np.ndarray, " n"],
    counts: Int[np.ndarray, " n"],
    percents: tuple[float, ...] = PERCENTILES,
) -> list[float]:
    """Return the percentiles that ``np.percentile`` gives for values repeated by their counts.

    A percentile that interpolates with an infinite value is infinite.

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
    with np.errstate(invalid="ignore"):
        between = low + (high - low) * (places - np.floor(places))
    return np.where(low == high, low, between).tolist()


def statistic(values: Float[np.ndarray, " n"], counts: Int[np.ndarray, " n"], name: str) -> float:
    """Return the mean or a percentile (``p99``) of values with their counts; NaN without values."""
    if not counts.sum():
        return float("nan")
    if name == "mean":
        return float(values @ counts / counts.sum())
    return weighted_percentiles(values, counts, (float(name[1:]),))[0]


def run_statistics(
    run: Run, stage: int | None = None, percentiles: Sequence[float] = ()
) -> Metrics:
    """Return the metrics of a run or of one load stage, with BLIS's names where they exist.

    Warm-up requests are excluded. A stage has no metrics of steps, batches and the KV cache.

    Args:
        run: Records of the run.
        stage: Index of the load stage; None for all stages.
        percentiles: Latency percentiles, in addition to ``PERCENTILES``.
    """
    found = client_statistics(run, stage, percentiles)
    return found | engine_statistics(run, percentiles) if stage is None else found


def client_statistics(
    run: Run, stage: int | None = None, percentiles: Sequence[float] = ()
) -> Metrics:
    """Return the metrics that clients see, of a run or of one load stage.

    ``e2e``, ``ttft``, ``tpot`` (each request's mean ITL) and ``scheduling_delay`` (arrival to first
    scheduling) cover finished requests; ``first_turn_ttft`` and ``later_turn_ttft`` cover finished
    requests of conversations. ``itl`` covers all ITL gaps. Under speculative decoding, tokens that
    arrive together share their gap in ``itl``, while ``step_itl`` contains the gaps as clients see
    them. Drafted and accepted tokens are counted, too.

    Args:
        run: Records of the run.
        stage: Index of the load stage; None for all stages.
        percentiles: Latency percentiles, in addition to ``PERCENTILES``.
    """
    r = run.requests
    mine = r.of_stage(stage)
    if stage is None and not mine.any():
        raise PinnError(
            f"all {len(r):,} requests belong to the warm-up, so none is measured: lower "
            "--num-warmups or --warmup-s, or send more requests"
        )
    done = mine & r.finished
    found = _counts(run, mine, done)
    tpot_s = r.mean_itl_s[done]
    tpot_s = tpot_s[~np.isnan(tpot_s)]
    for name, seconds in (
        ("e2e", r.e2e_s[done]),
        ("ttft", r.ttft_s[done]),
        ("scheduling_delay", (r.scheduled_s - r.arrival_s)[done]),
        ("tpot", tpot_s),
    ):
        found |= latency_statistics(name, seconds, None, percentiles)
    begins = run.workload.starts
    if not begins.all():
        for name, turns in (("first_turn_ttft", begins), ("later_turn_ttft", ~begins)):
            found |= latency_statistics(name, r.ttft_s[done & turns], None, percentiles)
    found |= latency_statistics("itl", *run.gaps.of_stage(stage).per_token, percentiles)
    return found | _verification(run, percentiles) if stage is None else found


def _counts(run: Run, mine: np.ndarray, done: np.ndarray) -> Metrics:
    r = run.requests
    duration = float(r.finish_s[mine].max() - r.arrival_s[mine].min()) if mine.any() else np.nan
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
    """Return the number of tokens that finished requests recomputed after preemptions."""
    r = run.requests
    brought = np.minimum(run.workload.transferred_tokens, r.prompt_tokens)
    further = np.maximum(r.output_tokens - 1, 0)
    needed = r.prompt_tokens + further - np.maximum(r.cached_tokens, brought)
    return int(np.maximum(r.computed_tokens - needed, 0)[done & (r.preemptions > 0)].sum())


def latency_statistics(
    name: str,
    seconds: Float[np.ndarray, " n"],
    counts: Int[np.ndarray, " n"] | None = None,
    percentiles: Sequence[float] = (),
) -> Metrics:
    """Return the mean and percentiles of ``seconds``, in milliseconds, weighted by ``counts``."""
    if counts is None:
        counts = np.ones(len(seconds), np.int64)
    mean = _ratio(float(seconds @ counts), float(counts.sum()))
    percents = tuple(dict.fromkeys((*PERCENTILES, *percentiles)))
    names = (f"{name}_mean_ms", *(f"{name}_{percentile_name(p)}_ms" for p in percents))
    values = (mean, *weighted_percentiles(seconds, counts, percents))
    return {key: value / MILLISECOND for key, value in zip(names, values, strict=True)}


def _verification(run: Run, percentiles: Sequence[float]) -> Metrics:
    """Return the metrics of speculative decoding; empty for a run without draft tokens."""
    r, gaps = run.requests, run.gaps
    drafted, accepted = int(r.drafted_tokens.sum()), int(r.accepted_tokens.sum())
    if drafted == 0:
        return {}
    return latency_statistics("step_itl", gaps.seconds, gaps.count, percentiles) | {
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance_rate": accepted / drafted,
        "tokens_per_decode": float(gaps.count @ gaps.tokens) / float(gaps.count.sum()),
    }


def engine_statistics(run: Run, percentiles: Sequence[float] = ()) -> Metrics:
    """Return the metrics of steps, batches and the KV cache during the measurement."""
    r, steps = run.requests, run.steps
    begin_s = float(r.arrival_s[r.of_stage(None)].min())
    if r.warmup.any():
        steps = StepRecords(steps.table[steps["start_s"] >= begin_s])
    duration = steps["duration_s"]
    busy = float(duration.sum())
    span = float(r.finish_s.max() - begin_s)
    groups = len(np.unique(steps["group"]))
    weights = duration / busy if busy else duration
    found: Metrics = {
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
    return latency_statistics("step", duration, None, percentiles) | found | _tier(run)


def _tier(run: Run) -> Metrics:
    """Return the metrics of a second KV tier; ``load_wait`` is over requests that loaded."""
    if run.tier is None:
        return {}
    waits = run.requests.load_wait_s[run.requests.load_wait_s > 0]
    waited = latency_statistics("load_wait", waits) if len(waits) else {}
    return waited | tier_statistics(run)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


# Checks whether a load exceeded the capacity of the server.

#: Maximum length of a steady queue when a stage's last request arrives, as a share of the stage's
#: requests.
_WAITING_SHARE = 0.05
_LEAST_WAITING = 8


def overload(run: Run) -> str | None:
    """Return a sentence with the evidence that the server could not keep up; None if it could."""
    lost = int((run.requests.status == "timed_out").sum())
    if lost:
        return f"overloaded: {lost:,} of {len(run.requests):,} requests timed out"
    return left_behind(run)


def left_behind(run: Run) -> str | None:
    """Return a sentence about the queue that remains when a load ends; None if there is none.

    The queue counts the requests of a stage that had not begun when the stage's last request, or
    last conversation, was due. In a steady state, this queue does not grow with the length of a
    stage. Under a concurrency limit the queue includes requests that wait to be sent. A closed loop
    has no queue.
    """
    waiting = [_waiting(run, stage) for stage in range(run.workload.stages)]
    worst = int(np.argmax([left / sent for left, sent in waiting]))
    left, sent = waiting[worst]
    if left < max(_WAITING_SHARE * sent, _LEAST_WAITING):
        return None
    of_stage = f" of stage {worst}" if run.workload.stages > 1 else ""
    most = run.workload.concurrency
    if most is not None:
        return (
            f"overloaded: {left:,} of {sent:,} requests{of_stage} were still waiting when the "
            f"last one was due, with at most {most:,} in flight"
        )
    return (
        f"overloaded: {left:,} of {sent:,} requests{of_stage} were still waiting when the last "
        f"one arrived, so latencies grow with the length of the load"
    )


def _waiting(run: Run, stage: int) -> tuple[int, int]:
    """Return the numbers of waiting and of due requests at the end of a stage.

    The end is the time at which the stage's last single request or conversation is due.
    """
    r, due_s = run.requests, _due_s(run)
    mine = (r.stage == stage) & (r.status != "rejected")
    starts_s = due_s[mine & run.workload.starts]
    if len(starts_s) == 0 or (run.workload.concurrency is not None and np.ptp(starts_s) == 0):
        return 0, 1
    mine &= due_s <= starts_s.max()
    return int((~(r.scheduled_s[mine] <= starts_s.max())).sum()), int(mine.sum())


def _due_s(run: Run) -> Float[np.ndarray, " requests"]:
    """Return when each request would be sent if there were no concurrency limit, in seconds.

    Later turns of a conversation keep their sending time.
    """
    work, sent_s = run.workload, run.requests.arrival_s
    if work.concurrency is None:
        return sent_s
    first = np.searchsorted(work.stage, np.arange(work.stages))
    opened_s = sent_s[first] - work.offset_s[first]
    opened_s = opened_s if work.stages_wait else np.array(work.stage_starts_s)
    return np.where(work.starts, opened_s[work.stage] + work.offset_s, sent_s)
