"""Cells are made once, timed, and read back without the times."""

import numpy as np
import pandas as pd
import pytest
from left_out_experiment import write_experiment

from pinn.common.workers import Workers
from pinn.evaluation.crossvalidation import cells, compute, read_cells
from pinn.evaluation.methods import Method, roofline
from pinn.measurements.deployments.observations import read_observations
from pinn.training.data.splits import Split
from pinn.training.serving_rows import serving_rows

LEARNED = []


def learn_slowly(train, exclude, folder):
    """Return the roofline, and count how often it was learned."""
    LEARNED.append(folder)
    return roofline().learn(train, exclude, folder)


SLOW = Method("slow", learn_slowly, "shared")


@pytest.fixture
def rows(tmp_path):
    folder = write_experiment(tmp_path / "experiment")
    return serving_rows(read_observations(folder / "observations" / "silicon.parquet"))


@pytest.fixture
def splits(rows):
    ids = rows.row_id
    return {"a kind": [Split("first", ("one",), ids[1:], ids[:1])]}


def test_a_finished_cell_is_not_made_again(rows, splits, tmp_path):
    wanted = cells(splits, [SLOW], tmp_path, "mark")
    compute(rows, wanted, Workers())
    first = read_cells(wanted)
    compute(rows, cells(splits, [SLOW], tmp_path, "mark"), Workers())
    again = read_cells(wanted)
    pd.testing.assert_frame_equal(first, again)
    assert len(LEARNED) == 1
    assert list(first["row_id"]) == list(rows.row_id[:1])
    np.testing.assert_array_equal(first["tpot_s"], rows.tpot_floor_s[:1])
