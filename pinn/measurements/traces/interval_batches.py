"""Batches in intervals between sampled steps of a trace, and the split of intervals by time."""

from dataclasses import fields

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from pinn.engines.deployment import Deployment
from pinn.measurements.traces import batches
from pinn.measurements.traces.batches import JourneyBatches, WeightedBatches
from pinn.measurements.traces.cycles import ENDS, KNOWN, journeys_by_segment
from pinn.measurements.traces.steps import JOURNEY, MAX_STEP_ID, SNAPSHOT
from pinn.measurements.traces.trace_tables import TraceTables
from pinn.physics.batch_sums import BatchSums

# Steps that are scheduled while the previous step runs, recognized from step summaries alone.
#
# With asynchronous scheduling, vLLM's default, step j is scheduled while step j - 1 still runs.
# This has two consequences for summaries:
#
# - The scheduler handles step j + 1 when step j - 1 has ended. The time between the starts of steps
#   j and j + 1 in the trace is therefore the duration of step j - 1.
# - A request whose prompt ended in step j - 1 has no output yet when step j is scheduled. Step j
#   therefore counts it again as a prefill of one token, an *echo*, although it decodes there.
#
# Echoes thus reveal the number of prefills of the previous step, but not their tokens.

#: Minimum evidence that steps are scheduled ahead, from pairs of consecutive sampled steps whose
#: first step has one prefill of several tokens: number of pairs, and share of pairs whose second
#: step has an echo. The share is below 1, because a prompt of many chunks has only one echo. Both
#: values are assumptions; in the published trace of the evaluation data, every pair has an echo.
MIN_PAIRS = 10
MIN_SHARE = 0.5


def is_ahead(steps: pd.DataFrame) -> Bool[np.ndarray, " steps"]:
    """Return whether each step is scheduled while the previous one runs; constant within a segment.

    Args:
        steps: Table of sampled steps, in order.
    """
    segment = steps["segment"].to_numpy()
    requests, tokens = (steps[f"prefill_{c}"].to_numpy() for c in ("requests", "tokens"))
    first = np.flatnonzero(follows(steps)) - 1
    first = first[(requests[first] == 1) & (tokens[first] > 1)]
    echoed = (requests[first + 1] == 1) & (tokens[first + 1] == 1)
    pairs = pd.Series(echoed).groupby(segment[first]).agg(["size", "mean"])
    found = pairs.index[(pairs["size"] >= MIN_PAIRS) & (pairs["mean"] > MIN_SHARE)]
    return np.isin(segment, found)


def follows(steps: pd.DataFrame) -> Bool[np.ndarray, " steps"]:
    """Return whether each step directly follows the step in the row before."""
    found = np.zeros(len(steps), dtype=bool)
    same = np.diff(steps["segment"].to_numpy()) == 0
    found[1:] = same & (np.diff(steps["step_id"].to_numpy()) == 1)
    return found


def own_work(steps: pd.DataFrame) -> pd.DataFrame:
    """Count echoes (requests counted again as prefills of 1 token) of steps as decodes.

    If a step has more prefill tokens than prefills, one prefill is assumed to be real and all
    others to be echoes. Otherwise all its prefills are echoes.

    Args:
        steps: Table of sampled steps that are scheduled ahead.
    """
    echoes = _echoes(steps)
    return steps.assign(
        prefill_requests=steps["prefill_requests"].to_numpy(float) - echoes,
        prefill_tokens=steps["prefill_tokens"].to_numpy(float) - echoes,
        decode_requests=steps["decode_requests"].to_numpy(float) + echoes,
    )


def work_before(steps: pd.DataFrame, chunk_tokens: float) -> pd.DataFrame:
    """Estimate the batch of the step before each step, in which the step's echoes were prefills.

    An echo is a request that is counted again as a prefill of one token, because its prompt ended
    one step earlier. The number of decodes is assumed to be equal in both steps.

    Args:
        steps: Table of sampled steps that are scheduled ahead.
        chunk_tokens: Mean number of tokens of real prefills.
    """
    echoes = _echoes(steps)
    return steps.assign(prefill_requests=echoes, prefill_tokens=echoes * chunk_tokens)


def mean_chunk(steps: pd.DataFrame) -> float:
    """Return the mean number of tokens of real prefills (not echoes); 1 if there are none."""
    own = own_work(steps)
    requests = float(own["prefill_requests"].sum())
    return float(own["prefill_tokens"].sum()) / requests if requests else 1.0


def _echoes(steps: pd.DataFrame) -> Float[np.ndarray, " steps"]:
    requests = steps["prefill_requests"].to_numpy(float)
    has_real = steps["prefill_tokens"].to_numpy(float) > requests
    return np.where(has_real, np.maximum(requests - 1, 0), requests)


