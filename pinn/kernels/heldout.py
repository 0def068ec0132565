"""Surrogates fitted without held-out kernels, and their errors on these kernels."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Int

from pinn.common.screen import Grid
from pinn.common.store import remembered_folder
from pinn.kernels import mixer_operators
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.hardware import Gpus
from pinn.kernels.operator import Operator, TrainingPlan
from pinn.kernels.surrogate import OperatorSurrogate, fit_terms
from pinn.kernels.surrogates import OPERATORS, KernelSurrogates
from pinn.kernels.tables.table import SYSTEMS
from pinn.kernels.tables.tables import KernelTables, read_kernel_tables
from pinn.specs.gpu import load_gpu

# Surrogates fitted to the installed kernel tables without held-out rows, cached on disk.


@lru_cache(maxsize=1)
def kernel_tables(systems: Path | None = None) -> KernelTables:
    """Return the tables of measured kernels, which are read only once per process."""
    return read_kernel_tables(systems=systems)


def surrogates_without(
    exclude: Exclusion, seed: int, root: Path, systems: Path | None = None
) -> KernelSurrogates:
    """Return surrogates of all kernel types, fitted without the held-out models' and GPUs' kernels.

    Args:
        exclude: Held-out models and GPUs.
        seed: Random seed for all random choices.
        root: Folder in which surrogates are cached.
        systems: Folder of newer kernel tables; None to use only the installed package's tables.
    """
    aside = {"shared": root}
    place = remembered_folder(fit_surrogates, exclude, seed, systems, root=root, aside=aside)
    return KernelSurrogates.load(place)


def fit_surrogates(
    folder: Path,
    exclude: Exclusion,
    seed: int,
    systems: Path | None = None,
    *,
    shared: Path | None = None,
) -> None:
    """Fit all kernel surrogates and write them to a folder; see :meth:`KernelSurrogates.fit`."""
    tables = kernel_tables(systems)
    KernelSurrogates.fit(tables, exclude=exclude, seed=seed, shared=shared).save(folder)


# Errors of kernel surrogates on held-out kernels: whole shapes, or all kernels of a GPU.

#: Value of the column ``left_out`` in error tables if shapes are held out instead of a GPU.
SHAPES = "shapes"
#: GPUs for which held-out errors of kernels are reported, because serving runs were measured on
#: them.
REPORTED_GPUS = ("H100-SXM", "H200-SXM", "B200-SXM", "A100-SXM-80GB", "L40S")
_COLUMNS = ["operator", "gpu", "precision", "rows", "median", "mean", "p90", "bias"]
#: Columns of the table of all held-out errors.
TABLE_COLUMNS = ("left_out", *_COLUMNS)
#: Maximum number of held-out rows to predict per kernel type and cross-validation fold. Larger sets
#: are sampled at random; the standard error of a median of 5 % is then about 0.03 percentage
#: points.
_ROWS_COMPARED = 60_000
#: Number of cross-validation folds; each fold holds out one fifth of the shapes.
FOLDS = 5
#: Number of cross-validation folds to evaluate, by kernel type. All folds are evaluated for
#: experts, which have few shapes and fast fits.
FITS = {"gemm": 1, "decode_attention": 1, "prefill_attention": 1, "moe": FOLDS}
#: Held-out errors of expert layers include only layers with at most ``SERVED_RANKS`` ranks and
#: ``SERVED_TOKENS`` tokens per step. Larger layers are seldom served.
SERVED_RANKS, SERVED_TOKENS = 8, 2048


def fold_of_rows(rows: pd.DataFrame, group: Sequence[str]) -> Int[np.ndarray, " rows"]:
    """Return each row's cross-validation fold, from 0; rows with the same shape share a fold."""
    number = rows.groupby(list(group)).ngroup().to_numpy()
    return (np.random.default_rng(0).permutation(number.max() + 1) % FOLDS)[number]


