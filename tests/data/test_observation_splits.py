import json

import pytest

from pinn.errors import PinnError
from pinn.training.data import splits
from pinn.training.data.silicon import read_silicon


@pytest.fixture(scope="module")
def rows():
    return read_silicon()[0]


@pytest.mark.parametrize("column", ["model", "gpu", "lengths", "tensor_parallel_size"])
def test_each_split_holds_out_exactly_one(rows, column):
    lengths = rows["prompt_tokens"].astype(str) + "/" + rows["output_tokens"].astype(str)
    of_row = rows.assign(lengths=lengths).set_index("row_id")[column].astype(str)
    outer = splits.leave_one_out(column, rows)
    assert [s.held_out[0] for s in outer] == sorted(set(of_row))
    for split in outer:
        assert set(of_row[list(split.test_ids)]) == set(split.held_out)
        assert not set(of_row[list(split.train_ids)]) & set(split.held_out)
        assert len(split.train_ids) + len(split.test_ids) == len(rows)


def test_splits_do_not_depend_on_the_order_of_rows(rows):
    shuffled = rows.sample(frac=1, random_state=0)
    each = zip(*(splits.leave_one_out("gpu", of) for of in (rows, shuffled)), strict=True)
    for fold, again in each:
        assert fold.held_out == again.held_out
        assert set(fold.test_ids) == set(again.test_ids)


def test_errors(rows):
    one = rows[rows["model"] == rows["model"].iloc[0]]
    with pytest.raises(PinnError, match="one model cannot be held out"):
        splits.leave_one_out("model", one)
    with pytest.raises(PinnError, match="both in training and in test data"):
        splits.Split("s", (), ("a", "b"), ("b",))


def test_one_generation_of_gpus_teaches_the_next(rows):
    (split,) = splits.hopper_to_blackwell(rows)
    assert set(split.held_out) == {"b200_sxm", "b300_sxm"}
    gpu = rows.set_index("row_id")["gpu"]
    assert set(gpu[list(split.train_ids)]) == {"h100_sxm", "h200_sxm"}
    assert len(split.train_ids) + len(split.test_ids) == len(rows)
    with pytest.raises(PinnError, match="and 0 of test data, expected at least one of each"):
        splits.hopper_to_blackwell(rows[rows["gpu"] == "h100_sxm"])


def test_eight_bits_teach_four(rows):
    (split,) = splits.eight_to_four_bits(rows)
    assert set(split.held_out) == {"nvfp4", "mxfp4", "mxfp4_mxfp8", "int4"}
    precision = rows.set_index("row_id")["precision"]
    assert set(precision[list(split.train_ids)]) == {"fp8", "fp8_block"}


def test_named_splits_are_recorded(rows, tmp_path):
    made = splits.named_splits(["leave-one-tp-out", "Hopper to Blackwell"], rows, tmp_path)
    for name, of_kind in made.items():
        recorded = json.loads((tmp_path / f"{name.replace(' ', '-')}.json").read_text())
        assert [tuple(split["test_ids"]) for split in recorded] == [s.test_ids for s in of_kind]
    with pytest.raises(PinnError, match="use any of leave-one-model-out"):
        splits.named_splits(["leave-one-moon-out"], rows, tmp_path)