# Splits of a run by time, because later steps must not influence predictions of earlier ones.


def temporal_split(cycles: pd.DataFrame) -> list[Int[np.ndarray, " part"]]:
    """Return the rows of usable intervals in the first 60 %, next 20 % and last 20 % of the time.

    Each segment of the trace is divided by its own time, so that every segment contributes to all
    three parts. An interval that crosses a boundary between parts is dropped.

    Args:
        cycles: Table of intervals between sampled steps.
    """
    groups = cycles.groupby("segment")["start_s"]
    begin, span = groups.transform("min"), groups.transform("max") - groups.transform("min")
    share = ((cycles["start_s"] - begin) / span.where(span > 0, 1)).to_numpy()
    length = cycles["step_s"] * cycles["steps"].astype("float64")
    end = ((cycles["start_s"] + length - begin) / span.where(span > 0, 1)).to_numpy()
    use = cycles["set_aside"].isna().to_numpy()
    edges = ((0.0, 0.6), (0.6, 0.8), (0.8, np.inf))
    return [np.flatnonzero(use & (share >= a) & (share < b) & ~(end > b + 1e-9)) for a, b in edges]


# Batches of selected intervals, as weighted sums for a linear fit.
#
# If steps are scheduled ahead (see ``is_ahead``), an interval runs the batches that were scheduled
# one step earlier. A single cycle therefore runs the batch of the preceding step, which is known if
# that step was sampled. An interval of several steps (a window) is represented by the batches at
# its ends and right before its ends.


