"""Intervals in coefficient tables: around every value that has one, null elsewhere."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from calibrations import small_calibration
from table_files import read_table

from pinn.errors import PinnError
from pinn.export.configured import find_intervals, from_checkpoint
from pinn.export.table import (
    alpha_columns,
    beta_columns,
    export_table,
    write_table_file,
)
from pinn.surrogate.uncertainty.intervals import calibration_path, write_calibration


@pytest.fixture
def trusted(tmp_path, checkpoint_path, h100_kernels):
    """Return a checkpoint with intervals and kernels beside it."""
    path = tmp_path / "pinn.safetensors"
    shutil.copy(checkpoint_path, path)
    h100_kernels.save(tmp_path / "kernels" / "all")
    write_calibration(small_calibration(path), calibration_path(path))
    return path


def columns(table, part):
    """Return the values of ``low``, ``coefficient`` or ``high``; NaN for null."""
    names = [
        name.replace(".", f"_{part}.", 1) if part else name
        for name in (*beta_columns(), *alpha_columns())
    ]
    return np.array([table[name].to_pylist() for name in names], float)


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet"])
def test_ends_enclose_the_coefficients_and_survive(configured, trusted, tmp_path, file_format):
    first = [configured.configurations[0]], [configured.deployments[0]]
    own = from_checkpoint(trusted, *first)
    path = tmp_path / f"table.{file_format}"
    ends = find_intervals(own, trusted)
    write_table_file(export_table(own, ends), own.provenance, path)
    table = read_table(path)
    low, value, high = (columns(table, part) for part in ("low", "", "high"))
    np.testing.assert_array_equal(low[:, 0], ends[0, 0])
    known = np.isfinite(low)
    assert (np.isfinite(high) == known).all()
    assert known[: len(beta_columns())].all()
    assert (low <= value)[known].all()
    assert (low < value)[known & (value > 0)].all()
    np.testing.assert_allclose((low * high)[known], value[known] ** 2)


def test_no_interval_is_made_up_for_calibrated_rows(configured, trusted):
    sources = ["run1.json"] * len(configured)
    assert np.isnan(find_intervals(replace(configured, sources=sources), trusted)).all()


def test_a_checkpoint_without_intervals_has_none(configured, checkpoint_path):
    with pytest.raises(PinnError, match=r"the file of intervals .* does not exist"):
        find_intervals(configured, checkpoint_path)
    names = export_table(configured).column_names
    assert not [name for name in names if name.startswith(("beta_", "alpha_"))]
