"""Coefficients of many configurations as one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pinn.coefficients.configurations import KEYS
from pinn.coefficients.distance import training_space
from pinn.errors import PinnError
from pinn.features.request import REQUEST_FEATURES
from pinn.features.step import STEP_FEATURES
from pinn.latency.surrogate import Surrogate, step_seconds
from pinn.observations.table import replace_atomically
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.physics.floor import floor_seconds
from pinn.specs.batch import parse_batch
from pinn.specs.deployment import Deployment
from pinn.units import MICROSECOND

SUFFIXES = (".csv", ".json", ".parquet")


def coefficient_table(
    surrogate: Surrogate,
    configurations: Sequence[dict[str, Any]],
    deployments: Sequence[Deployment],
    batches: Sequence[str] = (),
) -> pa.Table:
    """One row per configuration.

    Columns: the keys that any configuration gives; ``beta.NAME [unit]`` and ``alpha.NAME [unit]``
    in the order of the registries; per batch ``step_time_us: BATCH`` and ``floor_us: BATCH``; and
    the nearest measured deployment with its distance.
    """
    given = {key for configuration in configurations for key in configuration}
    columns: dict[str, Any] = {
        key: pa.array([c.get(key) for c in configurations]) for key in KEYS if key in given
    }
    found = surrogate.coefficients(deployments)
    for kind, values, registry in (
        ("beta", found.beta, STEP_FEATURES),
        ("alpha", found.alpha, REQUEST_FEATURES),
    ):
        for feature, column in zip(registry.values(), values.T, strict=True):
            columns[f"{kind}.{feature.name} [{feature.unit}]"] = np.ascontiguousarray(column)
    columns |= _batch_columns(found.beta, deployments, batches)
    space = training_space(surrogate.checkpoint)
    located = space.locate(deployments)
    names = pa.array(space.names, pa.string())
    missing = located.nearest < 0
    columns["nearest_measured"] = names.take(pa.array(located.nearest, mask=missing))
    columns["distance"] = pa.array(located.distance, mask=missing)
    return pa.table(columns)


def _batch_columns(
    beta: np.ndarray, deployments: Sequence[Deployment], batches: Sequence[str]
) -> dict[str, np.ndarray]:
    columns: dict[str, np.ndarray] = {}
    if not batches:
        return columns
    costs = step_costs(deployments)
    windows = np.array([d.model.window_tokens or np.inf for d in deployments])
    for text in batches:
        batch = parse_batch(text)
        seconds, floors = np.empty(len(deployments)), np.empty(len(deployments))
        for window in np.unique(windows):
            rows = np.flatnonzero(windows == window)
            sums, own = sum_batches([batch], window), costs.take(rows)
            seconds[rows] = step_seconds(beta[rows], own, sums)
            floors[rows] = floor_seconds(own, sums)
        columns[f"step_time_us: {text}"] = seconds / MICROSECOND
        columns[f"floor_us: {text}"] = floors / MICROSECOND
    return columns


def check_suffix(path: Path) -> None:
    """Refuse a table whose format its name does not tell.

    Raises:
        PinnError: If the suffix is not one of ``SUFFIXES``.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise PinnError(f"{path}: cannot tell the table's format: name it {', '.join(SUFFIXES)}")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table in the format that its suffix names; it appears whole or not at all.

    Raises:
        PinnError: If the suffix is none of ``SUFFIXES``.
    """
    check_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = {".csv": _write_csv, ".json": _write_json, ".parquet": _write_parquet}
    replace_atomically(path, lambda target: writer[path.suffix.lower()](table, target))


def _write_csv(table: pa.Table, path: Path) -> None:
    from pyarrow import csv

    csv.write_csv(table, path)


def _write_parquet(table: pa.Table, path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(table, path)


def _write_json(table: pa.Table, path: Path) -> None:
    columns = [column.to_pylist() for column in table.columns]
    names = table.column_names
    rows = (json.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n")
