"""Range of loads in the calibration data, and warnings if a simulated load is outside it."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun
from pinn.simulator.run import Run
from pinn.specs.batch import Batch
from pinn.surrogate.coefficient_set import CoefficientSet

#: Descriptions of the properties of a load in warnings; ``{}`` is replaced by the value.
_NAMES = {
    "prompt_tokens": "the load has a mean prompt length of {} tokens",
    "output_tokens": "the load has a mean output length of {} tokens",
    "requests_in_flight": "the load has {} requests in flight per server on average",
}
#: Description of a batch, which has no other property of a load.
_OF_BATCH = {"requests_in_flight": "the number of requests in a batch is {}"}

#: A load counts as inside the fitted range up to this relative distance, because lengths and the
#: number of requests in flight differ between random samples of the same load. The value is an
#: assumption.
_TOLERANCE = 0.1

#: Lowest and highest value of each property of a load.
LoadRange = dict[str, tuple[float, float]]


def mean_in_flight(run: BenchmarkRun) -> float:
    """Return the mean number of requests in flight of a benchmark run, by Little's law."""
    load = run.load
    rate = run.figures.get("requests_per_s", load.rate_per_s)
    first, gap = run.typical_s("ttft") or 0.0, run.typical_s("tpot", "itl") or 0.0
    length = run.typical_s("e2e") or first + gap * load.output.mean
    most = load.concurrency or load.requests
    return min(rate * length, most) if rate else most


def benchmark_range(runs: Sequence[BenchmarkRun]) -> LoadRange:
    """Return the range of mean lengths and of requests in flight over benchmark runs."""
    return {
        "prompt_tokens": range_of([run.load.prompt.mean for run in runs]),
        "output_tokens": range_of([run.load.output.mean for run in runs]),
        "requests_in_flight": range_of([mean_in_flight(run) for run in runs]),
    }


def range_of(values: Sequence[float] | Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Return the minimum and the maximum of some values."""
    return float(np.min(values)), float(np.max(values))


def joined_range(a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> LoadRange:
    """Return the range of loads that covers two ranges.

    >>> joined_range({"prompt_tokens": (100, 200)}, {"prompt_tokens": (150, 300)})
    {'prompt_tokens': (100, 300)}
    """
    return {
        name: (min(both), max(both))
        for name in {**a, **b}
        if (both := [*a.get(name, ()), *b.get(name, ())])
    }


def load_warnings(found: CoefficientSet, run: Run) -> list[str]:
    """Return a warning for each property of a run's load outside the calibrated range.

    Args:
        found: Calibrated coefficients.
        run: Simulated run of a load with these coefficients.
    """
    stages = [each for stage in range(run.workload.stages) if (each := _stage(run, stage))]
    return range_warnings(found, stages)


def batch_warnings(found: CoefficientSet, batches: Sequence[Batch]) -> list[str]:
    """Return a warning, as a list, if batches have a number of requests outside the range."""
    sizes = [{"requests_in_flight": float(len(batch))} for batch in batches]
    return range_warnings(found, sizes, _OF_BATCH)


def range_warnings(
    found: CoefficientSet,
    loads: Sequence[Mapping[str, float]],
    names: Mapping[str, str] = _NAMES,
) -> list[str]:
    """Return a warning for each property of some loads outside the calibrated range.

    The list is empty if the coefficient file does not contain the calibrated range.

    Args:
        found: Calibrated coefficients.
        loads: Properties of each load; a property may be missing.
        names: Description of each property to check, in which ``{}`` is replaced by the value.
    """
    fitted = found.calibration.get("loads") or {}
    return [
        text
        for name, said in names.items()
        if name in fitted
        for text in _outside(said, fitted[name], [each[name] for each in loads if name in each])
    ]


def _stage(run: Run, stage: int) -> dict[str, float]:
    """Return the properties of one stage of a simulated load; empty if no request was served."""
    r = run.requests
    mine = r.of_stage(stage) & r.finished
    if not mine.any():
        return {}
    span_s = float(r.finish_s[mine].max() - r.arrival_s[mine].min())
    return {
        "prompt_tokens": float(r.prompt_tokens[mine].mean()),
        "output_tokens": float(r.output_tokens[mine].mean()),
        "requests_in_flight": float(r.e2e_s[mine].sum()) / span_s / run.copies,
    }


def _outside(said: str, fitted: Sequence[float], values: Sequence[float]) -> Iterator[str]:
    """Yield a warning with the lowest and highest values outside a property's range, if any."""
    low, high = fitted
    most = 1 + _TOLERANCE
    far = [v for v in dict.fromkeys((min(values, default=low), max(values, default=high)))
           if v > most * high or most * v < low]  # fmt: skip
    if far:
        ends = _short(low) if low == high else f"{_short(low)} to {_short(high)}"
        yield (
            f"{said.format(' or '.join(map(_short, far)))}, but the calibration was fitted to "
            f"{ends}: errors may exceed its held-out errors; calibrate with a similar load"
        )


def _short(value: float) -> str:
    return f"{round(value, 1):,g}"
