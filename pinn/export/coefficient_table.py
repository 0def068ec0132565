"""Table of the coefficients of many configurations."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pinn.common import files, numbers, progress, tables
from pinn.engines import configurations
from pinn.engines.configurations import Configuration, Values
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.export.table import coefficient_columns
from pinn.memory import kv_cache
from pinn.memory.kv_cache import MemoryFit
from pinn.physics import batch_sums, step_values
from pinn.physics.costs import StepCosts, step_costs
from pinn.specs.batch import parse_batch
from pinn.surrogate import surrogate
from pinn.surrogate.batch_marks import marks_of_each
from pinn.surrogate.step_features import step_features, step_time
from pinn.surrogate.uncertainty.distance import served_gpus
from pinn.surrogate.uncertainty.intervals import read_calibration, step_half_width
from pinn.surrogate.uncertainty.network_evidence import named_inputs
from pinn.surrogate.uncertainty.training_space import training_space
from pinn.units import MICROSECOND

#: Values of one column of a coefficient table.
Column: TypeAlias = "Sequence[object] | np.ndarray | pa.Array"

#: Function that returns the half-widths of the intervals of log TPOT and log TTFT of a deployment.
HalfWidths: TypeAlias = Callable[[Deployment], Mapping[str, float]]

_SIZE = "tensor_parallel_size"
#: Flags that do not affect a deployment's GPU memory.
_IDLE = {"generation_config", "override_generation_config"}
#: Verdict on a configuration without predictions: the engine refuses it, or its model, GPU or a
#: value is unknown.
INVALID = "invalid"
#: Name of the argument of functions and commands, by canonical key, where the two differ.
_ARGUMENTS = {"precision": "quantization"}


def crossed(
    configs: Path | None, grid: str | None, given: Configuration, spelled: dict[str, str]
) -> list[Values]:
    """Return all combinations of configurations from a file, a grid and flags.

    The user's spelling of each key in file and grid is added to ``spelled``.
    """
    shared = configurations.canonical(given)
    rows = configurations.read_configurations(configs, spelled) if configs is not None else [{}]
    points = configurations.parse_grid(grid, spelled) if grid is not None else [{}]
    configurations.check_configurations(len(rows) * len(points))
    return [{**shared, **row, **point} for row in rows for point in points]


def many_table(
    rows: Sequence[Values],
    batches: Sequence[str],
    checkpoint: Path | None,
    skip_invalid: bool,
    spelled: Mapping[str, str],
    keys: Iterable[str] = (),
    names: Sequence[str] | None = None,
) -> tuple[pa.Table, list[str]]:
    """Return a table of many configurations, and the reasons why some were rejected.

    The row of a rejected configuration has its keys, its ``verdict`` and the ``reason``, but no
    predictions. Without rows, the table has all columns, but no row.

    Args:
        rows: Configurations from :func:`pinn.engines.configurations.canonical`.
        batches: Batches whose step times are predicted.
        checkpoint: Path of the trained network; None for the default network.
        skip_invalid: Whether rejected configurations are allowed.
        spelled: Column name by canonical key.
        keys: Canonical keys of the first columns of a table without rows.
        names: Name of each row in error messages; None for its 1-based position.

    Raises:
        PinnError: If a row is rejected and ``skip_invalid`` is false.
    """
    progress.doing(numbers.amount(len(rows), "configuration"))
    used = files.find_checkpoint(checkpoint)
    network = surrogate.Surrogate.load(used)
    kept, deployments, errors = configurations.make_deployments(rows, skip_invalid, names)
    halves = _half_widths(used) if batches else None
    table = coefficient_table(network, kept, deployments, batches, halves)
    if errors:
        table = _with_refused(table, len(rows), errors)
    given = given_table(rows, spelled, keys)
    set_keys = {key for row in rows for key in row}
    own = {name: table[name] for name in table.column_names if name not in set_keys}
    found = dict(zip(given.column_names, given.columns, strict=True)) | own
    return pa.table(found), [_reason(error) for error in errors.values()]


def given_table(
    rows: Sequence[Values], spelled: Mapping[str, str], keys: Iterable[str] = ()
) -> pa.Table:
    """Return the table of the configurations as given; the arguments are as in `many_table`.

    Keys in ``spelled`` have a column even if no row has a value.
    """
    listed = [dict.fromkeys(spelled) | row for row in rows] or [dict.fromkeys(keys)]
    columns = _given_columns(listed, _ARGUMENTS | dict(spelled))
    return pa.table(columns).slice(0, len(rows))


def _reason(error: PinnError) -> str:
    """Return an error as a cell that a spreadsheet does not read as a formula (``--flag ...``)."""
    text = str(error)
    return f"the flag {text}" if text.startswith("-") else text


def _with_refused(table: pa.Table, count: int, errors: Mapping[int, PinnError]) -> pa.Table:
    """Insert a row for each error into the table of valid rows, at its 1-based position."""
    valid = iter(range(len(table)))
    numbers = range(1, count + 1)
    found = table.take(
        pa.array([None if n in errors else next(valid) for n in numbers], pa.int64())
    )
    listed = [errors.get(n) for n in numbers]
    said = {
        "starts": pa.array([None if e is None else False for e in listed], pa.bool_()),
        "verdict": pa.array([None if e is None else INVALID for e in listed], pa.string()),
        "reason": pa.array([None if e is None else _reason(e) for e in listed], pa.string()),
    }
    for name, values in said.items():
        filled = pc.coalesce(found[name], values)
        found = found.set_column(found.column_names.index(name), name, filled)
    return found


def _given_columns(given: Sequence[Configuration], names: Mapping[str, str]) -> dict[str, Column]:
    """Return a column for every key that occurs in a configuration, under its name in ``names``.

    Columns with user-defined identifiers come first.
    """
    used = dict.fromkeys(key for configuration in given for key in configuration)
    keys = [key for key in used if key not in configurations.KEYS]
    keys += [key for key in configurations.KEYS if key in used]
    found: dict[str, Column] = {}
    for key in keys:
        values, name = [configuration.get(key) for configuration in given], names.get(key, key)
        if configurations.is_reversed(name):
            values = [not value if isinstance(value, bool) else value for value in values]
        if len({type(value) for value in values if value is not None}) > 1:
            values = [None if value is None else str(value) for value in values]
        found[name] = pa.array(values)
    return found


def _half_widths(checkpoint: Path) -> HalfWidths | None:
    """Return a function that gives the half-widths of a deployment's log latency intervals.

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
    - for each batch ``step_time_us: BATCH``, ``floor_us: BATCH`` (roofline lower bound),
      ``fits_kv_cache: BATCH`` (whether its requests fit into the KV cache at once; null if the
      engine does not start) and ``marks: BATCH`` (limits that the batch exceeds); with ``halves``,
      also the ends of the step time's interval (``step_time_low_us``, ``step_time_high_us``);
    - ``starts``, ``verdict``, ``reason``, ``fits``, ``kv_tokens`` and
      ``smallest_tensor_parallel_size``, with the meaning of these keys in the JSON of memory, and
      the bounds of ``kv_tokens`` (``kv_tokens_low``, ``kv_tokens_high``);
    - ``kv_cache_format``, the number format of the KV cache;
    - with speculative decoding in any row, ``tokens_per_step``: mean tokens per request and decode
      step (1 without speculation, null without acceptance rates);
    - the nearest measured deployment with its distance, and the network inputs outside the training
      range (``outside_training_range``), in standard deviations.

    Args:
        network: Trained network.
        given: Configurations as the user wrote them, for the first columns.
        deployments: Deployments of the configurations.
        batches: Batches whose step times are predicted, as text such as ``32 decode @ 700``.
        halves: Function from a deployment to half-widths of the intervals of its log TPOT and TTFT;
            None for no intervals.
    """
    columns = _given_columns(given, {})
    fits, smallest = _fits(given, deployments)
    distinct, place = _seen_alike(deployments)
    found = network.coefficients(distinct).take(place)
    columns |= coefficient_columns(found)
    columns |= _batch_columns(found.beta, deployments, fits, batches, halves)
    columns |= _memory_columns(fits, smallest)
    columns["kv_cache_format"] = [each.kv_cache_precision.name for each in deployments]
    drafts = [each.recipe.speculation for each in deployments]
    if any(drafts):
        columns["tokens_per_step"] = [
            1.0 if each is None else each.tokens_per_step if each.acceptance else None
            for each in drafts
        ]
    space = training_space(network.checkpoint)
    located = space.locate(distinct)
    nearest, distance = located.nearest[place], located.distance[place]
    names = pa.array(space.names, pa.string())
    columns["nearest_measured"] = names.take(pa.array(nearest, mask=nearest < 0))
    columns["distance"] = pa.array(distance, mask=nearest < 0)
    outside = [named_inputs(located.outside_names(row)) or None for row in range(len(distinct))]
    columns["outside_training_range"] = pa.array(outside, pa.string()).take(pa.array(place))
    return pa.table(columns)


def _seen_alike(deployments: Sequence[Deployment]) -> tuple[list[Deployment], np.ndarray]:
    """Return the deployments with distinct coefficients, and each row's index among them."""
    kinds: dict[tuple[object, ...], tuple[int, Deployment]] = {}
    place = []
    for deployment in deployments:
        recipe = deployment.recipe
        sizes = recipe.tensor_parallel_size, recipe.data_parallel_size, recipe.expert_parallel_size
        key = (id(deployment.model), id(deployment.gpu), *sizes, recipe.kv_cache_dtype)
        place.append(kinds.setdefault(key, (len(kinds), deployment))[0])
    return [deployment for _, deployment in kinds.values()], np.array(place, np.int64)


