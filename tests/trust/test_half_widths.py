"""Constant half-widths cover their level; gains magnify, TTFT and decodes add up to E2E."""

import numpy as np
import pandas as pd
import pytest
from left_out_errors import LOGO, LOMO, left_out_errors

from pinn.errors import PinnError
from pinn.evaluation.folds import RUN_ERRORS_SPLIT
from pinn.surrogate.uncertainty.interval_fit import fit_half_widths, half_widths
from pinn.surrogate.uncertainty.intervals import HalfWidth

HALF = {"tpot": HalfWidth(0.1, 0.2), "ttft": HalfWidth(0.4, 0.5)}
LAW = {"base": 0.05}


def rows(**columns):
    return left_out_errors(1, LAW, gpus=1, rows=1).assign(**columns)


def fitted(*tables, level=0.9):
    return fit_half_widths(pd.concat(tables, ignore_index=True), level)["tpot"]


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_new_models_are_covered_as_often_as_asked(level):
    known, new = (left_out_errors(16, LAW, seed=seed) for seed in (1, 2))
    half = fitted(known, level=level).known
    assert np.mean(new["tpot"].abs() <= half) == pytest.approx(level, abs=0.05)


def test_rows_of_a_group_count_once():
    errors = left_out_errors(6, {"base": 0.02, "experts": 0.1}, rows=60)
    more = [errors[errors["model"] == "model 1"]] * 9
    assert fitted(errors, *more).known == pytest.approx(fitted(errors).known, rel=0.02)


def test_a_kind_with_small_errors_does_not_narrow_the_others():
    errors = left_out_errors(12, LAW)
    runs = left_out_errors(12, {"base": 0.002}, seed=3, split=RUN_ERRORS_SPLIT)
    assert fitted(errors, runs) == fitted(errors)


def test_left_out_gpus_widen_the_intervals_of_unknown_ones_alone():
    models = left_out_errors(8, LAW, split=LOMO)
    gpus = left_out_errors(8, {"base": 0.2}, split=LOGO)
    found = fitted(models, gpus)
    assert found.known == fitted(models).known
    assert found.unknown > 2 * found.known
    narrow = fitted(models, left_out_errors(8, {"base": 0.001}, split=LOGO))
    assert narrow.unknown == narrow.known


def test_gpus_alone_teach_both():
    found = fitted(left_out_errors(8, LAW, split=LOGO))
    assert found.known == found.unknown > 0


def test_one_model_is_not_enough():
    with pytest.raises(PinnError, match="at least 2 held-out models, got 1"):
        fit_half_widths(left_out_errors(1, LAW))


def test_a_left_out_gpus_rows_have_the_half_width_of_unknown_ones():
    half = half_widths(HALF, rows(split=LOGO))
    assert (half["tpot"][0], half["ttft"][0]) == pytest.approx((0.2, 0.5))


def test_without_gains_e2e_lies_between_step_time_and_ttft():
    for share in (0.0, 0.3, 1.0):
        half = half_widths(HALF, rows(ttft_share=share))
        assert half["tpot"][0] == pytest.approx(0.1)
        assert half["ttft"][0] == pytest.approx(0.4)
        end = share * np.exp(0.4) + (1 - share) * np.exp(0.1)
        assert half["e2e"][0] == pytest.approx(np.log(end))


def test_queues_magnify_the_step_time_in_every_figure():
    half = half_widths(HALF, rows(tpot_gain=2.0, ttft_gain=9.0, e2e_gain=3.0, ttft_share=0.2))
    assert half["tpot"][0] == pytest.approx(0.2)
    assert half["ttft"][0] == pytest.approx(0.9)
    assert half["e2e"][0] == pytest.approx(0.3)


def test_errors_that_queues_magnified_teach_the_step_time_behind_them():
    errors = left_out_errors(8, LAW)
    magnified = errors.assign(tpot=3 * errors["tpot"], tpot_gain=3.0)
    assert fitted(magnified).known == pytest.approx(fitted(errors).known, rel=1e-9)
