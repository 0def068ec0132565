"""Alpha of a server, fitted to what its requests' journeys show outside the steps.

===========================  =======================================================================
phase                        measured
===========================  =======================================================================
``arrival_to_queue``         ARRIVED to QUEUED
``queue_to_schedule``        QUEUED to the first SCHEDULED
``schedule_to_first_token``  SCHEDULED to FIRST_TOKEN, less the steps that work on the prompt
``output_token``             FIRST_TOKEN to FINISHED per further token, less the mean step meanwhile
``completion``               FINISHED to DEPARTED
===========================  =======================================================================

The steps that work on a prompt take beta x features of their batches, so beta comes first, and a
request one of whose batches is not known teaches nothing there. (Times between sampled steps would
not do: in a window, a step with a prompt counts as an average one.) The mean step of the decodes is
read off the starts of steps; those not sampled lie on straight lines between the others.

Preemptions are too rare to fit, and flags do not vary inside a run: their alphas stay as they are.
Nor does a simulation use the alphas of the queue, since there the wait for capacity emerges.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from pinn.data.traces.interval_batches import IntervalBatches
from pinn.data.traces.trace_tables import TraceTables
from pinn.physics.costs import step_costs
from pinn.physics.request import REQUEST_FEATURES, RequestState, phase_mask, request_features
from pinn.physics.step import step_features
from pinn.specs.deployment import Deployment
from pinn.training.calibration.intervals import PARTS
from pinn.training.calibration.offsets import Prior, choose_strength, fit_totals

PHASES = (
    "arrival_to_queue",
    "queue_to_schedule",
    "schedule_to_first_token",
    "output_token",
    "completion",
)

#: Fewer whole requests than this teach nothing: an assumption, some for each of up to ten alphas.
MIN_REQUESTS = 20

#: Where the state before a request is older than this, its features are unknown: an assumption, a
#: few hundred steps, in which a queue can come and go.
MAX_STATE_AGE_S = 5.0

#: More chunks of one prompt than this are a fault of the traces.
MAX_CHUNKS = 1000

#: The alphas of the queue.
_QUEUE = [i for i, name in enumerate(REQUEST_FEATURES) if ".queue_share" in name]

Rows = Float[np.ndarray, " requests"]


@dataclass(frozen=True)
class RequestRows:
    """``n`` whole requests of a run.

    Attributes:
        features: Request features; the alphas' in the order of the registry.
        targets: Phase -> seconds; NaN where a moment is missing.
        part: Index into ``PARTS``: where in the run's time it arrived.
        cached_share: Share of the prompt that the prefix cache held.
    """

    features: Float[np.ndarray, "requests features"]
    targets: dict[str, Rows]
    part: Int[np.ndarray, " requests"]
    cached_share: Rows

    def __len__(self) -> int:
        return len(self.part)


@dataclass(frozen=True)
class AlphaCalibration:
    """A calibrated alpha.

    Attributes:
        base: Alpha before.
        alpha: Alpha after.
        taught: Which alphas the requests taught.
        errors: Per phase, the errors of :func:`phase_errors`.
    """

    base: Float[np.ndarray, " features"]
    alpha: Float[np.ndarray, " features"]
    taught: Bool[np.ndarray, " features"]
    errors: pd.DataFrame = field(default_factory=pd.DataFrame)


def read_requests(
    traces: TraceTables, deployment: Deployment, beta: Float[np.ndarray, " step_features"]
) -> RequestRows:
    """The whole requests of a run that met a known state.

    Args:
        traces: Canonical tables.
        deployment: What they were measured on.
        beta: Its step coefficients, calibrated.
    """
    table = traces.requests.to_pandas()
    if len(table):
        known = table["issue"].isna() & (table["state_age_s"] <= MAX_STATE_AGE_S)
        known &= table["state_step_s"].notna() & (table["preemptions"].fillna(0) == 0)
        table = table[known]
    serving, recipe = deployment.serving, deployment.recipe
    zero, one = np.zeros(len(table)), np.ones(len(table))
    prompt = table["prompt_tokens"].to_numpy(float)
    longest = serving.max_model_len or deployment.model.max_position
    state = RequestState(
        prompt_tokens=prompt,
        step_time_s=table["state_step_s"].to_numpy(float),
        queue_share=np.nan_to_num(table["state_waiting_depth"].to_numpy(float))
        / recipe.max_requests,
        kv_usage=np.nan_to_num(table["state_kv_usage"].to_numpy(float)),
        prompt_share=prompt / longest,
        inverse_tensor_parallel=one / serving.tensor_parallel_size,
        prefix_caching=one * recipe.prefix_caching,
        chunked_prefill=one * recipe.chunked_prefill,
        recomputed_tokens=zero,
    )
    cached = np.nan_to_num(table["cached_tokens"].to_numpy(float))
    return RequestRows(
        request_features(state),
        _targets(table, traces.steps, _own_steps_s(traces, deployment, beta, table)),
        _parts(table),
        cached / np.maximum(prompt, 1),
    )


def _own_steps_s(
    traces: TraceTables, deployment: Deployment, beta: np.ndarray, table: pd.DataFrame
) -> Rows:
    """Seconds of the steps that work on each prompt; NaN where a batch of them is not known."""
    begun = table["scheduled_step"].to_numpy(float, na_value=np.nan)
    cached = np.nan_to_num(table["cached_tokens"].to_numpy(float))
    uncached = table["prompt_tokens"].to_numpy(float) - cached
    chunks = np.maximum(np.ceil(uncached / deployment.recipe.token_budget), 1)
    usable = np.flatnonzero(np.isfinite(begun) & (chunks <= MAX_CHUNKS))
    total = np.full(len(table), np.nan)
    if not len(usable):
        return total
    count = chunks[usable].astype(np.int64)
    owner = np.repeat(np.arange(len(usable)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    segment = table["segment"].to_numpy(np.int64)[usable][owner]
    batches = IntervalBatches(traces, deployment)
    sums, known = batches.at(segment, begun[usable][owner].astype(np.int64) + within)
    seconds = step_features(step_costs([deployment]), sums) @ beta
    total[usable] = np.bincount(owner, np.where(known, seconds, np.nan))
    return total


def _targets(table: pd.DataFrame, steps: pd.DataFrame, own_s: Rows) -> dict[str, Rows]:
    first, last = (
        table[f"{name}_step"].to_numpy(float, na_value=np.nan)
        for name in ("first_token", "finished")
    )
    segment = table["segment"].to_numpy()

    def start(step: Rows) -> Rows:
        return _start_s(steps, segment, step)

    with np.errstate(invalid="ignore", divide="ignore"):
        mean_step = (start(last) - start(first)) / (last - first)
    seconds = {phase: table[f"{phase}_s"].to_numpy(float, na_value=np.nan) for phase in PHASES}
    seconds["schedule_to_first_token"] = seconds["schedule_to_first_token"] - own_s
    seconds["output_token"] = seconds["output_token"] - mean_step
    return {k: np.where(np.isfinite(v), v, np.nan) for k, v in seconds.items()}


def _start_s(steps: pd.DataFrame, segment: np.ndarray, step: Rows) -> Rows:
    """When steps began; NaN beyond the sampled ones of their segment."""
    found = np.full(len(step), np.nan)
    for number, of_segment in steps.groupby("segment"):
        mine = segment == number
        found[mine] = np.interp(
            step[mine],
            of_segment["step_id"].to_numpy(float),
            of_segment["start_s"].to_numpy(float),
            left=np.nan,
            right=np.nan,
        )
    return found


def _parts(table: pd.DataFrame) -> np.ndarray:
    """60/20/20 by arrival, as a share of each segment's span."""
    arrived = table["arrived_s"].fillna(table["queued_s"])
    groups = arrived.groupby(table["segment"])
    begin, end = groups.transform("min"), groups.transform("max")
    share = ((arrived - begin) / (end - begin).where(end > begin, 1)).to_numpy()
    return np.digitize(share, (0.6, 0.8))


