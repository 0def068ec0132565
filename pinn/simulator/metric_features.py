"""Metrics of a run as functions of its step features."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Bool, Float

from pinn.errors import PinnError
from pinn.physics import batch_sums
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run, StepRecords
from pinn.surrogate.group_features import group_features
from pinn.surrogate.request_features import REQUEST_FEATURES, phase_mask, request_features
from pinn.surrogate.step_features import STEP_FEATURES, overlapped

# Metrics of a load stage as reported by clients, and the requests that determine each metric.

#: Name that selects the whole run instead of a stage.
WHOLE_RUN = "all"

#: A percentile is represented by the requests within this many percentage points of it.
_BAND_PERCENT = 0.5


def _of_stage(run: Run, stage: str) -> Bool[np.ndarray, " requests"]:
    return run.requests.of_stage(None if stage == WHOLE_RUN else int(stage))


def figure_seconds(run: Run, stage: str, figure: str) -> float:
    """Return one latency metric over all finished requests of a stage, in seconds.

    Args:
        run: Run of the simulator.
        stage: Stage number ``0``, ``1``, ..., or ``all``.
        figure: ``e2e`` or ``ttft`` with the suffix ``_mean_s`` or ``_pNN_s``; or ``itl_mean_s``,
            which is (E2E - TTFT) / (output tokens - 1), as load generators calculate it.

    Returns:
        The metric in seconds; NaN if no request finished.

    Raises:
        PinnError: If the metric is unknown.
    """
    mine = _of_stage(run, stage) & run.requests.finished
    if not mine.any():
        return float("nan")
    seconds, percent = _read(run, figure)
    of_mine = seconds[mine]
    return float(of_mine.mean() if percent is None else np.percentile(of_mine, percent))


def figure_requests(run: Run, stage: str, figure: str) -> Bool[np.ndarray, " requests"]:
    """Return a mask of the requests whose mean latency represents the metric.

    For a mean, these are all finished requests of the stage; for a percentile, the requests whose
    latencies are close to it.
    """
    mine = _of_stage(run, stage) & run.requests.finished
    seconds, percent = _read(run, figure)
    if percent is None or not mine.any():
        return mine
    band = [max(percent - _BAND_PERCENT, 0), min(percent + _BAND_PERCENT, 100)]
    low, high = np.percentile(seconds[mine], band)
    around = mine & (seconds >= low) & (seconds <= high)
    if around.any():
        return around
    # If no request is within the band, use the two requests closest to the percentile.
    low = np.percentile(seconds[mine], band[0], method="lower")
    high = np.percentile(seconds[mine], band[1], method="higher")
    return mine & (seconds >= low) & (seconds <= high)


def failed_share(run: Run, stage: str) -> float:
    """Return the share of a stage's requests that timed out or were rejected."""
    return float(1 - run.requests.finished[_of_stage(run, stage)].mean())


def _read(run: Run, figure: str) -> tuple[Float[np.ndarray, " requests"], int | None]:
    """Return a latency of each request in seconds, and the metric's percentile or None (mean)."""
    r = run.requests
    if figure == "itl_mean_s":
        return (r.e2e_s - r.ttft_s) / r.token_gaps, None
    asked = re.match(r"(?P<kind>e2e|ttft)_(mean|p(?P<percent>\d+))(_|$)", figure)
    if asked is None:
        known = "e2e_ and ttft_ with mean_s, p90_s, p99_s, ..., and itl_mean_s"
        raise PinnError(f"the metric {figure!r} is unknown: use {known}")
    percent = asked["percent"]
    return getattr(r, f"{asked['kind']}_s"), None if percent is None else int(percent)


# Step features summed over steps and over requests, for a refit of their coefficients (beta).
#
# If the batches do not change, all latencies that clients see are linear in beta. A request's time
# from the engine's input queue to its first token is the sum of the steps in between, with the step
# in flight at its arrival weighted by its remaining share.

_CHUNK_STEPS = 1 << 15

#: Request coefficients (alphas) of the API server's work, in the order of
#: ``RequestRecords.handed_work``.
_WORK = ("arrival_to_queue.constant", "arrival_to_queue.prompt_token", "output_token.constant")
_SERVED = [list(REQUEST_FEATURES).index(name) for name in _WORK]


