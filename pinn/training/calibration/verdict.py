"""Is a calibration better than what was before, on what it has not seen, beyond noise?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

#: Neighbours in time share their noise: standard errors are over so many blocks at most.
_BLOCKS = 20

Errors = Float[np.ndarray, " n"]


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
        return bool(self.before - self.after > np.nan_to_num(self.standard_error))

    @property
    def is_worse(self) -> bool:
        """Worse by more than one standard error."""
        return bool(self.after - self.before > np.nan_to_num(self.standard_error))

    def __str__(self) -> str:
        """The figures in words."""
        found = "better" if self.is_better else "worse" if self.is_worse else "no better"
        return (
            f"{self.where} ({self.count}): {100 * self.before:.2f} % before, "
            f"{100 * self.after:.2f} % after (difference +- {100 * self.standard_error:.2f}): "
            f"{found}"
        )


def judge(where: str, before: Errors, after: Errors) -> Verdict:
    """Compare absolute relative errors of the same measurements, in order of time."""
    gain = np.abs(before) - np.abs(after)
    blocks = [block.mean() for block in np.array_split(gain, min(_BLOCKS, len(gain)))]
    error = np.std(blocks, ddof=1) / np.sqrt(len(blocks)) if len(blocks) > 1 else np.nan
    return Verdict(
        where, len(gain), float(np.abs(before).mean()), float(np.abs(after).mean()), float(error)
    )


def is_kept(verdicts: Sequence[Verdict]) -> bool:
    """Whether something that was left out got better, and nothing worse."""
    return any(v.is_better for v in verdicts) and not any(v.is_worse for v in verdicts)
