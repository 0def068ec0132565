"""Workloads from files: ``load_workload``."""

from __future__ import annotations

import math
from pathlib import Path

from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import check_requests
from pinn.simulator.workloads.rate import at_rate, mean_rate_per_s, repeated
from pinn.simulator.workloads.workload import Workload

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
    return _load_yaml(path, seed, rate_per_s)


def _recorded(workload: Workload, rate_per_s: float | None) -> Workload:
    """As many requests as are sent at a rate while a recorded load lasts, but no fewer than its."""
    if rate_per_s is None:
        return workload
    count = len(workload) * rate_per_s / mean_rate_per_s(workload)
    check_requests(count, f"workload {workload.name} at {rate_per_s:g}/s")
    return repeated(workload, round(count)) if count > len(workload) else workload


def _load_yaml(path: Path, seed: int | None, rate_per_s: float | None) -> Workload:
    from pinn.simulator.workloads.blis_spec import is_blis_spec, read_blis_spec
    from pinn.simulator.workloads.inference_perf import is_inference_perf, read_inference_perf
    from pinn.simulator.workloads.plain_spec import read_plain_spec
    from pinn.simulator.workloads.yaml_file import read_mapping

    values = read_mapping(path)
    if "trace_version" in values:
        return _recorded(_load_trace(path, str(values.get("time_unit", "us"))), rate_per_s)
    if is_inference_perf(values):
        return read_inference_perf(values, path, seed or 0, rate_per_s=rate_per_s)
    if is_blis_spec(values):
        return read_blis_spec(values, path, seed, rate_per_s)
    if "prompt_tokens" in values:
        return read_plain_spec(values, path, seed, rate_per_s)
    raise PinnError(f"{path}: cannot tell what kind of workload this is: give {FORMATS}")


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
