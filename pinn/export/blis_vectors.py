"""Alpha and beta vectors for BLIS: one per configuration and load, and one for all loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pinn.export.blis_model import blis_model
from pinn.export.blis_projection import Projection, project
from pinn.export.blis_workloads import Seen, observe
from pinn.export.configured import Configured
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.workloads.workload import Workload
from pinn.units import MICROSECOND

#: Name of the vector for all loads together.
MIX = "mix"


@dataclass(frozen=True)
class BlisVector:
    """What BLIS needs for one configuration under one load.

    Attributes:
        load: Name of the load, or ``mix``.
        alpha: For ``--alpha-coeffs``: microseconds per request before queueing, once at
            completion, per output token (0).
        projection: Beta with its error.
        mean_step_us: Mean step under the load, at which ``alpha[0]`` holds.
    """

    load: str
    alpha: tuple[float, float, float]
    projection: Projection
    mean_step_us: float


def blis_vectors(
    configured: Configured, row: int, workloads: Sequence[Workload]
) -> list[BlisVector]:
    """Vectors of one configuration: per load, then for all of them where there are several.

    ``alpha[0]`` is what the surrogate's engine adds to the time to first token beyond the queue,
    the step in flight and the steps that BLIS simulates; the median over a load's requests, the
    mean of those for all loads. ``alpha[2]`` is 0: BLIS would add it to each gap between tokens,
    but the API server works on a token while the engine makes the next.

    Args:
        configured: Configurations with coefficients.
        row: Which of them.
        workloads: Loads that the configuration will see.

    Raises:
        PinnError: If the configuration cannot serve a load.
    """
    deployment = configured.deployments[row]
    coefficients = configured.coefficients.take(row)
    latency = LinearLatency(deployment, coefficients.beta[0], coefficients.alpha[0])
    model = blis_model(deployment, configured.configurations[row].get("model"))
    seen = [observe(latency, model, workload) for workload in workloads]
    if len(seen) > 1:
        seen.append(_together(seen))
    return [_vector(one, latency) for one in seen]


def _vector(seen: Seen, latency: LinearLatency) -> BlisVector:
    completion_us = latency.post_decode_fixed_overhead() / MICROSECOND
    alpha = (seen.first_token_delay_us, completion_us, 0.0)
    projection = project(seen.features, seen.step_us)
    return BlisVector(seen.name, alpha, projection, seen.mean_step_us)


def _together(seen: Sequence[Seen]) -> Seen:
    """All loads with equal weight: each brings as many batches as the others."""
    count = min(len(one.step_us) for one in seen)
    kept = [np.linspace(0, len(one.step_us) - 1, count).astype(int) for one in seen]
    return Seen(
        MIX,
        np.concatenate([one.features[i] for one, i in zip(seen, kept, strict=True)]),
        np.concatenate([one.step_us[i] for one, i in zip(seen, kept, strict=True)]),
        float(np.mean([one.mean_step_us for one in seen])),
        float(np.mean([one.first_token_delay_us for one in seen])),
    )


def own_errors(vectors: Sequence[BlisVector]) -> np.ndarray:
    """Relative errors of all batches of a configuration, each load with its own vector."""
    loads = [v for v in vectors if v.load != MIX]
    return np.concatenate([v.projection.errors for v in loads])
