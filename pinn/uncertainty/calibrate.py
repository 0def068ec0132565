"""Calibrating intervals on everything that experiments left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pinn.sources.report import file_sha256
from pinn.uncertainty.calibration import NAMES, Band, Calibration
from pinn.uncertainty.conformal import fit_half_width
from pinn.uncertainty.coverage import coverage_table, distance_auroc, nested_intervals
from pinn.uncertainty.held_out import METRICS

#: Distances are summed up in so many bands of equally many left-out rows.
BANDS = 4


def calibrate(
    errors: pd.DataFrame,
    coefficients: pd.DataFrame,
    checkpoint: Path,
    sources: Sequence[Mapping[str, Any]],
) -> Calibration:
    """Calibrate on everything that was left out.

    Args:
        errors: As ``pinn.uncertainty.held_out.held_out_errors``, of one or more experiments.
        coefficients: As ``pinn.uncertainty.coefficient_errors.coefficient_errors``.
        checkpoint: What the intervals belong to.
        sources: For the record.
    """
    return Calibration(
        file_sha256(checkpoint),
        {metric: fit_half_width(errors, metric) for metric in METRICS},
        {name: fit_half_width(coefficients, name) for name in NAMES},
        distance_bands(errors),
        sources,
        _records(coverage_table(nested_intervals(errors))),
        _aurocs(errors),
    )


def _aurocs(errors: pd.DataFrame) -> dict[str, float]:
    """Of every kind of split that has both good and bad rows."""
    found = {str(split): distance_auroc(part) for split, part in errors.groupby("split")}
    return {split: round(value, 4) for split, value in found.items() if np.isfinite(value)}


def distance_bands(errors: pd.DataFrame) -> list[Band]:
    """Left-out rows in order of distance, cut where as many lie in each band."""
    ordered = errors.sort_values("distance", kind="stable")
    bands = []
    for index in np.array_split(np.arange(len(ordered)), min(BANDS, len(ordered))):
        part = ordered.iloc[index]
        error = np.abs(np.expm1(-part["tpot"].to_numpy()))
        bands.append(
            Band(
                round(float(part["distance"].min()), 6),
                round(float(part["distance"].max()), 6),
                len(part),
                int(part["group"].nunique()),
                round(float(np.median(error)), 6),
                round(float(np.quantile(error, 0.9)), 6),
            )
        )
    return bands


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
