"""Coefficients before a server is measured, and what they are uncertain of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from pinn.common.files import find_checkpoint
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.estimate import Gaussian
from pinn.specs.batch import parse_batch
from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts, read_coefficient_set
from pinn.surrogate.coefficients import NAMES, Coefficients
from pinn.surrogate.step_features import STEP_FEATURES, overlapped, step_features
from pinn.surrogate.surrogate import Surrogate, batch_work
from pinn.surrogate.uncertainty.distance import gpu_is_known
from pinn.surrogate.uncertainty.intervals import read_calibration, step_half_width
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE

# The handful of scalars that a calibration moves: each scales a group of coefficients.
#
# What one server has of its own (host, clocks, kernels of its version, links) moves the
# coefficients of a group together, so that a few measurements say something of all of them.

#: Relative standard deviation of each scalar: those whose 90 % intervals do best on other rows of
#: measured deployments (scripts/score_calibration.py); none below 0.35, since a server of one's own
#: may well be 30 % off.
SCALAR_SPREADS = {
    "step constant": 0.35, "requests": 1.0, "bytes": 0.5, "arithmetic": 1.4,
    "attention": 0.35, "communication": 0.35, "prefill": 1.4, "arrival": 0.35,
}  # fmt: skip

_SCALAR_OF = {f"beta.{name}": feature.scalar for name, feature in STEP_FEATURES.items()}
#: Scalar -> the coefficients that it scales; ``arrival`` scales all of alpha.
SCALARS: dict[str, tuple[str, ...]] = {
    scalar: tuple(name for name in NAMES if _SCALAR_OF.get(name, "arrival") == scalar)
    for scalar in SCALAR_SPREADS
}


def membership() -> Float[np.ndarray, "coefficients scalars"]:
    """1 where a scalar scales a coefficient, else 0; each coefficient has one scalar."""
    return np.array([[name in group for group in SCALARS.values()] for name in NAMES], float)


# What is known of a server's coefficients before it is measured, as a Gaussian.
#
# Relative offsets o of the coefficients have the covariance
#
#     C0 = M diag(s^2) M' + diag(own^2),
#
# with M the membership in scalars (``pinn.calibration.prior``), s how far each may be
# off and ``own`` how far each coefficient may be off beside its scalar. That alone would allow
# step times that the checkpoint does not: it knows the sum better than its parts. So C0 is told
# that steps of known features hold to within their own standard deviations h, independent of
# each other:
#
#     C = C0 - C0 J' (J C0 J' + diag(h^2))^-1 J C0,      J = what each coefficient adds to a step

#: What a server adds to the steps of an engine that runs by itself, relative: to every step, since
#: front end and clients take of the same machine, and to what a step and a request cost the host,
#: which takes requests in and hands tokens out between steps. Assumptions.
SERVED_FACTOR, SERVED_SPREADS = 0.2, {"step constant": 1.0, "requests": 1.0}

#: Prior spread of a single coefficient where no checkpoint tells: an assumption.
COEFFICIENT_SPREAD = 0.5

Vector = Float[np.ndarray, " coefficients"]


@dataclass(frozen=True)
class Prior(Gaussian):
    """Coefficients before a calibration, in the order of ``NAMES``; seconds or multipliers."""

    @property
    def beta(self) -> Float[np.ndarray, " step_features"]:
        """Coefficients of steps."""
        return self.mean[: len(STEP_FEATURES)]

    @property
    def alpha(self) -> Float[np.ndarray, " request_features"]:
        """Coefficients of requests."""
        return self.mean[len(STEP_FEATURES) : len(NAMES)]

    def spread(self, features: Float[np.ndarray, "n coefficients"]) -> Float[np.ndarray, " n"]:
        """Relative standard deviation of features . coefficients; 0 where they add up to 0."""
        value = features @ self.mean
        return self.deviation(features) / np.where(value > 0, value, np.inf)

    def deviation(self, features: Float[np.ndarray, "n coefficients"]) -> Float[np.ndarray, " n"]:
        """Standard deviation of features . coefficients."""
        variance = np.einsum("ij,jk,ik->i", features, self.covariance, features)
        return np.sqrt(np.maximum(variance, 0.0))

    @property
    def lower(self) -> Vector:
        """Smallest coefficients: those of the registry, or the mean where it lies below.

        What is fitted beside them, after them, is not negative.
        """
        bounds = [f.lower_bound for f in STEP_FEATURES.values()]
        return np.minimum(np.pad(bounds, (0, len(self.mean) - len(bounds))), self.mean)


def all_features(
    features: Float[np.ndarray, "n step_features"],
) -> Float[np.ndarray, "n coefficients"]:
    """Step features among those of all coefficients: a step holds nothing of alpha."""
    return np.pad(features, ((0, 0), (0, len(NAMES) - len(STEP_FEATURES))))


@dataclass(frozen=True)
class KnownSteps:
    """Steps whose times are known to within something.

    Attributes:
        features: Step features of each, overlapped.
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
        share = all_features(added / added.sum(axis=1, keepdims=True))
        both = share @ relative
        told = both @ share.T + np.diag(known.spread**2)
        relative = relative - both.T @ np.linalg.solve(told, both)
    return Prior(mean, relative * np.outer(mean, mean))


