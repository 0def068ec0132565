"""Beta of a server, calibrated to its own step times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.coefficients.coefficients import NAMES
from pinn.errors import PinnError
from pinn.physics.step import STEP_FEATURES
from pinn.training.calibration.intervals import CALIBRATION, PARTS, Intervals
from pinn.training.calibration.posterior import Posterior, fit_posterior
from pinn.training.calibration.prior import Prior
from pinn.training.calibration.selection import select

#: Kinds of intervals to calibrate on.
KINDS = ("windows", "singles", "both")


@dataclass(frozen=True)
class BetaSettings:
    """How beta is calibrated.

    Attributes:
        kind: Intervals to use: ``windows`` of 5 to 15 steps, ``singles`` or ``both``.
        budget: How many observations; None for all.
        select: ``random`` or ``active``.
        seed: Of the random selection.
    """

    kind: str = "both"
    budget: int | None = 500
    select: str = "random"
    seed: int = 0


@dataclass(frozen=True)
class BetaCalibration:
    """A calibrated beta.

    Attributes:
        prior: Coefficients before.
        posterior: Coefficients after; alpha stays what it was.
        used: The intervals it was fitted to.
    """

    prior: Prior
    posterior: Posterior
    used: Intervals

    @property
    def base(self) -> Float[np.ndarray, " features"]:
        """Beta before."""
        return self.prior.mean[: len(STEP_FEATURES)]

    @property
    def beta(self) -> Float[np.ndarray, " features"]:
        """Beta after."""
        return self.posterior.mean[: len(STEP_FEATURES)]


def candidates(intervals: Intervals, kind: str) -> Intervals:
    """The intervals of the first 60 % of time that may be calibrated on.

    Raises:
        PinnError: If the kind is unknown or there are none of it.
    """
    if kind not in KINDS:
        raise PinnError(f"unknown kind of intervals {kind!r}: use one of {', '.join(KINDS)}")
    first = intervals.of_part(CALIBRATION)
    masks = {"windows": first.is_window, "singles": first.is_single}
    found = first.take(masks.get(kind, first.is_window | first.is_single))
    if not len(found):
        others = " and ".join(f"{int(mask.sum())} {name}" for name, mask in masks.items())
        raise PinnError(
            f"no {kind} to calibrate on in the {CALIBRATION} of the run's time, which has "
            f"{others}: choose others with --intervals, or trace for longer"
        )
    return found


def calibrate_beta(intervals: Intervals, prior: Prior, settings: BetaSettings) -> BetaCalibration:
    """Fit to chosen intervals of the first 60 % of time.

    Args:
        intervals: Of a run.
        prior: Coefficients before.
        settings: How.

    Raises:
        PinnError: If there is nothing to calibrate on.
    """
    pool = candidates(intervals, settings.kind)
    return calibrate_to(chosen(pool, prior, settings), prior)


def chosen(pool: Intervals, prior: Prior, settings: BetaSettings) -> Intervals:
    """As many of the intervals as the budget allows."""
    budget = len(pool) if settings.budget is None else settings.budget
    base = prior.mean[: len(STEP_FEATURES)]
    return pool.take(select(settings.select, pool, base, budget, settings.seed))


def calibrate_to(used: Intervals, prior: Prior) -> BetaCalibration:
    """Fit to all given intervals."""
    posterior = fit_posterior(prior, all_features(used.features), used.seconds)
    return BetaCalibration(prior, posterior, used)


def all_features(
    features: Float[np.ndarray, "n step_features"],
) -> Float[np.ndarray, "n coefficients"]:
    """Step features among those of all coefficients: a step holds nothing of alpha."""
    return np.pad(features, ((0, 0), (0, len(NAMES) - len(STEP_FEATURES))))


def error_table(
    intervals: Intervals, betas: dict[str, Float[np.ndarray, " features"]]
) -> pd.DataFrame:
    """Relative errors of mean step times by part of the run's time and kind of interval.

    Args:
        intervals: Of a run.
        betas: Name -> coefficients, such as before and after.

    Returns:
        Columns ``part``, ``kind``, ``n``, ``coefficients``, ``median``, ``mean``, ``bias`` (median
        signed error): shares, not percent.
    """
    rows = []
    for part in PARTS:
        inside = intervals.of_part(part)
        for kind, mask in (("windows", inside.is_window), ("singles", inside.is_single)):
            chosen = inside.take(mask)
            for name, beta in betas.items():
                error = chosen.features @ beta / chosen.seconds - 1
                figures = summary(error) if len(error) else dict.fromkeys(_FIGURES, np.nan)
                rows.append(
                    {"part": part, "kind": kind, "n": len(error), "coefficients": name, **figures}
                )
    return pd.DataFrame(rows)


_FIGURES = ("median", "mean", "bias")


def summary(error: Float[np.ndarray, " n"]) -> dict[str, float]:
    """Median and mean absolute error, and the median signed error."""
    size = np.abs(error)
    return dict(
        zip(_FIGURES, map(float, (np.median(size), size.mean(), np.median(error))), strict=True)
    )
