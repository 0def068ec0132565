"""Errors of kernel surrogates on what they were not trained on: whole shapes, whole GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from pinn.kernels.exclusion import Exclusion
from pinn.kernels.network import TrainingPlan
from pinn.kernels.operator import Operator
from pinn.kernels.surrogate import OperatorSurrogate
from pinn.kernels.surrogates import OPERATORS
from pinn.sources.kernels.tables import KernelTables
from pinn.specs.gpu import GpuSpec

#: GPUs whose absence is reported: served on, and with serving data to compare with.
REPORTED_GPUS = ("H100-SXM", "H200-SXM", "B200-SXM", "A100-SXM-80GB", "L40S")
_COLUMNS = ["operator", "gpu", "precision", "rows", "median", "mean", "p90", "bias"]
_ROWS_COMPARED = 60_000


def held_out_rows(rows: pd.DataFrame, group: Sequence[str], folds: int, seed: int) -> np.ndarray:
    """One fold of rows by whole groups: about ``1 / folds`` of the shapes, never part of one."""
    number = rows.groupby(list(group)).ngroup().to_numpy()
    order = np.random.default_rng(seed).permutation(number.max() + 1)
    return np.isin(number, order[: max(1, len(order) // folds)])


def errors(
    surrogate: OperatorSurrogate, rows: pd.DataFrame, gpus: Mapping[str, GpuSpec], seed: int = 0
) -> pd.DataFrame:
    """Relative errors of predictions for measured rows, by GPU and format and for all.

    Returns:
        Columns operator, gpu, precision, rows, and median, mean and 90 % quantile of the absolute
        error, and median error (bias), all as fractions.
    """
    column = surrogate.operator.format_column
    if len(rows) > _ROWS_COMPARED:
        rows = rows.sample(_ROWS_COMPARED, random_state=seed)
    ratio = surrogate.seconds_as_measured(rows, gpus) / rows["seconds"].to_numpy() - 1.0
    table = pd.DataFrame(
        {"gpu": rows["gpu"].to_numpy(), "precision": rows[column].to_numpy(), "error": ratio}
    )
    parts = [(gpu, form, part) for (gpu, form), part in table.groupby(["gpu", "precision"])]
    parts.append(("all", "all", table))
    return pd.DataFrame(
        [
            (
                surrogate.operator.name,
                gpu,
                form,
                len(part),
                part["error"].abs().median(),
                part["error"].abs().mean(),
                part["error"].abs().quantile(0.9),
                part["error"].median(),
            )
            for gpu, form, part in parts
        ],
        columns=_COLUMNS,
    )


def held_out_shapes(
    tables: KernelTables,
    *,
    operators: Sequence[Operator] = OPERATORS,
    folds: int = 5,
    seed: int = 0,
    plans: Mapping[str, TrainingPlan] | None = None,
) -> pd.DataFrame:
    """Fit without one fold of shapes and predict them; columns as of :func:`errors`."""
    found = []
    for operator in operators:
        rows = getattr(tables, operator.name)
        held = held_out_rows(rows, operator.group, folds, seed)
        found.append(_fit_and_compare(operator, rows[~held], rows[held], tables, seed, plans))
    return pd.concat(found, ignore_index=True)


def held_out_gpus(
    tables: KernelTables,
    gpus: Sequence[str] = REPORTED_GPUS,
    *,
    operators: Sequence[Operator] = OPERATORS,
    seed: int = 0,
    plans: Mapping[str, TrainingPlan] | None = None,
) -> pd.DataFrame:
    """Fit without any row of one GPU after the other and predict it; columns as above."""
    found = []
    for gpu in gpus:
        kept = Exclusion(gpus=(gpu,)).apply(tables)
        for operator in operators:
            rows = getattr(tables, operator.name)
            held = rows[rows["gpu"] == gpu]
            found.append(
                _fit_and_compare(operator, getattr(kept, operator.name), held, tables, seed, plans)
            )
    return pd.concat(found, ignore_index=True)


def _fit_and_compare(
    operator: Operator,
    train: pd.DataFrame,
    held: pd.DataFrame,
    tables: KernelTables,
    seed: int,
    plans: Mapping[str, TrainingPlan] | None,
) -> pd.DataFrame:
    surrogate = OperatorSurrogate.fit(
        operator, train, tables.gpus, seed=seed, plan=(plans or {}).get(operator.name)
    )
    return errors(surrogate, held, tables.gpus, seed)