def served_prior(steps: Prior) -> Prior:
    """Prior of a server whose engine's steps were measured by themselves."""
    split = len(STEP_FEATURES)
    factor = np.where(np.arange(len(NAMES)) < split, SERVED_FACTOR, 0.0)
    added = membership() * [SERVED_SPREADS.get(name, 0.0) for name in SCALARS]
    directions = np.column_stack([factor, added]) * steps.mean[:, None]
    return Prior(steps.mean, steps.covariance + directions @ directions.T)


def prior_of_set(found: CoefficientSet, remedy: str = "take the network's intervals") -> Prior:
    """The posterior that a file holds, as the prior of what comes next.

    Raises:
        PinnError: With the remedy, if it holds none.
    """
    if found.covariance is None:
        lacking = (
            "these coefficients have no covariance, because 'pinn calibrate' did not write them"
        )
        raise PinnError(f"{lacking}: {remedy}")
    return Prior(found.coefficients.values[0], found.covariance)


# A checkpoint's own uncertainty as the prior of a calibration.

#: Steps whose intervals the prior keeps: decodes, which TPOT taught, and a prompt, which TTFT did.
STEPS = ("32 decode @ 700", "1 prefill 2048 @ 0")


def checkpoint_prior(
    checkpoint: Path, deployment: Deployment, coefficients: Coefficients
) -> tuple[Prior, str | None]:
    """The prior of a deployment's coefficients, and why it is an assumption where it is one.

    Args:
        checkpoint: The network; its intervals lie beside it.
        deployment: What is calibrated.
        coefficients: Its coefficients before.
    """
    mean = coefficients.values[0]
    try:
        found = read_calibration(checkpoint)
        is_known = gpu_is_known(checkpoint, deployment)
        halves = found.log_half_widths(deployment, is_known)
        half = [step_half_width(halves, step) for step in STEPS]
    except PinnError as error:
        return assumed_prior(mean), str(error)
    own = np.array([found.coefficients[name] for name in NAMES]) / NORMAL_QUANTILE
    steps = step_features(*batch_work(deployment, [parse_batch(step) for step in STEPS]))
    features = overlapped(steps, coefficients.beta[0])
    return assumed_prior(mean, own, KnownSteps(features, np.array(half) / NORMAL_QUANTILE)), None


# What a calibration starts from.


class Start:
    """A posterior to go on from, coefficients of a file, or a checkpoint.

    Attributes:
        append: File of an earlier calibration, whose posterior is the prior; None for none.
        base: File of other coefficients; None for none.
        checkpoint: Trained network; None for the usual one.
        force: Whether a fit goes on although what was measured does not match the flags.
        notes: What people should know of the fit, in order; whoever finds something adds it.
        left_out: Files of benchmarks, runs and lines of them that could not be read.

    Raises:
        PinnError: If both files are given.
    """

    def __init__(
        self, append: Path | None, base: Path | None, checkpoint: Path | None, force: bool = False
    ) -> None:
        if append is not None and base is not None:
            raise PinnError("--append and --base are both coefficients to start from: give one")
        self.append, self.base, self.checkpoint, self.force = append, base, checkpoint, force
        self.notes: list[str] = []
        self.left_out = 0

    def coefficients(self, deployment: Deployment) -> CoefficientSet:
        """The coefficients before."""
        if file := self.append or self.base:
            found = read_coefficient_set(file)
            found.check_deployment(deployment, str(file))
            return found
        surrogate = self._surrogate()
        coefficients = surrogate.coefficients([deployment])
        return CoefficientSet(deployment_facts(deployment), coefficients, surrogate.taught_alphas())

    def of_network(
        self, deployment: Deployment, start: CoefficientSet
    ) -> Callable[[Deployment], Coefficients]:
        """Return a function that gives the coefficients of this or another deployment."""
        return lambda other: (
            start.coefficients if other == deployment else self._surrogate().coefficients([other])
        )

    def prior(self, deployment: Deployment, start: CoefficientSet) -> Prior:
        """Return the prior: standard deviations of the coefficients before calibration."""
        if self.append is not None:
            return prior_of_set(start, f"calibrate without --append {self.append} first")
        used = find_checkpoint(self.checkpoint)
        prior, missing = checkpoint_prior(used, deployment, start.coefficients)
        if missing:
            self.notes.append(f"the intervals before the fit are assumed: {missing}")
        return prior

    def _surrogate(self) -> Surrogate:
        return Surrogate.load(find_checkpoint(self.checkpoint))
