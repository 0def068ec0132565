"""Figures of foreign files in SI units, and the shapes that tools share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from pinn.data.benchmarks.benchmark_run import STATISTICS
from pinn.data.benchmarks.given_load import NotUsable
from pinn.specs.schema_faults import first_fault
from pinn.units import MICROSECOND, MILLISECOND

#: Unit as files spell it -> seconds.
SECONDS = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "s/token": 1.0,
    "ms": MILLISECOND, "ms/token": MILLISECOND, "us": MICROSECOND, "ns": 1e-9,
}  # fmt: skip

Model = TypeVar("Model", bound=BaseModel)


class Foreign(BaseModel):
    """A foreign file: keys that no reader needs are left alone."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


def checked(model: type[Model], values: Any) -> Model:
    """Validate a foreign file.

    Raises:
        NotUsable: If it does not fit, with the first place.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise NotUsable(": ".join(first_fault(error))) from error


def kept(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Figures that hold something: tools write 0, null or NaN for what they could not measure.

    >>> kept({"ttft_mean_s": 0.1, "itl_mean_s": 0.0, "e2e_mean_s": None})
    {'ttft_mean_s': 0.1}
    """
    return {k: float(v) for k, v in figures.items() if v is not None and v > 0 and math.isfinite(v)}


def statistics_of(
    latency: str, lookup: Callable[[str], float | None], unit_s: float
) -> dict[str, float]:
    """Mean and percentiles of a latency, in seconds.

    Args:
        latency: Its name here, such as ``ttft``.
        lookup: Statistic (``mean``, ``p50``, ...) -> the file's number; None where it has none.
        unit_s: The file's unit in seconds.
    """
    found = {each: lookup(each) for each in STATISTICS}
    return kept({f"{latency}_{k}_s": None if v is None else v * unit_s for k, v in found.items()})


def sample_figures(latency: str, seconds: Iterable[float]) -> dict[str, float]:
    """Statistics of single values in seconds, without those that are no positive numbers."""
    values = np.array([v for v in seconds if v is not None and v > 0], float)
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    return statistics_of(
        latency,
        lambda each: float(
            values.mean() if each == "mean" else np.percentile(values, int(each[1:]))
        ),
        1.0,
    )


def request_figures(
    ttft_s: Iterable[float], e2e_s: Iterable[float], output_tokens: Iterable[int]
) -> dict[str, float]:
    """TTFT, E2E and TPOT of requests that are known one by one."""
    rows = list(zip(ttft_s, e2e_s, output_tokens, strict=True))
    return (
        sample_figures("ttft", (first for first, _, _ in rows))
        | sample_figures("e2e", (last for _, last, _ in rows))
        | sample_figures("tpot", ((last - first) / (n - 1) for first, last, n in rows if n > 1))
    )
