"""Tables of steps and snapshots of a trace, and the division of a trace at server restarts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int, Shaped

from pinn.common.files import ReadReport
from pinn.common.tables import KeptRows
from pinn.measurements.schemas import SCHEMAS
from pinn.units import MICROSECOND, NANOSECOND

# Segments of a trace: steps of one server process on one clock, whose step numbers and times
# increase.
#
# A file may have several servers. A server may restart, which resets its step numbers, and its host
# may reboot, which resets its monotonic clock. Intervals between steps are valid only inside one
# segment.

#: Minimum change, in seconds, of the difference between epoch time and monotonic time that
#: indicates another monotonic clock. The value is an assumption: until a host reboots, only clock
#: drift changes the difference.
CLOCK_STEP_S = 5.0

#: Maximum number of decreases of the step number, and maximum number per row. If both are exceeded,
#: the rows are assumed to be from two servers, not from one server that restarted.
MAX_RESTARTS = 3
MAX_RESTART_SHARE = 0.01

Whole = Int[np.ndarray, " rows"]


@dataclass(frozen=True)
class Segments:
    """Division of a trace's steps into segments, each from one server process on one clock.

    Attributes:
        order: Rows of the input, ordered by segment and then by start time.
        segment: Index of each row's segment, in the order of the input.
        is_ambiguous: Whether the row's segment was written by two servers with equal resource
            attributes, which cannot be separated.
    """

    order: Whole
    segment: Whole
    is_ambiguous: Bool[np.ndarray, " rows"]


def find_segments(server: Whole, step_id: Whole, start_ns: Whole, wall_ns: Whole) -> Segments:
    """Divide the steps of a trace into segments by server, host boot and process.

    Args:
        server: Index of each row's server, identified by its resource attributes.
        step_id: Step number of each row.
        start_ns: Start of each step on the server's monotonic clock, in ns.
        wall_ns: Epoch time of each start in ns; 0 if unknown.
    """
    clock = _clock_groups(server, start_ns, wall_ns)
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


def _clock_groups(server: np.ndarray, start_ns: np.ndarray, wall_ns: np.ndarray) -> np.ndarray:
    """Return the index of each row's monotonic clock: one per server and boot of its host.

    Within one boot, epoch minus monotonic time is constant except for clock drift.
    """
    offset_s = np.where(wall_ns > 0, (wall_ns - start_ns) * 1e-9, -np.inf)
    order = np.lexsort((offset_s, server))
    with np.errstate(invalid="ignore"):
        jumps = np.diff(offset_s[order]) > CLOCK_STEP_S
    new = (np.diff(server[order]) != 0) | jumps
    groups = np.empty(len(order), dtype=np.int64)
    groups[order] = np.concatenate(([0], np.cumsum(new))) if len(order) else 0
    return groups


def _runs(step_id: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return the server process of each row, and whether two servers' rows are mixed.

    Rows are in chronological order. A new process begins wherever the step number does not
    increase, as after a restart. Many such points indicate that two servers with equal resource
    attributes wrote the rows.
    """
    falls = np.diff(step_id) <= 0
    if falls.sum() > max(MAX_RESTARTS, MAX_RESTART_SHARE * len(step_id)):
        return np.zeros(len(step_id), dtype=np.int64), True
    return np.concatenate(([0], np.cumsum(falls))), False


# Table of the sampled steps in a trace: one row per engine step, in SI units.

#: Sources of a step's batch, best first. ``snapshot`` and ``journey``: every request is known, from
#: snapshots of the step or from the complete event records of requests. ``aggregate``: only the
#: totals in the step's summary are known, and contexts are estimated from KV cache usage.
KNOWLEDGE = SNAPSHOT, JOURNEY, AGGREGATE = "snapshot", "journey", "aggregate"

_COUNTS = (
    "running_depth", "waiting_depth", "prefill_requests", "decode_requests", "prefill_tokens",
    "decode_tokens", "finished", "preempted", "kv_blocks_total",
)  # fmt: skip

#: Upper bound of plausible step numbers; steps with higher numbers are refused.
MAX_STEP_ID = 2**40


#: Indices of raw rows in one table, or one column of indices for each of several tables.
Rows = Shaped[np.ndarray, "rows ..."]

#: Function that frees the memory of raw rows that have been read.
Release = Callable[[], None]

#: Function that returns a column by name.
Columns = Callable[[str], pa.Array | pa.ChunkedArray]

#: Number of raw rows that are converted at a time.
BATCH_ROWS = 2**16


