"""Measured times of requests outside engine steps, to which alpha is calibrated.

The times come from request journeys, which record the times of a request's events:

===========================  =======================================================================
phase                        measured
===========================  =======================================================================
``arrival_to_queue``         ARRIVED to QUEUED
``queue_to_schedule``        QUEUED to the first SCHEDULED
``schedule_to_first_token``  SCHEDULED to FIRST_TOKEN, minus the time of the prompt's steps
``output_token``             FIRST_TOKEN to FINISHED per further token, minus the mean step time
``completion``               FINISHED to DEPARTED
===========================  =======================================================================

The steps that compute a prompt take beta . features seconds, where beta are the coefficients of
step time and the features are those of the steps' batches. Beta is therefore calibrated first. A
request with an unknown batch is not used in ``schedule_to_first_token``. The mean step of the
decodes is computed from the starts of steps, interpolated linearly between sampled steps.

The engine drains its input queue between steps. ARRIVED to QUEUED is therefore the API server's
work plus the rest of the step in flight. Requests do not wait for an idle engine.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from pinn.engines.deployment import Deployment
from pinn.measurements.traces.interval_batches import IntervalBatches, is_ahead
from pinn.measurements.traces.trace_tables import TraceTables
from pinn.surrogate.deployment_features import padded_features
from pinn.surrogate.request_features import REQUEST_FEATURES, request_features
from pinn.surrogate.step_features import STEP_FEATURES, overlapped

PHASES = ("arrival_to_queue", "queue_to_schedule", "schedule_to_first_token", "output_token",
          "completion")  # fmt: skip

#: Minimum number of requests with complete traces (journeys) for a fit of up to ten request
#: coefficients (alphas), an assumption.
MIN_REQUESTS = 20

#: Maximum age, in seconds, of a server's last known state when a request arrives. Features from an
#: older state count as unknown. The value is an assumption: in a few hundred steps a queue can
#: build up and drain.
MAX_STATE_AGE_S = 5.0

#: Maximum number of chunks per prompt; a larger number indicates a faulty trace.
MAX_CHUNKS = 1000

_PROMPT = list(REQUEST_FEATURES).index("arrival_to_queue.prompt_token")

#: Assumed fractions of a step's time. ``_AT_WORK``: the engine counts as busy if it already had
#: requests this long before a new request was queued. ``_AT_ONCE``: a request counts as not waiting
#: if it is scheduled within this time.
_AT_WORK, _AT_ONCE = 0.1, 0.5

Rows = Float[np.ndarray, " requests"]


@dataclass(frozen=True)
class RequestRows:
    """Features and measured phases of ``n`` requests with complete journeys.

    Attributes:
        features: Features of each request, in the order of ``REQUEST_FEATURES``.
        waits: Duration in seconds of the step for part of which a phase waits, by phase: the step
            in flight on arrival (0 if there is none), or the step before the first token.
        own_steps: Summed step features of the steps that compute each prompt; 0 if unknown. A step
            takes the longer of kernel launching and GPU work according to beta; features of the
            shorter one are 0.
        targets: Measured time in seconds, by phase; NaN if a time is missing or not usable.
        part: Index into ``PARTS``: the part of the run's time in which each request arrived.
        met_queue: Whether each request had to queue, that is, the next scheduled step did not
            include it.
        is_ahead: Whether the engine scheduled steps before the previous step had ended.
    """

    features: Float[np.ndarray, "requests features"]
    waits: dict[str, Rows]
    own_steps: Float[np.ndarray, "requests step_features"]
    targets: dict[str, Rows]
    part: Int[np.ndarray, " requests"]
    met_queue: Bool[np.ndarray, " requests"]
    is_ahead: Bool[np.ndarray, " requests"]

    def __len__(self) -> int:
        return len(self.part)

    @property
    def mean_prompt_tokens(self) -> float:
        """Return the mean prompt length in tokens; 0 if there are no requests."""
        return float(self.features[:, _PROMPT].mean()) if len(self) else 0.0


def read_requests(
    traces: TraceTables, deployment: Deployment, beta: Float[np.ndarray, " step_features"]
) -> RequestRows:
    """Return a run's requests that have complete journeys and arrived in a known engine state.

    Args:
        traces: Ingested trace tables (steps, cycles, requests, snapshots).
        deployment: Deployment that was measured.
        beta: Calibrated step coefficients of the deployment.
    """
    everyone = table = traces.requests.to_pandas()
    if len(table):
        known = table["issue"].isna() & (table["state_age_s"] <= MAX_STATE_AGE_S)
        known &= table["state_step_s"].notna() & (table["preemptions"].fillna(0) == 0)
        table = table[known]
    steps = _Steps(traces, deployment, beta)
    ahead = np.isin(table["segment"], traces.steps["segment"][is_ahead(traces.steps)])
    own = steps.of_prompts(table)
    targets = _targets(table, traces.steps, own @ beta)
    features = request_features(table["prompt_tokens"].to_numpy(float))
    usual = table["state_step_s"].to_numpy(float)
    in_flight = steps.in_flight_s(table, everyone, ahead)
    if np.isfinite(in_flight).sum() >= MIN_REQUESTS:
        targets["arrival_to_queue"][np.isnan(in_flight)] = np.nan
    else:
        in_flight = usual
    waits = {"arrival_to_queue": np.nan_to_num(in_flight), "schedule_to_first_token": usual}
    part, met_queue = _parts(table), _met_queue(table)
    return RequestRows(features, waits, np.nan_to_num(own), targets, part, met_queue, ahead)


class _Steps:
    """Steps of a run while its requests are served, each with its batch if known."""

    def __init__(
        self,
        traces: TraceTables,
        deployment: Deployment,
        beta: Float[np.ndarray, " step_features"],
    ) -> None:
        self.beta = beta
        self.budget = deployment.recipe.token_budget
        self.deployment = deployment
        self.batches = IntervalBatches(traces, deployment)

    def of_prompts(self, table: pd.DataFrame) -> Float[np.ndarray, "requests step_features"]:
        """Return the summed features of each prompt's steps; NaN if a step's batch is unknown."""
        begun = _numbers(table, "scheduled_step")
        cached = np.nan_to_num(table["cached_tokens"].to_numpy(float))
        uncached = table["prompt_tokens"].to_numpy(float) - cached
        chunks = np.maximum(np.ceil(uncached / self.budget), 1)
        usable = np.flatnonzero(np.isfinite(begun) & (chunks <= MAX_CHUNKS))
        total = np.full((len(table), len(STEP_FEATURES)), np.nan)
        if len(usable):
            count = chunks[usable].astype(np.int64)
            first = np.cumsum(count) - count
            within = np.arange(count.sum()) - np.repeat(first, count)
            segment = table["segment"].to_numpy(np.int64)[np.repeat(usable, count)]
            step = begun[np.repeat(usable, count)].astype(np.int64) + within
            total[usable] = np.add.reduceat(self._features(segment, step)[0], first)
        return total

    def in_flight_s(self, table: pd.DataFrame, everyone: pd.DataFrame, ahead: np.ndarray) -> Rows:
        """Return the step time in seconds at each arrival: 0 if no step runs, NaN if unknown."""
        seconds, at = np.full(len(table), np.nan), _next_step(table)
        usable = np.flatnonzero(at >= 2)
        if not len(usable):
            return seconds
        segment, step = table["segment"].to_numpy(np.int64)[usable], at[usable].astype(np.int64)
        found = self._features(segment, step - 1 - ahead[usable])[0] @ self.beta
        decodes = self._features(segment, step)[1]
        before_s = table["queued_s"].to_numpy(float)[usable] - _AT_WORK * found
        at_work = _is_at_work(everyone, table["server"].to_numpy()[usable], before_s)
        seconds[usable] = np.where(at_work | (decodes > 0) | np.isnan(found), found, 0.0)
        return seconds

    def _features(
        self, segment: np.ndarray, step: np.ndarray
    ) -> tuple[Float[np.ndarray, "steps step_features"], Float[np.ndarray, " steps"]]:
        """Return the features and decode counts of steps; NaN if a step's batch is unknown.

        A step takes the longer of kernel launching and GPU work according to beta; features of the
        shorter one are 0.
        """
        sums, known = self.batches.at(segment, step)
        waited_for = overlapped(padded_features(self.deployment, sums), self.beta)
        features = np.where(known[:, None], waited_for, np.nan)
        return features, np.where(known, sums.decode_requests, np.nan)


def _numbers(table: pd.DataFrame, name: str) -> Rows:
    """Return a column of a table as floats; missing values become NaN."""
    return table[name].to_numpy(float, na_value=np.nan)


def _next_step(table: pd.DataFrame) -> Rows:
    """Return the number of the step that is scheduled after each request is queued, or NaN.

    Trace events number steps by the scheduler's counter, which may be one behind between two steps.
    The offset is the median difference for requests that were scheduled immediately.
    """
    queued, scheduled = _numbers(table, "queued_step"), _numbers(table, "scheduled_step")
    wait = _numbers(table, "queue_to_schedule_s")
    at_once = (wait < _AT_ONCE * table["state_step_s"].to_numpy(float)) & np.isfinite(queued)
    behind = np.median((scheduled - queued)[at_once]) if at_once.any() else np.nan
    return queued + behind


def _met_queue(table: pd.DataFrame) -> Bool[np.ndarray, " requests"]:
    """Return whether each request had to wait in the queue before it was scheduled.

    It waited if the next step did not include it. If the next step is unknown, it waited if the
    queue was not empty.
    """
    next_step = _next_step(table)
    waited = _numbers(table, "scheduled_step") != next_step
    deep = _numbers(table, "state_waiting_depth") > 0
    return np.where(np.isnan(next_step), deep, waited)


def _is_at_work(
    everyone: pd.DataFrame, server: np.ndarray, at_s: np.ndarray
) -> Bool[np.ndarray, " moments"]:
    """Return whether a server had unfinished requests at each time, according to their journeys.

    ``everyone`` contains the journeys of all requests.
    """
    found = np.zeros(len(at_s), dtype=bool)
    for number, of_server in everyone.groupby("server"):
        mine, whole = server == number, of_server.dropna(subset=["queued_s", "finished_s"])
        ends = (np.sort(whole[name].to_numpy(float)) for name in ("queued_s", "finished_s"))
        came, left = (np.searchsorted(end, at_s[mine]) for end in ends)
        found[mine] = came > left
    return found


def _targets(table: pd.DataFrame, steps: pd.DataFrame, own_s: Rows) -> dict[str, Rows]:
    first, last = _numbers(table, "first_token_step"), _numbers(table, "finished_step")
    start = partial(_start_s, steps, table["segment"].to_numpy())
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_step = (start(last) - start(first)) / (last - first)
    seconds = {phase: _numbers(table, f"{phase}_s") for phase in PHASES}
    seconds["schedule_to_first_token"] = seconds["schedule_to_first_token"] - own_s
    seconds["output_token"] = seconds["output_token"] - mean_step
    return {k: np.where(np.isfinite(v), v, np.nan) for k, v in seconds.items()}


def _start_s(steps: pd.DataFrame, segment: np.ndarray, step: Rows) -> Rows:
    """Return the start times of steps in seconds; NaN outside the sampled steps of a segment.

    Start times between two sampled steps are interpolated.
    """
    found = np.full(len(step), np.nan)
    for number, of_segment in steps.groupby("segment"):
        mine = segment == number
        known, begun = (of_segment[name].to_numpy(float) for name in ("step_id", "start_s"))
        found[mine] = np.interp(step[mine], known, begun, left=np.nan, right=np.nan)
    return found


def _parts(table: pd.DataFrame) -> np.ndarray:
    """Return the part of the run's time (60/20/20) in which each request arrived, as an index."""
    arrived = table["arrived_s"].fillna(table["queued_s"])
    groups = arrived.groupby(table["segment"])
    begin, end = groups.transform("min"), groups.transform("max")
    share = ((arrived - begin) / (end - begin).where(end > begin, 1)).to_numpy()
    return np.digitize(share, (0.6, 0.8))
