"""Batches of steps at the best level of knowledge there is, as sums that the features need.

An interval between two steps is a weighted list of batches: each of its steps where all are known,
else its two ends at half its steps each. Features of an interval are the weighted sum of the
features of its batches, so they stay linear in the coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
import pyarrow as pa
from jaxtyping import Bool, Float, Int

from pinn.data.traces.residencies import OUTPUT_LAGS, JourneyBatches, Ragged, residencies
from pinn.data.traces.steps import JOURNEY, KNOWLEDGE, SNAPSHOT
from pinn.physics.batch_sums import BatchSums, uniform_sums

#: Agreement with the summaries above which no other lag of output events is tried. An assumption: a
#: wrong lag agrees only where nothing begins or ends.
SURE_SHARE = 0.95


@dataclass(frozen=True)
class WeightedBatches:
    """Batches with owners: ``sum(weight * features(sums))`` over an owner's batches is its feature.

    Attributes:
        sums: Of each batch.
        owner: Index of the interval it belongs to.
        weight: Number of steps it stands for; they add up to the interval's steps.
    """

    sums: BatchSums
    owner: Int[np.ndarray, " batches"]
    weight: Float[np.ndarray, " batches"]


def context_estimate(steps: pd.DataFrame, block_size: int) -> Float[np.ndarray, " steps"]:
    """Mean tokens in the cache per scheduled request after the step, from the KV usage.

    Blocks in use x block size, less half a block per request for its last block's empty part, over
    the requests in the batch. Blocks that requests share (a common prefix) are counted once, so the
    estimate is low where many prompts start alike; requests that wait with blocks make it high.
    0 where the usage is unknown.
    """
    requests = (steps["prefill_requests"] + steps["decode_requests"]).to_numpy(float)
    requests = np.maximum(requests, 1)
    blocks = (steps["kv_usage"] * steps["kv_blocks_total"]).to_numpy(float)
    tokens = blocks * block_size - requests * (block_size - 1) / 2
    return np.maximum(np.nan_to_num(tokens), 0.0) / requests


def aggregate_sums(steps: pd.DataFrame, block_size: int, window: float | None = None) -> BatchSums:
    """Sums of batches of which only the summary is known.

    Requests of a kind count as alike: prompt chunks share the prefill tokens equally, and every
    request has the estimated context.

    Args:
        steps: Canonical steps.
        block_size: Tokens per KV block.
        window: The model's attention window; None without one.
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


def ragged_sums(batches: Ragged, count: int, window: float | None = None) -> BatchSums:
    """Sums of ``count`` batches given request by request."""
    prefill = batches.is_prefill.astype(np.float64)
    each = uniform_sums(
        decode_requests=1 - prefill,
        decode_context=batches.cached_tokens,
        prefill_requests=prefill,
        prefill_tokens=batches.new_tokens,
        prefill_cached=batches.cached_tokens,
        window=window,
    )
    return BatchSums(
        *(
            np.bincount(batches.owner, getattr(each, f.name), minlength=count).astype(np.float64)
            for f in fields(each)
        )
    )


@dataclass(frozen=True)
class SegmentJourneys:
    """What the journeys say of a segment.

    Attributes:
        batches: Of any of its steps.
        output_lag: By how many steps output events are late.
        agrees: Per canonical step of the segment, whether journeys and summary tell the same.
    """

    batches: JourneyBatches
    output_lag: int
    agrees: Bool[np.ndarray, " steps"]


def segment_journeys(
    steps: pd.DataFrame, requests: pa.Table, token_budget: int | None = None
) -> SegmentJourneys | None:
    """Rebuild a segment's batches from its requests; None where it has none.

    The lag of output events is the one under which journeys and summaries agree most often.

    Args:
        steps: Canonical steps of the segment.
        requests: Canonical requests of the segment, an Arrow table.
        token_budget: ``max_num_batched_tokens``.
    """
    if not requests.num_rows or steps.empty:
        return None
    best: SegmentJourneys | None = None
    for lag in OUTPUT_LAGS:
        batches = JourneyBatches(residencies(requests, lag), token_budget)
        agrees = _agreement(steps, batches)
        if best is None or agrees.sum() > best.agrees.sum():
            best = SegmentJourneys(batches, lag, agrees)
        if agrees.mean() > SURE_SHARE:
            break
    return best


def _agreement(steps: pd.DataFrame, batches: JourneyBatches) -> np.ndarray:
    step = steps["step_id"].to_numpy()
    return (
        (batches.decodes(step) == steps["decode_requests"].to_numpy())
        & (batches.prefills(step) == steps["prefill_requests"].to_numpy())
        & (batches.prefill_tokens(step) == steps["prefill_tokens"].to_numpy())
        & batches.is_certain(step, step + 1)
    )


def complete_snapshots(steps: pd.DataFrame, snapshots: pd.DataFrame) -> Bool[np.ndarray, " steps"]:
    """Per canonical step, whether its snapshots tell of every request that its summary counts.

    Args:
        steps: Canonical steps.
        snapshots: Canonical snapshots.
    """
    scheduled = snapshots[snapshots["new_tokens"] > 0]
    groups = scheduled.groupby(["segment", "step_id"])
    found = pd.DataFrame(
        {
            "prefills": groups["is_prefill"].sum(),
            "requests": groups.size(),
            "tokens": groups["new_tokens"].sum(),
        }
    )
    keys = pd.MultiIndex.from_frame(steps[["segment", "step_id"]])
    found = found.reindex(keys, fill_value=-1)
    return (
        (found["prefills"].to_numpy() == steps["prefill_requests"].to_numpy())
        & (
            found["requests"].to_numpy()
            == (steps["prefill_requests"] + steps["decode_requests"]).to_numpy()
        )
        & (
            found["tokens"].to_numpy()
            == (steps["prefill_tokens"] + steps["decode_tokens"]).to_numpy()
        )
    )


def knowledge_levels(
    has_snapshot: Bool[np.ndarray, " steps"], has_journey: Bool[np.ndarray, " steps"]
) -> Int[np.ndarray, " steps"]:
    """Index into ``KNOWLEDGE`` of each step: a snapshot before journeys before the summary."""
    levels = np.full(len(has_snapshot), len(KNOWLEDGE) - 1, dtype=np.int8)
    levels[has_journey] = KNOWLEDGE.index(JOURNEY)
    levels[has_snapshot] = KNOWLEDGE.index(SNAPSHOT)
    return levels
