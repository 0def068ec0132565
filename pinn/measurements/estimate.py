"""Maximum a posteriori estimates from measurements, for training and calibration.

Parameters have a Gaussian prior and bounds. Predictions of measured metrics depend on the
parameters through a simulation, so an estimate has two loops:

* :func:`simulate_and_refit` is the outer loop. It simulates with the accepted parameters,
  linearizes the metrics around them (one row for each measurement) and refits the parameters to
  these rows, until the simulated metrics converge.
* :func:`most_probable` is the inner loop, the refit. It minimizes

      (p - mean)' C^-1 (p - mean) / 2 + sum_i loss(error_i(p) / deviation_i),   lower <= p <= upper

  by Gauss-Newton steps. Each step is a bounded linear least-squares problem. A robust loss is
  applied by increasing the deviation of rows with a large error (iteratively reweighted least
  squares).

Here ``p`` are the parameters, ``mean`` and ``C`` the mean and covariance of the prior, ``error_i``
and ``deviation_i`` the error of row ``i`` and its standard deviation, in the unit of the row, and
``lower`` and ``upper`` the bounds.

The curvature at the solution is the inverse of the posterior's covariance
(:func:`laplace_covariance`; bounds are ignored, so intervals at a bound are wider than necessary).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float

Vector = Float[np.ndarray, " parameters"]
Matrix = Float[np.ndarray, "parameters parameters"]
Rows = Float[np.ndarray, " rows"]

#: Numerical limits. ``_JITTER``: variance added to the diagonal of a correlation matrix.
#: ``_SHORTEST``: minimum fraction of a step in a line search. ``_CONVERGED``: maximum step, in
#: prior standard deviations, at which Gauss-Newton counts as converged.
_JITTER, _SHORTEST, _CONVERGED = 1e-9, 2.0**-20, 1e-10


@dataclass(frozen=True)
class Gaussian:
    """Gaussian distribution of parameters.

    Attributes:
        mean: Mean of each parameter.
        covariance: Covariance of the parameters; a parameter without variance keeps its mean.
    """

    mean: Vector
    covariance: Matrix

    @property
    def free(self) -> Bool[np.ndarray, " parameters"]:
        """Return whether each parameter can change, that is, has a prior variance."""
        return np.diag(self.covariance) > 0

    @property
    def scale(self) -> Float[np.ndarray, " free"]:
        """Return the prior standard deviation of each free parameter."""
        return np.sqrt(np.diag(self.covariance)[self.free])

    @property
    def precision(self) -> Float[np.ndarray, "free free"]:
        """Return the inverse of the free parameters' prior correlation matrix."""
        free, scale = self.free, self.scale
        correlation = self.covariance[np.ix_(free, free)] / np.outer(scale, scale)
        return np.linalg.inv(correlation + _JITTER * np.eye(len(scale)))

    @property
    def root(self) -> Float[np.ndarray, "free free"]:
        """Return the upper triangle R with R'R equal to the precision."""
        return np.linalg.cholesky(self.precision).T

    def distance_squared(self, parameters: Vector) -> float:
        """Return (p - mean)' C^-1 (p - mean), the squared Mahalanobis distance from the mean."""
        away = (parameters - self.mean)[self.free] / self.scale
        return float(away @ self.precision @ away)


@dataclass(frozen=True)
class LinearRows:
    """Linearized measurements, one per row: ``matrix @ parameters`` is ``target`` within noise.

    Attributes:
        matrix: Derivative of each row's prediction with respect to each parameter.
        target: Value of ``matrix @ parameters`` at which each row matches its measurement exactly.
        deviation: Standard deviation of each row's noise.
    """

    matrix: Float[np.ndarray, "rows parameters"]
    target: Rows
    deviation: Rows


def huber_deviation(error: Rows, deviation: Rows | float, delta: float) -> Rows:
    """Return deviations for which least squares equals Huber's loss with threshold ``delta``."""
    return deviation * np.sqrt(np.maximum(np.abs(error) / delta, 1.0))


@dataclass(frozen=True)
class Problem:
    """Estimation problem: measurements, and parameters with a prior and bounds.

    Attributes:
        prior: Distribution of the parameters before the measurements.
        lower: Lower bound of each parameter.
        upper: Upper bound of each parameter.
        rows_at: Function that returns the measurements linearized around given parameters.
        misfit: Function that returns the negative log posterior of given parameters, which no step
            may increase; None if the measurements are linear in the parameters.
    """

    prior: Gaussian
    lower: Vector
    upper: Vector
    rows_at: Callable[[Vector], LinearRows]
    misfit: Callable[[Vector], float] | None = None

    def solve(self, root: Float[np.ndarray, "free free"], rows: LinearRows) -> Vector:
        """Return the most probable parameters by bounded least squares of rows and prior.

        Args:
            root: Upper triangle :attr:`Gaussian.root` of the prior, computed once.
            rows: Linearized measurements.
        """
        from scipy.optimize import lsq_linear  # imported here because the import is slow

        free, scale, mean = self.prior.free, self.prior.scale, self.prior.mean
        target = (rows.target - rows.matrix[:, ~free] @ mean[~free]) / rows.deviation
        matrix = rows.matrix[:, free] * scale / rows.deviation[:, None]
        stacked, wanted = np.vstack([matrix, root]), np.append(target, root @ (mean[free] / scale))
        lower, upper = self.lower[free], self.upper[free]
        bounds = lower / scale, upper / scale
        limit = 100 * len(scale)
        found = lsq_linear(stacked, wanted, bounds, "bvls", tol=1e-15, max_iter=limit)
        solution = mean.copy()
        solution[free] = np.clip(found.x * scale, lower, upper)
        return solution