def errors(surrogate_name: str, predicted: pd.DataFrame) -> pd.DataFrame:
    """Return statistics of relative errors by GPU and number format, and over all rows.

    Args:
        surrogate_name: Value of the column ``operator`` in the result.
        predicted: Table with columns gpu, precision and error (predicted / measured - 1).

    Returns:
        Table with columns operator, gpu, precision and rows; median, mean and P90 of the absolute
        error; and the median signed error (bias). All errors are fractions.
    """
    parts = [(g, f, part["error"]) for (g, f), part in predicted.groupby(["gpu", "precision"])]
    parts.append(("all", "all", predicted["error"]))
    found = []
    for gpu, form, error in parts:
        size = error.abs()
        figures = (size.median(), size.mean(), size.quantile(0.9), error.median())
        found.append((surrogate_name, gpu, form, len(error), *figures))
    return pd.DataFrame(found, columns=_COLUMNS)


def served(rows: pd.DataFrame, operator: Operator) -> pd.DataFrame:
    """Return the rows whose sizes occur in serving.

    For experts, these are rows with the GPUs of one node and the tokens of one step. For all other
    kernel types, every row is returned.
    """
    if operator.name != "moe":
        return rows
    ranks = rows["tensor_parallel"] * rows["expert_parallel"]
    return rows[(ranks <= SERVED_RANKS) & (rows["tokens"] <= SERVED_TOKENS)]


def held_out_table(
    tables: KernelTables,
    gpus: Sequence[str] = REPORTED_GPUS,
    *,
    operators: Sequence[Operator] = OPERATORS,
    fits: Mapping[str, int] | None = None,
    plans: Mapping[str, TrainingPlan] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> pd.DataFrame:
    """Return errors of kernel surrogates on held-out shapes, and on one held-out GPU at a time.

    Args:
        tables: Measured kernels.
        gpus: Names of the GPUs that are held out, one at a time.
        operators: Kernel types to fit.
        fits: Number of folds of held-out shapes, by name of the kernel type; None for ``FITS``.
        plans: Training plans that differ from the default, by name of the kernel type.
        progress: Function that is called before each fit with a string that names the held-out data
            and the kernel type.

    Returns:
        Table with ``TABLE_COLUMNS``: ``left_out`` is what is held out (``shapes`` or the name of a
        GPU); the other columns are those of :func:`errors`.
    """
    found = []
    for left_out in (SHAPES, *gpus):
        for operator in operators:
            progress(f"without {left_out}: {operator.name}")
            folds, plan = (fits or FITS)[operator.name], (plans or {}).get(operator.name)
            parts = []
            for train, held in _left_out(operator, getattr(tables, operator.name), left_out, folds):
                fitted = OperatorSurrogate.fit(operator, train, tables.gpus, plan=plan)
                parts.append(_errors_of(fitted, held, tables.gpus))
            of_parts = errors(operator.name, pd.concat(parts, ignore_index=True))
            found.append(of_parts.assign(left_out=left_out))
    return pd.concat(found, ignore_index=True)[list(TABLE_COLUMNS)]


def _left_out(
    operator: Operator, rows: pd.DataFrame, left_out: str, folds: int
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame]]:
    """Yield (training rows, held-out rows), once per fold of shapes, or once for a held-out GPU."""
    if left_out == SHAPES:
        fold = fold_of_rows(rows, operator.group)
        for i in range(folds):
            yield rows[fold != i], rows[fold == i]
    else:
        held = rows["gpu"] == left_out
        yield rows[~held], rows[held]


def _errors_of(surrogate: OperatorSurrogate, held: pd.DataFrame, gpus: Gpus) -> pd.DataFrame:
    """Return errors (predicted / measured - 1) for the held-out rows, or for a random sample."""
    held = served(held, surrogate.operator)
    if len(held) > _ROWS_COMPARED:
        held = held.sample(_ROWS_COMPARED, random_state=0)
    if len(held) == 0:
        return pd.DataFrame({"gpu": [], "precision": [], "error": []})
    ratio = surrogate.seconds_as_measured(held, gpus) / held["seconds"].to_numpy()
    precision = held[surrogate.operator.format_column]
    return held[["gpu"]].assign(precision=precision, error=ratio - 1.0)


# Errors of the kernel fits of recurrent layers and sparse attention on held-out shapes and GPUs.

