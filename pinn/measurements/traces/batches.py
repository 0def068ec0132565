"""Batches of engine steps, reconstructed from the requests and step summaries in a trace."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Int, Shaped

from pinn.measurements.traces.steps import JOURNEY, KNOWLEDGE, SNAPSHOT
from pinn.physics.batch_sums import BatchSums, sum_requests, uniform_sums

# Batch of each step, reconstructed from the journeys of requests.
#
# A journey is the record of a request's events in the engine: queued, scheduled, first token,
# preempted, finished. A request is in the batch from the step that schedules it until it ends or is
# preempted. It first computes its prompt, in one or more chunks, then one token per step. If the
# trace has the journeys of all requests, the batch of every step is therefore known, even between
# sampled steps.

#: Candidates for the lag of output events: by how many steps the trace's step numbers of output
#: tokens are too high.
OUTPUT_LAGS = (0, 1, 2)

#: Maximum plausible number of steps that a request spends in the batch. A longer stay counts as
#: uncertain: only its first and last steps are used, as bounds.
MAX_STAY_STEPS = 100_000


@dataclass(frozen=True)
class Residencies:
    """Stays of requests in the running batch, each from scheduling to end or preemption.

    Attributes:
        begin: Number of the step that schedules the first prompt chunk.
        first_output: Number of the step that computes the last prompt chunk and yields a token.
        end: Number of the last step that yields a token; ``first_output`` or later.
        total: Number of tokens to prefill; after a preemption, it includes the tokens generated
            before.
        cached: Number of tokens to prefill that were in the prefix cache.
        is_known: Whether all fields of the stay are exact; otherwise ``begin`` and ``end`` are
            bounds.
    """

    begin: Int[np.ndarray, " stays"]
    first_output: Int[np.ndarray, " stays"]
    end: Int[np.ndarray, " stays"]
    total: Int[np.ndarray, " stays"]
    cached: Int[np.ndarray, " stays"]
    is_known: Bool[np.ndarray, " stays"]


def residencies(requests: pa.Table, output_lag: int = 0) -> Residencies:
    """Return the stays in the running batch of all requests of one segment of a trace.

    Args:
        requests: Table of requests; a request that was never scheduled has no stay.
        output_lag: Number by which the step numbers of output events are too high.
    """
    scheduled = requests.filter(pc.is_valid(requests["scheduled_step"]))
    preempted = pc.greater(pc.list_value_length(scheduled["preempted_steps"]), 0)
    resumed = pc.greater(pc.list_value_length(scheduled["resumed_steps"]), 0)
    simple = scheduled.select(_ONE_STAY)
    is_simple = pc.invert(pc.or_(preempted, resumed))
    for name in _ONE_STAY:
        is_simple = pc.and_(is_simple, pc.is_valid(simple[name]))
    begin, token, _, prompt, cached, outputs = (
        column.to_numpy() for column in simple.filter(is_simple).columns
    )
    first_output = token - output_lag
    good = (first_output >= begin) & (outputs > 0)
    good &= first_output + outputs - begin < MAX_STAY_STEPS
    end = first_output + outputs - 1
    columns = [c[good] for c in (begin, first_output, end, prompt, np.minimum(cached, prompt - 1))]
    rows = []
    rest = is_simple.to_numpy().copy()
    rest[rest] = good
    for part in scheduled.filter(pa.array(~rest)).select(_ANY_STAY).to_batches(2**14):
        for request in zip(*(column.to_pylist() for column in part.columns), strict=True):
            rows.extend(_stays(request, output_lag))
    others = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    known = np.concatenate((np.ones(good.sum(), dtype=bool), others[5].astype(bool)))
    joined = [np.concatenate((c, o)) for c, o in zip(columns, others[:5], strict=True)]
    return Residencies(*[*joined, known])


_ONE_STAY = ["scheduled_step", "first_token_step", "finished_step", "prompt_tokens",
             "cached_tokens", "output_tokens"]  # fmt: skip
_ANY_STAY = [*_ONE_STAY, "preempted_steps", "preempted_outputs", "resumed_steps", "resumed_cached"]


def _stays(request: tuple[Any, ...], lag: int) -> list[tuple[int, int, int, int, int, bool]]:
    """Return a request's stays in the running batch: the first, and one per resumption."""
    scheduled, first_token, finished, prompt, cached, outputs, preempted = request[:7]
    preempted_outputs, resumed, resumed_cached = request[7:]
    begins = [scheduled, *resumed]
    done = [0, *preempted_outputs]  # output tokens generated before each stay
    stays = []
    for number, begin in enumerate(begins):
        is_last = number == len(begins) - 1
        is_cut = not is_last or len(preempted) >= len(begins)
        before = done[number] if number < len(done) else None
        after = preempted_outputs[number] if is_cut and number < len(preempted) else outputs
        hit = cached if number == 0 else resumed_cached[number - 1]
        end = first_output = None
        if before == 0 and first_token is not None:
            first_output = first_token - lag
        if not is_cut and finished is not None:
            end = finished - lag
        if before is not None and after is not None and after > before:
            yielded = after - before
            if first_output is not None:
                end = first_output + yielded - 1
            elif end is not None:
                first_output = end - yielded + 1
        known = None not in (first_output, end, prompt, hit, before) and first_output >= begin
        known = known and end - begin < MAX_STAY_STEPS
        if not known:
            bound = preempted[number] if is_cut and number < len(preempted) else finished
            last = max(begin if bound is None else bound, begin)
            stays.append((begin, last, last, 0, 0, False))
        else:
            total = prompt + before
            stays.append((begin, first_output, end, total, min(hit, total - 1), True))
    return stays


