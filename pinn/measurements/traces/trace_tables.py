"""Folder of trace tables with a manifest, written atomically.

The folder has ``requests``, ``steps``, ``snapshots`` and ``cycles`` as Parquet files, and
``manifest.json`` with their origin, the deployment, and counts of rejected rows with reasons.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from pinn.common.documents import read_json
from pinn.common.files import ReadReport, file_sha256, write_json_file
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.flags import FlagValue, specified
from pinn.specs.gpu import load_gpu
from pinn.specs.model_variants import with_precision
from pinn.specs.serving import ServingSpec

SCHEMA = "pinn trace tables 1"
MANIFEST = "manifest.json"

_UNNAMED = "the model and the GPU are not stated"


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to write to; unless there is an error, it replaces ``folder`` at the end.

    Raises:
        PinnError: If ``folder`` is the current folder, or has files other than trace tables.
    """
    if not folder.name:
        raise PinnError(
            f"the folder {folder} has no name, so it cannot be replaced: give a new folder"
        )
    is_taken = folder.exists() and not (folder / MANIFEST).is_file()
    if is_taken and (not folder.is_dir() or any(folder.iterdir())):
        raise PinnError(
            f"{folder} exists, but is not a folder of trace tables: give another folder"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        if folder.exists():
            folder.rename(old)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


class TableEntry(TypedDict):
    """Entry for one table in the manifest of a folder of trace tables."""

    file: str
    rows: int
    sha256: str


def write_table(
    folder: Path, name: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> TableEntry:
    """Write one table as a Parquet file, and return its entry for the folder's manifest."""
    path, count = folder / f"{name}.parquet", 0
    with pq.ParquetWriter(path, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return {"file": path.name, "rows": count, "sha256": file_sha256(path)}


def write_manifest(folder: Path, manifest: Mapping[str, object]) -> None:
    """Write the manifest of a folder of trace tables, after all its other files are written."""
    write_json_file(folder / MANIFEST, {"schema": SCHEMA, **manifest})


@dataclass(frozen=True)
class Target:
    """Deployment that was measured, with the user's names for model and GPU."""

    model: str
    gpu: str
    serving: ServingSpec = field(default_factory=ServingSpec)
    precision: str | None = None

    @staticmethod
    def of(
        model: str | None, gpu: str | None, flags: Mapping[str, FlagValue], lacking: str = _UNNAMED
    ) -> "Target":
        """Return a measured deployment from names and flags.

        Flags are fields of ``ServingSpec``, and ``precision``.

        Raises:
            PinnError: If the model or the GPU is missing (the message begins with ``lacking``), or
                a flag has an invalid value.
        """
        missing = [option for option, given in (("--model", model), ("--gpu", gpu)) if not given]
        if missing:
            raise PinnError(f"{lacking}: give {' and '.join(missing)}")
        serving = {name: value for name, value in flags.items() if name != "precision"}
        precision = flags.get("precision")
        known = None if precision is None else str(precision)
        return Target(str(model), str(gpu), specified(ServingSpec, serving), known)

    def deployment(self) -> Deployment:
        """Return the deployment with its model and GPU loaded.

        Without ``precision``, the number format is that of the model's config.

        Raises:
            PinnError: If a name is unknown, or a flag has a value that is incompatible with the
                model.
        """
        model = load_model(self.model)
        if self.precision is not None:
            model = with_precision(model, self.precision)
        # Measurements can be read with any flags. A calibration checks that the engine starts with
        # them (pinn.calibration.checks.check_engine).
        return Deployment(model, load_gpu(self.gpu), self.serving, force=True)


@dataclass(frozen=True)
class TraceTables:
    """Folder of trace tables, each of which is read on first use.

    Attributes:
        folder: Path of the folder.
        manifest: Content of the manifest.
    """

    folder: Path
    manifest: dict[str, Any]

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Read a table by name.

        Raises:
            PinnError: If the folder has no such table, or the table's file is missing or does not
                match the checksum in the manifest.
        """
        entry = self.manifest["tables"].get(name)
        if entry is None:
            known = ", ".join(self.manifest["tables"])
            raise PinnError(f"the folder {self.folder} has no table {name!r}, but only {known}")
        path = self.folder / entry["file"]
        try:
            found = file_sha256(path)
            if found != entry["sha256"]:
                raise PinnError(
                    f"{path} was changed after it was ingested: its SHA-256 is {found[:12]}..., "
                    f"but {entry['sha256'][:12]}... in {MANIFEST}: ingest the traces again"
                )
            return pq.read_table(path, columns=columns)
        except (OSError, pa.ArrowInvalid) as error:
            raise PinnError(f"{path} cannot be read ({error}): ingest the traces again") from error

    @cached_property
    def steps(self) -> pd.DataFrame:
        """Return the table of steps as a data frame."""
        return self.table("steps").to_pandas()

    @cached_property
    def cycles(self) -> pd.DataFrame:
        """Return the table of intervals between sampled steps; each step begins an interval."""
        return self.table("cycles").to_pandas()

    @cached_property
    def requests(self) -> pa.Table:
        """Return the table of requests as an Arrow table, since some columns contain lists."""
        return self.table("requests")

    @cached_property
    def snapshots(self) -> pd.DataFrame:
        """Return the table of snapshots as a data frame."""
        return self.table("snapshots").to_pandas()

    def deployment(self) -> Deployment:
        """Return the deployment that was traced.

        Raises:
            PinnError: If the deployment was not given at ingestion, or is unknown.
        """
        entry = self.manifest.get("deployment")
        if not entry:
            raise PinnError(
                f"the manifest in {self.folder} states no model and GPU: ingest the traces again "
                "with --model and --gpu"
            )
        try:
            target = Target(**entry | {"serving": ServingSpec(**entry.get("serving", {}))})
        except TypeError as error:
            bad = f"{self.folder}/manifest.json has no usable deployment ({error})"
            raise PinnError(f"{bad}: ingest the traces again") from error
        return target.deployment()


def read_trace_tables(folder: Path) -> TraceTables:
    """Open a folder of trace tables.

    Raises:
        PinnError: If the folder is missing, or its manifest is not readable or has another schema.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise PinnError(
            f"the folder {folder} has no trace tables: write the tables with 'pinn ingest' first"
        )
    try:
        manifest = read_json(path)
    except PinnError as error:
        raise PinnError(f"{error}: ingest the traces again") from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else manifest
        raise PinnError(
            f"{path} has the schema {found!r}, but this version reads {SCHEMA!r}: ingest the "
            "traces again"
        )
    return TraceTables(folder, manifest)


# Report on an ingestion of traces, as tables for the terminal.

_MS = 1e3

#: Maximum number of median cycle times (from one step's start to the next) to print, and minimum
#: number of cycles for a median.
MAX_MEDIANS = 12
MIN_CYCLES = 5


def cleaning_tables(manifest: Mapping[str, Any]) -> str:
    """Return a report on the data kept and dropped in a folder of trace tables, as a string.

    Args:
        manifest: Manifest of the folder.
    """
    parts = [ReadReport.from_json(report).table() for report in manifest["reports"].values()]
    if segments := manifest.get("segments", []):
        ambiguous = sum(bool(s["is_ambiguous"]) for s in segments)
        parts.append(
            f"servers and segments\n{len(manifest['servers']):8d}  "
            f"servers\n{len(segments):8d}  segments (one process on one "
            f"clock)\n{ambiguous:8d}  segments that mix two servers, which cannot be "
            "separated"
        )
    parts.append(_counts("intervals from one step's start to the next", manifest["intervals"]))
    if manifest["medians_by_decodes"]:
        parts.append(_medians(manifest["medians_by_decodes"]))
    if manifest["request_issues"]:
        parts.append(_counts("requests by issue", manifest["request_issues"]))
    unchecked = "targets\n  not checked against the roofline lower bound: give --model and --gpu"
    targets = [_target(check) for check in manifest["targets"].values()] or [unchecked]
    return "\n\n".join(parts + targets)


def _counts(title: str, counts: Mapping[str, int]) -> str:
    return "\n".join([title, *(f"{count:8d}  {name}" for name, count in counts.items())])


def _medians(rows: Sequence[Mapping[str, float]]) -> str:
    """Return the median times from step to step by number of decodes, as a string."""
    known = [row for row in rows if row["cycles"] >= MIN_CYCLES] or rows
    places = np.unique(np.linspace(0, len(known) - 1, MAX_MEDIANS).round().astype(int))
    lines = [
        (
            f"{row['median_step_s'] * _MS:8.2f}  ms at {row['decode_requests']:.0f} "
            f"decode requests, {row['cycles']:.0f} intervals"
        )
        for row in (known[place] for place in places)
    ]
    return "\n".join(
        [
            "median time from one step's start to the next, by number of decode "
            "requests (selected)",
            *lines,
        ]
    )


def _target(check: Mapping[str, float]) -> str:
    verdict = "accepted" if check["is_target"] else "REFUSED"
    text = (
        f"{check['column']}: {verdict} as training target for step "
        f"times\n{check['rows']:8d}  rows, median {check['median_s'] * _MS:.3g} "
        f"ms, lower bound {check['floor_median_s'] * _MS:.3g} ms, "
        f"{check['below_floor']} below their bound"
    )
    return f"{text}\n          {check['explanation']}" if check["explanation"] else text
