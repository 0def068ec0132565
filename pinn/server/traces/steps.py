"""Steps of a trace, and its stretches without a gap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int, Shaped

from pinn.common.tables import KeptRows
from pinn.units import MICROSECOND, NANOSECOND

# Segments: stretches of one server process on one clock, in which step numbers and time both
# grow.
#
# A file may hold several servers, a server may be restarted (its step numbers begin anew) and
# its host rebooted (its monotonic clock begins anew). Intervals between steps mean something
# only inside one segment.

#: Monotonic clocks of one boot differ from the epoch by a constant; a larger step is another clock
#: (how much larger is an assumption).
CLOCK_STEP_S = 5.0

#: More falls of the step number than this, in number and as a share of the rows, are no restarts
#: (assumptions).
MAX_RESTARTS = 3
MAX_RESTART_SHARE = 0.01


@dataclass(frozen=True)
class Segments:
    """How rows fall into segments.

    Attributes:
        order: Rows by segment, then start time.
        segment: Segment of each row, in the order of the input.
        is_ambiguous: Whether two servers with equal resource attributes wrote the row's segment in
            turn, so that they cannot be told apart.
    """

    order: Int[np.ndarray, " rows"]
    segment: Int[np.ndarray, " rows"]
    is_ambiguous: Bool[np.ndarray, " rows"]


def find_segments(
    server: Int[np.ndarray, " rows"],
    step_id: Int[np.ndarray, " rows"],
    start_ns: Int[np.ndarray, " rows"],
    wall_ns: Int[np.ndarray, " rows"],
) -> Segments:
    """Tell apart servers, boots and processes.

    Args:
        server: The server by its resource attributes.
        step_id: Step number.
        start_ns: Its start on the server's monotonic clock.
        wall_ns: Epoch time beside it; 0 where unknown.
    """
    clock = clock_groups(server, start_ns, wall_ns)
    order = np.lexsort((step_id, start_ns, clock))
    segment = np.empty(len(order), dtype=np.int64)
    ambiguous = np.zeros(len(order), dtype=bool)
    next_segment = 0
    for rows in np.split(order, np.flatnonzero(np.diff(clock[order])) + 1):
        if len(rows):
            run, ambiguous[rows] = _runs(step_id[rows])
            segment[rows] = next_segment + run
            next_segment += int(run[-1]) + 1
    return Segments(np.lexsort((step_id, start_ns, segment)), segment, ambiguous)


def clock_groups(
    server: Int[np.ndarray, " rows"],
    start_ns: Int[np.ndarray, " rows"],
    wall_ns: Int[np.ndarray, " rows"],
) -> Int[np.ndarray, " rows"]:
    """Number the monotonic clocks: equal for rows of one server and one boot of its host.

    Inside one boot, epoch minus monotonic time is constant but for the drift of the epoch clock.
    """
    offset_s = np.where(wall_ns > 0, (wall_ns - start_ns) * 1e-9, -np.inf)
    order = np.lexsort((offset_s, server))
    with np.errstate(invalid="ignore"):
        jumps = np.diff(offset_s[order]) > CLOCK_STEP_S
    new = (np.diff(server[order]) != 0) | jumps
    groups = np.empty(len(order), dtype=np.int64)
    groups[order] = np.concatenate(([0], np.cumsum(new))) if len(order) else 0
    return groups


def _runs(step_id: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " n"], bool]:
    """Cut rows in order of time where the step number does not grow.

    A restart makes one cut. Many cuts mean that two servers write the same name in turn.
    """
    falls = np.diff(step_id) <= 0
    is_mixed = falls.sum() > max(MAX_RESTARTS, MAX_RESTART_SHARE * len(step_id))
    if is_mixed:
        return np.zeros(len(step_id), dtype=np.int64), True
    return np.concatenate(([0], np.cumsum(falls))), False


# The canonical table of steps: one row per sampled engine step, in SI units.
#
# =====================  ====  =============================================================
# column                 unit  meaning
# =====================  ====  =============================================================
# server                       number of the server (its resource attributes) in the manifest
# segment                      one process of it on one clock; step numbers grow inside
# step_id                      the engine's step number
# start_s                s     start on the host's monotonic clock
# wall_s                 s     epoch time beside it; null where unknown
# reported_duration_s    s     what the writer calls the step's duration; no target unless checked
# running_depth                requests running
# waiting_depth                requests waiting
# prefill_requests             requests that work on their prompt in this step
# decode_requests              requests that generate
# prefill_tokens               prompt tokens scheduled
# decode_tokens                tokens scheduled for decodes
# finished, preempted          requests that ended, or lost their place, at this step
# kv_blocks_total              blocks of the KV cache
# kv_usage                     share of them in use, 0 to 1
# is_ambiguous                 two servers that cannot be told apart wrote this segment
# knowledge                    what is known of its batch: snapshot, journey or aggregate
# extra                        attributes that no column holds, as JSON text
# =====================  ====  =============================================================

#: What is known of a step's batch, best first: each request, from a snapshot or from the journeys
#: of all requests; or the summary's totals with contexts estimated from the KV usage.
KNOWLEDGE = SNAPSHOT, JOURNEY, AGGREGATE = "snapshot", "journey", "aggregate"

STEP_SCHEMA = pa.schema(
    {
        "server": pa.int32(),
        "segment": pa.int32(),
        "step_id": pa.int64(),
        "start_s": pa.float64(),
        "wall_s": pa.float64(),
        "reported_duration_s": pa.float64(),
        "running_depth": pa.int32(),
        "waiting_depth": pa.int32(),
        "prefill_requests": pa.int32(),
        "decode_requests": pa.int32(),
        "prefill_tokens": pa.int32(),
        "decode_tokens": pa.int32(),
        "finished": pa.int32(),
        "preempted": pa.int32(),
        "kv_blocks_total": pa.int32(),
        "kv_usage": pa.float64(),
        "is_ambiguous": pa.bool_(),
        "knowledge": pa.dictionary(pa.int8(), pa.string()),
        "extra": pa.string(),
    }
)

#: No engine counts so many steps.
MAX_STEP_ID = 2**40

_COUNTS = [f.name for f in STEP_SCHEMA if f.type == pa.int32()][2:]
_KEY = ["server", "step_id", "start_ns", "wall_ns"]


class StepOrder:
    """Which raw steps are kept, in which order and in which segment."""

    def __init__(self, raw: pa.Table, release: Callable[[], None] = lambda: None) -> None:
        """Work it out from the raw table's key columns; the others are only checked for range.

        Args:
            raw: The raw table.
            release: Called now and then to give back memory of what was looked at.
        """
        out_of_range = _out_of_range(raw, release)
        server, step_id, start_ns, wall_ns = (raw[c].to_numpy() for c in _KEY)
        release()
        kept = KeptRows(len(server))
        kept.refuse("start time or step number not positive", (start_ns <= 0) | (step_id < 0))
        kept.refuse("a count is negative or absurd", out_of_range | (step_id >= MAX_STEP_ID))
        kept.refuse_repeated(server=server, step=step_id, start=start_ns)
        rows = np.flatnonzero(kept.mask)
        segments = find_segments(server[rows], step_id[rows], start_ns[rows], wall_ns[rows])
        #: Raw row of each canonical row.
        self.rows = rows[segments.order].astype(np.uint32 if len(server) < 2**32 else np.int64)
        self.segment = segments.segment[segments.order].astype(np.int32)
        self.is_ambiguous = segments.is_ambiguous[segments.order]
        self.report = kept.report("steps")

    def only(self, chosen: Shaped[np.ndarray, " chosen"]) -> StepOrder:
        """The order of some canonical rows."""
        part = copy(self)
        part.rows, part.segment = self.rows[chosen], self.segment[chosen]
        part.is_ambiguous = self.is_ambiguous[chosen]
        return part


#: Rows that are converted at a time.
BATCH_ROWS = 2**17


def canonical_steps(
    raw: pa.Table,
    order: StepOrder,
    knowledge: Int[np.ndarray, " steps"] | None = None,
    schema: pa.Schema = STEP_SCHEMA,
) -> Iterator[pa.RecordBatch]:
    """The canonical rows, a batch at a time, so that big files need little memory.

    Args:
        raw: The raw table, possibly mapped from disk.
        order: Of its rows.
        knowledge: Index into :data:`KNOWLEDGE` of each canonical row; default: aggregate.
        schema: The columns to make: all or some of them.
    """
    for begin in range(0, len(order.rows), BATCH_ROWS):
        part = slice(begin, begin + BATCH_ROWS)
        known = np.full(len(order.rows[part]), KNOWLEDGE.index(AGGREGATE), dtype=np.int8)
        if knowledge is not None:
            known = knowledge[part].astype(np.int8)
        rows = taken(raw, order.rows[part])
        yield _convert(rows, order.segment[part], order.is_ambiguous[part], known, schema)


def _convert(
    raw: Columns,
    segment: np.ndarray,
    is_ambiguous: np.ndarray,
    knowledge: np.ndarray,
    schema: pa.Schema,
) -> pa.RecordBatch:
    made = {
        "segment": lambda: pa.array(segment),
        "start_s": lambda: scaled(raw("start_ns"), NANOSECOND),
        "wall_s": lambda: scaled(raw("wall_ns"), NANOSECOND, positive=True),
        "reported_duration_s": lambda: scaled(raw("duration_us"), MICROSECOND),
        "kv_usage": lambda: _usage(raw),
        "is_ambiguous": lambda: pa.array(is_ambiguous),
        "knowledge": lambda: pa.DictionaryArray.from_arrays(knowledge, list(KNOWLEDGE)),
    }
    return as_batch(raw, made, schema)


#: Gives a column by its name.
Columns = Callable[[str], pa.Array | pa.ChunkedArray]


def taken(raw: pa.Table, rows: Shaped[np.ndarray, " rows"]) -> Columns:
    """Rows of a table that are nearly in its order: only the stretch they lie in is touched."""
    low, high = int(rows.min()), int(rows.max()) + 1
    stretch, places = raw.slice(low, high - low), pa.array(rows.astype(np.int64) - low)
    return lambda name: stretch[name].take(places)


def as_batch(
    raw: Columns,
    made: Mapping[str, Callable[[], pa.Array | pa.ChunkedArray]],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """The columns of a schema, in its types, and no others: those to be made, the rest raw."""
    arrays = []
    for wanted in schema:
        column = made[wanted.name]() if wanted.name in made else raw(wanted.name)
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        arrays.append(whole.cast(wanted.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def scaled(
    column: pa.Array | pa.ChunkedArray, unit: float, positive: bool = False
) -> pa.Array | pa.ChunkedArray:
    """Numbers in SI units; with ``positive`` null where they are not."""
    values = pc.multiply(column.cast(pa.float64(), safe=False), unit)
    return pc.if_else(pc.greater(values, 0), values, None) if positive else values


def usage_above_one(raw: pa.Table) -> int:
    """Steps whose reported KV usage is no share, as where it is in percent."""
    return int(pc.sum(pc.greater(raw["kv_usage"], 1)).as_py() or 0)


def _usage(raw: Columns) -> pa.ChunkedArray:
    """KV usage as reported, else from the blocks; null where it is no share."""
    total, free = raw("kv_blocks_total"), raw("kv_blocks_free")
    safe = pc.if_else(pc.greater(total, 0), total, None)
    blocks = pc.divide(pc.subtract(total, free).cast(pa.float64()), safe.cast(pa.float64()))
    usage = pc.coalesce(raw("kv_usage"), blocks)
    is_share = pc.and_(pc.greater_equal(usage, 0), pc.less_equal(usage, 1))
    return pc.if_else(is_share, usage, None)


def _out_of_range(raw: pa.Table, release: Callable[[], None]) -> np.ndarray:
    bad = np.zeros(raw.num_rows, dtype=bool)
    done = 0
    for batch in raw.select([*_COUNTS, "kv_blocks_free"]).to_batches():
        part = bad[done : done + batch.num_rows]
        for column in batch.columns:
            values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
            part |= (values < 0) | (values >= 2**31)
        done += batch.num_rows
        release()
    return bad