def features_spent(
    latency: LinearLatency, table: Float[np.ndarray, "steps columns"]
) -> Float[np.ndarray, "moments features"]:
    """Return cumulative sums of step features.

    Row i is the sum over the first i steps, so that the last row is the sum over all steps. Kernel
    launching and GPU work overlap, so the features of the shorter one count as 0.
    """
    spent = np.zeros((len(table) + 1, len(STEP_FEATURES)))
    for begin in range(0, len(table), _CHUNK_STEPS):
        steps = StepRecords(table[begin : begin + _CHUNK_STEPS])
        found = group_features(latency.deployment, steps.sums, steps.shared_sums)
        spent[begin + 1 :][: len(steps)] = overlapped(found, latency.beta)
    return np.cumsum(spent, axis=0, out=spent)


def request_feature_sums(
    latency: LinearLatency, run: Run
) -> tuple[Float[np.ndarray, "requests features"], Float[np.ndarray, "requests features"]]:
    """Return each request's sums of step features, up to its first and up to its last token.

    Without pipeline stages, and with the engine in its own process, the results satisfy

    - ``first @ latency.beta = engine_first_token_s - handed_s``
    - ``last @ latency.beta = engine_finish_s - handed_s``

    The difference of ``last`` and ``first``, divided by the number of ITL gaps, yields the engine's
    part of the mean ITL. Rows are NaN for requests that did not receive the token.

    Returns:
        Feature sums from the engine's input queue to the end of the first token's step
        (``first``), and to the end of the last token's step (``last``).
    """
    requests = run.requests
    first, last = np.full((2, len(requests), len(STEP_FEATURES)), np.nan)
    groups = run.steps["group"]
    for group in np.unique(groups):
        mine = requests.replica * run.groups // run.replicas == group
        table = run.steps.table[groups == group]
        moments = np.stack(
            [requests.handed_s, requests.engine_first_token_s, requests.engine_finish_s]
        )[:, mine]
        handed, at_first, at_last = _integral(latency, table, moments)
        first[mine], last[mine] = at_first - handed, at_last - handed
    return first, last


def request_delay_features(
    run: Run,
) -> tuple[Float[np.ndarray, "requests features"], Float[np.ndarray, "requests features"]]:
    """Return the derivatives of each request's TTFT and E2E with respect to each alpha coefficient.

    A task of the API server waits for all work since the server was last idle, so this work counts.
    If no task has to wait, ``first @ alpha`` is the part of TTFT outside the engine, and ``last @
    alpha`` the part of E2E outside the engine. ``request_feature_sums`` gives the parts inside the
    engine.

    Returns:
        Request features up to the first token (``first``), and up to the end (``last``).
    """
    r = run.requests
    once = request_features(r.prompt_tokens)
    start = phase_mask("queue_to_schedule") + phase_mask("schedule_to_first_token")
    before, preemption = once * start, once * phase_mask("preemption")
    before[:, _SERVED] = r.handed_work
    first = before + preemption * r.early_preemptions[:, None]
    first[:, _SERVED] += r.first_work
    last = before + once * phase_mask("completion") + preemption * r.preemptions[:, None]
    last[:, _SERVED] += r.last_work
    alone = run.workload.output_tokens == 0
    return np.where(alone[:, None], last, first), last


def _integral(
    latency: LinearLatency, table: Float[np.ndarray, "steps columns"], moments: np.ndarray
) -> Float[np.ndarray, "moments requests features"]:
    """Return step features summed up to each time (s); sums grow linearly within a step."""
    start, duration = table[:, 0], table[:, 1]
    step = np.clip(np.searchsorted(start, moments, side="right") - 1, 0, None)
    share = np.clip((moments - start[step]) / duration[step], 0.0, 1.0)
    before = features_spent(latency, table)
    spent = before[step] + share[..., None] * (before[step + 1] - before[step])
    spent[np.isnan(moments)] = np.nan
    return spent


# Steps that determine a run's mean TPOT and TTFT, each with its share of the mean.
#
# ``mean TPOT = sum(tpot_share x step time)`` and ``mean TTFT = sum(ttft_share x step time)``,
# without the API server's work. For the batches of the run, both are linear in beta. The API
# server's work is added to TTFT. For TPOT, the difference of the API server's work on the last and
# the first token is added, divided by the number of gaps. Other formulas for step times can replace
# beta in these sums.


@dataclass(frozen=True)
class MeanSteps:
    """Groups of consecutive steps with similar batches.

    Attributes:
        sums: Batch sums of each group's mean batch on the slowest data-parallel rank; each field
            has shape ``[groups]``.
        shared: Batch sums of the experts' work, which ranks share, per rank and group of steps.
        tpot_share: Weight of each group for mean TPOT: ``tpot_share @ values`` averages a value
            per step over the ITL gaps.
        ttft_share: Weight of each group for mean TTFT, averaged over requests.
    """

    sums: batch_sums.BatchSums
    shared: batch_sums.BatchSums
    tpot_share: Float[np.ndarray, " groups"]
    ttft_share: Float[np.ndarray, " groups"]


