"""The requests of a run as a Parquet file, one row each."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np

from pinn.files.write import replace_atomically
from pinn.simulator.run import Run


def write_requests(run: Run, path: Path) -> None:
    """Write the plain columns of ``RequestRecords`` and ``ttft_s``, ``e2e_s`` and ``mean_itl_s``.

    Raises:
        OSError: If the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    requests = run.requests
    columns = {
        f.name: value
        for f in fields(requests)
        if isinstance(value := getattr(requests, f.name), np.ndarray) and value.ndim == 1
    }
    for name in ("ttft_s", "e2e_s", "mean_itl_s"):
        columns[name] = getattr(requests, name)
    table = pa.table({"request": range(len(requests)), **columns})
    replace_atomically(path, lambda target: pq.write_table(table, target))
