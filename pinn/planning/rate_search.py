"""Search for the maximum request rate within an SLO: a bisection guided by excess over limits."""

import math
from collections.abc import Callable

import numpy as np

#: Relative distance between a passing and a failing request rate at which the search ends.
WIDTH = 0.01
#: Range of a search, relative to the first guess. The result is 0 if all rates down to this share
#: of the guess fail. No failing rate is found if all rates up to the guess divided by this share
#: pass.
_LEAST_SHARE = 1e-3
_MOST_STRIDE = 4.0
_MOST_STEPS = 60
#: Relative distances from the pass/fail threshold at which rates are tried, to verify that there is
#: only one threshold.
_BESIDE = (0.01, 0.02, 0.03)
#: Relative distance between neighbouring rates of the geometric grid in ``settled_rate``.
_RUNG = 0.002
#: ``_CLEAR_RUNGS``: number of consecutive rates (a range of 3 %) that must all pass to end the
#: search downwards on the grid, or all fail to end it upwards. ``_MOST_RUNGS``: maximum number of
#: rates in each direction.
_CLEAR_RUNGS, _MOST_RUNGS = 15, 500


def highest_rate(
    excess: Callable[[float], float],
    guess: float,
    *,
    stride: float = 1.25,
    width: float = WIDTH,
    enough: float = 0.0,
) -> tuple[float, float | None]:
    """Find the request rate at which the excess reaches 1, that is, a latency reaches its limit.

    Args:
        excess: Function of a rate that returns the largest ratio of a latency to its limit;
            infinite if the ratio is unknown.
        guess: Rate to try first.
        stride: Ratio between the first rates tried. The ratios increase until one rate passes and
            another fails.
        width: Relative difference between passing and failing rate at which the search stops.
        enough: Rate below which the result does not matter: the search stops once this rate or a
            lower one fails.

    Returns:
        Highest simulated rate that passes, or 0 if none passes; and lowest simulated rate above it
        that fails, or None if none fails.
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
    """Return whether rates just below a passing rate pass, and rates just above a failing one fail.

    Args:
        excess: Function of a rate, as for :func:`highest_rate`.
        low: Passing rate that :func:`highest_rate` returned.
        high: Failing rate that :func:`highest_rate` returned.
    """
    if low == 0 or high is None:
        return True
    return all(excess(high * (1 + beside)) > 1 for beside in _BESIDE) and all(
        excess(low / (1 + beside)) <= 1 for beside in _BESIDE
    )


def settled_rate(excess: Callable[[float], float], guess: float) -> tuple[float, float | None]:
    """Find the pass/fail threshold most consistent with results on a geometric grid of rates.

    Percentiles may jump from one rate to the next, so that some rates pass although lower rates
    fail. A bisection then finds one of several thresholds by chance. Here every rate in the grid
    counts: a failing rate below the result contradicts it, and so does a passing rate above it. The
    grid does not depend on the guess, so neither does the result.

    Args:
        excess: Function of a rate, as for :func:`highest_rate`.
        guess: Rate near the threshold, such as the result of :func:`highest_rate`.

    Returns:
        Passing rate of the grid, or 0 if none passes; and the next rate of the grid, which fails,
        or None if none fails.
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
    """Evaluate ``is_so`` at 0, 1, ... until ``_CLEAR_RUNGS`` results in a row are True."""
    found: list[bool] = []
    while sum(found[-_CLEAR_RUNGS:]) < _CLEAR_RUNGS and len(found) < _MOST_RUNGS:
        found.append(is_so(len(found)))
    return found


def _between(
    low: float, high: float, at_low: float, at_high: float, width: float, *, halve: bool
) -> float:
    """Return the next rate to try between a passing and a failing rate.

    With ``halve``, it is their geometric mean. Otherwise a power law of the rate is drawn through
    both excesses (largest ratios of a latency to its limit), and crosses 1 at some rate. The next
    rate lies half of ``width`` beyond that rate, towards the farther of the two given rates, so
    that a good guess ends the search.
    """
    middle = math.sqrt(low * high)
    if halve or math.isinf(at_high) or at_low <= 0:
        return middle
    share = -math.log(at_low) / (math.log(at_high) - math.log(at_low))
    aim = low * (high / low) ** share
    half = math.sqrt(1 + width / 2)
    aim = aim * half if aim < middle else aim / half
    return min(max(aim, low * half), high / half)