@dataclass(frozen=True)
class Canonical:
    """Table in a fixed schema built from raw trace rows, one record batch at a time.

    Attributes:
        schema: Schema of the table.
        rows: Index of the raw row from which each row is built; a column of indices for each raw
            table if there are several.
        raw: Function that returns the raw columns of given rows.
        made: Functions that compute a column from other columns, by column.
        given: Values for all rows of columns that are not in the raw rows, by column.
        report: Counts of raw rows read and rejected.
        release: Function that frees the memory of raw rows that were read.
    """

    schema: pa.Schema
    rows: Rows
    raw: Callable[[Rows], Columns]
    made: Mapping[str, Callable[[Columns], pa.Array]]
    given: dict[str, Shaped[np.ndarray, " rows"] | pa.Array]
    report: ReadReport
    release: Release

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches, so that large files need little memory."""
        for begin in range(0, len(self.rows), BATCH_ROWS):
            yield self._batch(slice(begin, begin + BATCH_ROWS))
            self.release()

    def table(self) -> pa.Table:
        """Return all rows as an Arrow table in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def frame(self) -> pd.DataFrame:
        """Return the table as a data frame; to save memory, columns are freed one by one."""
        return self.table().to_pandas(split_blocks=True, self_destruct=True)

    def having(self, *names: str) -> "Canonical":
        """Return this table with only the named columns."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in names]))

    def only(self, chosen: Int[np.ndarray, " chosen"]) -> "Canonical":
        """Return this table with only the chosen rows."""
        given = {name: values[chosen] for name, values in self.given.items()}
        return replace(self, rows=self.rows[chosen], given=given)

    def _batch(self, part: slice) -> pa.RecordBatch:
        raw = self.raw(self.rows[part])

        @cache
        def column(name: str) -> pa.Array:
            found = self.given[name][part] if name in self.given else raw(name)
            if isinstance(found, np.ndarray):
                return pa.array(found)
            return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

        columns = [
            (self.made[f.name](column) if f.name in self.made else column(f.name)).cast(f.type)
            for f in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def taken(raw: pa.Table, rows: Shaped[np.ndarray, " rows"]) -> Columns:
    """Return a function that looks up raw columns at ``rows``; it reads all rows between them."""
    low, high = int(rows.min()), int(rows.max()) + 1
    stretch, places = raw.slice(low, high - low), pa.array(rows.astype(np.int64) - low)
    return lambda name: stretch[name].take(places)


def canonical_steps(raw: pa.Table, release: Callable[[], None] = lambda: None) -> Canonical:
    """Return the table of a trace's steps, by segment and time, without column ``knowledge``.

    To save memory, only the columns that determine the order are read in full; counts are checked
    for their range, and all columns are converted when rows are written.
    """
    absurd = out_of_range(raw, [*_COUNTS, "kv_blocks_free"], release)
    keys = ("server", "step_id", "start_ns", "wall_ns")
    server, step_id, start_ns, wall_ns = (raw[name].to_numpy() for name in keys)
    release()
    kept = KeptRows(len(server))
    kept.refuse("start time or step number not positive", (start_ns <= 0) | (step_id < 0))
    kept.refuse("a count is negative or implausibly large", absurd | (step_id >= MAX_STEP_ID))
    kept.refuse_repeated(server=server, step=step_id, start=start_ns)
    rows = np.flatnonzero(kept.mask)
    segments = find_segments(server[rows], step_id[rows], start_ns[rows], wall_ns[rows])
    order = segments.order
    given = {
        "segment": segments.segment[order].astype(np.int32),
        "is_ambiguous": segments.is_ambiguous[order],
    }
    rows = rows[order].astype(np.uint32 if len(server) < 2**32 else np.int64)
    report = kept.report("steps")
    return Canonical(SCHEMAS["steps"], rows, partial(taken, raw), _MADE, given, report, release)


def scaled(name: str, unit: float, positive: bool = False) -> Callable[[Columns], pa.Array]:
    """Return a function that converts the raw column ``name`` to SI units by a factor ``unit``.

    With ``positive``, numbers that are not positive become null.
    """

    def make(raw: Columns) -> pa.Array:
        values = pc.multiply(raw(name).cast(pa.float64(), safe=False), unit)
        return pc.if_else(pc.greater(values, 0), values, None) if positive else values

    return make


def _usage(raw: Columns) -> pa.Array:
    """Return the used share of the KV cache, reported or from blocks; null outside [0, 1]."""
    total, free = raw("kv_blocks_total"), raw("kv_blocks_free")
    safe = pc.if_else(pc.greater(total, 0), total, None)
    blocks = pc.divide(pc.subtract(total, free).cast(pa.float64()), safe.cast(pa.float64()))
    usage = pc.coalesce(raw("kv_usage"), blocks)
    is_share = pc.and_(pc.greater_equal(usage, 0), pc.less_equal(usage, 1))
    return pc.if_else(is_share, usage, None)


_MADE = {
    "start_s": scaled("start_ns", NANOSECOND),
    "wall_s": scaled("wall_ns", NANOSECOND, positive=True),
    "reported_duration_s": scaled("duration_us", MICROSECOND),
    "kv_usage": _usage,
}


def out_of_range(raw: pa.Table, counts: list[str], release: Release) -> Bool[np.ndarray, " rows"]:
    """Return whether each raw row has a count that is negative or impossibly large (2^31)."""
    bad = [np.zeros(0, dtype=bool)]
    for batch in raw.select(counts).to_batches():
        columns = (pc.fill_null(c, 0).to_numpy(zero_copy_only=False) for c in batch.columns)
        bad.append(np.any([(values < 0) | (values >= 2**31) for values in columns], axis=0))
        release()
    return np.concatenate(bad)


# Table of snapshots: one row for each request of each step with snapshots.
#
# A snapshot is taken before its step runs: ``cached_tokens`` are already in the cache, and the step
# computes ``new_tokens``.

_OF_SNAPSHOT: dict[str, Callable[[Columns], pa.Array]] = {
    "wall_s": scaled("wall_ns", NANOSECOND, positive=True),
    "is_prefill": lambda raw: pc.equal(pc.utf8_upper(raw("phase")), "PREFILL"),
    "new_tokens": lambda raw: raw("scheduled_tokens"),
    "cached_tokens": lambda raw: raw("computed_tokens"),
}


def canonical_snapshots(raw: pa.Table, steps: pd.DataFrame, release: Release) -> Canonical:
    """Return the table of a trace's snapshots, each of one request in one step, in file order.

    A snapshot is rejected if a count is negative, if its phase is neither PREFILL nor DECODE, if
    the request has an earlier snapshot in the step, or if the trace has no summary of the step.

    Args:
        raw: Raw table of snapshots.
        steps: Columns ``server``, ``segment``, ``step_id``, ``wall_s`` of the table of steps.
        release: Function that frees the memory of raw rows that were read.
    """
    kept = KeptRows(raw.num_rows)
    counts = ["step_id", "computed_tokens", "scheduled_tokens", "prompt_tokens"]
    kept.refuse("a count is negative or implausibly large", out_of_range(raw, counts, release))
    known = pc.is_in(pc.utf8_upper(raw["phase"]), pa.array(["PREFILL", "DECODE"]))
    kept.refuse("unknown phase", ~known.to_numpy())
    row = _step_rows(raw, steps)
    kept.refuse("its step's summary is missing", row < 0)
    request = pc.dictionary_encode(raw["request_id"].combine_chunks()).indices
    kept.refuse_repeated(row=row, request=request.to_numpy(zero_copy_only=False))
    rows = np.flatnonzero(kept.mask)
    given = {"segment": steps["segment"].to_numpy()[row[rows]].astype(np.int32)}
    report = kept.report("snapshots")
    return Canonical(
        SCHEMAS["snapshots"], rows, partial(taken, raw), _OF_SNAPSHOT, given, report, release
    )


def _step_rows(raw: pa.Table, steps: pd.DataFrame) -> np.ndarray:
    """Return the row of each snapshot's step in the table of steps; -1 if it is missing.

    Step numbers repeat after a restart; the step nearest in time is then used.
    """
    found = np.full(raw.num_rows, -1, dtype=np.int64)
    if steps.empty or not raw.num_rows:
        return found
    keys = steps["server"].to_numpy(np.int64) * MAX_STEP_ID + steps["step_id"].to_numpy()
    order = np.argsort(keys, kind="stable")
    wanted = raw["server"].to_numpy() * MAX_STEP_ID + raw["step_id"].to_numpy()
    low = np.searchsorted(keys[order], wanted)
    high = np.searchsorted(keys[order], wanted, side="right")
    once = high - low == 1
    found[once] = order[low[once]]
    step_wall = np.nan_to_num(steps["wall_s"].to_numpy())
    wall = raw["wall_ns"].to_numpy() * NANOSECOND
    for row in np.flatnonzero(high - low > 1):
        among = order[low[row] : high[row]]
        found[row] = among[np.argmin(np.abs(step_wall[among] - wall[row]))]
    return found
