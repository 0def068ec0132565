"""Verdicts: a calibration is kept if it is better than noise, and worse nowhere."""

import numpy as np

from pinn.calibration.calibrate import is_kept, judge, judge_likelihood


def test_better_worse_and_neither() -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(0, 0.05, 200)
    better, same, worse = before * 0.3, before + rng.normal(0, 1e-3, 200), before * 2
    assert is_kept([judge("later", before, better)])
    assert not is_kept([judge("later", before, same)])
    assert not is_kept([judge("later", before, better), judge("other load", before, worse)])
    assert is_kept([judge("later", before, better), judge("other load", before, before)])
    assert judge("later", before, better).word == "better"


def test_a_single_measurement_has_no_standard_error() -> None:
    verdict = judge("one", np.array([0.1]), np.array([0.01]))
    assert np.isnan(verdict.standard_error)
    assert verdict.word == "better"


def test_better_in_the_mean_alone_is_not_kept() -> None:
    before = np.array([0.10, 0.10, 0.10, 0.10])
    verdict = judge("each load, held out", before, np.array([0.01, 0.15, 0.14, 0.09]))
    assert verdict.after < verdict.before
    assert not is_kept([verdict])


def test_what_was_right_and_is_known_better_is_more_probable() -> None:
    errors = np.array([0.01, -0.02, 0.015, -0.005, 0.02, -0.01])
    wide, narrow = np.full(6, 0.2), np.full(6, 0.03)
    found = judge_likelihood("each load, held out", errors, wide, errors, narrow)
    assert found.word == "better"
    assert is_kept([judge("each load, held out", errors, errors), found])
    assert np.isclose(found.gain, np.log(0.2 / 0.03), atol=0.2)


def test_intervals_that_leave_the_measurements_out_are_worse() -> None:
    errors = np.full(6, 0.1)
    found = judge_likelihood("", errors, np.full(6, 0.1), errors, np.full(6, 0.01))
    assert found.is_worse
    assert not is_kept([judge("", errors, errors * 0.5), found])
    assert found.word == "worse"


def test_one_measurement_that_is_far_off_does_not_decide() -> None:
    before = np.array([0.1] * 9 + [0.1])
    after = np.array([0.0] * 9 + [1.0])
    spread = np.full(10, 0.1)
    found = judge_likelihood("", before, spread, after, spread / 2)
    assert found.word != "better"
    assert not found.is_worse