#: A model's attention window in tokens (None without a window), and the sizes of an engine's CUDA
#: graphs.
_Padding: TypeAlias = tuple[int | None, tuple[int, ...]]


def _padded_alike(
    deployments: Sequence[Deployment],
) -> dict[_Padding, tuple[list[int], StepCosts]]:
    """Group rows without draft tokens by window and graph sizes; return each group's costs."""
    rows: dict[_Padding, list[int]] = {}
    for row, each in enumerate(deployments):
        if each.recipe.speculation is None:
            key = each.model.window_tokens, each.recipe.graph_sizes
            rows.setdefault(key, []).append(row)
    return {
        key: (mine, step_costs([deployments[row] for row in mine])) for key, mine in rows.items()
    }


def _batch_columns(
    beta: np.ndarray,
    deployments: Sequence[Deployment],
    fits: Sequence[MemoryFit],
    batches: Sequence[str],
    halves: HalfWidths | None,
) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    widths = None if halves is None else [halves(each) for each in deployments]
    drafting = [row for row, d in enumerate(deployments) if d.recipe.speculation]
    groups = _padded_alike(deployments)
    for text in batches:
        batch = parse_batch(text)
        seconds, floors = np.empty(len(deployments)), np.empty(len(deployments))
        for (window, sizes), (rows, costs) in groups.items():
            sums = batch_sums.sum_batches([batch], window)
            features = step_features(costs, sums.padded(sizes))
            seconds[rows] = step_time(features, beta[rows])
            floors[rows] = step_values.floor_seconds(costs, sums)
        for row in drafting:
            seconds[row] = surrogate.batch_seconds(beta[row], deployments[row], [batch])[0]
            floors[row] = surrogate.batch_floor_seconds(deployments[row], [batch])[0]
        columns[f"step_time_us: {text}"] = seconds / MICROSECOND
        if widths is not None:
            factor = np.exp([step_half_width(each, text) for each in widths])
            low = np.maximum(seconds / factor, floors)
            columns[f"step_time_low_us: {text}"] = low / MICROSECOND
            columns[f"step_time_high_us: {text}"] = seconds * factor / MICROSECOND
        columns[f"floor_us: {text}"] = floors / MICROSECOND
        held = zip(fits, deployments, strict=True)
        holds = [fit.holds(batch, each) if fit.layout else None for fit, each in held]
        columns[f"fits_kv_cache: {text}"] = pa.array(holds, pa.bool_())
        columns[f"marks: {text}"] = pa.array(marks_of_each(batch, deployments, fits), pa.string())
    return columns


