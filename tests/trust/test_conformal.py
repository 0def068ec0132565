"""Quantiles by groups, and the score of intervals."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinn.surrogate.uncertainty.interval_fit import row_weights
from pinn.surrogate.uncertainty.quantiles import weighted_quantile

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


NAMES = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), min_size=1)


@given(rows=NAMES)
def test_groups_count_the_same_and_so_do_the_splits_of_each(rows):
    groups, splits = zip(*rows, strict=True)
    weight = row_weights(pd.DataFrame({"shape": groups, "gpu": "H100", "split": splits}))
    assert weight.sum() == pytest.approx(1.0)
    for group in set(groups):
        mine = [g == group for g in groups]
        assert weight[mine].sum() == pytest.approx(1 / len(set(groups)))
        of_splits = {s for g, s in rows if g == group}
        for split in of_splits:
            both = [row == (group, split) for row in rows]
            assert weight[both].sum() == pytest.approx(1 / len(set(groups)) / len(of_splits))
