"""Half-widths: quantiles over groups, widened with distance where errors grow with it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from left_out_errors import left_out_errors

from pinn.errors import PinnError
from pinn.uncertainty.conformal import (
    SLOPES,
    HalfWidth,
    fit_half_width,
    group_weights,
    interval_score,
    weighted_quantile,
)

VALUES = st.lists(st.floats(0, 10), min_size=1, max_size=30)
LEVELS = st.sampled_from([0.1, 0.5, 0.9, 1.0])


@given(values=VALUES, level=LEVELS)
def test_equal_weights_give_the_plain_quantile(values, level):
    found = weighted_quantile(np.array(values), np.ones(len(values)), level)
    assert found == np.quantile(values, level, method="inverted_cdf")


@given(values=VALUES, level=LEVELS, data=st.data())
def test_the_quantile_is_the_smallest_value_with_enough_weight_below(values, level, data):
    values = np.array(values)
    weight = np.array(data.draw(st.lists(
        st.floats(0.1, 5), min_size=len(values), max_size=len(values)
    )))  # fmt: skip
    found = weighted_quantile(values, weight, level)
    assert found in values
    assert weight[values <= found].sum() >= (level - 1e-9) * weight.sum()
    assert weight[values < found].sum() < (level + 1e-9) * weight.sum()


def test_groups_count_the_same_however_many_rows_they_have():
    assert group_weights(["a", "a", "b", "a"]) == pytest.approx([1 / 3, 1 / 3, 1, 1 / 3])
    errors = left_out_errors(models=4)
    more = errors.loc[[*errors.index, *np.repeat(errors.index[errors["model"] == "model 1"], 9)]]
    assert fit_half_width(more, "tpot") == fit_half_width(errors, "tpot")


def test_a_half_width_grows_linearly_with_the_distance():
    half = HalfWidth(0.1, 2.0)
    np.testing.assert_allclose(half.at(np.array([0.0, 0.5, 1.0])), [0.1, 0.2, 0.3])


def test_the_score_charges_width_and_what_lies_outside():
    score = interval_score(np.array([0.05, -0.3]), np.array([0.1, 0.1]), 0.9)
    np.testing.assert_allclose(score, [0.2, 0.2 + 20 * 0.2])


def test_errors_that_grow_with_distance_widen_the_intervals():
    grows = left_out_errors(
        models=40, size=lambda d, draw: 0.05 * (1 + 4 * d) * draw.choice([-1, 1], len(d))
    )
    found = fit_half_width(grows, "tpot")
    assert found.slope == 4.0
    assert found.base == pytest.approx(0.05, rel=0.05)


def test_errors_without_a_trend_do_not():
    flat = left_out_errors(models=40, size=lambda d, draw: 0.1 * draw.choice([-1, 1], len(d)))
    assert fit_half_width(flat, "tpot").slope == SLOPES[0] == 0.0


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_new_groups_are_covered_as_often_as_asked(level):
    known, new = (left_out_errors(models=16, gpus=100, rows=2, seed=seed) for seed in (1, 2))
    half = fit_half_width(known, "tpot", level).at(new["distance"].to_numpy())
    assert np.mean(new["tpot"].abs() <= half) == pytest.approx(level, abs=0.05)


def test_one_model_is_not_enough():
    with pytest.raises(PinnError, match="at least 2 left-out models, got 1"):
        fit_half_width(left_out_errors(models=1), "tpot")