def mean_steps(run: Run) -> MeanSteps:
    """Group a run's steps, and compute the weight of each group in mean TPOT and mean TTFT.

    The run must have one replica and no pipeline stages. Unfinished requests are excluded, as in a
    client's means. Requests with one token have no TPOT.
    """
    requests, start, served = run.requests, run.steps["start_s"], run.requests.finished
    end = start + run.steps["duration_s"]
    first, last = (
        np.searchsorted(start, moment[served], side="left")
        for moment in (requests.engine_first_token_s, requests.engine_finish_s)
    )
    gaps = requests.output_tokens[served] - 1.0
    several = gaps > 0
    tpot = _spread(len(start), first[several], last[several], 1 / gaps[several])
    tpot /= max(int(several.sum()), 1)
    handed = requests.handed_s[served]
    met = np.clip(np.searchsorted(start, handed, side="right") - 1, 0, None)
    left = np.clip((end[met] - handed) / (end[met] - start[met]), 0.0, 1.0)
    ttft = _spread(len(start), met + 1, np.maximum(first, met + 1), np.ones(len(met)))
    np.add.at(ttft, met, left)
    return _grouped(run, tpot, ttft / max(int(served.sum()), 1))


def _spread(
    steps: int, begin: np.ndarray, end: np.ndarray, amount: np.ndarray
) -> Float[np.ndarray, " steps"]:
    """Return the sum of the amounts in each step.

    The i-th amount counts in the steps ``begin[i]`` to ``end[i] - 1``.
    """
    change = np.zeros(steps + 1)
    np.add.at(change, begin, amount)
    np.add.at(change, end, -amount)
    return np.cumsum(change)[:-1]


def _grouped(run: Run, tpot: np.ndarray, ttft: np.ndarray) -> MeanSteps:
    """Group consecutive decode-only steps with equal numbers of requests; sum weights by group.

    Each step with prompts is a group of its own.
    """
    sums = run.steps.sums
    prompts, fresh = sums.prefill_requests > 0, np.ones(len(run.steps), dtype=bool)
    fresh[1:] = (np.diff(sums.decode_requests) != 0) | prompts[1:] | prompts[:-1]
    begin = np.flatnonzero(fresh)
    size = np.diff([*begin, len(fresh)])
    return MeanSteps(
        _means(sums, begin, size),
        _means(run.steps.shared_sums, begin, size),
        np.add.reduceat(tpot, begin),
        np.add.reduceat(ttft, begin),
    )


def _means(sums: batch_sums.BatchSums, begin: np.ndarray, size: np.ndarray) -> batch_sums.BatchSums:
    columns = (getattr(sums, f.name) for f in fields(batch_sums.BatchSums))
    return batch_sums.BatchSums(*(np.add.reduceat(column, begin) / size for column in columns))


# Metrics of a run as dot products of features and coefficients.


def figure_features(
    latency: LinearLatency, run: Run, figures: Sequence[tuple[str, str]]
) -> tuple[Float[np.ndarray, "figures step_features"], Float[np.ndarray, "figures alphas"]]:
    """Return the mean step and request features of the requests that determine each metric.

    Suppose that the coefficients of the step features (beta) or of the request features (alpha)
    change, but batches and the API server's order of work do not. A metric then changes by as much
    as the dot products ``beta . step features + alpha . request features``. A percentile changes by
    as much as the mean of the requests around it.

    Args:
        latency: Latency model of the run; its beta decides whether a step waits for launching or
            for the GPU.
        run: Run of the simulator.
        figures: (stage, metric) pairs, see :func:`figure_seconds`.
    """
    first, last = request_feature_sums(latency, run)
    delay_first, delay_last = request_delay_features(run)
    gaps = run.requests.token_gaps[:, None]
    pairs = {
        "ttft": (first, delay_first),
        "e2e": (last, delay_last),
        "itl": ((last - first) / gaps, (delay_last - delay_first) / gaps),
    }
    means = []
    for stage, figure in figures:
        of_steps, of_request = pairs[figure.partition("_")[0]]
        # A request with a single output token has no ITL.
        mine = figure_requests(run, stage, figure) & ~np.isnan(of_steps[:, 0])
        means.append((of_steps[mine].mean(0), of_request[mine].mean(0)))
    step, request = (np.array(column) for column in zip(*means, strict=True))
    return step, request