def calibrate_alpha(rows: RequestRows, base: Float[np.ndarray, " features"]) -> AlphaCalibration:
    """Fit residual offsets phase by phase to the requests of the first 60 % of time.

    A phase with fewer than ``MIN_REQUESTS`` of them keeps its base. The alphas of the queue are
    fitted last, to the requests that met one, with the others as the calm requests taught them: a
    wait for capacity must not look like work of the scheduler. Residuals are measured in the
    phase's mean time, not in each request's own, which may be nearly nothing.
    """
    alpha, taught = base.copy(), np.zeros(len(base), dtype=bool)
    queue_share = rows.features[:, _QUEUE].max(axis=1)
    for phase in PHASES:
        known = (rows.part == 0) & np.isfinite(rows.targets[phase])
        of_queue = np.isin(np.arange(len(base)), _QUEUE)
        has_queue = phase == "queue_to_schedule"
        stages = [(known & (queue_share == 0), ~of_queue), (known & (queue_share > 0), of_queue)]
        for chosen, free in stages if has_queue else [(known, ~of_queue)]:
            if chosen.sum() >= MIN_REQUESTS:
                features, seconds = rows.features[chosen], rows.targets[phase][chosen]
                fitted = _fit_phase(features, seconds, phase, alpha, free)
                taught |= fitted.taught
                alpha = fitted.alpha
    result = AlphaCalibration(base, alpha, taught)
    return AlphaCalibration(base, alpha, taught, phase_errors(rows, result))


