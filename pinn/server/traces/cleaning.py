"""What of a trace is kept: snapshots, the server it names, and the page that says so."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float

from pinn.common.files import ReadReport
from pinn.common.tables import KeptRows
from pinn.server.traces.steps import Canonical, Columns, out_of_range, scaled, taken
from pinn.units import NANOSECOND

# The canonical table of snapshots: one row per request of a step whose requests were written.
#
# A snapshot precedes its step: ``cached_tokens`` are in the cache, ``new_tokens`` follow now.

_COUNTS = ("new_tokens", "cached_tokens", "prompt_tokens", "output_tokens", "preemptions",
           "kv_blocks_allocated", "kv_blocks_cached", "effective_prompt_tokens")  # fmt: skip
SNAPSHOT_SCHEMA = pa.schema(
    {
        **dict.fromkeys(("server", "segment"), pa.int32()),
        "step_id": pa.int64(),
        "wall_s": pa.float64(),
        "request_id": pa.string(),
        "is_prefill": pa.bool_(),
        **dict.fromkeys(_COUNTS, pa.int64()),
        "extra": pa.string(),
    }
)

_MADE: dict[str, Callable[[Columns], pa.Array]] = {
    "wall_s": scaled("wall_ns", NANOSECOND, positive=True),
    "is_prefill": lambda raw: pc.equal(pc.utf8_upper(raw("phase")), "PREFILL"),
    "new_tokens": lambda raw: raw("scheduled_tokens"),
    "cached_tokens": lambda raw: raw("computed_tokens"),
}


def canonical_snapshots(
    raw: pa.Table, steps: pd.DataFrame, release: Callable[[], None]
) -> Canonical:
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
    return Canonical(SNAPSHOT_SCHEMA, rows, partial(taken, raw), _MADE, given, report, release)


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


def check_target(
    column: str, values: Float[np.ndarray, " steps"], floor: Float[np.ndarray, " steps"]
) -> dict[str, Any]:
    """Check one column.

    It is refused where the median of value / floor is below 1: then most rows are impossible.

    Args:
        column: Its name.
        values: Its values in seconds; those that are no numbers are left out.
        floor: The floor of each row's batch in seconds; rows without any are left out.

    Returns:
        ``column``; ``rows``, values checked; ``median_s`` and ``floor_median_s``, medians of these
        and of their floors; ``below_floor``, values below their own floor; ``is_target``, whether
        beta may be fitted to it; and ``explanation``, why not, empty for a target.
    """
    use = np.isfinite(values) & (floor > 0)
    values, floor = values[use], floor[use]
    rows, below = len(values), int((values < floor).sum())
    median, floor_median, ratio = (
        float(np.median(each)) if rows else np.nan for each in (values, floor, values / floor)
    )
    explanation = ""
    if not rows:
        explanation = "it has no values"
    elif ratio < 1:
        explanation = (
            f"its median of {median * 1e3:.3g} ms lies below the physical floor of "
            f"{floor_median * 1e3:.3g} ms ({below} of {rows} rows are below their own): reading "
            "the weights alone takes longer"
        )
        explanation += f". {MEANINGS[column]}" if column in MEANINGS else ""
    return {
        "column": column,
        "rows": rows,
        "median_s": median,
        "floor_median_s": floor_median,
        "below_floor": below,
        "is_target": not explanation,
        "explanation": explanation,
    }


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
    verdict = "accepted" if check["is_target"] else "REFUSED"
    lines = [
        f"{check['column']}: {verdict} as a target of beta",
        f"{check['rows']:8d}  rows, median {check['median_s'] * _MS:.3g} ms, floor "
        f"{check['floor_median_s'] * _MS:.3g} ms, {check['below_floor']} below their floor",
    ]
    if check["explanation"]:
        lines.append(f"          {check['explanation']}")
    return "\n".join(lines)
