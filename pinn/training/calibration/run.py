"""From trace tables and a base to a calibrated coefficient set."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pinn.coefficients.coefficient_set import NAMED, CoefficientSet, deployment_facts
from pinn.coefficients.coefficients import Coefficients
from pinn.data.traces.trace_tables import TraceTables
from pinn.specs.deployment import Deployment
from pinn.training.calibration.calibrate import (
    BetaCalibration,
    BetaSettings,
    calibrate_beta,
    error_table,
)
from pinn.training.calibration.identification import CoefficientGroup, identify
from pinn.training.calibration.intervals import Intervals, read_intervals
from pinn.training.calibration.requests import AlphaCalibration, calibrate_alpha, read_requests


@dataclass(frozen=True)
class Calibration:
    """A calibrated server.

    Attributes:
        deployment: The server.
        settings: How beta was calibrated.
        intervals: All its good intervals.
        beta: What was found for steps.
        alpha: What was found for requests.
        errors: Before and after, of :func:`pinn.training.calibration.calibrate.error_table`.
        groups: Which coefficients the observations determine.
        sources: The traces, with their digests.
        named: Model, GPU and format as the user named them.
    """

    deployment: Deployment
    settings: BetaSettings
    intervals: Intervals
    beta: BetaCalibration
    alpha: AlphaCalibration
    errors: pd.DataFrame
    groups: list[CoefficientGroup]
    sources: list[dict[str, str]]
    named: dict[str, str]

    def coefficient_set(self, base_taught: np.ndarray) -> CoefficientSet:
        """The result as a file's content.

        Args:
            base_taught: Whether data had taught each alpha before.
        """
        base = Coefficients(self.beta.base[None], self.alpha.base[None])
        found = Coefficients(self.beta.beta[None], self.alpha.alpha[None])
        facts: dict[str, Any] = {
            "sources": self.sources,
            **asdict(self.settings),
            "used": len(self.beta.used),
            "strength": self.beta.strength,
            "errors": _records(self.errors),
            "requests": _records(self.alpha.errors),
            "groups": [
                asdict(g) | {"standard_error": _finite(g.standard_error)} for g in self.groups
            ],
        }
        deployment = deployment_facts(self.deployment) | {"named": self.named}
        taught = base_taught | self.alpha.taught
        return CoefficientSet(deployment, found, taught, base, facts)


def run_calibration(
    traces: TraceTables, deployment: Deployment, base: Coefficients, settings: BetaSettings
) -> Calibration:
    """Calibrate beta to a run's steps and, where it has journeys, alpha to its requests.

    Args:
        traces: Canonical tables.
        deployment: What was traced.
        base: Coefficients of the deployment before; frozen.
        settings: How.

    Raises:
        PinnError: If the tables hold nothing to calibrate on.
    """
    intervals = read_intervals(traces, deployment)
    beta = calibrate_beta(intervals, base.beta[0], settings)
    alpha = calibrate_alpha(read_requests(traces, deployment, beta.beta), base.alpha[0])
    errors = error_table(intervals, {"before": beta.base, "calibrated": beta.beta})
    groups = identify(beta)
    entry = traces.manifest.get("deployment") or {}
    named = {k: entry[k] for k in NAMED if entry.get(k)}
    sources = list(traces.manifest["sources"])
    return Calibration(deployment, settings, intervals, beta, alpha, errors, groups, sources, named)


def _records(table: pd.DataFrame) -> list[dict[Any, Any]]:
    return table.astype(object).where(table.notna(), None).to_dict("records")


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def sources_text(calibration: Calibration) -> str:
    """The traces by name."""
    return ", ".join(Path(source["path"]).name for source in calibration.sources)
