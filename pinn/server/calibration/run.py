"""From trace tables and a prior to a calibrated coefficient set."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool

from pinn.coefficients.coefficients import Coefficients, CoefficientSet, deployment_facts
from pinn.engines.deployment import Deployment
from pinn.server.calibration import calibrate, posterior
from pinn.server.calibration.alpha import AlphaCalibration, calibrate_alpha
from pinn.server.calibration.calibrate import BetaSettings, Intervals, Verdict
from pinn.server.calibration.posterior import Posterior, Quantity
from pinn.server.calibration.prior import Prior, all_features
from pinn.server.calibration.requests import read_requests
from pinn.server.traces.trace_tables import TraceTables

#: Ratio of the mean requests of two halves of a run from which they count as two loads, and fewest
#: intervals in each: assumptions.
_TWO_LOADS, _LEAST = 1.5, 20


@dataclass(frozen=True)
class ServerCalibration:
    """A calibrated server, whatever of it was measured.

    Attributes:
        deployment: The server.
        prior: Coefficients before.
        posterior: Coefficients after.
        quantities: What the measurements determine.
        verdicts: Before and after on what was left out.
        facts: What a file says of the measurements, and of the fit to them.
    """

    deployment: Deployment
    prior: Prior
    posterior: Prior
    quantities: list[Quantity]
    verdicts: Sequence[Verdict]
    facts: dict[str, Any]

    def coefficient_set(
        self, named: dict[str, str], taught: Bool[np.ndarray, " request_features"]
    ) -> CoefficientSet:
        """The result as a file's content.

        Args:
            named: Model, GPU and format as the user named them.
            taught: Whether data taught each alpha.
        """
        facts = self.facts | {
            "quantities": [asdict(quantity) for quantity in self.quantities],
            "verdicts": [verdict.facts for verdict in self.verdicts],
        }
        deployment = deployment_facts(self.deployment) | {"named": named}
        before, after = (Coefficients(c.beta[None], c.alpha[None])
                         for c in (self.prior, self.posterior))  # fmt: skip
        return CoefficientSet(deployment, after, taught, before, facts, self.posterior.covariance)


@dataclass(frozen=True)
class Calibration(ServerCalibration):
    """A server calibrated to its traces.

    Attributes:
        beta: What was found for steps; its noise is of each interval that was fitted to.
        alpha: What was found for requests.
        errors: Before and after, of :func:`pinn.server.calibration.calibrate.error_table`.
    """

    beta: Posterior
    alpha: AlphaCalibration
    errors: pd.DataFrame


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
    intervals = calibrate.read_intervals(traces, deployment)
    used = calibrate.chosen(intervals, settings)
    beta = calibrate.calibrate_to(used, prior)
    requests = read_requests(traces, deployment, beta.beta)
    alpha = calibrate_alpha(requests, beta)
    errors = calibrate.error_table(intervals, {"before": prior.beta, "calibrated": beta.beta})
    decodes, prompt_tokens = used.sums.decode_requests, requests.mean_prompt_tokens
    context = used.sums.decode_context.sum() / max(decodes.sum(), 1.0)
    quantities = [
        *posterior.step_quantities(deployment, prior, beta, float(decodes.mean()), context),
        *posterior.scalar_quantities(prior, beta, all_features(used.features)),
        *posterior.request_quantities(prior, alpha.posterior, prompt_tokens, alpha.taught),
    ]
    verdicts = [
        *_later(intervals, prior, beta),
        *_other_loads(intervals, prior, settings),
        *alpha.verdicts,
    ]
    facts = {
        "sources": traces.manifest["sources"],
        **asdict(settings),
        "used": len(beta.noise),
        "noise": float(np.median(beta.noise)),
        "errors": _records(errors),
        "requests": _records(alpha.errors),
    }
    return Calibration(
        deployment, prior, alpha.posterior, quantities, verdicts, facts, beta, alpha, errors
    )


def _later(intervals: Intervals, prior: Prior, beta: Posterior) -> list[Verdict]:
    """Before and after on all that came after the intervals that were fitted to."""
    usual = intervals.is_window | intervals.is_single
    later = intervals.take((intervals.part > 0) & usual)
    return [_judged("later time", later, prior, beta)] if len(later) else []


def _other_loads(intervals: Intervals, prior: Prior, settings: BetaSettings) -> list[Verdict]:
    """Fitted to the lower half of the loads and judged on the upper, and the reverse."""
    pool = calibrate.candidates(intervals, settings.kind)
    requests = pool.sums.requests
    is_upper = requests > np.median(requests)
    halves = {"lower": pool.take(~is_upper), "upper": pool.take(is_upper)}
    lower, upper = (half.sums.requests.mean() if len(half) >= _LEAST else np.nan
                    for half in halves.values())  # fmt: skip
    if not upper > _TWO_LOADS * lower:
        return []
    verdicts = []
    for (name, left_out), other in zip(halves.items(), reversed(halves.values()), strict=True):
        fitted = calibrate.calibrate_to(calibrate.chosen(other, settings), prior)
        where = f"the {name} half of the loads, left out"
        verdicts.append(_judged(where, left_out, prior, fitted))
    return verdicts


def _judged(where: str, rows: Intervals, prior: Prior, fitted: Posterior) -> Verdict:
    errors = [rows.features @ c.beta / rows.seconds - 1 for c in (prior, fitted)]
    return calibrate.judge(where, *errors)


def _records(table: pd.DataFrame) -> list[dict[Any, Any]]:
    return table.astype(object).where(table.notna(), None).to_dict("records")
