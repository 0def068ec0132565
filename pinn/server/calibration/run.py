"""From trace tables and a prior to a calibrated coefficient set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool

from pinn.coefficients.coefficients import NAMED, Coefficients, CoefficientSet, deployment_facts
from pinn.engines.deployment import Deployment
from pinn.physics.step import STEP_FEATURES
from pinn.server.calibration.alpha import AlphaCalibration, calibrate_alpha
from pinn.server.calibration.calibrate import (
    BetaCalibration,
    BetaSettings,
    Intervals,
    Likelihood,
    Verdict,
    all_features,
    calibrate_beta,
    calibrate_to,
    candidates,
    chosen,
    error_table,
    judge,
    read_intervals,
)
from pinn.server.calibration.posterior import (
    Posterior,
    Quantity,
    request_quantities,
    scalar_quantities,
    step_quantities,
)
from pinn.server.calibration.prior import Prior
from pinn.server.calibration.requests import read_requests
from pinn.server.traces.trace_tables import TraceTables

#: Ratio of the mean requests of two halves of a run from which they count as two loads, and fewest
#: intervals in each: assumptions.
_TWO_LOADS, _LEAST = 1.5, 20


@dataclass(frozen=True)
class Calibration:
    """A calibrated server.

    Attributes:
        deployment: The server.
        settings: How beta was calibrated.
        intervals: All its good intervals.
        beta: What was found for steps.
        alpha: What was found for requests.
        errors: Before and after, of :func:`pinn.server.calibration.calibrate.error_table`.
        quantities: What the observations determine.
        verdicts: Before and after on what was left out.
        sources: The traces, with their digests.
        named: Model, GPU and format as the user named them.
    """

    deployment: Deployment
    settings: BetaSettings
    intervals: Intervals
    beta: BetaCalibration
    alpha: AlphaCalibration
    errors: pd.DataFrame
    quantities: list[Quantity]
    verdicts: list[Verdict]
    sources: list[dict[str, str]]
    named: dict[str, str]

    def coefficient_set(self, base_taught: Bool[np.ndarray, " request_features"]) -> CoefficientSet:
        """The result as a file's content.

        Args:
            base_taught: Whether data had taught each alpha before.
        """
        facts: dict[str, Any] = {
            "sources": self.sources,
            **asdict(self.settings),
            "used": len(self.beta.used),
            "noise": float(np.median(self.beta.posterior.noise)),
            "errors": _records(self.errors),
            "requests": _records(self.alpha.errors),
            **found_facts(self.quantities, self.verdicts),
        }
        deployment = deployment_facts(self.deployment) | {"named": self.named}
        return posterior_set(
            deployment,
            self.beta.prior,
            self.alpha.posterior,
            base_taught | self.alpha.taught,
            facts,
        )


def found_facts(
    quantities: list[Quantity], verdicts: Sequence[Verdict | Likelihood]
) -> dict[str, Any]:
    """What a file says of what was determined and how it was judged."""
    return {
        "quantities": [asdict(quantity) for quantity in quantities],
        "verdicts": [asdict(v) | {"standard_error": _finite(v.standard_error)} for v in verdicts],
    }


def posterior_set(
    deployment: dict[str, Any],
    prior: Prior,
    posterior: Posterior | Prior,
    taught: Bool[np.ndarray, " request_features"],
    facts: dict[str, Any],
) -> CoefficientSet:
    """A posterior as a file's content."""
    before, after = (
        Coefficients(c.mean[None, : len(STEP_FEATURES)], c.mean[None, len(STEP_FEATURES) :])
        for c in (prior, posterior)
    )
    return CoefficientSet(deployment, after, taught, before, facts, posterior.covariance)


def run_calibration(
    traces: TraceTables, deployment: Deployment, prior: Prior, settings: BetaSettings
) -> Calibration:
    """Calibrate beta to a run's steps and, where it has journeys, alpha to its requests.

    Args:
        traces: Canonical tables.
        deployment: What was traced.
        prior: Coefficients of the deployment before.
        settings: How.

    Raises:
        PinnError: If the tables hold nothing to calibrate on.
    """
    intervals = read_intervals(traces, deployment)
    beta = calibrate_beta(intervals, prior, settings)
    requests = read_requests(traces, deployment, beta.beta)
    taught = Prior(beta.posterior.mean, beta.posterior.covariance)
    alpha = calibrate_alpha(requests, taught)
    errors = error_table(intervals, {"before": beta.base, "calibrated": beta.beta})
    used = beta.used
    context = used.sums.decode_context.sum() / max(used.sums.decode_requests.sum(), 1.0)
    quantities = [
        *step_quantities(
            deployment, prior, beta.posterior, float(used.sums.decode_requests.mean()), context
        ),
        *scalar_quantities(prior, beta.posterior, all_features(used.features)),
        *request_quantities(prior, alpha.posterior, requests.mean_prompt_tokens, alpha.taught),
    ]
    entry = traces.manifest.get("deployment") or {}
    named = {k: entry[k] for k in NAMED if entry.get(k)}
    sources = list(traces.manifest["sources"])
    verdicts = [
        *_later(intervals, beta),
        *_other_loads(intervals, prior, settings),
        *alpha.verdicts,
    ]
    return Calibration(
        deployment, settings, intervals, beta, alpha, errors, quantities, verdicts, sources, named
    )


def _usual(intervals: Intervals) -> Intervals:
    """Intervals of the kinds that are judged."""
    return intervals.take(intervals.is_window | intervals.is_single)


def _later(intervals: Intervals, beta: BetaCalibration) -> list[Verdict]:
    """Before and after on all that came after the intervals that were fitted to."""
    later = _usual(intervals.take(intervals.part > 0))
    return [_judged("later time", later, beta)] if len(later) else []


def _other_loads(intervals: Intervals, prior: Prior, settings: BetaSettings) -> list[Verdict]:
    """Fitted to the lower half of the loads and judged on the upper, and the reverse."""
    pool = candidates(intervals, settings.kind)
    requests = pool.sums.requests
    upper = requests > np.median(requests)
    halves = {"lower": pool.take(~upper), "upper": pool.take(upper)}
    means = [half.sums.requests.mean() if len(half) >= _LEAST else np.nan
             for half in halves.values()]  # fmt: skip
    if not means[1] > _TWO_LOADS * means[0]:
        return []
    return [
        _judged(f"the {name} half of the loads, left out", left_out,
                calibrate_to(chosen(halves[other], settings), prior))
        for (name, left_out), other in zip(halves.items(), ("upper", "lower"), strict=True)
    ]  # fmt: skip


def _judged(where: str, rows: Intervals, fitted: BetaCalibration) -> Verdict:
    errors = [rows.features @ beta / rows.seconds - 1 for beta in (fitted.base, fitted.beta)]
    return judge(where, *errors)


def _records(table: pd.DataFrame) -> list[dict[Any, Any]]:
    return table.astype(object).where(table.notna(), None).to_dict("records")


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def sources_text(calibration: Calibration) -> str:
    """The traces by name."""
    return ", ".join(Path(source["path"]).name for source in calibration.sources)
