"""Which coefficients observations determine, and which they only determine together.

A standard error has two parts, added in squares. One is that of the fit's weighted least squares
without the ridge, from each row's own residual (MacKinnon and White's HC3): windows of which only
the ends are known miss by far more than single cycles, and a rare one by a factor. The other is
what the ridge holds back: how far offsets of the usual size (``COEFFICIENT_SPREAD``) would be
pulled to the base. Left out: that a coefficient rests on its lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.physics.step import STEP_FEATURES
from pinn.training.calibration.calibrate import BetaCalibration
from pinn.training.calibration.offsets import huber_weights
from pinn.training.calibration.selection import COEFFICIENT_SPREAD

#: Columns whose cosine is above this are one: their features grow in proportion in every row.
#: Between rounding (1e-15) and noise: columns so close need 1 / sqrt(2e-6) = 700 times the accuracy
#: of one row to be told apart.
PROPORTIONAL = 1 - 1e-6

#: Largest standard error, as a share of the coefficients, with which they count as identified: what
#: "determined to within 1 %" says to the user.
MAX_STANDARD_ERROR = 0.01

#: Largest leverage that a residual is corrected for: a row that alone decides a coefficient has no
#: residual that could tell its noise.
_MOST_LEVERAGE = 0.99

Added = Float[np.ndarray, "n groups"]
Groups = Float[np.ndarray, " groups"]


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


def identify(found: BetaCalibration) -> list[CoefficientGroup]:
    """Group the coefficients that matter in the observations, and say which are determined.

    A coefficient that the fit set to 0 counts with its base.
    """
    columns = found.used.features / found.used.seconds[:, None]
    added = columns * np.where(found.beta > 0, found.beta, found.base)
    groups = _proportional(added)
    totals = np.stack([added[:, g].sum(axis=1) for g in groups], axis=1)
    residual = columns @ found.beta - 1
    weight = huber_weights(np.abs(residual))
    noise = _noise(totals, residual, weight)
    pull = _pull(columns * found.base, weight, found.strength, groups)
    pull = pull / np.abs(totals.sum(axis=0))
    names = list(STEP_FEATURES)
    return [
        CoefficientGroup(
            tuple(names[k] for k in group),
            float((columns[:, group] @ found.beta[group]).mean()),
            float(error),
        )
        for group, error in zip(groups, np.hypot(noise, pull), strict=True)
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


def _noise(
    totals: Added, residual: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]
) -> Groups:
    """HC3 standard errors of a factor on each group, with the weights of the fit."""
    root = np.sqrt(weight)
    weighted = totals * root[:, None]
    leverage = (np.linalg.qr(weighted)[0] ** 2).sum(axis=1)
    noise = root * residual / (1 - np.minimum(leverage, _MOST_LEVERAGE))
    errors = np.full(totals.shape[1], np.inf)
    for k, column in enumerate(weighted.T):
        others = np.delete(weighted, k, axis=1)
        found = np.linalg.lstsq(others, column, rcond=1e-10)[0] if others.size else np.zeros(0)
        alone = column - others @ found
        if np.linalg.norm(alone) > 1e-8 * np.linalg.norm(column):
            errors[k] = np.linalg.norm(alone * noise) / (alone @ alone)
    return errors


def _pull(
    scaled: Float[np.ndarray, "n features"],
    weight: Float[np.ndarray, " n"],
    strength: float,
    groups: list[list[int]],
) -> Groups:
    """Standard deviation of what the ridge takes from each group's sum over the rows.

    With X the columns times the base, W the weights and P = n strength, offsets o come out as
    o - (X'WX + P)^-1 P o; the o are taken for independent.

    Args:
        scaled: What each coefficient's base adds to each row.
        weight: Of the rows.
        strength: Of the ridge.
        groups: Columns of each group.
    """
    used = np.flatnonzero(np.abs(scaled).max(axis=0) > 0)
    x, penalty = scaled[:, used], len(scaled) * strength
    shrink = penalty * np.linalg.inv((x.T * weight) @ x + penalty * np.eye(len(used)))
    covariance = COEFFICIENT_SPREAD**2 * shrink @ shrink
    found = []
    for group in groups:
        sums = np.where(np.isin(used, group), x.sum(axis=0), 0.0)
        found.append(np.sqrt(sums @ covariance @ sums))
    return np.array(found)
