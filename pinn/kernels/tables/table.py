"""Reading one table of measured kernels: where it lies, which columns it needs, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.errors import PinnError
from pinn.kernels.tables.sources import TableSource
from pinn.specs.files.read_report import ReadReport, file_sha256
from pinn.specs.gpu import GpuSpec
from pinn.specs.precision import precision

#: A reason, and which rows it refuses.
Rule = tuple[str, Callable[[pd.DataFrame], "np.ndarray | pd.Series[bool]"]]

#: The tables' names of number formats -> keys of ``pinn.specs.precision.PRECISIONS``.
FORMATS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4_wo",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}


def systems_folder() -> Path:
    """The ``systems`` folder of the installed aiconfigurator-core.

    Raises:
        PinnError: If the package is not installed.
    """
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        raise PinnError(
            "no measured kernels: package aiconfigurator-core is not installed; "
            "run 'pip install aiconfigurator-core==0.12.0' or pass the path of its systems folder"
        )
    return Path(spec.origin).parent / "systems"


def read_table(
    source: TableSource, kind: str, file: str, columns: Sequence[str], systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """Read columns of one table; ``source.formats`` is not applied yet.

    Args:
        source: Which table.
        kind: Folder of the kind of kernel, such as ``gemm``.
        file: File name without suffix.
        columns: Columns that must be there.
        systems: The ``systems`` folder; None for the installed package's.

    Returns:
        The rows, and a report that accepts them all.

    Raises:
        PinnError: If the file or one of the columns is missing.
    """
    folder = systems_folder() if systems is None else systems
    name = f"{source.system}/{kind}/{source.backend}/{source.version}/{file}.parquet"
    path = folder / "data" / name
    if not path.exists():
        raise PinnError(f"no measured kernels at {path}: expected aiconfigurator-core 0.12.0")
    table = pd.read_parquet(path)
    missing = [c for c in columns if c not in table.columns]
    if missing:
        raise PinnError(
            f"{path} has no column {', '.join(map(repr, missing))}: expected {', '.join(columns)}, "
            f"got {', '.join(table.columns)}"
        )
    report = ReadReport(
        name, f"{source.backend} {source.version}", file_sha256(path), len(table), len(table)
    )
    return table[[*columns]].reset_index(drop=True), report


def refuse(
    rows: pd.DataFrame, report: ReadReport, rules: Sequence[Rule]
) -> tuple[pd.DataFrame, ReadReport]:
    """Drop the rows that a rule matches, each counted under the first rule that does."""
    refused = dict(report.refused)
    for reason, matches in rules:
        bad = np.asarray(matches(rows), dtype=bool)
        if bad.any():
            refused[reason] = refused.get(reason, 0) + int(bad.sum())
            rows = rows[~bad]
    return rows.reset_index(drop=True), replace(report, accepted=len(rows), refused=refused)


#: A row this much above both neighbours along a size was disturbed (an assumption).
SPIKE = 1.3


def spikes(rows: pd.DataFrame, shape: Sequence[str], axis: str) -> Bool[np.ndarray, " rows"]:
    """Rows far above both of their neighbours along ``axis`` among rows of equal ``shape``."""
    order = rows.sort_values([*shape, axis])
    neighbours = order["seconds"].groupby([order[c] for c in shape])
    around = np.maximum(neighbours.shift(1), neighbours.shift(-1))
    return (order["seconds"] > SPIKE * around).reindex(rows.index).to_numpy()


def flop_rate(gpu: GpuSpec, formats: pd.Series) -> Float[np.ndarray, " rows"]:
    """Dense FLOP/s of a GPU per row, by number format."""
    rates = {f: gpu.matmul_flop_per_s(precision(f)) for f in formats.unique()}
    return formats.map(rates).to_numpy(dtype=np.float64)


def bytes_per_element(formats: pd.Series) -> Float[np.ndarray, " rows"]:
    """Storage per element per row, by number format."""
    sizes = {f: precision(f).bytes_per_weight for f in formats.unique()}
    return formats.map(sizes).to_numpy(dtype=np.float64)
