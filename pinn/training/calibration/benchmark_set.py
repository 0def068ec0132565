"""A calibration to benchmarks as a file's content."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool

from pinn.coefficients.coefficient_set import CoefficientSet, deployment_facts
from pinn.training.calibration.benchmarks import BenchmarkCalibration
from pinn.training.calibration.run import found_facts, posterior_set


def benchmark_set(
    found: BenchmarkCalibration,
    named: dict[str, str],
    taught: Bool[np.ndarray, " request_features"],
) -> CoefficientSet:
    """The posterior with what it was fitted to.

    Args:
        found: The calibration.
        named: Model, GPU and format as the user named them.
        taught: Whether data had taught each alpha before.
    """
    facts: dict[str, Any] = {
        "sources": [{"path": run.name, "tool": run.tool} for run in found.runs],
        "figures": found.errors.to_dict("records"),
        **found_facts(found.quantities, found.verdicts),
    }
    deployment = deployment_facts(found.deployment) | {"named": named}
    return posterior_set(deployment, found.prior, found.posterior, taught, facts)
