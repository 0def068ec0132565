"""Calibrating intervals on everything that was left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pinn.coefficients.checkpoint import load_checkpoint
from pinn.coefficients.coefficients import NAMES
from pinn.specs.files.read_report import file_sha256
from pinn.trust.calibration import BELONGS, Calibration
from pinn.trust.chance import error_law
from pinn.trust.conformal import LEVEL, weighted_quantile
from pinn.trust.coverage import coverage_table, nested_intervals
from pinn.trust.half_widths import fit_half_widths, half_widths, row_weights
from pinn.trust.kinds import kinds_of_errors


def calibrate(
    errors: pd.DataFrame,
    coefficient_changes: pd.DataFrame,
    checkpoint: Path,
    sources: Sequence[Mapping[str, Any]],
) -> Calibration:
    """Calibrate on everything that was left out, and judge it by nested calibrations.

    Args:
        errors: As ``pinn.evaluation.held_out.held_out_errors`` and
            ``pinn.trust.run_errors.run_error_rows``, of one or more experiments.
        coefficient_changes: As ``pinn.trust.coefficient_errors.coefficient_changes``.
        checkpoint: What the intervals belong to.
        sources: For the record.
    """
    judged = nested_intervals(errors)
    found = fit_half_widths(errors)
    half = half_widths(found, errors)["tpot"]
    law = error_law(errors["tpot"].to_numpy(), half, row_weights(errors))
    metadata = load_checkpoint(checkpoint).metadata
    return Calibration(
        checkpoint_sha256=file_sha256(checkpoint),
        belongs={name: metadata[name] for name in BELONGS if name in metadata},
        half_widths=found,
        coefficients=coefficient_half_widths(coefficient_changes),
        kinds=kinds_of_errors(errors),
        sources=sources,
        coverage=_records(coverage_table(judged)),
        errors={"tpot": law.errors},
    )


def coefficient_half_widths(changes: pd.DataFrame, level: float = LEVEL) -> dict[str, float]:
    """Quantile of the absolute log change of every coefficient, every group counting once."""
    weight = row_weights(changes)
    sizes = changes[list(NAMES)].abs()
    return {name: weighted_quantile(sizes[name].to_numpy(), weight, level) for name in NAMES}


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows ready for JSON: NaN is None."""
    return [
        {
            str(name): None if isinstance(value, float) and np.isnan(value) else value
            for name, value in row.items()
        }
        for row in table.to_dict("records")
    ]
