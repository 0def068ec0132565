"""The request features once more, for compiled code: one request, plain numbers.

``pinn.physics.request`` is what defines them; a test compares the two.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from pinn.errors import PinnError
from pinn.physics.request import PHASES, REQUEST_FEATURES
from pinn.simulator.jit import inner


class Situation(NamedTuple):
    """A request's ``RequestState`` as numbers, same names and order."""

    prompt_tokens: float
    step_time_s: float
    queue_share: float
    kv_usage: float
    prompt_share: float
    inverse_tensor_parallel: float
    prefix_caching: float
    chunked_prefill: float
    recomputed_tokens: float


class RequestValues(NamedTuple):
    """What a request feature can be, by the last part of its name in the registry."""

    constant: float
    prompt_token: float
    step_time: float
    queue_share: float
    kv_usage: float
    prompt_share: float
    inverse_tensor_parallel: float
    prefix_caching: float
    chunked_prefill: float
    queue_share_squared: float
    kv_usage_squared: float
    recomputed_token: float


#: Phases whose methods know no request (``output_token_processing_time`` takes no argument).
_FIXED_PHASES = ("output_token", "completion")


def request_coefficients(
    alpha: Float[np.ndarray, " features"],
) -> Float[np.ndarray, "phases values"]:
    """Alpha as a table: phases down, ``RequestValues`` across.

    Raises:
        PinnError: If the registry has a feature or phase that compiled code does not know, or a
            feature of the request in a phase that knows none.
    """
    table = np.zeros((len(PHASES), len(RequestValues._fields)))
    for (name, feature), value in zip(REQUEST_FEATURES.items(), alpha, strict=True):
        kind = name.removeprefix(f"{feature.phase}.")
        if feature.phase not in _PHASES or kind not in RequestValues._fields:
            raise PinnError(
                f"request feature {name} has no compiled form: add it to "
                "pinn/simulator/request_kernel.py"
            )
        if feature.phase in _FIXED_PHASES and kind != "constant":
            raise PinnError(f"request feature {name}: phase {feature.phase} knows no request")
        table[PHASES.index(feature.phase), RequestValues._fields.index(kind)] += value
    return table


_PHASES = (
    "arrival_to_queue",
    "queue_to_schedule",
    "schedule_to_first_token",
    "output_token",
    "completion",
    "preemption",
)
ARRIVAL, SCHEDULE, FIRST_TOKEN, OUTPUT_TOKEN, COMPLETION, PREEMPTION = (
    PHASES.index(phase) for phase in _PHASES
)


@inner
def request_values(s):
    """Values of one request in a ``Situation``."""
    return RequestValues(
        1.0,
        s.prompt_tokens,
        s.step_time_s,
        s.queue_share,
        s.kv_usage,
        s.prompt_share,
        s.inverse_tensor_parallel,
        s.prefix_caching,
        s.chunked_prefill,
        s.queue_share * s.queue_share,
        s.kv_usage * s.kv_usage,
        s.recomputed_tokens,
    )
