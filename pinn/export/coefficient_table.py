"""Coefficients of many configurations as one table."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from pinn.common import files, progress, tables
from pinn.engines import configurations
from pinn.engines.configurations import Configuration, Values
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.export.table import coefficient_columns
from pinn.memory import kv_cache
from pinn.physics import batch_sums, step_values
from pinn.physics.costs import step_costs
from pinn.specs.batch import parse_batch
from pinn.surrogate import surrogate
from pinn.surrogate.batch_marks import marks_of_each
from pinn.surrogate.uncertainty.distance import served_gpus
from pinn.surrogate.uncertainty.intervals import read_calibration, step_half_width
from pinn.surrogate.uncertainty.training_space import training_space
from pinn.units import MICROSECOND

#: Values of one column of a coefficient table.
Column: TypeAlias = "Sequence[object] | np.ndarray | pa.Array"

#: Function from a deployment to half-widths of the intervals of its log TPOT and TTFT.
HalfWidths: TypeAlias = Callable[[Deployment], Mapping[str, float]]

_SIZE = "tensor_parallel_size"
#: Flags that do not affect a deployment's GPU memory.
_IDLE = {"generation_config", "override_generation_config"}


def crossed(configs: Path | None, grid: str | None, given: Configuration) -> list[Values]:
    """Combine all configurations of a file and a grid, and the given flags."""
    shared = configurations.canonical(given)
    rows = configurations.read_configurations(configs) if configs is not None else [{}]
    points = configurations.parse_grid(grid) if grid is not None else [{}]
    configurations.check_configurations(len(rows) * len(points))
    return [{**shared, **row, **point} for row in rows for point in points]


def many_table(
    rows: Sequence[Values], batches: Sequence[str], checkpoint: Path | None, skip_invalid: bool
) -> tuple[pa.Table, dict[int, str]]:
    """Return the table of valid configurations, and a reason for each skipped row by its number."""
    progress.doing(f"{len(rows):,} configurations")
    used = files.find_checkpoint(checkpoint)
    network = surrogate.Surrogate.load(used)
    kept, deployments, reasons = configurations.make_deployments(rows, skip_invalid)
    halves = _half_widths(used) if batches else None
    return coefficient_table(network, kept, deployments, batches, halves), reasons


def _half_widths(checkpoint: Path) -> HalfWidths | None:
    """Return a function from a deployment to half-widths of its log latencies' intervals.

    Return None if the checkpoint has no intervals.
    """
    try:
        stated, known = read_calibration(checkpoint), set(served_gpus(checkpoint))
    except PinnError:
        return None
    return lambda deployment: stated.log_half_widths(deployment, deployment.gpu.name in known)


def coefficient_table(
    network: surrogate.Surrogate,
    given: Sequence[Configuration],
    deployments: Sequence[Deployment],
    batches: Sequence[str] = (),
    halves: HalfWidths | None = None,
) -> pa.Table:
    """Return a table of coefficients with one row per configuration.

    Its columns are:

    - the keys that any configuration sets;
    - ``beta.NAME [unit]`` and ``alpha.NAME [unit]``, in the order of ``STEP_FEATURES`` and
      ``REQUEST_FEATURES``;
    - for each batch ``step_time_us: BATCH``, ``floor_us: BATCH`` (roofline lower bound) and
      ``marks: BATCH`` (limits that the batch exceeds); with ``halves`` also the ends of the step
      time's interval (``step_time_low_us``, ``step_time_high_us``);
    - ``fits``, ``kv_tokens`` and ``smallest_tensor_parallel_size``;
    - the nearest measured deployment with its distance.

    Args:
        network: Trained network.
        given: Configurations as the user wrote them, for the first columns.
        deployments: Deployments of the configurations.
        batches: Batches whose step times are predicted, as text such as ``32 decode @ 700``.
        halves: Function from a deployment to half-widths of the intervals of its log TPOT and TTFT;
            None for no intervals.
    """
    columns: dict[str, Column] = {
        key: pa.array([configuration.get(key) for configuration in given])
        for key in configurations.KEYS
        if any(key in configuration for configuration in given)
    }
    distinct, place = _seen_alike(deployments)
    found = network.coefficients(distinct).take(place)
    columns |= coefficient_columns(found)
    columns |= _batch_columns(found.beta, deployments, batches, halves)
    columns |= _memory_columns(given, deployments)
    space = training_space(network.checkpoint)
    located = space.locate(distinct)
    nearest, distance = located.nearest[place], located.distance[place]
    names = pa.array(space.names, pa.string())
    columns["nearest_measured"] = names.take(pa.array(nearest, mask=nearest < 0))
    columns["distance"] = pa.array(distance, mask=nearest < 0)
    return pa.table(columns)


def _seen_alike(deployments: Sequence[Deployment]) -> tuple[list[Deployment], np.ndarray]:
    """Return deployments with distinct coefficients, and each row's index among them."""
    kinds: dict[tuple[object, ...], tuple[int, Deployment]] = {}
    place = []
    for deployment in deployments:
        recipe = deployment.recipe
        sizes = recipe.tensor_parallel_size, recipe.data_parallel_size, recipe.expert_parallel_size
        key = (id(deployment.model), id(deployment.gpu), *sizes, recipe.kv_cache_dtype)
        place.append(kinds.setdefault(key, (len(kinds), deployment))[0])
    return [deployment for _, deployment in kinds.values()], np.array(place, np.int64)