def _fit_phase(
    features: np.ndarray, seconds: Rows, phase: str, base: np.ndarray, free: np.ndarray
) -> AlphaCalibration:
    """Offsets of a phase's free alphas; the others keep their base."""
    scale = np.full(len(seconds), max(float(np.mean(np.abs(seconds))), 1e-6))
    reach = np.maximum(base, _reach(features, scale))
    spread = np.where(_varying(features, phase) & free, reach, 0)
    masked = features * phase_mask(phase)
    prior = Prior(base, np.zeros(len(base)), spread)
    strength = choose_strength(masked, seconds, prior, scale)
    found = fit_totals(masked, seconds, prior, strength, scale)
    return AlphaCalibration(base, np.where(spread > 0, found, base), spread > 0)


def _varying(features: np.ndarray, phase: str) -> Bool[np.ndarray, " features"]:
    """The phase's constant and the features of it that vary: a flag never does inside a run."""
    constant = np.array([name.endswith(".constant") for name in REQUEST_FEATURES])
    return (phase_mask(phase) > 0) & (constant | (np.ptp(features, axis=0) > 0))


def _reach(features: np.ndarray, scale: Rows) -> np.ndarray:
    """What each alpha is where its feature alone makes the phase's median time."""
    size = np.sqrt((features**2).mean(axis=0))
    return np.where(size > 0, scale[0] / np.maximum(size, 1e-300), 0)


def phase_errors(rows: RequestRows, found: AlphaCalibration) -> pd.DataFrame:
    """Errors of each phase on the last 20 % of time, in seconds, beside simpler ways.

    The others are fitted to the same requests: a line in the prompt's length, and the feature sets
    of the hierarchical decomposition with and without prefix-cache hits.

    Returns:
        Columns ``phase``, ``method``, ``n``, ``median_s`` (measured) and ``error_s`` (median
        absolute).
    """
    names = list(REQUEST_FEATURES)
    queue = [names.index(f"queue_to_schedule.{n}") for n in _HIERARCHICAL]
    prompt = names.index("arrival_to_queue.prompt_token")
    one = np.ones((len(rows), 1))
    designs = {
        "line in the prompt": np.hstack([one, rows.features[:, [prompt]]]),
        "hierarchical set": np.hstack([one, rows.features[:, queue]]),
        "the same and cache hits": np.hstack(
            [one, rows.features[:, queue], rows.cached_share[:, None]]
        ),
    }
    table = []
    for phase in PHASES:
        seconds = rows.targets[phase]
        train = (rows.part == 0) & np.isfinite(seconds)
        test = (rows.part == PARTS.index("last 20 %")) & np.isfinite(seconds)
        if train.sum() < MIN_REQUESTS or not test.any():
            continue
        mask = phase_mask(phase)
        predicted = {
            "before": rows.features @ (found.base * mask),
            "calibrated": rows.features @ (found.alpha * mask),
        }
        for name, design in designs.items():
            solution = np.linalg.lstsq(design[train], seconds[train], rcond=None)[0]
            predicted[name] = design @ solution
        for name, times in predicted.items():
            table.append(
                {
                    "phase": phase,
                    "method": name,
                    "n": int(test.sum()),
                    "median_s": float(np.median(seconds[test])),
                    "error_s": float(np.median(np.abs(times - seconds)[test])),
                }
            )
    return pd.DataFrame(table)


_HIERARCHICAL = (
    "queue_share",
    "kv_usage",
    "prompt_share",
    "inverse_tensor_parallel",
    "prefix_caching",
    "chunked_prefill",
    "queue_share_squared",
)
