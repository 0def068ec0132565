"""Evidence for coefficients of a calibrated file: the intervals of its posterior."""

import math
from collections.abc import Sequence
from dataclasses import replace

from pinn.calibration.posterior import posterior_coefficient_ends, posterior_step_half_widths
from pinn.engines.deployment import Deployment
from pinn.surrogate.coefficient_set import CoefficientSet
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.evidence import Evidence, file_evidence
from pinn.surrogate.uncertainty.distance import REFERENCE_BATCH
from pinn.surrogate.uncertainty.intervals import around
from pinn.surrogate.uncertainty.quantiles import LEVEL


def posterior_evidence(
    found: CoefficientSet, deployment: Deployment, batches: Sequence[str]
) -> Evidence:
    """Return the evidence for coefficients with a covariance.

    Args:
        found: Calibrated coefficients.
        deployment: What they belong to.
        batches: Batches to time, as written on the command line.
    """
    pairs = zip(NAMES, posterior_coefficient_ends(found).T.tolist(), strict=True)
    *halves, usual = posterior_step_half_widths(found, deployment, [*batches, REFERENCE_BATCH])
    return replace(
        file_evidence(found),
        level=LEVEL,
        usual={"tpot": around(1.0, float(usual))},
        coefficient_ends={n: (low, high) for n, (low, high) in pairs if not math.isnan(low)},
        step_ends=[around(1.0, float(half)) for half in halves],
        reference=REFERENCE_BATCH,
    )
