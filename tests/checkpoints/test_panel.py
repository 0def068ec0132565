"""The shipped checkpoint's scorecard agrees with its line in the ledger."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pinn.common import old_names
from pinn.common.files import file_sha256, find_checkpoint
from pinn.evaluation.panel import LEDGER, group_scores, read_ledger, read_panel, sum_up
from pinn.evaluation.panel_rows import panel_rows

#: Difference of a group's score, in percent, that rounding in the ledger allows.
ROUNDING = 0.01


def given(name):
    """Return the paths in an environment variable; none where it is not set."""
    return [Path(path) for path in old_names.variable(name).split(os.pathsep) if path]


@pytest.fixture(scope="module")
def ledger():
    return read_ledger(find_checkpoint().with_name("ledger.csv"))


def test_the_shipped_panel_is_no_worse_than_its_line_in_the_ledger(ledger):
    checkpoint = find_checkpoint()
    mine = ledger[ledger["checkpoint"] == file_sha256(checkpoint)]
    assert len(mine), "no line in ledger.csv: pinn evaluate panel --ledger WHAT"
    steps = next(iter(given("PINN_WHOLE_STEPS")), None)
    public = given("PINN_PUBLIC_MEASUREMENTS")
    rows = panel_rows(checkpoint, given("PINN_HELD_OUT_RUNS"), steps, public)
    scores = group_scores(sum_up(rows.assign(half=np.nan))).set_index("group")["score"]
    line = mine.iloc[-1].drop(list(LEDGER)).dropna().astype(float)
    common = line.index.intersection(scores.index)
    assert len(common) >= 15
    assert scores[common].mean() <= line[common].mean() + ROUNDING
    kept = read_panel(checkpoint.with_suffix(".panel.csv"))
    of_kept = group_scores(kept).set_index("group")["score"]
    pd.testing.assert_series_equal(
        of_kept[line.index], line, atol=ROUNDING, check_names=False, check_dtype=False
    )