def most_probable(problem: Problem, start: Vector, steps: int = 1) -> Vector:
    """Return the parameters with the highest posterior density.

    Args:
        problem: Measurements, prior and bounds.
        start: Parameters of the first linearization.
        steps: Maximum number of Gauss-Newton steps.
    """
    free, scale, root = problem.prior.free, problem.prior.scale, problem.prior.root
    at, misfit = start, problem.misfit
    for _ in range(steps):
        step = problem.solve(root, problem.rows_at(at)) - at
        if misfit is not None:
            step = _descending(misfit, at, step)
        at = at + step
        if np.abs(step[free] / scale).max(initial=0.0) < _CONVERGED:
            break
    return at


def _descending(misfit: Callable[[Vector], float], at: Vector, step: Vector) -> Vector:
    """Return a step from parameters ``at``, halved until the misfit does not increase."""
    value, share = misfit(at), 1.0
    while share > _SHORTEST:
        if misfit(at + share * step) <= value:
            return share * step
        share /= 2
    return np.zeros_like(step)


def laplace_covariance(
    prior: Gaussian, matrix: Float[np.ndarray, "rows parameters"], deviation: Rows
) -> Matrix:
    """Return the parameters' covariance by Laplace's approximation to the posterior.

    Args:
        prior: Distribution before the measurements.
        matrix: Derivative of each row's prediction with respect to each parameter.
        deviation: Standard deviation of each row's noise at the solution.
    """
    free, scale = prior.free, prior.scale
    rows = matrix[:, free] * scale / deviation[:, None]
    covariance = np.zeros_like(prior.covariance)
    inverse = np.linalg.inv(rows.T @ rows + prior.precision)
    covariance[np.ix_(free, free)] = inverse * np.outer(scale, scale)
    return covariance


# Outer loop of an estimate: simulate, linearize and refit in turn.


@runtime_checkable
class Figures(Protocol):
    """Simulated metrics, with all data that a refit of the parameters needs."""

    @property
    def simulated(self) -> Rows:
        """Return the simulated metrics, in seconds or per second."""
        ...


R = TypeVar("R", bound=Figures)


@runtime_checkable
class Simulation(Protocol[R]):
    """Model with simulated metrics that are linear in its parameters only for small steps."""

    def simulate(self, parameters: Vector) -> R:
        """Return the metrics of a simulation with the given parameters."""
        ...

    def refit(self, rows: R, at: Vector) -> Vector:
        """Return the most probable parameters, from metrics linearized around parameters ``at``."""
        ...

    def misfit(self, rows: R, at: Vector) -> float:
        """Return the misfit of parameters ``at``, from the metrics ``rows`` of their simulation."""
        ...


@dataclass(frozen=True)
class Rounds:
    """Stopping rule of alternating simulations and refits.

    Attributes:
        most: Maximum number of simulations, including the first.
        tolerance: Change of the log of simulated metrics below which the rounds stop.
        whole: Number of rounds with a full step. Later rounds take half the step, because full
            steps can oscillate around the solution when the server is near saturation.
        by_largest: Whether the tolerance applies to the largest change of a metric; else to the
            root mean square of all changes.
    """

    most: int
    tolerance: float
    whole: int
    by_largest: bool = False


@dataclass(frozen=True)
class Converged(Generic[R]):
    """Parameters at the end of :func:`simulate_and_refit`.

    Attributes:
        accepted: Last parameters whose simulation was accepted.
        rows: Metrics simulated with the accepted parameters.
        following: Parameters that one more round would simulate; the accepted ones after
            convergence.
    """

    accepted: Vector
    rows: R
    following: Vector


def simulate_and_refit(
    model: Simulation[R], start: Vector, first: R, rounds: Rounds
) -> Converged[R]:
    """Alternate simulations and refits until the simulated metrics converge.

    Simulated metrics are linear in the parameters only for small steps. Under a closed loop of
    equal requests they are not even continuous. A step of the parameters is therefore accepted only
    if it does not increase the misfit. Otherwise the step is halved and simulated again.

    Args:
        model: Model that simulates, refits, and compares metrics with the measurements.
        start: First parameters.
        first: Metrics simulated with the first parameters.
        rounds: Stopping rule of the loop.
    """
    accepted = trial = start
    found = rows = first
    least = np.inf
    for number in range(1, rounds.most + 1):
        if number > 1:
            found = model.simulate(trial)
        worth = model.misfit(found, trial)
        if worth > least:
            trial = (accepted + trial) / 2
            continue
        changes = np.abs(np.log(found.simulated / rows.simulated))
        change = changes.max() if rounds.by_largest else np.sqrt(np.mean(changes**2))
        accepted, rows, least = trial, found, worth
        if number > 1 and change < rounds.tolerance:
            break
        step = model.refit(rows, accepted) - accepted
        trial = accepted + (step if number <= rounds.whole else step / 2)
    return Converged(accepted, rows, trial)
