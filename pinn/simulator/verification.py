"""Drafted tokens that a step has verified: how many of them a request keeps.

``vllm/v1/core/sched/scheduler.py: Scheduler.update_from_output``: tokens are accepted up to the
first that the model would not have said, and those after it count as never computed. Whether one is
accepted is drawn with a number that belongs to the request and to its place in the output, whatever
the deployment: runs that are compared draw the same numbers.
"""

from __future__ import annotations

from pinn.simulator import arrays
from pinn.simulator.jit import inner

#: Whole numbers of 31 bits, whose products fit in 64; two odd multipliers of a hash with few
#: biases (github.com/skeeto/hash-prospector), the second cut to 31 bits.
_MASK, _FIRST, _SECOND, _STRIDE = 0x7FFFFFFF, 0x21F0AAAD, 0x735A2D97, 0x1E3779B1


@inner
def verified_tokens(engine, r, sampled):
    """Tokens that a step gives to a request: the next one and the drafted ones that are accepted.

    Args:
        engine: The engine.
        r: The request.
        sampled: Tokens that the step sampled of it: 1 + the drafted ones.
    """
    request, drafted = arrays.requests(engine, r), sampled - 1
    if drafted == 0:
        return 1
    number, accepted = uniform_number(r, request.generated), 0
    most = min(drafted, engine.n_chances)
    while accepted < most and number < arrays.chances(engine, accepted):
        accepted += 1
    request.drafted += drafted
    request.accepted += accepted
    accepted = min(accepted, request.output - request.generated - 1)
    if request.unverified >= drafted:  # else it was preempted, and nothing of it is computed
        request.unverified -= drafted
        request.computed -= drafted - accepted
    request.worked -= drafted - accepted
    return 1 + accepted


@inner
def uniform_number(r, place):
    """A number from 0 to 1 that belongs to a request and a place in its output."""
    bits = _mixed((r * _STRIDE & _MASK) ^ _mixed(place + 1))
    return bits / (_MASK + 1)


@inner
def _mixed(bits):
    bits = (bits ^ (bits >> 16)) * _FIRST & _MASK
    bits = (bits ^ (bits >> 15)) * _SECOND & _MASK
    return bits ^ (bits >> 15)
