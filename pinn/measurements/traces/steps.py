"""Steps of a trace, its stretches without a gap, and snapshots of its requests."""

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

Whole = Int[np.ndarray, " rows"]


@dataclass(frozen=True)
class Segments:
    """Division of rows into segments.

    Attributes:
        order: Rows by segment, then start time.
        segment: Segment of each row, in the order of the input.
        is_ambiguous: Whether two servers with equal resource attributes wrote the row's segment in
            turn, so that they cannot be told apart.
    """

    order: Whole
    segment: Whole
    is_ambiguous: Bool[np.ndarray, " rows"]


def find_segments(server: Whole, step_id: Whole, start_ns: Whole, wall_ns: Whole) -> Segments:
    """Tell apart servers, boots and processes.

    Args:
        server: The server by its resource attributes.
        step_id: Step number.
        start_ns: Its start on the server's monotonic clock.
        wall_ns: Epoch time beside it; 0 where unknown.
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


def _runs(step_id: np.ndarray) -> tuple[np.ndarray, bool]:
    """Cut rows in order of time where the step number does not grow.

    A restart makes one cut. Many cuts mean that two servers write the same name in turn.
    """
    falls = np.diff(step_id) <= 0
    if falls.sum() > max(MAX_RESTARTS, MAX_RESTART_SHARE * len(step_id)):
        return np.zeros(len(step_id), dtype=np.int64), True
    return np.concatenate(([0], np.cumsum(falls))), False


# The canonical table of steps: one row per sampled engine step, in SI units.

#: What is known of a step's batch, best first: each request, from a snapshot or from the journeys
#: of all requests; or the summary's totals with contexts estimated from the KV usage.
KNOWLEDGE = SNAPSHOT, JOURNEY, AGGREGATE = "snapshot", "journey", "aggregate"

_COUNTS = (
    "running_depth", "waiting_depth", "prefill_requests", "decode_requests", "prefill_tokens",
    "decode_tokens", "finished", "preempted", "kv_blocks_total",
)  # fmt: skip

#: No engine counts so many steps.
MAX_STEP_ID = 2**40


#: Of one raw table, or of several beside each other.
Rows = Shaped[np.ndarray, "rows ..."]

#: Gives back the memory of what was looked at.
Release = Callable[[], None]

#: Gives a column by its name.
Columns = Callable[[str], pa.Array | pa.ChunkedArray]

#: Rows that are made at a time.
BATCH_ROWS = 2**16


@dataclass(frozen=True)
class Canonical:
    """A canonical table that is made of raw rows, a batch at a time.

    Attributes:
        schema: Its columns.
        rows: Of each of its rows, the raw one, or the raw ones of each raw table.
        raw: Gives the raw columns of some of these.
        made: Columns that follow from others.
        given: Columns that are known for all rows.
        report: Counts of the raw rows.
        release: Called now and then to give back the memory of what was looked at.
    """

    schema: pa.Schema
    rows: Rows
    raw: Callable[[Rows], Columns]
    made: Mapping[str, Callable[[Columns], pa.Array]]
    given: dict[str, Shaped[np.ndarray, " rows"] | pa.Array]
    report: ReadReport
    release: Release

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, a batch at a time, so that big files need little memory."""
        for begin in range(0, len(self.rows), BATCH_ROWS):
            yield self._batch(slice(begin, begin + BATCH_ROWS))
            self.release()

    def table(self) -> pa.Table:
        """All rows in memory."""
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def frame(self) -> pd.DataFrame:
        """Return the columns; each leaves Arrow as it is converted, so that it is stored once."""
        return self.table().to_pandas(split_blocks=True, self_destruct=True)

    def having(self, *names: str) -> "Canonical":
        """Some of the columns, the only ones that are made."""
        return replace(self, schema=pa.schema([self.schema.field(name) for name in names]))

    def only(self, chosen: Int[np.ndarray, " chosen"]) -> "Canonical":
        """Some of the rows."""
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
    """Rows of a table that are nearly in its order: only the stretch they lie in is touched."""
    low, high = int(rows.min()), int(rows.max()) + 1
    stretch, places = raw.slice(low, high - low), pa.array(rows.astype(np.int64) - low)
    return lambda name: stretch[name].take(places)


def canonical_steps(raw: pa.Table, release: Callable[[], None] = lambda: None) -> Canonical:
    """The steps in order of their segments, and of time in these; what is known of each is lacking.

    Only key columns are read for it; the others are checked for range.
    """
    absurd = out_of_range(raw, [*_COUNTS, "kv_blocks_free"], release)
    keys = ("server", "step_id", "start_ns", "wall_ns")
    server, step_id, start_ns, wall_ns = (raw[name].to_numpy() for name in keys)
    release()
    kept = KeptRows(len(server))
    kept.refuse("start time or step number not positive", (start_ns <= 0) | (step_id < 0))
    kept.refuse("a count is negative or absurd", absurd | (step_id >= MAX_STEP_ID))
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
    """Makes a raw column's numbers into SI units; with ``positive`` null where they are not."""

    def make(raw: Columns) -> pa.Array:
        values = pc.multiply(raw(name).cast(pa.float64(), safe=False), unit)
        return pc.if_else(pc.greater(values, 0), values, None) if positive else values

    return make


def _usage(raw: Columns) -> pa.Array:
    """KV usage as reported, else from the blocks; null where it is no share."""
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
    """Whether any of a row's counts is negative or absurd."""
    bad = [np.zeros(0, dtype=bool)]
    for batch in raw.select(counts).to_batches():
        columns = (pc.fill_null(c, 0).to_numpy(zero_copy_only=False) for c in batch.columns)
        bad.append(np.any([(values < 0) | (values >= 2**31) for values in columns], axis=0))
        release()
    return np.concatenate(bad)


# The canonical table of snapshots: one row per request of a step whose requests were written.
#
# A snapshot precedes its step: ``cached_tokens`` are in the cache, ``new_tokens`` follow now.

_OF_SNAPSHOT: dict[str, Callable[[Columns], pa.Array]] = {
    "wall_s": scaled("wall_ns", NANOSECOND, positive=True),
    "is_prefill": lambda raw: pc.equal(pc.utf8_upper(raw("phase")), "PREFILL"),
    "new_tokens": lambda raw: raw("scheduled_tokens"),
    "cached_tokens": lambda raw: raw("computed_tokens"),
}


def canonical_snapshots(raw: pa.Table, steps: pd.DataFrame, release: Release) -> Canonical:
    """The snapshots in order of the file.

    Refused are negative counts, phases other than PREFILL and DECODE, a request's second snapshot
    in a step, and snapshots whose step's summary is missing.

    Args:
        raw: The raw table.
        steps: Columns ``server``, ``segment``, ``step_id``, ``wall_s`` of the canonical steps.
        release: Gives back the memory of what was looked at.
    """
    kept = KeptRows(raw.num_rows)
    counts = ["step_id", "computed_tokens", "scheduled_tokens", "prompt_tokens"]
    kept.refuse("a count is negative or absurd", out_of_range(raw, counts, release))
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
    """Row of each snapshot's step, -1 without one; of several of its number the nearest in time."""
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
