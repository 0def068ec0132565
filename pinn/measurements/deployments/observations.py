"""Table of observations: each row is a deployment under one load, with measured latencies.

The table is a Parquet file with a JSON manifest in the same folder. The manifest contains the
origin of the rows, and a digest that is checked on reading.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pinn.common.documents import read_json
from pinn.common.files import (
    ReadReport,
    file_sha256,
    read_rows,
    replace_atomically,
    write_json_file,
)
from pinn.errors import PinnError
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec

_FLAGS = {flag.name: flag for flag in flags_of(ServingSpec)}

#: Column -> type: ``text``, ``flag`` (true or false), ``count`` (a whole number of at least 1),
#: ``from zero`` (a whole number of at least 0), ``seconds`` (positive) or ``passed`` (an engine
#: flag as text, empty if not passed). ``columns.csv`` describes the columns.
COLUMNS = {row["column"]: row["kind"] for row in read_rows(Path(__file__).with_name("columns.csv"))}
_DTYPES: Mapping[str, Any] = {
    "text": "str", "passed": "str", "flag": "bool", "count": "int64", "from zero": "int64",
    "seconds": "float64",
}  # fmt: skip
#: Allowed values of a column, as error messages state them, by its numeric type.
_WANTED = {
    "count": "a whole number of at least 1",
    "from zero": "a whole number of at least 0",
    "seconds": "above 0 s",
}
SCHEMA = "closed-loop observations 6"


@dataclass(frozen=True)
class Manifest:
    """Origin of a table of observations.

    Attributes:
        table_sha256: Digest of the Parquet file.
        rows: Number of rows in the table.
        report: Counts of rows read, accepted and rejected, with the digest of the source file and
            the package's version.
        schema: Name and version of the column list.
    """

    table_sha256: str
    rows: int
    report: ReadReport
    schema: str = SCHEMA


def validate(rows: pd.DataFrame, what: str = "the observations") -> pd.DataFrame:
    """Return observations with exactly the columns :data:`COLUMNS`, after checking their values.

    Args:
        rows: Table to check; additional columns are dropped.
        what: Name of the table in error messages.

    Returns:
        The columns of the schema in its order, each with its dtype.

    Raises:
        PinnError: If the table is empty, lacks a column, has a value not allowed in its column, or
            has a duplicate row name.
    """
    missing = [name for name in COLUMNS if name not in rows.columns]
    if missing:
        raise PinnError(
            f"{what} lack the column(s) {', '.join(missing)}: write the table again with this "
            "version"
        )
    if rows.empty:
        raise PinnError(f"{what} are empty: see the reader's report for the reasons")
    rows = rows[list(COLUMNS)].reset_index(drop=True)
    for name, kind in COLUMNS.items():
        rows[name] = _checked(rows[name], kind, f"{what}: {name}")
    twice = rows.loc[rows["row_id"].duplicated(), "row_id"]
    if not twice.empty:
        raise PinnError(
            f"{what} have {len(twice)} row(s) twice, of which the first is {twice.iloc[0]!r}: "
            "remove the copies"
        )
    return rows


def write_observations(rows: pd.DataFrame, path: Path, report: ReadReport) -> Manifest:
    """Write observations and their manifest; after a crash, the previous files are unchanged.

    Args:
        rows: Rows in a form that :func:`validate` accepts.
        path: Parquet file to write; the manifest is written to ``manifest_path(path)``.
        report: Report of the reader of the rows; its number of accepted rows must match.

    Raises:
        PinnError: If the rows are invalid or their number differs from the report's.
    """
    rows = validate(rows)
    if report.accepted != len(rows):
        raise PinnError(
            f"{path}: the table has {len(rows)} rows, but its read report accepts "
            f"{report.accepted}: write the table with its own report"
        )
    replace_atomically(path, lambda target: rows.to_parquet(target, index=False))
    manifest = Manifest(table_sha256=file_sha256(path), rows=len(rows), report=report)
    write_json_file(manifest_path(path), manifest)
    return manifest


def read_observations(path: Path) -> pd.DataFrame:
    """Read a table of observations that :func:`write_observations` wrote.

    Raises:
        PinnError: If the table or its manifest is missing, was changed or truncated, or does not
            follow the schema.
    """
    manifest = read_manifest(path)
    if not path.is_file():
        raise PinnError(f"the table of observations {path} does not exist: write the table first")
    digest = file_sha256(path)
    if digest != manifest.table_sha256:
        raise PinnError(
            f"{path} was changed or cut off after it was written (SHA-256 "
            f"{digest[:12]}..., expected {manifest.table_sha256[:12]}...): write "
            "the table again"
        )
    try:
        rows = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise PinnError(
            f"{path} is not a readable Parquet file ({error}): write the table again"
        ) from error
    return validate(rows, str(path))


def read_manifest(path: Path) -> Manifest:
    """Read the manifest that belongs to a table of observations.

    Raises:
        PinnError: If the manifest is missing, is not JSON, or describes another schema.
    """
    manifest = manifest_path(path)
    if not manifest.is_file():
        raise PinnError(
            f"{manifest} does not exist beside {path.name}: write the observations again"
        )
    try:
        values = read_json(manifest)
        report = ReadReport.from_json(values.pop("report"))
        read = Manifest(report=report, **values)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PinnError(
            f"{manifest} is not a manifest of observations ({error}): write the table again"
        ) from error
    if read.schema != SCHEMA:
        raise PinnError(
            f"{manifest} has the schema {read.schema!r}, but this version reads {SCHEMA!r}: write "
            "the table again with this version"
        )
    return read


def manifest_path(path: Path) -> Path:
    """Return the manifest's path: ``observations.manifest.json`` for ``observations.parquet``."""
    return path.with_suffix(".manifest.json")


def _checked(values: pd.Series, kind: str, what: str) -> pd.Series:
    """Convert a column to its dtype; raise an error that names the first invalid value."""
    if values.isna().any():
        raise PinnError(f"{what} is missing in {int(values.isna().sum())} row(s): fill in a value")
    if kind in _WANTED:
        numbers = pd.to_numeric(values, errors="coerce")
        least = numbers >= 0 if kind == "from zero" else numbers > 0
        bad = ~(np.isfinite(numbers) & least)
        if kind != "seconds":
            bad |= numbers != np.floor(numbers)
        if bad.any():
            raise PinnError(
                f"{what} must be {_WANTED[kind]}, got {values[bad].iloc[0]} "
                f"({int(bad.sum())} row(s) with such values)"
            )
        values = numbers
    elif kind == "passed":
        flag = _FLAGS[str(values.name)]
        for text in set(values) - {""}:
            flag.check(flag.read(text, what))
    elif kind == "flag" and not values.isin([True, False]).all():
        raise PinnError(f"{what} must be true or false, got {values.iloc[0]!r}")
    return values.astype(_DTYPES[kind])