class JourneyBatches:
    """Batches of the steps of one segment of a trace, from the event records of its requests.

    Attributes:
        agrees: Whether the batch of each sampled step agrees with the step's summary in the trace.
    """

    def __init__(self, stays: Residencies, steps: pd.DataFrame, token_budget: int | None) -> None:
        """Compute the prompt chunks of all stays, for each step of the segment.

        Args:
            stays: Stays of all requests of the segment.
            steps: Table of sampled steps of the segment.
            token_budget: ``max_num_batched_tokens``; a prompt in several chunks fills this budget
                in all steps except its last. None to assume equal chunks.
        """
        self.stays = stays
        self._begin = np.sort(stays.begin)
        self._first_output = np.sort(stays.first_output)
        self._end = np.sort(stays.end)
        chunks = _chunks(stays, token_budget, self.decodes)
        order = np.argsort(chunks[:, 0], kind="stable")
        #: Prompt chunks in the order of their steps, as rows (step, new tokens, cached tokens,
        #: 1 if the tokens are certain).
        self._chunks = chunks[order]
        self._chunk_steps = self._chunks[:, 0]
        self._chunk_sums = np.concatenate(([0], np.cumsum(self._chunks[:, 1])))
        self._doubts = np.sort(
            np.concatenate((self._chunk_steps[self._chunks[:, 3] == 0], *_doubtful_steps(stays)))
        )
        step = steps["step_id"].to_numpy()
        self.agrees = (
            (self.decodes(step) == steps["decode_requests"].to_numpy())
            & (self._prefills(step) == steps["prefill_requests"].to_numpy())
            & (self._prefill_tokens(step) == steps["prefill_tokens"].to_numpy())
            & self.is_certain(step, step + 1)
        )

    def decodes(self, steps: Int[np.ndarray, " steps"]) -> Int[np.ndarray, " steps"]:
        """Return the number of decodes in each step."""
        return np.searchsorted(self._first_output, steps) - np.searchsorted(self._end, steps)

    def _prefills(self, steps: Int[np.ndarray, " steps"]) -> Int[np.ndarray, " steps"]:
        """Return the number of prefills in each step."""
        begun = np.searchsorted(self._begin, steps, side="right")
        return begun - np.searchsorted(self._first_output, steps)

    def _prefill_tokens(self, steps: Int[np.ndarray, " steps"]) -> Int[np.ndarray, " steps"]:
        """Return the number of prompt tokens that are scheduled in each step."""
        low = np.searchsorted(self._chunk_steps, steps)
        high = np.searchsorted(self._chunk_steps, steps, side="right")
        return self._chunk_sums[high] - self._chunk_sums[low]

    def is_certain(
        self, first: Int[np.ndarray, " spans"], end: Int[np.ndarray, " spans"]
    ) -> Bool[np.ndarray, " spans"]:
        """Return for each pair whether the batches of all steps in ``[first, end)`` are certain."""
        return np.searchsorted(self._doubts, first) == np.searchsorted(self._doubts, end)

    def sums(self, steps: Int[np.ndarray, " steps"], window: float | None) -> BatchSums:
        """Return the batch sums of the given steps, which may have any order and repeat."""
        asked, back = np.unique(steps, return_inverse=True)
        known = self.stays.is_known
        first = self.stays.first_output[known]
        low = np.searchsorted(asked, first, side="right")
        counts = np.maximum(np.searchsorted(asked, self.stays.end[known], side="right") - low, 0)
        stay = np.repeat(np.arange(len(first)), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        owner = low[stay] + within
        cached = self.stays.total[known][stay] + asked[owner] - first[stay] - 1

        chunks = self._chunks[np.isin(self._chunk_steps, asked)]
        sums = ragged_sums(
            np.append(owner, np.searchsorted(asked, chunks[:, 0])),
            np.append(np.ones(len(owner)), chunks[:, 1]),
            np.append(cached, chunks[:, 2]).astype(np.float64),
            np.repeat([False, True], [len(owner), len(chunks)]),
            len(asked),
            window,
        )
        return each_sum(lambda values: values[back], sums)


def _doubtful_steps(stays: Residencies) -> list[np.ndarray]:
    """Return the step numbers of each uncertain stay, at most ``MAX_STAY_STEPS`` + 1 each."""
    return [
        np.arange(begin, min(end, begin + MAX_STAY_STEPS) + 1)
        for begin, end in zip(stays.begin[~stays.is_known], stays.end[~stays.is_known], strict=True)
    ]


def _chunks(
    stays: Residencies, token_budget: int | None, decodes: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the prompt chunks of all stays.

    Each row contains step, new tokens, cached tokens, and 1 if the tokens are certain.
    """
    whole = stays.is_known & (stays.begin == stays.first_output)
    new = (stays.total - stays.cached)[whole]
    rows = [np.column_stack((stays.begin[whole], new, stays.cached[whole], np.ones_like(new)))]
    cut = np.flatnonzero(stays.is_known & ~whole)
    used: Counter[int] = Counter()
    if len(cut):
        for step, new in rows[0][:, :2].tolist():
            used[step] += new
    for stay in cut[np.argsort(stays.begin[cut], kind="stable")]:
        steps = np.arange(stays.begin[stay], stays.first_output[stay] + 1)
        total, cached = int(stays.total[stay]), int(stays.cached[stay])
        news = _filled(steps, total - cached, token_budget, decodes(steps), used)
        certain = news is not None
        if news is None:
            news = np.diff(np.linspace(0, total - cached, len(steps) + 1).astype(np.int64))
        for step, new in zip(steps.tolist(), news.tolist(), strict=True):
            used[step] += new
        before = cached + np.concatenate(([0], np.cumsum(news)[:-1]))
        rows.append(np.stack((steps, news, before, np.full(len(steps), certain)), axis=1))
    return np.concatenate(rows).astype(np.int64)


def _filled(
    steps: np.ndarray, tokens: int, budget: int | None, decodes: np.ndarray, used: Counter[int]
) -> np.ndarray | None:
    """Return a prompt's chunks if each but the last fills the token budget; else None."""
    if budget is None:
        return None
    others = decodes + np.array([used[step] for step in steps.tolist()])
    news = budget - others
    news[-1] = tokens - news[:-1].sum()
    return news if (news > 0).all() and news[-1] <= budget - others[-1] else None


# Batches of steps from the best available data, as sums for computing step features.
#
# The steps of an interval between two sampled steps are represented by a weighted list of batches:
# the batch of every step if all are known, else the batches of its two ends, each weighted by half
# the number of steps. The features of the interval are the weighted sum over these batches, so that
# its time stays linear in the coefficients.

#: If the batches from journeys and from summaries agree in more than this share of steps, no
#: further lag of output events is tried. The value is an assumption: with a wrong lag, batches
#: agree only in steps in which no request begins or ends.
SURE_SHARE = 0.95


@dataclass(frozen=True)
class WeightedBatches:
    """Batches that represent the steps of intervals, each with the number of steps as its weight.

    The features of an interval are sum(weight * features(sums)) over its batches.

    Attributes:
        sums: Sums over the requests of each batch.
        owner: Index of the interval to which each batch belongs.
        weight: Number of steps that each batch represents; the weights of an interval add up to
            its number of steps.
    """

    sums: BatchSums
    owner: Int[np.ndarray, " batches"]
    weight: Float[np.ndarray, " batches"]


def each_sum(make: Callable[..., Shaped[np.ndarray, " batches"]], *sums: BatchSums) -> BatchSums:
    """Apply a function to each field of batch sums, and return the results as batch sums."""
    return BatchSums(*(make(*(getattr(s, f.name) for s in sums)) for f in fields(BatchSums)))


def context_estimate(steps: pd.DataFrame, block_size: int) -> Float[np.ndarray, " steps"]:
    """Estimate the mean cached tokens per scheduled request after each step, from KV cache usage.

    The estimate is (blocks in use x block size) / requests in the batch, less half a block. It is
    too low if requests share blocks (a common prefix), and too high if waiting requests have
    blocks. It is 0 if the KV cache usage is unknown.
    """
    requests = (steps["prefill_requests"] + steps["decode_requests"]).to_numpy(float)
    requests = np.maximum(requests, 1)
    blocks = (steps["kv_usage"] * steps["kv_blocks_total"]).to_numpy(float)
    tokens = blocks * block_size - requests * (block_size - 1) / 2
    return np.maximum(np.nan_to_num(tokens), 0.0) / requests


def aggregate_sums(steps: pd.DataFrame, block_size: int, window: float | None = None) -> BatchSums:
    """Return the sums over the requests of each batch, if only the steps' summaries are known.

    A summary contains the batch's totals. Prompt chunks are assumed to share the prefill tokens
    equally, and all requests to have the context of :func:`context_estimate`.

    Args:
        steps: Table of sampled steps.
        block_size: Tokens per KV block.
        window: The model's attention window in tokens; None if there is none.
    """
    context = context_estimate(steps, block_size)
    prefills = steps["prefill_requests"].to_numpy(float)
    chunk = steps["prefill_tokens"].to_numpy(float) / np.maximum(prefills, 1)
    return uniform_sums(
        decode_requests=steps["decode_requests"].to_numpy(float),
        decode_context=np.maximum(context - 1, 0),
        prefill_requests=prefills,
        prefill_tokens=chunk,
        prefill_cached=np.maximum(context - chunk, 0),
        window=window,
    )


def ragged_sums(
    owner: Int[np.ndarray, " requests"],
    new_tokens: Float[np.ndarray, " requests"],
    cached_tokens: Float[np.ndarray, " requests"],
    is_prefill: Bool[np.ndarray, " requests"],
    count: int,
    window: float | None,
) -> BatchSums:
    """Return the sums of ``count`` batches, from their requests; ``owner`` is the batch of each."""
    prefill = is_prefill.astype(np.float64)
    each = uniform_sums(
        decode_requests=1 - prefill,
        decode_context=cached_tokens,
        prefill_requests=prefill,
        prefill_tokens=new_tokens,
        prefill_cached=cached_tokens,
        window=window,
    )
    return sum_requests(each, owner, count)


def segment_journeys(
    steps: pd.DataFrame, requests: pa.Table, token_budget: int | None
) -> JourneyBatches:
    """Reconstruct the batches of a segment of a trace from the event records of its requests.

    The step numbers of output events may be too high by 0 to 2 steps. The lag is chosen for which
    the most batches agree with the steps' summaries.

    Args:
        steps: Table of sampled steps of the segment.
        requests: Arrow table of the requests of the segment.
        token_budget: ``max_num_batched_tokens`` of the server.
    """
    tried: list[JourneyBatches] = []
    for lag in OUTPUT_LAGS:
        tried.append(JourneyBatches(residencies(requests, lag), steps, token_budget))
        if tried[-1].agrees.mean() > SURE_SHARE:
            break
    return max(tried, key=lambda journeys: journeys.agrees.sum())


def complete_snapshots(steps: pd.DataFrame, snapshots: pd.DataFrame) -> Bool[np.ndarray, " steps"]:
    """Return whether each step's snapshots include every request counted in its summary.

    Args:
        steps: Table of sampled steps.
        snapshots: Table of snapshots, each of which records one request in one step.
    """
    if snapshots.empty:
        return np.zeros(len(steps), dtype=bool)
    groups = snapshots[snapshots["new_tokens"] > 0].groupby(["segment", "step_id"])
    columns = (groups["is_prefill"].sum(), groups.size(), groups["new_tokens"].sum())
    keys = pd.MultiIndex.from_frame(steps[["segment", "step_id"]])
    found = pd.concat(columns, axis=1).reindex(keys, fill_value=-1).to_numpy()
    prefills = steps["prefill_requests"]
    requests = prefills + steps["decode_requests"]
    tokens = steps["prefill_tokens"] + steps["decode_tokens"]
    return (found == np.stack((prefills, requests, tokens), axis=1)).all(axis=1)


def knowledge_levels(
    has_snapshot: Bool[np.ndarray, " steps"], has_journey: Bool[np.ndarray, " steps"]
) -> Int[np.ndarray, " steps"]:
    """Return the best source of each step's batch, as an index into ``KNOWLEDGE``."""
    levels = np.full(len(has_snapshot), len(KNOWLEDGE) - 1, dtype=np.int8)
    levels[has_journey] = KNOWLEDGE.index(JOURNEY)
    levels[has_snapshot] = KNOWLEDGE.index(SNAPSHOT)
    return levels
