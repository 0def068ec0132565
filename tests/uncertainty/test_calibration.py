"""The intervals beside a checkpoint: what they give, how they are kept, when they are refused."""

import json

import numpy as np
import pytest
from calibrations import BANDS, small_calibration
from left_out_errors import left_out_errors

from pinn.errors import PinnError
from pinn.sources.report import file_sha256
from pinn.uncertainty.calibrate import calibrate
from pinn.uncertainty.calibration import (
    NAMES,
    calibration_path,
    move_calibration,
    read_calibration,
    write_calibration,
)
from pinn.uncertainty.conformal import fit_half_width


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(b"a network")
    return path


@pytest.fixture
def written(checkpoint):
    """A checkpoint with intervals beside it."""
    write_calibration(small_calibration(checkpoint), calibration_path(checkpoint))
    return checkpoint


def test_an_interval_is_a_factor_either_way_and_widens(checkpoint):
    found = small_calibration(checkpoint)
    low, high = found.interval("tpot", 2.0, 0.5)
    assert low * high == pytest.approx(2.0**2)
    assert high == pytest.approx(2.0 * np.exp(0.1 * 1.5))
    widths = [found.interval("tpot", 1.0, d)[1] for d in (0.0, 0.3, 2.0)]
    assert widths == sorted(set(widths))


def test_a_coefficient_has_its_own_change_and_the_error_common_to_all(checkpoint):
    found = small_calibration(checkpoint)
    _, high = found.coefficient_interval("beta.gemm", 3.0, 0.0)
    assert np.log(high / 3.0) == pytest.approx(np.hypot(0.2, 0.1))
    _, high = found.coefficient_interval("alpha.completion.constant", 3.0, 1.0)
    assert np.log(high / 3.0) == pytest.approx(np.hypot(0.3, 0.3))
    assert found.coefficient_interval("beta.gemm", 0.0, 1.0) == (0.0, 0.0)


def test_a_distance_belongs_to_the_band_that_reaches_it(checkpoint):
    found = small_calibration(checkpoint)
    assert [found.band(d) for d in (0.0, 0.1, 0.3, 9.0)] == [BANDS[0], BANDS[0], *BANDS[2:]]


def test_what_is_written_is_read(written):
    assert read_calibration(written) == small_calibration(written)


def test_intervals_of_another_checkpoint_are_refused(written):
    written.write_bytes(b"another network")
    with pytest.raises(PinnError, match="belongs to another checkpoint than"):
        read_calibration(written)


def test_missing_or_older_intervals_are_refused(checkpoint, written):
    path = calibration_path(written)
    tree = json.loads(path.read_text())
    del tree["coefficients"]["beta.gemm"]
    path.write_text(json.dumps(tree))
    with pytest.raises(PinnError, match="of another version"):
        read_calibration(written)
    path.unlink()
    with pytest.raises(PinnError, match=r"no intervals at .*scripts/release\.py"):
        read_calibration(checkpoint)


def test_a_checkpoint_that_was_trained_further_takes_intervals_over(written, tmp_path):
    new = tmp_path / "new.safetensors"
    new.write_bytes(b"trained further")
    move_calibration(written, new)
    assert read_calibration(new).metrics == read_calibration(written).metrics
    assert read_calibration(new).checkpoint_sha256 == file_sha256(new)


def test_calibrating_counts_what_was_left_out(checkpoint):
    errors = left_out_errors(models=4, gpus=3, rows=10)
    changes = errors.drop_duplicates("group").copy()
    for i, name in enumerate(NAMES):
        changes[name] = 0.01 * i
    found = calibrate(errors, changes, checkpoint, [{"experiment": "moe_ep"}])
    assert found.metrics["ttft"] == fit_half_width(errors, "ttft")
    assert found.coefficients[NAMES[3]].at(0.0) == pytest.approx(0.03)
    assert sum(band.rows for band in found.bands) == len(errors)
    assert {band.rows for band in found.bands} == {30}
    ends = [end for band in found.bands for end in (band.nearest, band.farthest)]
    assert ends == sorted(ends)
    assert set(found.auroc) == {"leave-one-model-out"}
    shown = {row["left_out"] for row in found.coverage}
    assert shown == {"all", "model 0", "model 1", "model 2", "model 3"}
