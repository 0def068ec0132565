"""Search for the highest rate that meets an SLO: bisection, aimed by the excess over limits."""

import math
from collections.abc import Callable

import numpy as np

#: Ratio of a failing to a passing rate, less 1, at which a search ends.
WIDTH = 0.01
#: Share of the first guess below which a rate counts as 0.
_LEAST_SHARE = 1e-3
_MOST_STRIDE = 4.0
_MOST_STEPS = 60
#: Relative distances from a crossing at which rates are tried, to check that it is the only one.
_BESIDE = (0.01, 0.02, 0.03)
#: Ratio of neighbouring rates of the geometric grid, less 1.
_RUNG = 0.002
#: Number of consecutive rates that pass below, and fail above, to end the grid: 3 %; and most
#: rates of the grid.
_CLEAR_RUNGS, _MOST_RUNGS = 15, 500


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
        excess: Function of a rate that returns the worst latency as a share of its limit; infinite
            where unknown.
        guess: Rate to begin with.
        stride: Ratio of the first rates tried beside it; strides grow until the crossing lies
            between two rates.
        width: Ratio of the two rates, less 1, at which to stop.
        enough: Rate at which to stop, too, if it or a lower one fails.

    Returns:
        Highest tried rate that passes, 0 where none does; and lowest tried rate above it that
        fails, None where none was found.
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
        if low > guess / _LEAST_SHARE and math.isinf(high):
            return low, None
        if low > 0 and high < math.inf:
            rate = _between(low, high, at_low, at_high, width, halve=step % 3 == 2)
        else:
            rate = low * stride if low > 0 else high / stride
            stride = min(stride * stride, _MOST_STRIDE)
    return low, high


def is_clear(excess: Callable[[float], float], low: float, high: float | None) -> bool:
    """Return whether a few rates below a passing one pass too, and a few above a failing one fail.

    Args:
        excess: Function of a rate, as of :func:`highest_rate`.
        low: Passing rate, as that function returns it.
        high: Failing rate, as that function returns it.
    """
    if low == 0 or high is None:
        return True
    return all(excess(high * (1 + beside)) > 1 for beside in _BESIDE) and all(
        excess(low / (1 + beside)) <= 1 for beside in _BESIDE
    )


def settled_rate(excess: Callable[[float], float], guess: float) -> tuple[float, float | None]:
    """Find the pass/fail threshold most consistent with results on a geometric grid of rates.

    Percentiles may jump from one rate to the next, so that rates pass beyond others that fail.
    Which crossing a bisection finds is then chance. Here every rate of the grid counts: one that
    fails below the answer contradicts it, and so does one that passes above. The grid does not
    depend on the guess, so chance has no part in the rates that are tried.

    Args:
        excess: Function of a rate, as of :func:`highest_rate`.
        guess: Rate near the crossing, such as that function's.

    Returns:
        Passing rate of the grid, and the next one, which fails; 0 where none passes, None where the
        grid has no end.
    """
    nearest = round(math.log(guess) / math.log1p(_RUNG))

    def rate(rung: int) -> float:
        return (1 + _RUNG) ** (nearest + rung)

    below = _until_clear(lambda steps: excess(rate(-steps)) <= 1)
    above = _until_clear(lambda steps: excess(rate(1 + steps)) > 1)
    holds = np.array([*below[::-1], *(not fails for fails in above)])
    lead = np.cumsum(np.where(holds, 1, -1))
    best = int(np.argmax(lead))
    if lead[best] <= 0:
        return 0.0, rate(1 - len(below))
    rung = best + 1 - len(below)
    return rate(rung), rate(rung + 1) if best + 1 < len(holds) else None


def _until_clear(is_so: Callable[[int], bool]) -> list[bool]:
    """Return the answer of each step, up to enough positive ones in a row."""
    found: list[bool] = []
    while sum(found[-_CLEAR_RUNGS:]) < _CLEAR_RUNGS and len(found) < _MOST_RUNGS:
        found.append(is_so(len(found)))
    return found


def _between(
    low: float, high: float, at_low: float, at_high: float, width: float, *, halve: bool
) -> float:
    """Return the next rate: just beyond the crossing of a power law, else the middle.

    The aim is half a width towards the farther end, from where a good guess closes the bracket.
    """
    middle = math.sqrt(low * high)
    if halve or math.isinf(at_high) or at_low <= 0:
        return middle
    share = -math.log(at_low) / (math.log(at_high) - math.log(at_low))
    aim = low * (high / low) ** share
    half = math.sqrt(1 + width / 2)
    aim = aim * half if aim < middle else aim / half
    return min(max(aim, low * half), high / half)
