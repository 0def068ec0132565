"""Errors of the fits of recurrent and sparse mixers on shapes and GPUs that were left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from pinn.kernels.mixer_operators import (
    MIXER_OPERATORS,
    MixerOperator,
    fit_operator,
    operator_terms,
    read_mixer_kernels,
)
from pinn.kernels.tables.sources import SYSTEMS
from pinn.specs.gpu import GpuSpec
from pinn.specs.gpu_catalog import load_gpu

#: A fifth of the shapes at a time.
FOLDS = 5
#: GPUs left out one after the other.
LEFT_OUT = ("H100-SXM", "B200-SXM")
COLUMNS = ("operator", "left_out", "rows", "shapes", "median", "mean")


def mixer_errors(
    operators: Sequence[str] | None = None, systems: Mapping[str, GpuSpec] | None = None
) -> pd.DataFrame:
    """Median and mean absolute error, as fractions, of each operator.

    Shapes: a fifth at a time, each GPU fitted by itself. A GPU: fitted on all others together.

    Args:
        operators: Names in ``MIXER_OPERATORS``; None for all.
        systems: Datasheets by system name; None for all measured ones.

    Returns:
        ``COLUMNS``: ``left_out`` is ``shapes`` or the name of a GPU.
    """
    known = {name: load_gpu(name) for name in SYSTEMS} if systems is None else systems
    found: list[dict[str, object]] = []
    for name in operators or MIXER_OPERATORS:
        found += _of_operator(MIXER_OPERATORS[name], known)
    return pd.DataFrame(found, columns=list(COLUMNS))


def _of_operator(
    operator: MixerOperator, systems: Mapping[str, GpuSpec]
) -> Iterator[dict[str, object]]:
    rows, _ = read_mixer_kernels(operator, systems)
    terms = operator_terms(operator, rows, {gpu.name: gpu for gpu in systems.values()})
    seconds, gpu = rows["seconds"].to_numpy(), rows["gpu"].to_numpy()
    shape = rows.groupby(list(operator.group)).ngroup().to_numpy()
    fold = _folds(shape)
    predicted = np.zeros(len(rows))
    for name in np.unique(gpu):
        for i in range(FOLDS):
            held = (gpu == name) & (fold == i)
            kept = (gpu == name) & (fold != i)
            if held.any() and kept.any():
                predicted[held] = terms[held] @ fit_operator(terms[kept], seconds[kept])
    about = {"operator": operator.name, "shapes": len(np.unique(shape))}
    yield {**about, "left_out": "shapes", **_errors(predicted, seconds)}
    for name in LEFT_OUT:
        held = gpu == name
        if held.any() and not held.all():
            fitted = terms[held] @ fit_operator(terms[~held], seconds[~held])
            yield {**about, "left_out": name, **_errors(fitted, seconds[held])}


def _folds(shape: np.ndarray) -> np.ndarray:
    """Fold of each row: whole shapes, in a random order."""
    order = np.random.default_rng(0).permutation(shape.max() + 1)
    return order[shape] % FOLDS


def _errors(predicted: np.ndarray, seconds: np.ndarray) -> dict[str, float]:
    error = np.abs(predicted / seconds - 1)
    return {"rows": len(error), "median": float(np.median(error)), "mean": float(error.mean())}


def error_lines(table: pd.DataFrame) -> Iterator[str]:
    """The table as Markdown: ``median / mean`` in percent, an operator a line."""
    parts = list(dict.fromkeys(table["left_out"]))
    yield "| operator | rows | shapes | " + " | ".join(f"without {p}" for p in parts) + " |"
    yield "|---|---:|---:|" + "---:|" * len(parts)
    for name, of_operator in table.groupby("operator", sort=False):
        cells = {
            row["left_out"]: f"{100 * row['median']:.1f} / {100 * row['mean']:.1f}"
            for row in of_operator.to_dict("records")
        }
        shown = [cells.get(part, "-") for part in parts]
        first = of_operator.iloc[0]
        yield f"| {name} | {first['rows']:,} | {first['shapes']} | " + " | ".join(shown) + " |"
