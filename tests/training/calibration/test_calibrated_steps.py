"""Calibrated beta: exact where the data are, the base where there are none, physical everywhere."""

import numpy as np
import pytest
from assumed_priors import beta_prior
from calibration_rows import BASE, deployment, intervals

from pinn.calibration.calibrate import (
    BetaSettings,
    calibrate_to,
    chosen,
    error_table,
)
from pinn.errors import PinnError
from pinn.physics.costs import step_costs
from pinn.physics.step_values import floor_seconds
from pinn.surrogate.step_features import STEP_FEATURES, step_features, step_time

LOWER = np.array([f.lower_bound for f in STEP_FEATURES.values()])
BETA_PRIOR = beta_prior(BASE)


def test_a_server_slower_by_a_factor_is_found() -> None:
    rows = intervals(1.3 * BASE)
    found = calibrate_to(rows, BETA_PRIOR)
    assert rows.features @ found.beta == pytest.approx(rows.seconds, rel=1e-3)


def test_scalars_that_no_step_shows_keep_their_base() -> None:
    """Check that coefficients without data keep their base: a single GPU sends no messages."""
    rows = intervals(1.3 * BASE)
    unseen = [i for i, f in enumerate(STEP_FEATURES.values()) if f.scalar == "communication"]
    assert not rows.features[:, unseen].any()
    found = calibrate_to(rows, BETA_PRIOR)
    assert found.beta[unseen] == pytest.approx(BASE[unseen], rel=1e-6)
    variance = [np.diag(c.covariance)[unseen] for c in (BETA_PRIOR, found)]
    assert variance[1] == pytest.approx(variance[0], rel=1e-3)


def test_no_calibrated_step_is_faster_than_its_floor() -> None:
    """Check the bound where measurements are faster: they are errors of the clock."""
    rows = intervals(0.2 * BASE)
    found = calibrate_to(rows, BETA_PRIOR)
    assert (found.beta >= LOWER).all()
    costs = step_costs([deployment()])
    floor = floor_seconds(costs, rows.sums)
    seconds = step_time(step_features(costs, rows.sums), found.beta)
    assert (seconds >= floor * (1 - 1e-12)).all()


def test_later_time_is_never_fitted_to() -> None:
    rows = intervals(1.3 * BASE)
    later = rows.part > 0
    changed = intervals(1.3 * BASE)
    changed.seconds[later] *= 2
    settings = BetaSettings(budget=None)
    fits = [calibrate_to(chosen(each, settings), BETA_PRIOR).beta for each in (rows, changed)]
    assert np.array_equal(*fits)
    table = error_table(rows, {"calibrated": fits[0]}).set_index(["part", "kind"])
    assert table.loc[("last 20 %", "windows"), "n"] == (rows.part == 2).sum()
    assert table.loc[("last 20 %", "windows"), "median"] < 1e-3


def test_what_is_not_there_is_said() -> None:
    rows = intervals(BASE, 20)
    with pytest.raises(PinnError, match="no intervals of the type singles"):
        chosen(rows, BetaSettings(kind="singles"))
    with pytest.raises(PinnError, match="the type of intervals 'pairs' is unknown"):
        chosen(rows, BetaSettings(kind="pairs"))
    with pytest.raises(PinnError, match="at least 1"):
        chosen(rows, BetaSettings(budget=0))
