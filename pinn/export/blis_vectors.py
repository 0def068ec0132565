"""Alpha and beta vectors for BLIS: one per configuration and load, and one for all loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.export.blis_model import blis_model
from pinn.export.blis_projection import Projection, project, step_errors
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
        overloaded: Whether the configuration cannot keep up with the load.
        step_errors: Taken for each load, the median |BLIS - surrogate| / surrogate of a step.
        first_token_errors: Taken for each load, what ``alpha[0]`` adds too much (or, negative, too
            little), over that load's median time to first token.
    """

    load: str
    alpha: tuple[float, float, float]
    projection: Projection
    mean_step_us: float
    overloaded: bool
    step_errors: dict[str, float]
    first_token_errors: dict[str, float]


def blis_vectors(
    configured: Configured, row: int, workloads: Sequence[Workload]
) -> list[BlisVector]:
    """Vectors of one configuration: per load, then for all of them where there are several.

    ``alpha[0]`` is what the surrogate's engine adds to the time to first token beyond the queue,
    the step in flight and the steps that BLIS simulates; the median over a load's requests, the
    mean of those for all loads. ``alpha[2]`` is 0: BLIS would add it to each gap between tokens,
    but the API server works on a token while the engine makes the next. The vector for all loads
    leaves out those that the configuration cannot keep up with, unless there are no others.

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
    model = blis_model(deployment)
    seen = [observe(latency, model, workload) for workload in workloads]
    fitted = [*seen, _together(seen)] if len(seen) > 1 else seen
    completion_us = latency.post_decode_fixed_overhead() / MICROSECOND
    return [_vector(one, seen, completion_us) for one in fitted]


def _vector(one: Seen, loads: Sequence[Seen], completion_us: float) -> BlisVector:
    alpha = (one.first_token_delay_us, completion_us, 0.0)
    projection = project(one.features, one.step_us)
    return BlisVector(
        one.name,
        alpha,
        projection,
        one.mean_step_us,
        one.overloaded,
        {
            load.name: float(np.median(step_errors(load.features, load.step_us, projection.beta)))
            for load in loads
        },
        {load.name: (alpha[0] - load.first_token_delay_us) / load.ttft_us for load in loads},
    )


def _together(seen: Sequence[Seen]) -> Seen:
    """All loads with equal weight: each brings as many batches as the others."""
    kept = [one for one in seen if not one.overloaded] or list(seen)
    count = min(len(one.step_us) for one in kept)
    places = [np.linspace(0, len(one.step_us) - 1, count).astype(int) for one in kept]
    return Seen(
        MIX,
        np.concatenate([one.features[i] for one, i in zip(kept, places, strict=True)]),
        np.concatenate([one.step_us[i] for one, i in zip(kept, places, strict=True)]),
        float(np.mean([one.mean_step_us for one in kept])),
        float(np.mean([one.first_token_delay_us for one in kept])),
        float(np.mean([one.ttft_us for one in kept])),
        all(one.overloaded for one in kept),
    )


def own_errors(vectors: Sequence[BlisVector]) -> Float[np.ndarray, " batches"]:
    """Relative errors of all batches of a configuration, each load with its own vector."""
    loads = [v for v in vectors if v.load != MIX]
    return np.concatenate([v.projection.errors for v in loads])
