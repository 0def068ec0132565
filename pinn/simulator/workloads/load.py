"""A load from its file, whatever wrote it, and at another rate."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import check_requests, stage_starts
from pinn.simulator.workloads.workload import COLUMNS, Workload

# A load at another rate: its clock scaled, its requests repeated, or fewer of them.


def mean_rate_per_s(workload: Workload) -> float:
    """Requests per second, from the first to the last that is sent.

    Where stages wait for each other, the time in between counts for nothing.

    Raises:
        PinnError: If the load is a closed loop, or sends everything at one moment.
    """
    if workload.concurrency is not None:
        raise PinnError(
            f"workload {workload.name}: a closed loop of {workload.concurrency} clients has no "
            "rate of its own: give --rate, or stages (rate, duration)"
        )
    due = _clock_s(workload)
    span_s = float(due[-1] - due[0])
    if not span_s > 0:
        raise PinnError(
            f"workload {workload.name}: its {len(workload)} requests are all sent at one moment, "
            "which is no rate: give at least two that are sent apart"
        )
    return (len(workload) - 1) / span_s


def at_rate(workload: Workload, rate_per_s: float) -> Workload:
    """A load's requests at another mean rate: every time between two of them changes alike.

    Stages keep the ratio of their rates. Lengths, sharing and patience stay.

    Raises:
        PinnError: If the rate is not positive, or the load has none.
    """
    if not 0 < rate_per_s < np.inf:
        raise PinnError(f"a rate must be positive and finite, got {rate_per_s:g} requests/s")
    factor = mean_rate_per_s(workload) / rate_per_s
    return replace(
        workload,
        offset_s=workload.offset_s * factor,
        stage_starts_s=tuple(start * factor for start in workload.stage_starts_s),
        stage_gap_s=workload.stage_gap_s * factor,
    )


def repeated(workload: Workload, count: int) -> Workload:
    """So many requests: the load's own, and then the same again, as often as it takes.

    Each repetition begins where the next request of the one before would be due, in the mean. Its
    prompts are its own: what they share they share with requests of the same repetition.

    Raises:
        PinnError: If there are too many, or the load has no rate.
    """
    n = len(workload)
    copies = -(-count // n)
    check_requests(copies * n, f"workload {workload.name}, {copies:,} times")
    if copies <= 1:
        return thinned(workload, np.arange(n) < count)
    copy = np.repeat(np.arange(copies), n)
    columns: dict[str, Any] = {name: np.tile(getattr(workload, name), copies) for name in COLUMNS}
    donor, starts = columns["shares_with"], workload.stage_starts_s
    columns["shares_with"] = np.where(donor >= 0, donor + copy * n, -1)
    if workload.stages_wait:
        columns["stage"] += copy * workload.stages
    else:
        clock_s = np.tile(_clock_s(workload), copies)
        columns["offset_s"] = clock_s + copy * (n / mean_rate_per_s(workload))
        columns["stage"], starts = np.zeros(copies * n, np.int64), (0.0,)
    whole = replace(workload, stage_starts_s=starts, **columns)
    return thinned(whole, np.arange(copies * n) < count)


def thinned(workload: Workload, kept: Bool[np.ndarray, " n"]) -> Workload:
    """Some requests of a load, at their own times.

    Requests that share tokens with one that is left out share them with each other, as far as
    their own prompts reach: with the one before that has most of them.

    Raises:
        PinnError: If none is kept.
    """
    donor, shared = workload.shares_with, workload.shared_tokens
    if (donor >= 0).any() and not kept.all():
        whole = workload.prompt_tokens + workload.output_tokens
        shared = np.minimum(shared, whole[np.maximum(donor, 0)])
        donor, shared = _shared_among(donor, shared, kept)
    place = np.cumsum(kept) - 1
    donor = np.where(donor >= 0, place[np.maximum(donor, 0)], -1)[kept]
    left, stage = np.unique(workload.stage[kept], return_inverse=True)
    columns: dict[str, Any] = {name: getattr(workload, name)[kept] for name in COLUMNS}
    columns |= {"stage": stage, "shares_with": donor, "shared_tokens": shared[kept]}
    if not workload.stages_wait:
        columns["stage_starts_s"] = tuple(workload.stage_starts_s[i] for i in left)
    return replace(workload, **columns)


def _clock_s(workload: Workload) -> Float[np.ndarray, " n"]:
    """When requests are due if nothing is ever waited for."""
    starts_s = workload.stage_starts_s
    if workload.stages_wait:
        starts_s = stage_starts([0.0] * workload.stages, workload.offset_s, workload.stage)
    return np.array(starts_s)[workload.stage] + workload.offset_s


def _shared_among(
    donor: np.ndarray, shared: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Donors that are kept, and the tokens shared with them.

    Every left-out request is stood for by a kept one that begins with as many of its tokens as any
    so far.
    """
    new_donor, new_shared = np.full(len(donor), -1, np.int64), np.zeros(len(donor), np.int64)
    stand_in, tokens = np.full(len(donor), -1, np.int64), np.zeros(len(donor), np.int64)
    for r in range(len(donor)):
        d, common = donor[r], shared[r]
        found, reach = -1, 0
        if d >= 0:
            found, reach = (d, common) if kept[d] else (stand_in[d], min(common, tokens[d]))
            if kept[r] and not kept[d] and common > tokens[d]:
                stand_in[d], tokens[d] = r, common
        if kept[r]:
            new_donor[r], new_shared[r] = found, reach
        else:
            stand_in[r], tokens[r] = found, reach
    return new_donor, new_shared