#: GPUs that are held out one at a time for the errors of recurrent layers and sparse attention.
_MIXERS_LEFT_OUT = ("H100-SXM", "B200-SXM")
_MIXER_COLUMNS = ("operator", "left_out", "rows", "shapes", "median", "mean")


def mixer_errors(
    operators: Sequence[str] | None = None, systems: Gpus | None = None
) -> pd.DataFrame:
    """Return the held-out APE of kernel fits for recurrent layers and sparse attention.

    A fifth of the shapes is held out at a time, with a separate fit per GPU. For a held-out GPU,
    one fit uses all other GPUs.

    Args:
        operators: Names of kernel types in ``timed_operators``; None for all.
        systems: Datasheets by system name; None for all measured systems.

    Returns:
        Table with columns ``operator`` (kernel type), ``left_out`` (``shapes`` or the name of a
        GPU), ``rows``, ``shapes``, and ``median`` and ``mean`` of the APE as fractions.
    """
    known = {name: load_gpu(name) for name in SYSTEMS} if systems is None else systems
    timed = mixer_operators.timed_operators()
    found = [row for name in operators or timed for row in _of_operator(timed[name], known)]
    return pd.DataFrame(found, columns=list(_MIXER_COLUMNS))


def _of_operator(
    operator: mixer_operators.MixerOperator, systems: Gpus
) -> Iterator[dict[str, object]]:
    rows, _ = mixer_operators.read_mixer_kernels(operator, systems)
    gpus = {gpu.name: gpu for gpu in systems.values()}
    terms = mixer_operators.operator_terms(operator, rows, gpus)
    seconds, gpu = rows["seconds"].to_numpy(), rows["gpu"].to_numpy()
    fold = fold_of_rows(rows, operator.group)
    predicted = np.zeros(len(rows))
    for name in np.unique(gpu):
        for i in range(FOLDS):
            held = (gpu == name) & (fold == i)
            kept = (gpu == name) & (fold != i)
            if held.any() and kept.any():
                predicted[held] = terms[held] @ fit_terms(terms[kept], seconds[kept])
    about = {"operator": operator.name, "shapes": len(rows[list(operator.group)].drop_duplicates())}
    yield {**about, "left_out": "shapes", **_mean_errors(predicted, seconds)}
    for name in _MIXERS_LEFT_OUT:
        held = gpu == name
        if held.any() and not held.all():
            fitted = terms[held] @ fit_terms(terms[~held], seconds[~held])
            yield {**about, "left_out": name, **_mean_errors(fitted, seconds[held])}


def _mean_errors(predicted: np.ndarray, seconds: np.ndarray) -> dict[str, float]:
    error = np.abs(predicted / seconds - 1)
    return {"rows": len(error), "median": float(np.median(error)), "mean": float(error.mean())}


def error_grid(table: pd.DataFrame) -> Grid:
    """Return a grid of ``median / mean`` APE of kernel times in percent, a row per kernel type."""
    parts = list(dict.fromkeys(table["left_out"]))
    grid = Grid.of("operator", "rows", "shapes", *(f"without {part}" for part in parts))
    for name, of_operator in table.groupby("operator", sort=False):
        cells = {
            row["left_out"]: f"{100 * row['median']:.1f} / {100 * row['mean']:.1f}"
            for row in of_operator.to_dict("records")
        }
        first = of_operator.iloc[0]
        shown = (cells.get(part, "-") for part in parts)
        grid.add(str(name), f"{first['rows']:,}", str(first["shapes"]), *shown)
    return grid


def operator_grid(table: pd.DataFrame) -> Grid:
    """Return a grid of ``median / mean`` APE of kernel times in percent, a column per type.

    Args:
        table: Table with ``TABLE_COLUMNS``; only the rows with statistics over all GPUs and formats
            are shown.
    """
    operators = table["operator"].unique()
    grid = Grid.of("held out", *operators)
    for left_out, rows in table[table["precision"] == "all"].groupby("left_out", sort=False):
        cells = {
            row["operator"]: f"{100 * row['median']:.1f} / {100 * row['mean']:.1f}"
            for row in rows.to_dict("records")
            if row["rows"]
        }
        grid.add(str(left_out), *(cells.get(name, "-") for name in operators))
    return grid
