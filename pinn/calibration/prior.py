"""Prior of a calibration: coefficients before measurements of a server, with uncertainty."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from pinn.common.files import find_checkpoint
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.estimate import Gaussian
from pinn.physics.step_values import RAMP
from pinn.specs.batch import parse_batch
from pinn.surrogate.coefficient_set import CoefficientSet, deployment_facts, read_coefficient_set
from pinn.surrogate.coefficients import NAMES, Coefficients
from pinn.surrogate.step_features import STEP_FEATURES, overlapped
from pinn.surrogate.surrogate import Surrogate, batch_features
from pinn.surrogate.uncertainty.distance import gpu_is_known
from pinn.surrogate.uncertainty.intervals import read_calibration, step_half_width
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE

# Calibration factors: each scales a group of coefficients.
#
# A property of a server (host, clocks, kernels of its engine version, links) changes all
# coefficients of a group by about the same factor, so a few measurements constrain them all.

#: Relative standard deviation of each calibration factor. With these values, 90 % intervals cover
#: 90 % of the held-out rows of measured deployments (scripts/score_calibration.py). No value is
#: below 0.35, because a user's server may well deviate by 30 %.
SCALAR_SPREADS = {
    "step constant": 0.35, "requests": 1.0, "bytes": 0.5, "arithmetic": 1.4,
    "attention": 0.35, "communication": 0.35, "prefill": 1.4, "arrival": 0.35,
}  # fmt: skip

_SCALAR_OF = {f"beta.{name}": feature.scalar for name, feature in STEP_FEATURES.items()}
#: Names of the coefficients that a calibration factor scales, by factor. The factor ``arrival``
#: scales all request coefficients (alphas).
SCALARS: dict[str, tuple[str, ...]] = {
    scalar: tuple(name for name in NAMES if _SCALAR_OF.get(name, "arrival") == scalar)
    for scalar in SCALAR_SPREADS
}


def membership() -> Float[np.ndarray, "coefficients scalars"]:
    """Return a matrix with 1 if a calibration factor (column) scales a coefficient (row).

    Each coefficient has exactly one factor.
    """
    return np.array([[name in group for group in SCALARS.values()] for name in NAMES], float)


# Prior uncertainty of a server's coefficients, as a Gaussian.
#
# Relative offsets o of the coefficients have the covariance
#
#     C0 = M diag(s^2) M' + diag(own^2),
#
# where M is the membership in calibration factors, s are the factors' relative spreads and ``own``
# is the relative spread of each coefficient in addition to its factor's. C0 would allow step times
# that the checkpoint excludes, since the checkpoint predicts a step better than its parts. C0 is
# therefore conditioned on reference steps whose times have relative standard deviations h:
#
#     C = C0 - C0 J' (J C0 J' + diag(h^2))^-1 J C0,
#
# where J is the share of each coefficient (column) in the time of each reference step (row).

#: Assumed relative standard deviations of the change in an engine's times when it runs inside a
#: server. ``SERVED_FACTOR``: of every step time, because front end and clients share the machine.
#: ``SERVED_SPREADS``: of the host's time per step and per request.
SERVED_FACTOR, SERVED_SPREADS = 0.2, {"step constant": 1.0, "requests": 1.0}

#: Assumed prior relative standard deviation of a coefficient without a checkpoint.
COEFFICIENT_SPREAD = 0.5

Vector = Float[np.ndarray, " coefficients"]


@dataclass(frozen=True)
class Prior(Gaussian):
    """Gaussian distribution of the coefficients before a calibration, in the order of ``NAMES``.

    Coefficients are seconds per unit of a feature, or multipliers.
    """

    @property
    def beta(self) -> Float[np.ndarray, " step_features"]:
        """Return beta, the coefficients of step time."""
        return self.mean[: len(STEP_FEATURES)]

    @property
    def alpha(self) -> Float[np.ndarray, " request_features"]:
        """Return alpha, the coefficients of a request's time outside its steps."""
        return self.mean[len(STEP_FEATURES) : len(NAMES)]

    def spread(self, features: Float[np.ndarray, "n coefficients"]) -> Float[np.ndarray, " n"]:
        """Return the relative standard deviation of features . coefficients; 0 for a sum of 0."""
        value = features @ self.mean
        return self.deviation(features) / np.where(value > 0, value, np.inf)

    def deviation(self, features: Float[np.ndarray, "n coefficients"]) -> Float[np.ndarray, " n"]:
        """Return the standard deviation of features . coefficients."""
        variance = np.einsum("ij,jk,ik->i", features, self.covariance, features)
        return np.sqrt(np.maximum(variance, 0.0))

    @property
    def lower(self) -> Vector:
        """Return each coefficient's lower bound: its feature's bound, or the mean if that is lower.

        Additional fitted parameters follow the coefficients and have the bound 0.
        """
        bounds = [f.lower_bound for f in STEP_FEATURES.values()]
        return np.minimum(np.pad(bounds, (0, len(self.mean) - len(bounds))), self.mean)


def all_features(
    features: Float[np.ndarray, "n step_features"],
) -> Float[np.ndarray, "n coefficients"]:
    """Return features for all coefficients: the given step features, then 0 for each alpha."""
    return np.pad(features, ((0, 0), (0, len(NAMES) - len(STEP_FEATURES))))


@dataclass(frozen=True)
class KnownSteps:
    """Steps whose times are known before calibration, each with a relative uncertainty.

    Attributes:
        features: Features of each step. A step takes the longer of kernel launching and GPU work;
            features of the shorter one are 0.
        spread: Relative standard deviation of each step's time.
    """

    features: Float[np.ndarray, "steps step_features"]
    spread: Float[np.ndarray, " steps"]