# Workloads from files: ``load_workload``.

FORMATS = (
    "a CSV trace (arrival_s, prompt_tokens, output_tokens), a TraceV2 header beside its CSV, "
    "inference-perf's YAML (load, data), a BLIS workload specification (clients or inference_perf) "
    "or a plain one (prompt_tokens, output_tokens, stages or concurrency)"
)


def load_workload(
    path: str | Path, seed: int | None = None, rate_per_s: float | None = None
) -> Workload:
    """Load a workload; what kind of file it is shows in its contents.

    Args:
        path: A CSV or YAML (or JSON) file.
        seed: Of the random draws, in place of the file's (0 where it names none).
        rate_per_s: Exact mean rate, in place of the file's. Loads that are drawn last as long as
            they would, with more or fewer requests, as if the file named that rate. A recorded one
            is sent faster and again and again for as long as it lasts, or slower.

    Raises:
        PinnError: If the file is of no known kind or cannot be used.
    """
    if rate_per_s is not None:
        if not 0 < rate_per_s < math.inf:
            raise PinnError(f"a rate must be positive and finite, got {rate_per_s:g} requests/s")
        return at_rate(_load(Path(path), seed, rate_per_s), rate_per_s)
    return _load(Path(path), seed, None)


def _load(path: Path, seed: int | None, rate_per_s: float | None) -> Workload:
    if not path.is_file():
        raise PinnError(f"no workload at {path}: give {FORMATS}")
    if path.suffix == ".csv":
        from pinn.simulator.workloads.csv_trace import read_csv_trace

        return _recorded(read_csv_trace(path), rate_per_s)
    from pinn.simulator.workloads import blis_spec, yaml_spec

    values = yaml_spec.read_mapping(path)
    if "trace_version" in values:
        return _recorded(_load_trace(path, str(values.get("time_unit", "us"))), rate_per_s)
    if isinstance(values.get("load"), dict) and "data" in values:
        return yaml_spec.read_inference_perf(values, path, seed or 0, rate_per_s=rate_per_s)
    if blis_spec.OWN_KEYS & set(values):
        return blis_spec.read_blis_spec(values, path, seed, rate_per_s)
    if "prompt_tokens" in values:
        return yaml_spec.read_plain_spec(values, path, seed, rate_per_s)
    raise PinnError(f"{path}: cannot tell what kind of workload this is: give {FORMATS}")


def _recorded(workload: Workload, rate_per_s: float | None) -> Workload:
    """As many requests as are sent at a rate while a recorded load lasts, but no fewer than its."""
    if rate_per_s is None:
        return workload
    count = len(workload) * rate_per_s / mean_rate_per_s(workload)
    check_requests(count, f"workload {workload.name} at {rate_per_s:g}/s")
    return repeated(workload, round(count)) if count > len(workload) else workload


def _load_trace(header: Path, time_unit: str) -> Workload:
    """The CSV of a TraceV2 header has its name, or is the only CSV beside it."""
    from pinn.simulator.workloads.csv_trace import read_csv_trace

    if time_unit.lower() not in ("us", "microsecond", "microseconds"):
        raise PinnError(f"{header}: time_unit is {time_unit!r}, expected microseconds")
    same = header.with_suffix(".csv")
    beside = [same] if same.is_file() else sorted(header.parent.glob("*.csv"))
    if len(beside) != 1:
        raise PinnError(f"{header}: expected its requests in {same}, found {len(beside)} CSV files")
    return read_csv_trace(beside[0])
