"""Is a calibration better than what was before, on what it has not seen, beyond noise?

Errors tell how far predictions are off, and how probable the measurements are under them tells also
whether their intervals say so: what was predicted well and is now known better is better too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

#: Neighbours in time share their noise: standard errors are over so many blocks at most.
_BLOCKS = 20

#: Degrees of freedom of the Student's t that measurements are judged by: a single one that is far
#: off does not decide.
_DEGREES = 5.0

Errors = Float[np.ndarray, " n"]


#: Relative errors that differ by less differ by the rounding of a fit that has nothing to change.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Verdict:
    """Errors on what was left out, before and after.

    Attributes:
        where: What was left out.
        count: How many measurements that are.
        before: Mean absolute relative error before.
        after: The same after.
        standard_error: Of their difference; NaN where one measurement cannot tell.
    """

    where: str
    count: int
    before: float
    after: float
    standard_error: float

    @property
    def is_better(self) -> bool:
        """Better by more than one standard error."""
        return bool(self.before - self.after > np.nan_to_num(self.standard_error) + _ROUNDING)

    @property
    def is_worse(self) -> bool:
        """Worse by more than one standard error."""
        return bool(self.after - self.before > np.nan_to_num(self.standard_error) + _ROUNDING)

    def __str__(self) -> str:
        """The figures in words."""
        found = "better" if self.is_better else "worse" if self.is_worse else "no better"
        return (
            f"{self.where} ({self.count}): {100 * self.before:.2f} % before, "
            f"{100 * self.after:.2f} % after (difference +- {100 * self.standard_error:.2f}): "
            f"{found}"
        )


@dataclass(frozen=True)
class Likelihood:
    """How probable what was left out is, after and before.

    Attributes:
        where: What was left out.
        count: How many measurements that are.
        gain: Mean log of how many times as probable a measurement is after as before.
        standard_error: Of it; NaN where one measurement cannot tell.
    """

    where: str
    count: int
    gain: float
    standard_error: float

    @property
    def is_better(self) -> bool:
        """More probable by more than one standard error."""
        return bool(self.gain > np.nan_to_num(self.standard_error))

    @property
    def is_worse(self) -> bool:
        """Less probable by more than one standard error."""
        return bool(-self.gain > np.nan_to_num(self.standard_error))

    def __str__(self) -> str:
        """The figures in words."""
        found = "better" if self.is_better else "worse" if self.is_worse else "no better"
        low, high = np.exp(self.gain + np.array([-1, 1]) * np.nan_to_num(self.standard_error))
        return (
            f"{self.where} ({self.count}): each {np.exp(self.gain):.2f} times as probable as "
            f"before ({low:.2f} to {high:.2f}): {found}"
        )


def judge(where: str, before: Errors, after: Errors) -> Verdict:
    """Compare absolute relative errors of the same measurements, in order of time."""
    gain = np.abs(before) - np.abs(after)
    return Verdict(
        where,
        len(gain),
        float(np.abs(before).mean()),
        float(np.abs(after).mean()),
        _standard_error(gain),
    )


def judge_likelihood(
    where: str, before: Errors, before_spread: Errors, after: Errors, after_spread: Errors
) -> Likelihood:
    """Compare log errors of the same measurements by their relative standard deviations."""
    gain = _log_density(after / after_spread) - np.log(after_spread)
    gain -= _log_density(before / before_spread) - np.log(before_spread)
    return Likelihood(where, len(gain), float(gain.mean()), _standard_error(gain))


def _log_density(z: Errors) -> Errors:
    """Of Student's t, up to a constant."""
    return -(_DEGREES + 1) / 2 * np.log1p(z**2 / _DEGREES)


def _standard_error(gain: Errors) -> float:
    """Standard error of the mean, by blocks of neighbours."""
    blocks = [block.mean() for block in np.array_split(gain, min(_BLOCKS, len(gain)))]
    return float(np.std(blocks, ddof=1) / np.sqrt(len(blocks))) if len(blocks) > 1 else np.nan


def is_kept(verdicts: Sequence[Verdict | Likelihood]) -> bool:
    """True if any held-out score improved and none got worse."""
    return any(v.is_better for v in verdicts) and not any(v.is_worse for v in verdicts)
