"""Intervals beside a checkpoint: their values, their file, and its refusal."""

import json

import numpy as np
import pandas as pd
import pytest
from calibrations import PLAIN, small_calibration, widened
from left_out_errors import LOGO, LOMO, left_out_errors

from pinn.common.files import file_sha256
from pinn.errors import PinnError
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pinn.surrogate.uncertainty.interval_fit import calibrate, fit_half_widths
from pinn.surrogate.uncertainty.intervals import (
    NAMES,
    around,
    calibration_path,
    read_calibration,
    write_calibration,
)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(b"a network")
    return path


@pytest.fixture
def written(checkpoint):
    """Return a checkpoint with intervals beside it."""
    write_calibration(small_calibration(checkpoint), calibration_path(checkpoint))
    return checkpoint


def test_an_interval_is_a_factor_either_way(checkpoint):
    found = small_calibration(checkpoint)
    half = found.half_width("tpot", PLAIN, gpu_known=False)
    assert half == pytest.approx(0.2)
    low, high = around(2.0, half)
    assert low * high == pytest.approx(2.0**2)
    assert np.log(high / 2.0) == pytest.approx(half)


def test_a_coefficient_has_its_own_change_and_the_error_common_to_all(checkpoint):
    found = small_calibration(checkpoint)
    halves = found.log_half_widths(PLAIN, gpu_known=True)
    asked = {"beta.gemm": 3.0, "alpha.completion.constant": 3.0, "beta.sampling": 0.0}
    ends = found.coefficient_intervals(asked, halves)
    high = {name: upper for name, (_, upper) in ends.items()}
    assert np.log(high["beta.gemm"] / 3.0) == pytest.approx(np.hypot(0.2, 0.1))
    assert np.log(high["alpha.completion.constant"] / 3.0) == pytest.approx(np.hypot(0.2, 0.3))
    assert ends["beta.sampling"] == (0.0, 0.0)


def test_what_is_written_is_read(written):
    assert read_calibration(written) == small_calibration(written)


def test_widths_are_read_as_written(checkpoint):
    write_calibration(widened(checkpoint), calibration_path(checkpoint))
    assert read_calibration(checkpoint) == widened(checkpoint)


def test_intervals_of_another_checkpoint_are_refused(written):
    written.write_bytes(b"another network")
    with pytest.raises(PinnError, match="belongs to a checkpoint other than"):
        read_calibration(written)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda tree: tree["coefficients"].pop("beta.gemm"),
        lambda tree: tree["half_widths"].pop("ttft"),
        lambda tree: tree.update(schema="pinn intervals 3"),
        lambda tree: tree.update(widths={"traits": {"of before": 0.1}}),
    ],
)
def test_intervals_of_another_version_are_refused(written, break_it):
    path = calibration_path(written)
    tree = json.loads(path.read_text())
    break_it(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(PinnError, match="has the format of another version: fit"):
        read_calibration(written)


def test_missing_intervals_are_refused(checkpoint):
    with pytest.raises(PinnError, match=r"the file of intervals .* does not exist"):
        read_calibration(checkpoint)


def test_calibrating_counts_what_was_left_out(tmp_path, checkpoint_path):
    marks = {"recipe_sha256": "a recipe", "data_sha256": "some data"}
    path = tmp_path / "pinn.safetensors"
    save_checkpoint(Checkpoint(load_checkpoint(checkpoint_path).network, marks), path)
    law = {"base": 0.05, "experts": 0.2}
    errors = pd.concat(
        [left_out_errors(4, law, gpus=2, rows=4, split=split) for split in (LOMO, LOGO)],
        ignore_index=True,
    )
    changes = errors.drop_duplicates(["split", "group"]).copy()
    for i, name in enumerate(NAMES):
        changes[name] = 0.01 * i
    found = calibrate(errors, changes, path, [{"experiment": "moe_ep"}])
    assert found.half_widths == fit_half_widths(errors)
    assert found.coefficients[NAMES[3]] == pytest.approx(0.03)
    assert found.belongs == marks
    assert found.checkpoint_sha256 == file_sha256(path)
    whole = {(kind.kind, kind.place): kind for kind in found.kinds}[("any", "any")]
    assert (whole.rows, whole.models) == (64, 4)
    assert {row["split"] for row in found.coverage} == {LOMO, LOGO}
    write_calibration(found, calibration_path(path))
    assert read_calibration(path).belongs == marks
    json.loads(calibration_path(path).read_text(), parse_constant=pytest.fail)
