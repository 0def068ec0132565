"""Most probable parameters: laws that a fit by hand keeps, and rounds of simulating."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import huber

from pinn.measurements import estimate

PRIOR = estimate.Gaussian(np.array([1.0, 2.0]), np.diag([0.25, 1.0]))
FREE = np.full(2, -np.inf), np.full(2, np.inf)


def rows(matrix, target, deviation):
    return estimate.LinearRows(np.array(matrix), np.array(target), np.array(deviation))


def test_one_row_and_a_prior_share_by_their_precisions():
    told = rows([[1.0, 0.0]], [3.0], [0.5])
    problem = estimate.Problem(PRIOR, *FREE, lambda _: told)
    found = estimate.most_probable(problem, PRIOR.mean)
    np.testing.assert_allclose(found, [2.0, 2.0], rtol=1e-6)
    covariance = estimate.laplace_covariance(PRIOR, told.matrix, told.deviation)
    np.testing.assert_allclose(covariance, np.diag([0.125, 1.0]), rtol=1e-6)


def test_bounds_hold_and_fixed_parameters_stay():
    prior = estimate.Gaussian(np.array([1.0, 2.0]), np.diag([0.25, 0.0]))
    told = rows([[1.0, 1.0]], [-5.0], [0.1])
    problem = estimate.Problem(prior, np.array([0.5, 0.0]), FREE[1], lambda _: told)
    assert estimate.most_probable(problem, prior.mean).tolist() == [0.5, 2.0]


def test_a_robust_curve_has_the_optimum_of_a_general_minimizer():
    """Factors in exponents and Huber's loss: Gauss-Newton ends where L-BFGS does."""
    draw = np.random.default_rng(3)
    terms, truth = draw.uniform(0.1, 1, (40, 2)), np.array([0.4, -0.7])
    measured = terms @ np.exp(truth) * np.exp(0.02 * draw.standard_normal(40))
    measured[:4] *= 3
    prior = estimate.Gaussian(np.zeros(2), np.eye(2))

    def error(at):
        return np.log(terms @ np.exp(at) / measured)

    def misfit(at):
        return float(huber(0.1, error(at)).sum() / 0.05**2 + at @ at / 2)

    def rows_at(at):
        seconds = terms * np.exp(at)
        jacobian = seconds / seconds.sum(axis=1, keepdims=True)
        deviation = estimate.huber_deviation(error(at), 0.05, 0.1)
        return estimate.LinearRows(jacobian, jacobian @ at - error(at), deviation)

    problem = estimate.Problem(prior, *FREE, rows_at, misfit)
    found = estimate.most_probable(problem, np.zeros(2), 200)
    best = minimize(misfit, found, method="BFGS", options={"gtol": 1e-9})
    np.testing.assert_allclose(found, best.x, atol=1e-5)
    assert misfit(found) <= misfit(best.x) + 1e-9


@dataclass(frozen=True)
class Rows:
    simulated: np.ndarray


class Cubed:
    """A figure whose refits go twice as far as they should."""

    def __init__(self):
        self.simulated = []

    def simulate(self, at):
        self.simulated.append(at.item())
        return Rows(at**3)

    def refit(self, rows, at):
        return at + 2.5 * (8 - rows.simulated) / (3 * at**2)

    def misfit(self, rows, at):  # noqa: ARG002
        return abs(rows.simulated.item() - 8)


def test_steps_that_go_too_far_are_halved():
    model, start = Cubed(), np.array([1.5])
    rounds = estimate.Rounds(most=30, tolerance=1e-6, whole=30)
    found = estimate.simulate_and_refit(model, start, Rows(start**3), rounds)
    misfits = [abs(at**3 - 8) for at in model.simulated]
    assert any(after > before for before, after in pairwise(misfits))
    assert found.accepted.item() == pytest.approx(2, rel=1e-3)


def test_later_rounds_take_half_of_a_step():
    model, start = Cubed(), np.array([1.9])
    rounds = estimate.Rounds(most=2, tolerance=0.0, whole=0)
    estimate.simulate_and_refit(model, start, Rows(start**3), rounds)
    whole = model.refit(Rows(start**3), start) - start
    assert model.simulated[0] - 1.9 == pytest.approx(whole.item() / 2)
