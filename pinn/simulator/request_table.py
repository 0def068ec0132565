"""The requests of a run as a table, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Shaped

from pinn.simulator.run import Run
from pinn.specs.files.write import replace_atomically

if TYPE_CHECKING:
    import pyarrow as pa


def request_table(run: Run) -> pa.Table:
    """The plain columns of ``RequestRecords`` and ``ttft_s``, ``e2e_s`` and ``mean_itl_s``."""
    import pyarrow as pa

    requests = run.requests
    columns = {
        f.name: value
        for f in fields(requests)
        if isinstance(value := getattr(requests, f.name), np.ndarray) and value.ndim == 1
    }
    for name in ("ttft_s", "e2e_s", "mean_itl_s"):
        columns[name] = getattr(requests, name)
    return pa.table({"request": range(len(requests)), **columns})


def write_requests(
    run: Run, path: Path, further: Mapping[str, Shaped[np.ndarray, " requests"]] | None = None
) -> None:
    """Write that table, with more columns where they are given.

    Raises:
        OSError: If the file cannot be written.
    """
    import pyarrow.parquet as pq

    table = request_table(run)
    for name, column in (further or {}).items():
        table = table.append_column(name, [column])
    replace_atomically(path, lambda target: pq.write_table(table, target))
