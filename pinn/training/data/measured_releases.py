"""Which releases of each engine the measured deployments ran, and how much of each there is.

``data/engines/measured.csv`` is the table of all that is read, so that reports need no reader;
``scripts/count_measured.py`` writes it.
"""

from __future__ import annotations

from functools import cache

import pandas as pd

from pinn.common.files import data_folder
from pinn.common.screen import Column, Grid
from pinn.engines.recipe import MEASURED_FILE


def released_measurements() -> pd.DataFrame:
    """The table that comes with the project."""
    return _table().copy()


@cache
def _table() -> pd.DataFrame:
    path = data_folder("engines") / MEASURED_FILE
    return pd.read_csv(path, dtype={"release": str}, keep_default_na=False)


def measured_grid(table: pd.DataFrame) -> Grid:
    """The table as it is printed."""
    counts = ("rows", "configurations", "points")
    grid = Grid([Column(name, name not in counts) for name in table.columns])
    for line in table.itertuples(index=False):
        grid.add(*map(str, line))
    return grid
