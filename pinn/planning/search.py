"""The highest rate that holds: bisection, aimed where the excess over the limits says."""

from __future__ import annotations

import math
from collections.abc import Callable

#: Ratio of a rate that fails to one that holds, less 1, at which a search ends.
WIDTH = 0.01
#: A rate this much below the first guess is as good as none.
_LEAST_SHARE = 1e-3
_MOST_STRIDE = 4.0
_MOST_STEPS = 60


def highest_rate(
    excess: Callable[[float], float],
    guess: float,
    *,
    stride: float = 1.25,
    width: float = WIDTH,
    enough: float = 0.0,
) -> tuple[float, float | None]:
    """Find where the excess crosses 1.

    Args:
        excess: Worst latency at a rate as a share of its limit; infinite where unknown.
        guess: Rate to begin with.
        stride: Ratio of the first rates tried beside it; strides grow until the crossing lies
            between two rates.
        width: Stop at this ratio of the two, less 1.
        enough: Stop, too, where this rate or a lower one fails.

    Returns:
        The highest rate tried that holds, 0 where none does, and the lowest above it that fails;
        None where none was found to.
    """
    low, high = 0.0, math.inf
    at_low, at_high = math.nan, math.inf
    rate = guess
    for step in range(_MOST_STEPS):
        found = excess(rate)
        if found <= 1:
            low, at_low = rate, found
        else:
            high, at_high = rate, found
        if low == 0 and rate < _LEAST_SHARE * guess:
            return 0.0, high
        if high <= enough or (low > 0 and high <= low * (1 + width)):
            break
        if low == 0:
            rate = high / stride
            stride = min(stride * stride, _MOST_STRIDE)
        elif math.isinf(high):
            if low > guess / _LEAST_SHARE:
                return low, None
            rate = low * stride
            stride = min(stride * stride, _MOST_STRIDE)
        else:
            rate = _between(low, high, at_low, at_high, width, halve=step % 3 == 2)
    return low, high


def _between(
    low: float, high: float, at_low: float, at_high: float, width: float, *, halve: bool
) -> float:
    """The next rate: just beyond the crossing of a power law, else the middle.

    Aimed half a width to the farther end's side, a good guess closes the bracket from there.
    """
    middle = math.sqrt(low * high)
    if halve or math.isinf(at_high) or at_low <= 0:
        return middle
    share = -math.log(at_low) / (math.log(at_high) - math.log(at_low))
    aim = low * (high / low) ** share
    half = math.sqrt(1 + width / 2)
    aim = aim * half if aim < middle else aim / half
    return min(max(aim, low * half), high / half)