def assumed_prior(
    mean: Vector,
    own: Vector | float = COEFFICIENT_SPREAD,
    known: KnownSteps | None = None,
    scalar_spreads: Mapping[str, float] = SCALAR_SPREADS,
) -> Prior:
    """Return a prior with the given means, spreads and known step times."""
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
    """Return a server's prior from the posterior of its engine, measured outside a server.

    Variances are increased, because step times change when the engine runs inside a server.
    """
    split = len(STEP_FEATURES)
    factor = np.where(np.arange(len(NAMES)) < split, SERVED_FACTOR, 0.0)
    added = membership() * [SERVED_SPREADS.get(name, 0.0) for name in SCALARS]
    directions = np.column_stack([factor, added]) * steps.mean[:, None]
    return Prior(steps.mean, steps.covariance + directions @ directions.T)


def prior_of_set(found: CoefficientSet, remedy: str = "take the network's intervals") -> Prior:
    """Return the posterior in a coefficient file as the prior of the next calibration.

    Raises:
        PinnError: If the file has no posterior; the message includes the remedy.
    """
    if found.covariance is None:
        lacking = (
            "these coefficients have no covariance, because 'pinn calibrate' did not write them"
        )
        raise PinnError(f"{lacking}: {remedy}")
    return Prior(found.coefficients.values[0], found.covariance)


# Uncertainty of a checkpoint's predictions as the prior of a calibration.

#: Reference steps whose step time intervals the prior reproduces: a decode step, whose interval
#: comes from errors of TPOT, and a prompt, whose interval comes from errors of TTFT. The third step
#: is the shortest prompt whose layers are all launched eagerly, so that kernel launches may
#: determine its time, unlike those of the other two steps.
_STEPS = ("32 decode @ 700", "1 prefill 2048 @ 0", "1 prefill {beyond_graphs} @ 0")


def known_steps(deployment: Deployment) -> list[str]:
    """Return the batches of reference steps whose step time intervals the prior reproduces."""
    beyond = math.ceil(deployment.recipe.graph_tokens * (1 + 1 / RAMP))
    return [step.format(beyond_graphs=max(beyond, 1)) for step in _STEPS]


def checkpoint_prior(
    checkpoint: Path, deployment: Deployment, coefficients: Coefficients
) -> tuple[Prior, str | None]:
    """Return the prior of a deployment's coefficients, and a note for the user or None.

    If there are no intervals next to the checkpoint, the covariance is assumed, and the note states
    the reason.

    Args:
        checkpoint: Checkpoint of the network, with its intervals next to it.
        deployment: Deployment to calibrate.
        coefficients: Coefficients of the deployment before the calibration.
    """
    mean = coefficients.values[0]
    try:
        found = read_calibration(checkpoint)
        is_known = gpu_is_known(checkpoint, deployment)
        halves = found.log_half_widths(deployment, is_known)
        texts = known_steps(deployment)
        half = [step_half_width(halves, text) for text in texts]
    except PinnError as error:
        return assumed_prior(mean), str(error)
    own = np.array([found.coefficients[name] for name in NAMES]) / NORMAL_QUANTILE
    steps = batch_features(deployment, [parse_batch(text) for text in texts])
    features = overlapped(steps, coefficients.beta[0])
    return assumed_prior(mean, own, KnownSteps(features, np.array(half) / NORMAL_QUANTILE)), None


# Start of a calibration: coefficients and prior from files or a checkpoint.

#: First words of the note on a server whose model and GPU the network was trained on.
IN_TRAINING = "in the training data"


class Start:
    """Start of a calibration: an earlier posterior, coefficients of a file, or a checkpoint.

    Attributes:
        append: File of an earlier calibration, whose posterior is used as the prior; None if there
            is none.
        base: File of coefficients to start from in place of the network's; None if there is none.
        checkpoint: Checkpoint of the network; None for the default one.
        force: Whether to fit even if the measurements do not match the flags.
        notes: Notes on the fit for the user, in order.
        left_out: Number of benchmark files, runs and lines that could not be read.

    Raises:
        PinnError: If both ``append`` and ``base`` are given.
    """

    def __init__(
        self, append: Path | None, base: Path | None, checkpoint: Path | None, force: bool = False
    ) -> None:
        if append is not None and base is not None:
            raise PinnError("--append and --base are both given, expected only one: omit one")
        self.append, self.base, self.checkpoint, self.force = append, base, checkpoint, force
        self.notes: list[str] = []
        self.left_out = 0

    def coefficients(self, deployment: Deployment) -> CoefficientSet:
        """Return a deployment's coefficients before calibration, from a file or the network."""
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
        """Return a function that returns the network's coefficients for a deployment."""
        return lambda other: (
            start.coefficients if other == deployment else self._surrogate().coefficients([other])
        )

    def prior(self, deployment: Deployment, start: CoefficientSet) -> Prior:
        """Return the prior: coefficients before calibration with their covariance."""
        if self.append is not None:
            return prior_of_set(start, f"calibrate without --append {self.append} first")
        used = find_checkpoint(self.checkpoint)
        prior, missing = checkpoint_prior(used, deployment, start.coefficients)
        if missing:
            self.notes.append(f"the prior intervals are assumed rather than measured: {missing}")
        pair = f"{deployment.model.name} on {deployment.gpu.name}"
        if self.base is None and pair in self._surrogate().checkpoint.anchor_names:
            self.notes.append(
                f"{IN_TRAINING}: this model on this GPU; 'before' is not on unseen data"
            )
        return prior

    def _surrogate(self) -> Surrogate:
        return Surrogate.load(find_checkpoint(self.checkpoint))
