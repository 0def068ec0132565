"""Coverage is judged by intervals that never saw the group; AUROC against scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from left_out_errors import left_out_errors
from sklearn.metrics import roc_auc_score

from pinn.uncertainty.conformal import fit_half_width
from pinn.uncertainty.coverage import BAD, coverage_table, distance_auroc, nested_intervals


@pytest.mark.parametrize(
    ("split", "column"),
    [("leave-one-model-out", "model"), ("leave-one-gpu-and-its-kernels-out", "gpu")],
)
def test_what_is_left_out_does_not_calibrate_its_own_intervals(split, column):
    errors = left_out_errors(models=4, split=split)
    mine = errors[column] == errors[column].iloc[0]
    worse = errors.assign(tpot=errors["tpot"].where(~mine, 9.0))
    before, after = nested_intervals(errors), nested_intervals(worse)
    own = (before["metric"] == "tpot") & before["left_out"].eq(errors[column].iloc[0])
    assert own.sum() == mine.sum()
    np.testing.assert_array_equal(before.loc[own, "half"], after.loc[own, "half"])
    assert not after.loc[own, "covered"].any()
    rest = fit_half_width(errors[~mine], "tpot")
    expected = rest.at(errors.loc[mine, "distance"].to_numpy())
    np.testing.assert_allclose(before.loc[own, "half"], expected)


def test_a_left_out_model_calibrates_in_no_split():
    both = pd.concat(
        [left_out_errors(models=3), left_out_errors(models=3, split="leave-one-gpu-out")],
        ignore_index=True,
    )
    mine = both["model"] == "model 0"
    worse = both.assign(tpot=both["tpot"].where(~mine, 9.0))
    of_model = [
        judged[(judged["left_out"] == "model 0") & (judged["metric"] == "tpot")]["half"]
        for judged in (nested_intervals(both), nested_intervals(worse))
    ]
    np.testing.assert_array_equal(*of_model)


def test_many_groups_are_covered_as_often_as_asked():
    table = coverage_table(nested_intervals(left_out_errors(models=9, gpus=40, rows=2)))
    whole = table[(table["metric"] == "tpot") & (table["left_out"] == "all")].iloc[0]
    assert whole["n"] == 720
    assert whole["coverage"] == pytest.approx(0.9, abs=0.05)


def test_the_table_has_shares_and_widths_of_each_part():
    judged = pd.DataFrame(
        {
            "split": "leave-one-model-out",
            "metric": "tpot",
            "left_out": ["a", "a", "b"],
            "covered": [True, False, True],
            "half": np.arcsinh([0.1, 0.2, 0.3]),
        }
    )
    table = coverage_table(judged).set_index("left_out")
    assert list(table.index) == ["all", "a", "b"]
    assert table["n"].tolist() == [3, 2, 1]
    np.testing.assert_allclose(table["coverage"], [2 / 3, 0.5, 1], atol=1e-4)
    # upper - lower = predicted x (e^half - e^-half)
    np.testing.assert_allclose(table["width"], [0.4, 0.3, 0.6], atol=1e-4)


ROWS = st.lists(st.tuples(st.sampled_from([-0.5, 0.0, 0.4]), st.integers(0, 5)), min_size=2)


@given(rows=ROWS)
def test_the_auroc_is_that_of_scikit_learn(rows):
    errors = pd.DataFrame(rows, columns=["tpot", "distance"])
    bad = np.abs(np.exp(-errors["tpot"]) - 1) > BAD
    if bad.nunique() == 1:
        assert np.isnan(distance_auroc(errors))
    else:
        assert distance_auroc(errors) == pytest.approx(roc_auc_score(bad, errors["distance"]))
