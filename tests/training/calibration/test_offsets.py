"""Offsets: exact where the data are, the base where they say nothing, physical everywhere."""

from dataclasses import replace

import numpy as np
import pytest
from calibration_rows import BASE, deployment, intervals

from pinn.errors import PinnError
from pinn.physics.costs import step_costs
from pinn.physics.floor import floor_seconds
from pinn.physics.step import STEP_FEATURES
from pinn.training.calibration.calibrate import (
    BetaCalibration,
    BetaSettings,
    calibrate_beta,
    calibrate_to,
    error_table,
)
from pinn.training.calibration.identification import identify
from pinn.training.calibration.offsets import (
    STRENGTHS,
    Prior,
    choose_strength,
    fit_totals,
    huber_weights,
)
from pinn.training.calibration.selection import COEFFICIENT_SPREAD

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
    assert rows.features @ robust == pytest.approx(rows.features @ calm, rel=0.002)


def test_rows_count_in_full_up_to_one_and_a_half_medians() -> None:
    weight = huber_weights(np.array([0.0, 1.0, 2.0, 3.0, 4.0, 30.0]))
    assert weight == pytest.approx([1, 1, 1, 1, 3.75 / 4, 3.75 / 30])
    assert huber_weights(np.zeros(3)).tolist() == [1, 1, 1]


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


def errors_in_standard_errors(
    true: np.ndarray, strength: float, noise: float, prefill_noise: float
) -> np.ndarray:
    """Of every group that can be told apart, over sixteen runs; two prefills jitter more."""
    names, found = list(STEP_FEATURES), []
    for seed in range(16):
        rows = intervals(true, 300, seed=seed)
        jitter = np.where(rows.sums.prefill_requests > 1, prefill_noise, noise)
        draw = np.random.default_rng(seed + 100)
        seconds = rows.seconds * np.exp(jitter * draw.standard_normal(300))
        rows = replace(rows, seconds=seconds)
        beta = fit_totals(rows.features, seconds, PRIOR, strength)
        for group in identify(BetaCalibration(BASE, beta, strength, rows)):
            at = [names.index(n) for n in group.names]
            ours, truth = ((rows.features[:, at] @ b[at]).sum() for b in (beta, true))
            if group.standard_error < 1:
                found.append((ours / truth - 1) / group.standard_error)
    return np.array(found)


@pytest.mark.parametrize("prefill_noise", [0.002, 0.02])
def test_standard_errors_are_as_large_as_errors(prefill_noise: float) -> None:
    """Also where the rows that tell of prefills are the noisy ones, which a median does not see.

    The root mean square is 1.1 and 1.3, the largest of 127 errors 2.7 and 4.5 standard errors.
    """
    true = BASE * np.random.default_rng(1).uniform(1.0, 1.5, len(BASE))
    found = errors_in_standard_errors(true, 1e-12, 0.002, prefill_noise)
    assert len(found) > 50
    assert 0.7 < np.sqrt(np.mean(found**2)) < 1.5
    assert np.abs(found).max() < 5


def test_standard_errors_hold_what_the_ridge_takes() -> None:
    """Offsets of the usual size, hardly any noise, a ridge that keeps a good part of them."""
    draw = np.random.default_rng(1)
    true = np.maximum(BASE * np.exp(0.5 * draw.standard_normal(len(BASE))), LOWER)
    found = errors_in_standard_errors(true, 1e-4, 1e-4, 1e-4)
    assert len(found) > 50
    assert np.sqrt(np.mean(found**2)) < 1.5


def test_a_ridge_that_allows_nothing_leaves_the_usual_doubt() -> None:
    rows = intervals(BASE)
    groups = identify(BetaCalibration(BASE, BASE, 1e9, rows))
    alone = [
        g.standard_error for g in groups if len(g.names) == 1 and np.isfinite(g.standard_error)
    ]
    assert len(alone) > 3
    assert alone == pytest.approx([COEFFICIENT_SPREAD] * len(alone), rel=1e-3)
