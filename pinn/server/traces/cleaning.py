"""What of a trace is kept: snapshots, the server it names, and the page that says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float

from pinn.common.files import ReadReport
from pinn.common.tables import KeptRows
from pinn.engines.deployment import Deployment
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.step_values import floor_seconds
from pinn.server.traces.steps import BATCH_ROWS, Columns, as_batch, scaled, taken
from pinn.units import NANOSECOND

# The canonical table of snapshots: one row per request of a step whose requests were written.
#
# A snapshot precedes its step: ``cached_tokens`` are in the cache, ``new_tokens`` follow now.

SNAPSHOT_SCHEMA = pa.schema(
    {
        "server": pa.int32(),
        "segment": pa.int32(),
        "step_id": pa.int64(),
        "wall_s": pa.float64(),
        "request_id": pa.string(),
        "is_prefill": pa.bool_(),
        "new_tokens": pa.int64(),
        "cached_tokens": pa.int64(),
        "prompt_tokens": pa.int64(),
        "output_tokens": pa.int64(),
        "preemptions": pa.int64(),
        "kv_blocks_allocated": pa.int64(),
        "kv_blocks_cached": pa.int64(),
        "effective_prompt_tokens": pa.int64(),
        "extra": pa.string(),
    }
)


class SnapshotOrder:
    """Which raw snapshots are kept, and the segment of each.

    Attributes:
        rows: Raw row of each kept snapshot, in order of the file.
        segment: Segment of its step.
        report: Counts. Refused are negative counts, phases other than PREFILL and DECODE, a
            request's second snapshot in a step, and snapshots whose step's summary is missing.
    """

    def __init__(self, raw: pa.Table, steps: pd.DataFrame) -> None:
        """Check the raw table.

        Args:
            raw: The raw table.
            steps: Columns ``server``, ``segment``, ``step_id``, ``wall_s`` of the canonical steps.
        """
        kept = KeptRows(raw.num_rows)
        negative = np.zeros(raw.num_rows, dtype=bool)
        for name in ("step_id", "computed_tokens", "scheduled_tokens", "prompt_tokens"):
            values = pc.fill_null(raw[name], 0).to_numpy()
            negative |= (values < 0) | (values >= 2**31)
        kept.refuse("a count is negative or absurd", negative)
        known = pc.is_in(pc.utf8_upper(raw["phase"]), pa.array(["PREFILL", "DECODE"]))
        kept.refuse("unknown phase", ~known.to_numpy())
        row = _step_rows(raw, steps)
        kept.refuse("its step's summary is missing", row < 0)
        request = pc.dictionary_encode(raw["request_id"].combine_chunks()).indices
        kept.refuse_repeated(row=row, request=request.to_numpy(zero_copy_only=False))
        self.rows = np.flatnonzero(kept.mask)
        self.segment = steps["segment"].to_numpy()[row[self.rows]].astype(np.int32)
        self.report = kept.report("snapshots")


def canonical_snapshots(
    raw: pa.Table, order: SnapshotOrder, schema: pa.Schema = SNAPSHOT_SCHEMA
) -> Iterator[pa.RecordBatch]:
    """The kept snapshots, a batch at a time.

    Args:
        raw: The raw table.
        order: Of its rows.
        schema: The columns to make: all or some of them.
    """
    for begin in range(0, len(order.rows), BATCH_ROWS):
        part = slice(begin, begin + BATCH_ROWS)
        yield _convert(taken(raw, order.rows[part]), order.segment[part], schema)


def _convert(raw: Columns, segment: np.ndarray, schema: pa.Schema) -> pa.RecordBatch:
    made = {
        "segment": lambda: pa.array(segment),
        "wall_s": lambda: scaled(raw("wall_ns"), NANOSECOND, positive=True),
        "is_prefill": lambda: pc.equal(pc.utf8_upper(raw("phase")), "PREFILL"),
        "new_tokens": lambda: raw("scheduled_tokens"),
        "cached_tokens": lambda: raw("computed_tokens"),
    }
    return as_batch(raw, made, schema)


def _step_rows(raw: pa.Table, steps: pd.DataFrame) -> np.ndarray:
    """Row of each snapshot's step, -1 without one; of several of its number the nearest in time."""
    found = np.full(raw.num_rows, -1, dtype=np.int64)
    if steps.empty or not raw.num_rows:
        return found
    keys = steps["server"].to_numpy(np.int64) * 2**40 + steps["step_id"].to_numpy()
    order = np.argsort(keys, kind="stable")
    wanted = raw["server"].to_numpy() * 2**40 + raw["step_id"].to_numpy()
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


# Checks candidate targets of beta against the physical floor.
#
# No step is faster than max(FLOPs / peak, bytes to read / bandwidth) of its batch. A column
# whose median lies below the floor does not hold step times, whatever it is called; coefficients
# fitted to it would promise hardware that does not exist.

