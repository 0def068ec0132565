"""What is known of a server's coefficients before it is measured, as a Gaussian.

Relative offsets o of the coefficients have the covariance

    C0 = M diag(s^2) M' + diag(own^2),

with M the membership in scalars (``pinn.training.calibration.scalars``), s how far each may be off
and ``own`` how far each coefficient may be off beside its scalar. That alone would allow step times
that the checkpoint does not: it knows the sum better than its parts. So C0 is told that steps of
known features hold to within their own standard deviations h, independent of each other:

    C = C0 - C0 J' (J C0 J' + diag(h^2))^-1 J C0,      J = what each coefficient adds to a step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.coefficients.coefficient_set import CoefficientSet
from pinn.coefficients.coefficients import NAMES
from pinn.errors import PinnError
from pinn.physics.step import STEP_FEATURES
from pinn.training.calibration.scalars import LOWER_BOUNDS, SCALARS, membership

#: Relative standard deviation of each scalar: those whose 90 % intervals do best on other rows of
#: measured deployments (scripts/score_calibration.py); none below 0.35, since a server of one's own
#: may well be 30 % off.
SCALAR_SPREADS = {
    "step constant": 0.35,
    "requests": 1.0,
    "bytes": 0.5,
    "arithmetic": 1.4,
    "attention": 0.35,
    "communication": 0.35,
    "prefill": 1.4,
    "arrival": 0.35,
}

#: What a server adds to the steps of an engine that runs by itself, relative: to every step, since
#: front end and clients take of the same machine, and to what a step and a request cost the host,
#: which takes requests in and hands tokens out between steps. Assumptions.
SERVED_FACTOR, SERVED_SPREADS = 0.2, {"step constant": 1.0, "requests": 1.0}

#: Prior spread of a single coefficient where no checkpoint tells: an assumption.
COEFFICIENT_SPREAD = 0.5

Vector = Float[np.ndarray, " coefficients"]
Matrix = Float[np.ndarray, "coefficients coefficients"]


@dataclass(frozen=True)
class Prior:
    """Coefficients before a calibration.

    Attributes:
        mean: In the order of ``NAMES``; seconds or multipliers.
        covariance: Of the coefficients; one without variance stays what it is.
    """

    mean: Vector
    covariance: Matrix

    @property
    def lower(self) -> Vector:
        """Smallest coefficients: those of the registry, or the mean where it lies below."""
        return np.minimum(LOWER_BOUNDS, self.mean)


@dataclass(frozen=True)
class KnownSteps:
    """Steps whose times are known to within something.

    Attributes:
        features: Step features of each.
        spread: Relative standard deviation of each one's time.
    """

    features: Float[np.ndarray, "steps step_features"]
    spread: Float[np.ndarray, " steps"]


def assumed_prior(
    mean: Vector,
    own: Vector | float = COEFFICIENT_SPREAD,
    known: KnownSteps | None = None,
    scalar_spreads: Mapping[str, float] = SCALAR_SPREADS,
) -> Prior:
    """A prior of coefficients, their own relative spreads and what is known of whole steps."""
    members = membership() * [scalar_spreads[name] for name in SCALARS]
    relative = members @ members.T + np.diag(np.broadcast_to(own, len(NAMES)) ** 2)
    if known is not None:
        added = known.features * mean[: len(STEP_FEATURES)]
        share = np.zeros((len(added), len(NAMES)))
        share[:, : len(STEP_FEATURES)] = added / added.sum(axis=1, keepdims=True)
        both = share @ relative
        told = both @ share.T + np.diag(known.spread**2)
        relative = relative - both.T @ np.linalg.solve(told, both)
    return Prior(mean, relative * np.outer(mean, mean))


def served_prior(steps: Prior) -> Prior:
    """What is known of a server whose engine's steps were measured by themselves."""
    split = len(STEP_FEATURES)
    factor = np.where(np.arange(len(NAMES)) < split, SERVED_FACTOR, 0.0)
    added = membership() * [SERVED_SPREADS.get(name, 0.0) for name in SCALARS]
    directions = np.column_stack([factor, added]) * steps.mean[:, None]
    return Prior(steps.mean, steps.covariance + directions @ directions.T)


def prior_of_set(found: CoefficientSet, where: str) -> Prior:
    """The posterior that a file holds, as the prior of what comes next.

    Raises:
        PinnError: If it holds none.
    """
    if found.covariance is None:
        raise PinnError(
            f"{where} holds no posterior to go on from: calibrate without --append first"
        )
    return Prior(np.concatenate([found.beta, found.alpha]), found.covariance)
