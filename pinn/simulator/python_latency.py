"""Latency models written in Python, for the uncompiled loop."""

from __future__ import annotations

from typing import Any, cast

from pinn.coefficients.protocol import LatencyModel
from pinn.errors import PinnError

_NEEDED = ("step_time", "queueing_time", "output_token_processing_time")
#: Interfaces differ in these: one has the first two, another the last.
_OPTIONAL = (
    "scheduling_processing_time",
    "preemption_processing_time",
    "post_decode_fixed_overhead",
)


def complete_latency(model: object) -> LatencyModel:
    """A latency model with every method; those of ``_OPTIONAL`` that it lacks take 0 s.

    Raises:
        PinnError: If it lacks a method that no simulator can do without.
    """
    missing = [name for name in _NEEDED if not callable(getattr(model, name, None))]
    if missing:
        raise PinnError(
            f"{type(model).__name__} is no latency model: it lacks {', '.join(missing)}; "
            "pinn/coefficients/protocol.py lists the methods"
        )
    if all(hasattr(model, name) for name in _OPTIONAL):
        return cast(LatencyModel, model)
    return cast(LatencyModel, _Completed(model))


class _Completed:
    """The methods of a model, and zeros for those that it lacks."""

    def __init__(self, model: Any) -> None:
        for name in (*_NEEDED, *_OPTIONAL):
            setattr(self, name, getattr(model, name, _no_time))


def _no_time(*_: object) -> float:
    return 0.0