#: What columns that are known to be something else really hold.
MEANINGS = {
    "reported_duration_s": (
        "step.duration_us is the time of the scheduler's schedule() call, not of the step: it ends "
        "before the model runs. The step time is the cycle from one step's start to the next's."
    )
}


@dataclass(frozen=True)
class TargetCheck:
    """The verdict on one column.

    Attributes:
        column: Its name.
        rows: Values checked.
        median_s: Their median.
        floor_median_s: Median of their floors.
        below_floor: Values below their own floor.
        is_target: Whether beta may be fitted to it.
        explanation: Why not, and what the column is; empty for a target.
    """

    column: str
    rows: int
    median_s: float
    floor_median_s: float
    below_floor: int
    is_target: bool
    explanation: str

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON-ready values."""
        return asdict(self)


def batch_floor(deployment: Deployment, sums: BatchSums) -> Float[np.ndarray, " steps"]:
    """Floor of each batch on a deployment, in seconds."""
    return floor_seconds(step_costs([deployment]), sums)


def check_target(
    column: str,
    values: Float[np.ndarray, " steps"],
    floor: Float[np.ndarray, " steps"],
) -> TargetCheck:
    """Check one column.

    It is refused where the median of value / floor is below 1: then most rows are impossible.

    Args:
        column: Its name.
        values: Its values in seconds; those that are no numbers are left out.
        floor: The floor of each row's batch in seconds; rows without any are left out.
    """
    use = np.isfinite(values) & (floor > 0)
    values, floor = values[use], floor[use]
    if not len(values):
        return TargetCheck(column, 0, float("nan"), float("nan"), 0, False, "it has no values")
    below = int((values < floor).sum())
    median, floor_median = float(np.median(values)), float(np.median(floor))
    is_target = bool(np.median(values / floor) >= 1)
    explanation = (
        "" if is_target else _explanation(column, median, floor_median, below, len(values))
    )
    return TargetCheck(column, len(values), median, floor_median, below, is_target, explanation)


def _explanation(column: str, median: float, floor: float, below: int, rows: int) -> str:
    text = (
        f"its median of {median * 1e3:.3g} ms lies below the physical floor of {floor * 1e3:.3g} "
        f"ms ({below} of {rows} rows are below their own): reading the weights alone takes longer"
    )
    return f"{text}. {MEANINGS[column]}" if column in MEANINGS else text


# What cleaning did, as tables for the terminal.

_MS = 1e3

#: Medians that are worth printing, and the cycles behind each.
MAX_MEDIANS = 12
MIN_CYCLES = 5


def cleaning_tables(manifest: Mapping[str, Any]) -> str:
    """The report of a folder of trace tables as text.

    Args:
        manifest: Of the folder.
    """
    parts = [ReadReport.from_json(report).table() for report in manifest["reports"].values()]
    segments = manifest.get("segments", [])
    if segments:
        ambiguous = sum(bool(s["is_ambiguous"]) for s in segments)
        parts.append(
            f"servers and segments\n{len(manifest['servers']):8d}  servers\n"
            f"{len(segments):8d}  segments (one process on one clock)\n"
            f"{ambiguous:8d}  of them hold two servers that cannot be told apart"
        )
    parts.append(_counts("intervals from one step's start to the next", manifest["intervals"]))
    if manifest["medians_by_decodes"]:
        parts.append(_medians(manifest["medians_by_decodes"]))
    if manifest["request_issues"]:
        parts.append(_counts("requests by issue", manifest["request_issues"]))
    for check in manifest["targets"].values():
        parts.append(_target(check))
    if not manifest["targets"]:
        parts.append("targets\n  not checked against the floor: give --model and --gpu")
    return "\n\n".join(parts)


def _counts(title: str, counts: Mapping[str, int]) -> str:
    return "\n".join([title, *(f"{count:8d}  {name}" for name, count in counts.items())])


def _medians(rows: Sequence[Mapping[str, float]]) -> str:
    """Some medians over the whole range of decodes; all are in the manifest."""
    known = [row for row in rows if row["cycles"] >= MIN_CYCLES] or rows
    places = np.unique(np.linspace(0, len(known) - 1, MAX_MEDIANS).round().astype(int))
    lines = [
        f"{row['median_step_s'] * _MS:8.2f}  ms at {row['decode_requests']:.0f} decodes, "
        f"{row['cycles']:.0f} cycles"
        for row in (known[place] for place in places)
    ]
    return "\n".join(["median single cycle by decodes at its start (some of them)", *lines])


def _target(check: Mapping[str, Any]) -> str:
    verdict = (
        "accepted as a target of beta" if check["is_target"] else "REFUSED as a target of beta"
    )
    lines = [
        f"{check['column']}: {verdict}",
        f"{check['rows']:8d}  rows, median {check['median_s'] * _MS:.3g} ms, floor "
        f"{check['floor_median_s'] * _MS:.3g} ms, {check['below_floor']} below their floor",
    ]
    return "\n".join(
        [*lines, f"          {check['explanation']}"] if check["explanation"] else lines
    )
