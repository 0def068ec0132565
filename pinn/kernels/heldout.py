"""Surrogates fitted without what a fold leaves out, and their errors there."""

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

# The surrogates of an exclusion, fitted to the installed kernel tables or found again.


@lru_cache(maxsize=1)
def kernel_tables(systems: Path | None = None) -> KernelTables:
    """The measured kernels, read once per process."""
    return read_kernel_tables(systems=systems)


def surrogates_without(
    exclude: Exclusion, seed: int, root: Path, systems: Path | None = None
) -> KernelSurrogates:
    """Surrogates without the excluded kernels.

    Args:
        exclude: Held-out models and GPUs.
        seed: Of all random choices.
        root: Where they are remembered.
        systems: Folder of newer tables; None for the installed package's.
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
    """Fit surrogates into a folder; see :meth:`KernelSurrogates.fit`."""
    tables = kernel_tables(systems)
    KernelSurrogates.fit(tables, exclude=exclude, seed=seed, shared=shared).save(folder)


# Errors of kernel surrogates on what they were not trained on: whole shapes, whole GPUs.

#: What is left out where no GPU is.
SHAPES = "shapes"
#: GPUs whose absence is reported: served on, and with serving data to compare with.
REPORTED_GPUS = ("H100-SXM", "H200-SXM", "B200-SXM", "A100-SXM-80GB", "L40S")
_COLUMNS = ["operator", "gpu", "precision", "rows", "median", "mean", "p90", "bias"]
#: Of the table of all held-out errors.
TABLE_COLUMNS = ("left_out", *_COLUMNS)
#: Rows compared of each operator and fold, at random: the standard error of a median of 5 % is then
#: about 0.03 points.
_ROWS_COMPARED = 60_000
#: A fifth of the shapes at a time, a usual share.
FOLDS = 5
#: Folds that are really left out: all of them for experts, which have few shapes and quick fits.
FITS = {"gemm": 1, "decode_attention": 1, "prefill_attention": 1, "moe": FOLDS}
#: Expert layers spread over more GPUs, or with more tokens, are timed but seldom served.
SERVED_RANKS, SERVED_TOKENS = 8, 2048


def fold_of_rows(rows: pd.DataFrame, group: Sequence[str]) -> Int[np.ndarray, " rows"]:
    """A fold, 0 to ``FOLDS - 1``, for every row; rows of one shape share it."""
    number = rows.groupby(list(group)).ngroup().to_numpy()
    return (np.random.default_rng(0).permutation(number.max() + 1) % FOLDS)[number]


def errors(surrogate_name: str, predicted: pd.DataFrame) -> pd.DataFrame:
    """Relative errors by GPU and format, and of all together.

    Args:
        surrogate_name: Goes into the column operator.
        predicted: Columns gpu, precision and error (predicted over measured, minus 1).

    Returns:
        Columns operator, gpu, precision, rows, and median, mean and 90 % quantile of the absolute
        error, and median error (bias), all as fractions.
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
    """Rows at sizes that are served; for experts, within one node and a step's tokens."""
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
    """Fit without some shapes, then without one GPU after the other, and predict what is left out.

    Args:
        tables: Measured kernels.
        gpus: Left out one after the other.
        operators: What to fit.
        fits: Folds of shapes left out, by operator; None for ``FITS``.
        plans: Training plans by operator, for those that differ from the default.
        progress: Called with what is left out and the operator before each fit.

    Returns:
        ``TABLE_COLUMNS``: ``left_out`` is ``shapes`` or the name of a GPU, the others are as of
        :func:`errors`.
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
    """Rows to fit and rows held out: folds of shapes, or a GPU."""
    if left_out == SHAPES:
        fold = fold_of_rows(rows, operator.group)
        for i in range(folds):
            yield rows[fold != i], rows[fold == i]
    else:
        held = rows["gpu"] == left_out
        yield rows[~held], rows[held]


def _errors_of(surrogate: OperatorSurrogate, held: pd.DataFrame, gpus: Gpus) -> pd.DataFrame:
    """Errors of the rows held out, at most ``_ROWS_COMPARED`` of them."""
    held = served(held, surrogate.operator)
    if len(held) > _ROWS_COMPARED:
        held = held.sample(_ROWS_COMPARED, random_state=0)
    if len(held) == 0:
        return pd.DataFrame({"gpu": [], "precision": [], "error": []})
    ratio = surrogate.seconds_as_measured(held, gpus) / held["seconds"].to_numpy()
    precision = held[surrogate.operator.format_column]
    return held[["gpu"]].assign(precision=precision, error=ratio - 1.0)


# Errors of the fits of recurrent and sparse mixers on shapes and GPUs that were left out.

#: GPUs left out one after the other.
_MIXERS_LEFT_OUT = ("H100-SXM", "B200-SXM")
_MIXER_COLUMNS = ("operator", "left_out", "rows", "shapes", "median", "mean")


def mixer_errors(
    operators: Sequence[str] | None = None, systems: Gpus | None = None
) -> pd.DataFrame:
    """Median and mean absolute error, as fractions, of each operator.

    Shapes: a fifth at a time, each GPU fitted by itself. A GPU: fitted on all others together.

    Args:
        operators: Names in ``timed_operators``; None for all.
        systems: Datasheets by system name; None for all measured ones.

    Returns:
        Columns ``operator``, ``left_out`` (``shapes`` or the name of a GPU), ``rows``, ``shapes``,
        ``median`` and ``mean``.
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
    """The table as it is printed: ``median / mean`` in percent, an operator a line."""
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
    """Return ``median / mean`` errors in percent over all GPUs and formats, an operator a column.

    Args:
        table: ``TABLE_COLUMNS``.
    """
    operators = table["operator"].unique()
    grid = Grid.of("left out", *operators)
    for left_out, rows in table[table["precision"] == "all"].groupby("left_out", sort=False):
        cells = {
            row["operator"]: f"{100 * row['median']:.1f} / {100 * row['mean']:.1f}"
            for row in rows.to_dict("records")
            if row["rows"]
        }
        grid.add(str(left_out), *(cells.get(name, "-") for name in operators))
    return grid