def _fits(
    given: Sequence[Configuration], deployments: Sequence[Deployment]
) -> tuple[list[MemoryFit], list[int | None]]:
    """Return each deployment's KV cache, and the smallest tensor-parallel size at which it starts.

    Memory is computed once for all rows that differ only in tensor-parallel size.
    """
    alike: dict[tuple[object, ...], dict[int, MemoryFit]] = {}
    smallest: dict[tuple[object, ...], int | None] = {}
    used = {name for configuration in given for name in configuration}
    deciding = (used & set(configurations.KEYS)) - {_SIZE, *_IDLE}
    keys = [tuple(map(configuration.get, deciding)) for configuration in given]
    sizes = [deployment.serving.tensor_parallel_size for deployment in deployments]
    for key, size, deployment in zip(keys, sizes, deployments, strict=True):
        known = alike.setdefault(key, {})
        if size not in known:
            known[size] = kv_cache.memory_fit(deployment)
    for key, deployment in zip(keys, deployments, strict=True):
        if key not in smallest:
            smallest[key] = kv_cache.smallest_tensor_parallel_size(deployment, alike[key])
    fits = [alike[key][size] for key, size in zip(keys, sizes, strict=True)]
    return fits, [smallest[key] for key in keys]


def _memory_columns(fits: Sequence[MemoryFit], smallest: Iterable[int | None]) -> dict[str, Column]:
    return {
        "starts": pa.array([fit.is_certain for fit in fits], pa.bool_()),
        "verdict": pa.array([fit.verdict for fit in fits], pa.string()),
        "reason": pa.array([fit.fault or None for fit in fits], pa.string()),
        "fits": pa.array([fit.fits for fit in fits], pa.bool_()),
        "kv_tokens": pa.array([fit.kv_tokens for fit in fits], pa.int64()),
        "kv_tokens_low": pa.array([fit.token_ends[0] for fit in fits], pa.int64()),
        "kv_tokens_high": pa.array([fit.token_ends[1] for fit in fits], pa.int64()),
        "smallest_tensor_parallel_size": pa.array(list(smallest), pa.int64()),
    }


def write_table(table: pa.Table, path: Path) -> None:
    """Write a coefficient table in the format that the path's suffix selects."""
    tables.write_arrow(table, path, table_json)


def table_json(table: pa.Table) -> bytes:
    """Return a coefficient table as a JSON list with one row per line."""
    columns, names = [_cells(column) for column in table.columns], table.column_names
    rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return b"[\n" + b",\n".join(map(msgspec.json.Encoder().encode, rows)) + b"\n]\n"


def _cells(column: pa.ChunkedArray) -> list[object]:
    """Return the values of a column as a list.

    Numeric columns without missing values are converted with NumPy, which is faster.
    """
    if pa.types.is_floating(column.type) and not column.null_count:
        return column.to_numpy().tolist()
    return column.to_pylist()
