"""Verdicts of two evaluations of the same splits."""

import numpy as np
import pandas as pd
import pytest

from pinn.errors import PinnError
from pinn.evaluation.comparison import OTHER_ROWS, Scores, compare_errors
from pinn.evaluation.metrics import summarize

DEPLOYMENTS = 30


def scores(error, with_rows=True, seed=0, rows=4):
    """Return scores of a method whose error is about ``error`` (a share) in every deployment."""
    draw = np.random.default_rng(seed)
    of_deployment = error * draw.uniform(0.5, 1.5, DEPLOYMENTS)
    index = np.repeat(np.arange(DEPLOYMENTS), rows)
    predictions = pd.DataFrame(
        {
            "split": "leave-one-model-out",
            "held_out": [f"model {i % 3}" for i in index],
            "row_id": [f"row {i}" for i in range(len(index))],
            "method": "network",
            "tpot_s": 1 + of_deployment[index],
            "tpot_measured_s": 1.0,
        }
    )
    results = summarize(predictions, {})
    if not with_rows:
        return Scores(results)
    return Scores(results, predictions, pd.Series(index, index=predictions["row_id"]))


@pytest.mark.parametrize("with_rows", [True, False])
@pytest.mark.parametrize(
    ("a", "b", "verdict"), [(0.10, 0.02, "B better"), (0.02, 0.10, "A better"), (0.1, 0.1, "tied")]
)
def test_the_lower_error_is_better(a, b, verdict, with_rows):
    (row,) = compare_errors(scores(a, with_rows), scores(b, with_rows), draws=200).to_dict(
        "records"
    )
    assert row["verdict"] == verdict
    assert row["difference"] == pytest.approx(row["b"] - row["a"])
    assert row["n"] == 4 * DEPLOYMENTS
    assert np.isnan(row["low"]) == (not with_rows)
    assert row["parts"] == 3
    assert row["parts_b_lower"] == (3 if b < a else 0)


def test_what_other_deployments_could_turn_round_is_a_tie():
    (row,) = compare_errors(scores(0.1, seed=1), scores(0.1, seed=2), draws=200).to_dict("records")
    assert row["low"] < 0 < row["high"]
    assert row["verdict"] == "tied"


def test_medians_alone_need_every_part_to_agree():
    a, b = scores(0.1, with_rows=False), scores(0.09, with_rows=False)
    worse = b.results.copy()
    worse.loc[worse["held_out"] == "model 1", "median"] = 50.0
    (row,) = compare_errors(a, Scores(worse)).to_dict("records")
    assert row["verdict"] == "parts disagree"
    assert row["parts_b_lower"] == 2


def test_medians_over_other_rows_have_no_verdict():
    (row,) = compare_errors(scores(0.1, False), scores(0.02, False, rows=5)).to_dict("records")
    assert row["verdict"] == OTHER_ROWS


def test_common_rows_are_compared_where_they_are_known():
    (row,) = compare_errors(scores(0.1), scores(0.02, rows=3), draws=50).to_dict("records")
    assert row["n"] == 3 * DEPLOYMENTS


def test_evaluations_without_a_common_split_are_refused():
    a = scores(0.1)
    b = Scores(a.results.assign(split="temporal"))
    with pytest.raises(
        PinnError, match=r"no split and metric in common: A has leave-one-model-out"
    ):
        compare_errors(a, b)
