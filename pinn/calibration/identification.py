"""Which coefficients observations determine, and which they only determine together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.calibration.intervals import Intervals
from pinn.features.step import STEP_FEATURES

#: Columns whose cosine is above this are one: their features grow in proportion in every row.
PROPORTIONAL = 1 - 1e-6

#: Largest standard error, as a share of the coefficients, with which they count as identified.
MAX_STANDARD_ERROR = 0.01

#: Median absolute deviation of a normal distribution, as a share of its standard deviation.
_MAD = 0.6745


@dataclass(frozen=True)
class CoefficientGroup:
    """Coefficients whose features are proportional in the observations: one number for all.

    Attributes:
        names: Of the coefficients.
        share: Mean share of the step time that they add.
        standard_error: Of what they add, as a share of it; infinite where other coefficients can
            imitate it.
    """

    names: tuple[str, ...]
    share: float
    standard_error: float

    @property
    def is_identified(self) -> bool:
        """Whether the observations determine what the coefficients add together."""
        return self.standard_error < MAX_STANDARD_ERROR


def identify(
    used: Intervals, base: Float[np.ndarray, " features"], beta: Float[np.ndarray, " features"]
) -> list[CoefficientGroup]:
    """Group the coefficients that matter in the observations, and say which are determined.

    The standard error is that of least squares without the ridge: the noise over what is left of a
    group's column after regression on all others. Noise is told from the median residual.

    Args:
        used: The observations.
        base: Coefficients before the fit; they stand in for those that the fit set to 0.
        beta: Coefficients after the fit.
    """
    columns = used.features / used.seconds[:, None]
    noise = float(np.median(np.abs(columns @ beta - 1))) / _MAD
    added = columns * np.where(beta > 0, beta, base)
    groups = _proportional(added)
    totals = np.stack([added[:, g].sum(axis=1) for g in groups], axis=1)
    names = list(STEP_FEATURES)
    return [
        CoefficientGroup(
            tuple(names[k] for k in group), float((columns[:, group] @ beta[group]).mean()), error
        )
        for group, error in zip(groups, _standard_errors(totals, noise), strict=True)
    ]


def _proportional(added: Float[np.ndarray, "n features"]) -> list[list[int]]:
    """Columns that are not 0, in groups of proportional ones."""
    size = np.linalg.norm(added, axis=0)
    groups: list[list[int]] = []
    for k in np.flatnonzero(size > 0):
        for group in groups:
            first = group[0]
            if added[:, first] @ added[:, k] > PROPORTIONAL * size[first] * size[k]:
                group.append(int(k))
                break
        else:
            groups.append([int(k)])
    return groups


def _standard_errors(
    columns: Float[np.ndarray, "n groups"], noise: float
) -> Float[np.ndarray, " groups"]:
    errors = np.full(columns.shape[1], np.inf)
    for k, column in enumerate(columns.T):
        others = np.delete(columns, k, axis=1)
        found = np.linalg.lstsq(others, column, rcond=1e-10)[0] if others.size else np.zeros(0)
        alone = np.linalg.norm(column - others @ found)
        if alone > 1e-8 * np.linalg.norm(column):
            errors[k] = noise / alone
    return errors