def _batch_columns(
    beta: np.ndarray,
    deployments: Sequence[Deployment],
    batches: Sequence[str],
    halves: HalfWidths | None,
) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    widths = None if halves is None else [halves(each) for each in deployments]
    plain = np.array([d.recipe.speculation is None for d in deployments])
    costs = step_costs([d for d, is_plain in zip(deployments, plain, strict=True) if is_plain])
    windows = np.array([d.model.window_tokens or np.inf for d in deployments])[plain]
    for text in batches:
        batch = parse_batch(text)
        seconds, floors = np.empty(len(deployments)), np.empty(len(deployments))
        for window in np.unique(windows):
            alike = np.flatnonzero(windows == window)
            rows = np.flatnonzero(plain)[alike]
            sums, own = batch_sums.sum_batches([batch], window), costs.take(alike)
            seconds[rows] = surrogate.step_seconds(beta[rows], own, sums)
            floors[rows] = step_values.floor_seconds(own, sums)
        for row in np.flatnonzero(~plain).tolist():
            seconds[row] = surrogate.batch_seconds(beta[row], deployments[row], [batch])[0]
            floors[row] = surrogate.batch_floor_seconds(deployments[row], [batch])[0]
        columns[f"step_time_us: {text}"] = seconds / MICROSECOND
        if widths is not None:
            factor = np.exp([step_half_width(each, text) for each in widths])
            low = np.maximum(seconds / factor, floors)
            columns[f"step_time_low_us: {text}"] = low / MICROSECOND
            columns[f"step_time_high_us: {text}"] = seconds * factor / MICROSECOND
        columns[f"floor_us: {text}"] = floors / MICROSECOND
        columns[f"marks: {text}"] = marks_of_each(batch, deployments)
    return columns


def _memory_columns(
    configurations: Sequence[Configuration], deployments: Sequence[Deployment]
) -> dict[str, Column]:
    """Return the columns ``fits``, ``kv_tokens`` and ``smallest_tensor_parallel_size``.

    Rows that differ only in the tensor-parallel size share one computation of memory.
    """
    alike: dict[tuple[object, ...], dict[int, kv_cache.MemoryFit]] = {}
    smallest: dict[tuple[object, ...], int | None] = {}
    deciding = {name for configuration in configurations for name in configuration}
    deciding -= {_SIZE, *_IDLE}
    keys = [tuple(map(configuration.get, deciding)) for configuration in configurations]
    sizes = [deployment.serving.tensor_parallel_size for deployment in deployments]
    for key, size, deployment in zip(keys, sizes, deployments, strict=True):
        known = alike.setdefault(key, {})
        if size not in known:
            known[size] = kv_cache.memory_fit(deployment)
    for key, deployment in zip(keys, deployments, strict=True):
        if key not in smallest:
            smallest[key] = kv_cache.smallest_tensor_parallel_size(deployment, alike[key])
    fits = [alike[key][size] for key, size in zip(keys, sizes, strict=True)]
    return {
        "fits": [fit.fits for fit in fits],
        "kv_tokens": pa.array([fit.kv_tokens for fit in fits], pa.int64()),
        "smallest_tensor_parallel_size": pa.array([smallest[key] for key in keys], pa.int64()),
    }


def write_table(table: pa.Table, path: Path) -> None:
    """Write a coefficient table in the format of the path's suffix; JSON has one row per line."""
    tables.write_arrow(table, path, table_json)


def table_json(table: pa.Table) -> bytes:
    """Return a coefficient table as a JSON list with one row per line."""
    columns, names = [_cells(column) for column in table.columns], table.column_names
    rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return b"[\n" + b",\n".join(map(msgspec.json.Encoder().encode, rows)) + b"\n]\n"


def _cells(column: pa.ChunkedArray) -> list[object]:
    """Return the values of a column as a list.

    Numeric columns without missing values are converted by NumPy, which is faster.
    """
    if pa.types.is_floating(column.type) and not column.null_count:
        return column.to_numpy().tolist()
    return column.to_pylist()