class IntervalBatches:
    """Batches of the intervals in a folder of trace tables."""

    def __init__(self, traces: TraceTables, deployment: Deployment) -> None:
        """Reconstruct the batches determined by the event records of requests.

        Args:
            traces: Folder of trace tables.
            deployment: Deployment that was traced.
        """
        self._steps, self._cycles = traces.steps, traces.cycles
        self._window = deployment.model.window_tokens
        self._block_size = deployment.recipe.block_tokens
        self._ahead = is_ahead(self._steps)
        self._follows = follows(self._steps)
        self._chunk = mean_chunk(self._steps[self._ahead]) if self._ahead.any() else 1.0
        self._snapshots = traces.snapshots if (self._steps["knowledge"] == SNAPSHOT).any() else None
        self._journeys: dict[int, JourneyBatches] = {}
        has_journeys = (self._steps["knowledge"] == JOURNEY).any()
        if has_journeys or (self._cycles["batches"] == KNOWN).any():
            budget = deployment.recipe.token_budget
            self._journeys = journeys_by_segment(traces.requests, self._steps, budget)

    def of(self, rows: Int[np.ndarray, " intervals"]) -> WeightedBatches:
        """Return the weighted batches of intervals between sampled steps.

        Args:
            rows: Rows of the cycle table, none of which is the last of its segment.

        Returns:
            Weighted batches; ``owner`` is the index into ``rows``, and the weights of an interval
            add up to its steps.
        """
        rows = np.asarray(rows)
        level = self._cycles["batches"].to_numpy()[rows]
        steps = self._cycles["steps"].to_numpy(float, na_value=np.nan)[rows]
        parts = [self._known(rows, np.flatnonzero(level == KNOWN))]
        ahead, single, ends = self._ahead[rows], (level != KNOWN) & (level != ENDS), level == ENDS
        now, before = np.flatnonzero(single & ~ahead), np.flatnonzero(single & ahead)
        parts.append(WeightedBatches(self.of_steps(rows[now]), now, np.ones(len(now))))
        parts.append(WeightedBatches(self._before(rows[before]), before, np.ones(len(before))))
        share = np.where(ahead, steps / 4, steps / 2)
        both, also = np.flatnonzero(ends), np.flatnonzero(ends & ahead)
        for end in (0, 1):
            parts.append(WeightedBatches(self.of_steps(rows[both] + end), both, share[both]))
            parts.append(WeightedBatches(self._before(rows[also] + end), also, share[also]))
        return _joined(parts)

    def of_steps(self, rows: Int[np.ndarray, " steps"]) -> BatchSums:
        """Return the batches of sampled steps, from snapshots, else requests, else summaries.

        Args:
            rows: Rows of the step table.
        """
        chosen = self._steps.iloc[rows]
        sums = batches.each_sum(np.copy, self._summaries(rows))
        names = ("knowledge", "segment", "step_id")
        knowledge, segments, step_ids = (chosen[name].to_numpy() for name in names)
        for number, journeys in self._journeys.items():
            mine = np.flatnonzero((segments == number) & (knowledge == JOURNEY))
            _fill(sums, mine, journeys.sums(step_ids[mine], self._window))
        mine = np.flatnonzero(knowledge == SNAPSHOT)
        if len(mine) and self._snapshots is not None:
            _fill(sums, mine, self._snapshot_sums(self._snapshots, chosen.iloc[mine]))
        return sums

    def at(
        self, segment: Int[np.ndarray, " steps"], step: Int[np.ndarray, " steps"]
    ) -> tuple[BatchSums, Bool[np.ndarray, " steps"]]:
        """Return the batches of any steps, sampled or determined by requests' event records.

        Args:
            segment: Index of each step's segment of the trace.
            step: Index of each step within its segment.

        Returns:
            The batches, and whether each batch is known; unknown batches are empty.
        """
        wanted = segment.astype(np.int64) * MAX_STEP_ID + step
        keys = self._steps["segment"].to_numpy(np.int64) * MAX_STEP_ID
        keys = keys + self._steps["step_id"].to_numpy()
        order = np.argsort(keys, kind="stable")
        place = np.searchsorted(keys[order], wanted)
        row = order[np.minimum(place, len(order) - 1)]
        known = keys[row] == wanted
        sums = BatchSums(*(np.zeros(len(step)) for _ in fields(BatchSums)))
        sampled = np.flatnonzero(known)
        _fill(sums, sampled, self.of_steps(row[sampled]))
        for number, journeys in self._journeys.items():
            rest = np.flatnonzero(~known & (segment == number))
            rest = rest[journeys.is_certain(step[rest], step[rest] + 1)]
            _fill(sums, rest, journeys.sums(step[rest], self._window))
            known[rest] = True
        return sums, known

    def _summaries(self, rows: np.ndarray) -> BatchSums:
        """Return the batch sums of sampled steps from their summaries alone."""
        chosen = self._steps.iloc[rows]
        ahead = self._ahead[rows]
        if ahead.any():
            own = own_work(chosen)
            names = ["prefill_requests", "prefill_tokens", "decode_requests"]
            chosen = chosen.assign(**{n: own[n].where(ahead, chosen[n]) for n in names})
        return batches.aggregate_sums(chosen, self._block_size, self._window)

    def _before(self, rows: np.ndarray) -> BatchSums:
        """Return the batches of the steps before the given steps, estimated if not sampled."""
        estimate = work_before(self._steps.iloc[rows], self._chunk)
        sums = batches.aggregate_sums(estimate, self._block_size, self._window)
        sums = batches.each_sum(np.copy, sums)
        sampled = np.flatnonzero(self._follows[rows])
        _fill(sums, sampled, self.of_steps(rows[sampled] - 1))
        return sums

    def _known(self, rows: np.ndarray, which: np.ndarray) -> WeightedBatches:
        """Return the batch of every step of intervals whose requests are all known."""
        cycles = self._cycles.iloc[rows[which]]
        parts = []
        for number, journeys in self._journeys.items():
            mine = np.flatnonzero(cycles["segment"].to_numpy() == number)
            first = cycles["step_id"].to_numpy()[mine]
            count = cycles["steps"].to_numpy(np.int64)[mine]
            within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
            sums = journeys.sums(np.repeat(first, count) + within, self._window)
            owner = np.repeat(which[mine], count)
            parts.append(WeightedBatches(sums, owner, np.ones(len(owner))))
        return _joined(parts)

    def _snapshot_sums(self, snapshots: pd.DataFrame, steps: pd.DataFrame) -> BatchSums:
        keys = steps[["segment", "step_id"]].assign(owner=np.arange(len(steps)))
        scheduled = snapshots[snapshots["new_tokens"] > 0]
        found = scheduled.merge(keys, on=["segment", "step_id"])
        new, cached = (found[name].to_numpy(float) for name in ("new_tokens", "cached_tokens"))
        owner, is_prefill = found["owner"].to_numpy(), found["is_prefill"].to_numpy(bool)
        return batches.ragged_sums(owner, new, cached, is_prefill, len(steps), self._window)


def _fill(sums: BatchSums, rows: np.ndarray, found: BatchSums) -> None:
    """Write the sums of batches, ``found``, into rows of ``sums``."""
    for field in fields(BatchSums):
        getattr(sums, field.name)[rows] = getattr(found, field.name)


def _joined(parts: list[WeightedBatches]) -> WeightedBatches:
    empty = np.zeros(0)
    sums = batches.each_sum(lambda *each: np.concatenate([empty, *each]), *(p.sums for p in parts))
    owner = np.concatenate([np.zeros(0, dtype=np.int64), *(p.owner for p in parts)])
    return WeightedBatches(sums, owner, np.concatenate([empty, *(p.weight for p in parts)]))
