"""Coverage is computed by intervals that were calibrated without the group."""

import numpy as np
import pandas as pd
import pytest
from left_out_errors import LOGO, LOMO, left_out_errors

from pinn.evaluation.folds import RUN_ERRORS_SPLIT
from pinn.surrogate.uncertainty.interval_fit import (
    METRICS,
    coverage_table,
    left_out_column,
    nested_intervals,
)

LAW = {"base": 0.02, "experts": 0.1}
QUICK = {"gpus": 2, "rows": 4}


def test_every_split_leaves_models_or_gpus_out():
    assert left_out_column(LOMO) == left_out_column(RUN_ERRORS_SPLIT) == "shape"
    assert left_out_column(LOGO) == left_out_column("leave-one-gpu-and-its-kernels-out") == "gpu"
    assert left_out_column("leave-one-lengths-out") is None


@pytest.mark.parametrize(
    ("split", "column"),
    [(LOMO, "shape"), (RUN_ERRORS_SPLIT, "shape"), ("leave-one-gpu-and-its-kernels-out", "gpu")],
)
def test_poison_in_what_is_left_out_reaches_none_of_its_own_intervals(split, column):
    errors = left_out_errors(4, LAW, split=split, **QUICK)
    mine = errors[column] == errors[column].iloc[0]
    poisoned = errors.assign(**{m: errors[m].where(~mine, 9.0) for m in METRICS})
    before, after = nested_intervals(errors), nested_intervals(poisoned)
    own = before["row_id"].isin(errors.loc[mine, "row_id"])
    assert own.sum() == len(METRICS) * mine.sum()
    np.testing.assert_array_equal(before.loc[own, "half"], after.loc[own, "half"])
    assert not after.loc[own, "covered"].any()
    assert (before.loc[~own, "half"] != after.loc[~own, "half"]).all()


def test_a_left_out_model_calibrates_in_no_split_and_under_no_name_of_its_shape():
    errors = pd.concat(
        [left_out_errors(3, LAW, split=split, **QUICK) for split in (LOMO, LOGO, RUN_ERRORS_SPLIT)],
        ignore_index=True,
    )
    twin = errors["split"].eq(RUN_ERRORS_SPLIT) & errors["model"].eq("model 0")
    errors.loc[twin, "model"] = "model 0 of another year"
    mine = errors["shape"] == "model 0"
    poisoned = errors.assign(tpot=errors["tpot"].where(~mine, 9.0))
    halves = [
        nested[nested["shape"].eq("model 0") & nested["split"].ne(LOGO)]["half"]
        for nested in (nested_intervals(errors), nested_intervals(poisoned))
    ]
    np.testing.assert_array_equal(*halves)


def test_many_groups_are_covered_as_often_as_asked():
    table = coverage_table(nested_intervals(left_out_errors(6, LAW, gpus=2, rows=80)))
    for metric in ("tpot", "ttft"):
        whole = table[(table["metric"] == metric) & (table["part"] == "all")].iloc[0]
        assert whole["n"] == 960
        assert whole["coverage"] == pytest.approx(0.9, abs=0.05)


def test_every_model_counts_once_in_the_table():
    evaluated = pd.DataFrame(
        {
            "split": LOMO,
            "metric": "tpot",
            "model": ["a", "a", "a", "b"],
            "gpu": ["x", "x", "y", "x"],
            "covered": [True, False, False, True],
            "half": np.arcsinh([0.1, 0.2, 0.3, 0.6]),
        }
    )
    table = coverage_table(evaluated).set_index("name")
    assert list(table.index) == ["all", "a", "b", "x", "y"]
    assert table["n"].tolist() == [4, 3, 1, 3, 1]
    np.testing.assert_allclose(table["coverage"], [2 / 3, 1 / 3, 1, 2 / 3, 0], atol=1e-4)
    assert table.loc["all", "row_coverage"] == pytest.approx(2 / 4)
    assert table.loc["all", "lowest"] == pytest.approx(1 / 3, abs=1e-4)
    # upper - lower = predicted x (e^half - e^-half)
    np.testing.assert_allclose(table["width"], [0.8, 0.4, 1.2, 0.4, 0.6], atol=1e-4)
    assert table.loc["all", "median_width"] == pytest.approx(0.5, abs=1e-4)
