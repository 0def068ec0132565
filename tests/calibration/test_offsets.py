"""Offsets: exact where the data are, the base where they say nothing, physical everywhere."""

import numpy as np
import pytest
from calibration_rows import BASE, deployment, intervals

from pinn.calibration.calibrate import BetaSettings, calibrate_beta, calibrate_to, error_table
from pinn.calibration.identification import identify
from pinn.calibration.offsets import STRENGTHS, Prior, choose_strength, fit_totals
from pinn.errors import PinnError
from pinn.features.step import STEP_FEATURES
from pinn.physics.costs import step_costs
from pinn.physics.floor import floor_seconds

LOWER = np.array([f.lower_bound for f in STEP_FEATURES.values()])
PRIOR = Prior(BASE, LOWER, BASE)


def test_a_server_slower_by_a_factor_is_found() -> None:
    rows = intervals(1.3 * BASE)
    found = calibrate_to(rows, BASE)
    assert rows.features @ found.beta == pytest.approx(rows.seconds, rel=1e-3)


def test_unseen_features_keep_their_base_to_the_bit() -> None:
    rows = intervals(1.3 * BASE)
    unseen = rows.features.max(axis=0) == 0
    assert unseen.sum() > 5
    assert np.array_equal(calibrate_to(rows, BASE).beta[unseen], BASE[unseen])


def test_infinite_strength_is_the_base() -> None:
    rows = intervals(1.3 * BASE)
    assert fit_totals(rows.features, rows.seconds, PRIOR, 1e9) == pytest.approx(BASE, rel=1e-6)


def test_noise_asks_for_more_strength() -> None:
    quiet, loud = (intervals(1.05 * BASE, 40, noise) for noise in (1e-4, 0.2))
    strengths = [choose_strength(r.features, r.seconds, PRIOR) for r in (quiet, loud)]
    assert strengths[0] < strengths[1]
    assert choose_strength(quiet.features[:1], quiet.seconds[:1], PRIOR) == STRENGTHS[-1]


def test_no_calibrated_step_is_faster_than_its_floor() -> None:
    """Even where the measurements are: a column that claims so is an error of the clock."""
    rows = intervals(0.2 * BASE)
    found = calibrate_to(rows, BASE)
    assert (found.beta >= LOWER).all()
    floor = floor_seconds(step_costs([deployment()]), rows.sums)
    assert (rows.features @ found.beta >= floor * (1 - 1e-12)).all()


def test_stalls_do_not_move_the_fit() -> None:
    rows = intervals(1.2 * BASE, noise=0.005)
    stalled = rows.seconds.copy()
    stalled[::20] *= 5
    strength = 1e-6
    calm, robust = (fit_totals(rows.features, s, PRIOR, strength) for s in (rows.seconds, stalled))
    assert rows.features @ robust == pytest.approx(rows.features @ calm, rel=0.02)


def test_identified_groups_come_back_and_the_others_are_named() -> None:
    true = BASE * np.random.default_rng(1).uniform(1.0, 1.5, len(BASE))
    rows = intervals(true, 2000, noise=0.002)
    found = calibrate_to(rows, BASE)
    names = list(STEP_FEATURES)
    groups = identify(found)
    assert any(g.is_identified for g in groups)
    for group in groups:
        at = [names.index(n) for n in group.names]
        columns = rows.features[:, at]
        if group.is_identified:
            assert (columns @ found.beta[at]).sum() == pytest.approx(
                (columns @ true[at]).sum(), rel=0.03
            )
    together = next(g for g in groups if "step" in g.names)
    assert {"layer", "gemm_weights"} <= set(together.names)
    assert {n for g in groups for n in g.names} == {
        n for n, used in zip(names, rows.features.max(axis=0) > 0, strict=True) if used
    }


def test_later_time_is_never_fitted_to() -> None:
    rows = intervals(1.3 * BASE)
    later = rows.part > 0
    changed = intervals(1.3 * BASE)
    changed.seconds[later] *= 2
    fits = [calibrate_beta(r, BASE, BetaSettings(budget=None)).beta for r in (rows, changed)]
    assert np.array_equal(*fits)
    table = error_table(rows, {"calibrated": fits[0]}).set_index(["part", "kind"])
    assert table.loc[("last 20 %", "windows"), "n"] == (rows.part == 2).sum()
    assert table.loc[("last 20 %", "windows"), "median"] < 1e-3


def test_what_is_not_there_is_said() -> None:
    rows = intervals(BASE, 20)
    with pytest.raises(PinnError, match="no singles to calibrate on"):
        calibrate_beta(rows, BASE, BetaSettings(kind="singles"))
    with pytest.raises(PinnError, match="unknown kind"):
        calibrate_beta(rows, BASE, BetaSettings(kind="pairs"))
    with pytest.raises(PinnError, match="unknown selection"):
        calibrate_beta(rows, BASE, BetaSettings(select="best"))
    with pytest.raises(PinnError, match="at least 1"):
        calibrate_beta(rows, BASE, BetaSettings(budget=0))
