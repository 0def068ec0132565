"""Fits to the kernels of recurrent mixers, and their errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.common.screen import Grid
from pinn.kernels.mixer_operators import (
    MIXER_OPERATORS,
    MOST_TERMS,
    TIMED_SIZES,
    MixerOperator,
    operator_terms,
    read_mixer_kernels,
)
from pinn.kernels.stored import MeasuredShapes
from pinn.kernels.surrogate import fit_terms
from pinn.kernels.tables.table import SYSTEMS
from pinn.specs.gpu import GpuSpec, load_gpu

# Fitted times of recurrent and sparse mixers, by operator and chip.

#: Sizes of a recurrent mixer's kernels, and of an indexer's, in the words of the tables.
RECURRENT_SIZES = (
    "batch_size", "seq_len", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim",
    "chunk_size", "state",
)  # fmt: skip
INDEXED_SIZES = ("batch_size", "isl", "step", "index_heads", "heads", "top_k")
#: Names of their measured shapes.
RECURRENT, SPARSE = "recurrent", "sparse"


@dataclass(frozen=True)
class MixerFits:
    """Weights of the terms of ``MIXER_OPERATORS``.

    Attributes:
        weights: ``(operator, chip) -> weights``, with zeros up to ``MOST_TERMS``. Chip ``*`` pools
            every chip: terms are seconds at datasheet rates.
    """

    weights: Mapping[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(tables: Mapping[str, pd.DataFrame], gpus: Mapping[str, GpuSpec]) -> MixerFits:
        """Fit every operator that has rows, on each chip and on all.

        Args:
            tables: Rows by operator, as ``read_mixer_kernels`` gives them.
            gpus: Datasheets by the names in the rows.
        """
        found = {}
        for name, rows in tables.items():
            terms = operator_terms(MIXER_OPERATORS[name], rows, gpus)
            seconds, chips = rows["seconds"].to_numpy(), rows["gpu"].to_numpy()
            for chip in ("*", *np.unique(chips)) if len(rows) else ():
                mine = np.ones(len(rows), bool) if chip == "*" else chips == chip
                fitted = fit_terms(terms[mine], seconds[mine])
                found[name, str(chip)] = np.pad(fitted, (0, MOST_TERMS - len(fitted)))
        return MixerFits(found)

    def seconds(
        self, operator: str, gpu: GpuSpec, sizes: Mapping[str, Float[np.ndarray, " n"]]
    ) -> Float[np.ndarray, " n"] | None:
        """Of one operator on one chip; None where it was fitted nowhere.

        Args:
            operator: A name of ``MIXER_OPERATORS``, or of what was never measured.
            gpu: The chip.
            sizes: Each ``[n]``; no requests take no time.
        """
        weights = self.weights.get((operator, gpu.name), self.weights.get((operator, "*")))
        if weights is None:
            return None
        rows = pd.DataFrame(sizes).assign(gpu=gpu.name)
        terms = operator_terms(MIXER_OPERATORS[operator], rows, {gpu.name: gpu})
        return np.where(sizes["batch_size"] > 0, terms @ weights[: terms.shape[1]], 0.0)


def mixer_shapes(tables: Mapping[str, pd.DataFrame]) -> dict[str, MeasuredShapes]:
    """Measured shapes of recurrent mixers and of indexers, whose formats are their operators.

    Args:
        tables: Rows by operator; kinds without any are left out.
    """
    named = [rows.assign(operator=name) for name, rows in tables.items() if len(rows)]
    recurrent = [rows for rows in named if "seq_len" in rows]
    sparse = [rows.assign(**TIMED_SIZES) for rows in named if "isl" in rows]
    kinds = {
        RECURRENT: (recurrent, RECURRENT_SIZES[2:6], RECURRENT_SIZES[:2]),
        SPARSE: (sparse, INDEXED_SIZES[3:], INDEXED_SIZES[:3]),
    }
    return {
        kind: MeasuredShapes.of(pd.concat(rows), names, axes, "operator")
        for kind, (rows, names, axes) in kinds.items()
        if rows
    }


# Errors of the fits of recurrent and sparse mixers on shapes and GPUs that were left out.

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
                predicted[held] = terms[held] @ fit_terms(terms[kept], seconds[kept])
    about = {"operator": operator.name, "shapes": len(np.unique(shape))}
    yield {**about, "left_out": "shapes", **_errors(predicted, seconds)}
    for name in LEFT_OUT:
        held = gpu == name
        if held.any() and not held.all():
            fitted = terms[held] @ fit_terms(terms[~held], seconds[~held])
            yield {**about, "left_out": name, **_errors(fitted, seconds[held])}


def _folds(shape: np.ndarray) -> np.ndarray:
    """Fold of each row: whole shapes, in a random order."""
    order = np.random.default_rng(0).permutation(shape.max() + 1)
    return order[shape] % FOLDS


def _errors(predicted: np.ndarray, seconds: np.ndarray) -> dict[str, float]:
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
