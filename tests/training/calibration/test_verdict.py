"""Verdicts: kept is what is better than noise, and worse nowhere."""

import numpy as np

from pinn.training.calibration.verdict import is_kept, judge


def test_better_worse_and_neither() -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(0, 0.05, 200)
    better, same, worse = before * 0.3, before + rng.normal(0, 1e-3, 200), before * 2
    assert is_kept([judge("later", before, better)])
    assert not is_kept([judge("later", before, same)])
    assert not is_kept([judge("later", before, better), judge("other load", before, worse)])
    assert is_kept([judge("later", before, better), judge("other load", before, before)])
    assert "better" in str(judge("later", before, better))


def test_a_single_measurement_has_no_standard_error() -> None:
    verdict = judge("one", np.array([0.1]), np.array([0.01]))
    assert np.isnan(verdict.standard_error)
    assert verdict.is_better


def test_better_in_the_mean_alone_is_not_kept() -> None:
    before = np.array([0.10, 0.10, 0.10, 0.10])
    verdict = judge("each load, left out", before, np.array([0.01, 0.15, 0.14, 0.09]))
    assert verdict.after < verdict.before
    assert not is_kept([verdict])
