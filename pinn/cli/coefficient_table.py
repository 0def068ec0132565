"""Coefficients of many configurations as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from pinn.coefficients.configurations import KEYS
from pinn.coefficients.distance import training_space
from pinn.errors import PinnError
from pinn.features.request import REQUEST_FEATURES, RequestFeature
from pinn.features.step import STEP_FEATURES, StepFeature
from pinn.latency.surrogate import Surrogate, step_seconds
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.physics.floor import floor_seconds
from pinn.remembered.files import replace_atomically
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
    distinct, place = _seen_alike(deployments)
    found = surrogate.coefficients(distinct).take(place)
    columns |= _named("beta", STEP_FEATURES, found.beta)
    columns |= _named("alpha", REQUEST_FEATURES, found.alpha)
    columns |= _batch_columns(found.beta, deployments, batches)
    space = training_space(surrogate.checkpoint)
    located = space.locate(distinct)
    nearest, distance = located.nearest[place], located.distance[place]
    names = pa.array(space.names, pa.string())
    columns["nearest_measured"] = names.take(pa.array(nearest, mask=nearest < 0))
    columns["distance"] = pa.array(distance, mask=nearest < 0)
    return pa.table(columns)


def _seen_alike(deployments: Sequence[Deployment]) -> tuple[list[Deployment], np.ndarray]:
    """One deployment of each kind that the embedding tells apart, and the kind of each."""
    kinds: dict[tuple[Any, ...], int] = {}
    distinct: list[Deployment] = []
    place = np.empty(len(deployments), dtype=np.int64)
    for row, deployment in enumerate(deployments):
        recipe = deployment.recipe
        key = (
            id(deployment.model),
            id(deployment.gpu),
            recipe.tensor_parallel_size,
            recipe.data_parallel_size,
            recipe.expert_parallel_size,
            recipe.kv_cache_dtype,
        )
        place[row] = kinds.setdefault(key, len(kinds))
        if place[row] == len(distinct):
            distinct.append(deployment)
    return distinct, place


def _named(
    kind: str,
    registry: Mapping[str, StepFeature] | Mapping[str, RequestFeature],
    values: np.ndarray,
) -> dict[str, np.ndarray]:
    """A column per coefficient, each contiguous in memory as Arrow wants it."""
    names = (f"{kind}.{feature.name} [{feature.unit}]" for feature in registry.values())
    return dict(zip(names, np.ascontiguousarray(values.T), strict=True))


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
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    path.write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, rows)) + b"\n]\n")
