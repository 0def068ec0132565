"""The highest rate that meets an SLO: bisection, aimed where the excess over the limits says."""

import math
from collections.abc import Callable

import numpy as np

#: Ratio of a rate that fails to one that holds, less 1, at which a search ends.
WIDTH = 0.01
#: A rate this much below the first guess is as good as none.
_LEAST_SHARE = 1e-3
_MOST_STRIDE = 4.0
_MOST_STEPS = 60
#: How far beside a crossing rates are tried to see whether it is the only one; ratios less 1.
_BESIDE = (0.01, 0.02, 0.03)
#: Ratio of neighbours on the ladder of rates that settles a jagged crossing, less 1.
_RUNG = 0.002
#: The ladder ends where so many rungs in a row hold below, and fail above: 3 %; or here.
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
        if low > guess / _LEAST_SHARE and math.isinf(high):
            return low, None
        if low > 0 and high < math.inf:
            rate = _between(low, high, at_low, at_high, width, halve=step % 3 == 2)
        else:
            rate = low * stride if low > 0 else high / stride
            stride = min(stride * stride, _MOST_STRIDE)
    return low, high


def is_clear(excess: Callable[[float], float], low: float, high: float | None) -> bool:
    """Whether a few rates below one that holds do so too, and a few above one that fails.

    Args:
        excess: As of :func:`highest_rate`.
        low: As that function returns it.
        high: Likewise.
    """
    if low == 0 or high is None:
        return True
    return all(excess(high * (1 + beside)) > 1 for beside in _BESIDE) and all(
        excess(low / (1 + beside)) <= 1 for beside in _BESIDE
    )


def settled_rate(excess: Callable[[float], float], guess: float) -> tuple[float, float | None]:
    """Find the pass/fail threshold most consistent with results on a geometric grid of rates.

    Percentiles may jump from one rate to the next, so that rates hold beyond others that fail, and
    which crossing a bisection ends at is chance. Here every rate among them counts:
    one that fails below the answer contradicts it, and so does one that holds above. The ladder's
    rates are the same wherever the search begins, so that chance has no part in which are tried.

    Args:
        excess: As of :func:`highest_rate`.
        guess: A rate near the crossing, such as that function's.

    Returns:
        The rate of the ladder, which holds, and the next one, which fails; 0 where none holds,
        None where the ladder has no end.
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
    """What each step says, up to enough in a row that say yes."""
    found: list[bool] = []
    while sum(found[-_CLEAR_RUNGS:]) < _CLEAR_RUNGS and len(found) < _MOST_RUNGS:
        found.append(is_so(len(found)))
    return found


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
