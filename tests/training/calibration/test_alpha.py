"""Calibrated alpha: the prior without journeys, the truth with many, never a step's wait."""

import numpy as np
import pytest
from calibration_rows import BASE
from drawn_requests import ALPHA, index, requests, true_alpha
from journeys import score

from pinn.calibration.alpha import AlphaCalibration, calibrate_alpha
from pinn.calibration.posterior import request_quantities
from pinn.calibration.prior import Prior, assumed_prior
from pinn.calibration.requests import PHASES
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE

PRIOR = assumed_prior(np.concatenate([BASE, ALPHA]))


def spread(prior: Prior) -> np.ndarray:
    return np.sqrt(np.diag(prior.covariance))[len(BASE) :]


def off(found: AlphaCalibration, truth: np.ndarray) -> np.ndarray:
    """Return errors of the fitted alphas, in half-widths of their 90 % intervals."""
    half = NORMAL_QUANTILE * spread(found.posterior)
    return np.abs(found.posterior.alpha - truth)[found.taught] / half[found.taught]


def test_known_alphas_come_back_within_their_intervals() -> None:
    found, before = [], []
    for seed in range(30):
        truth = true_alpha(seed)
        after = calibrate_alpha(requests(truth, seed=seed), PRIOR)
        found.append(off(after, truth))
        before.append(spread(after.posterior)[after.taught] / spread(PRIOR)[after.taught])
    assert np.mean(np.concatenate(found) <= 1) >= 0.85
    assert np.median(np.concatenate(before)) < 0.2


def test_what_is_left_of_a_step_is_no_alpha() -> None:
    """Check that waiting for a step, which a simulation produces, is not in alpha."""
    truth = true_alpha(0)
    found = calibrate_alpha(requests(truth, 2000), PRIOR)
    assert found.waits["arrival_to_queue"] == pytest.approx(0.5, abs=0.05)
    constant = index("arrival_to_queue.constant")
    assert found.posterior.alpha[constant] == pytest.approx(truth[constant], rel=0.15)


def test_stalls_do_not_move_alpha() -> None:
    truth = true_alpha(1)
    calm, stalled = (calibrate_alpha(requests(truth, 1000, stalls), PRIOR) for stalls in (0.0, 0.1))
    at = calm.taught & stalled.taught
    change = np.abs(calm.posterior.alpha - stalled.posterior.alpha)[at]
    assert (change < 2 * spread(stalled.posterior)[at]).all()


def test_what_no_journey_shows_keeps_its_value_and_interval() -> None:
    rows = requests(true_alpha(2))
    rows.targets["completion"][:] = np.nan
    found = calibrate_alpha(rows, PRIOR)
    for name in ("completion.constant", "preemption.constant"):
        at = index(name)
        assert not found.taught[at]
        assert found.posterior.alpha[at] == ALPHA[at]
        assert spread(found.posterior)[at] == spread(PRIOR)[at]
    beta = len(BASE)
    assert np.array_equal(found.posterior.mean[:beta], BASE)
    assert np.array_equal(found.posterior.covariance[:beta, :beta], PRIOR.covariance[:beta, :beta])
    names = [q.name for q in request_quantities(PRIOR, found.posterior, 500.0, found.taught)]
    assert "its completion" not in names
    assert "its scheduling" in names


def test_an_alpha_far_from_its_prior_is_found() -> None:
    """Check an alpha of eight times its prior, whose standard error is half of the prior."""
    truth = ALPHA.copy()
    truth[index("completion.constant")] *= 8
    found = calibrate_alpha(requests(truth), PRIOR)
    assert found.posterior.alpha[index("completion.constant")] == pytest.approx(
        truth[index("completion.constant")], rel=0.02
    )


def test_going_on_from_a_posterior_narrows_it() -> None:
    truth = true_alpha(3)
    first = calibrate_alpha(requests(truth, seed=1), PRIOR)
    then = calibrate_alpha(requests(truth, seed=2), first.posterior)
    at = then.taught & first.taught
    assert (spread(then.posterior)[at] < spread(first.posterior)[at]).all()
    assert np.mean(off(then, truth) <= 1.5) >= 0.8


def test_a_phase_that_later_requests_contradict_stays() -> None:
    rows = requests(ALPHA * 1.5, 400, 0.0)
    late = rows.part > 0
    rows.targets["completion"][late] /= 1.5
    found = calibrate_alpha(rows, PRIOR)
    at = index("completion.constant")
    assert found.posterior.alpha[at] == ALPHA[at]
    assert [v.where for v in found.worse] == ["later requests, completion"]
    assert len(found.verdicts) == len(PHASES) - 1


def test_few_requests_teach_nothing() -> None:
    found = calibrate_alpha(requests(true_alpha(4), 30), PRIOR)
    assert not found.taught.any()
    assert found.posterior is PRIOR
    assert len(found.taught) == len(REQUEST_FEATURES)


def test_written_journeys_give_their_alphas_back() -> None:
    """Check a server through a file of traces; the script that scores 200 does the same."""
    table = score(PRIOR, 1, 150).set_index("alpha")
    assert table["within"].mean() >= 80
    assert table["error_after"].mean() < table["error_before"].mean() / 2
    assert table.loc["completion.constant", "half_after"] < 5
