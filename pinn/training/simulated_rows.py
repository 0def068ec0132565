"""What coefficients say of measured deployments: their benchmarks, simulated with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, map_runs
from pinn.simulator.run import Run
from pinn.training.serving_rows import ServingRows


@dataclass(frozen=True)
class SimulatedRows:
    """Means over the requests of each row's benchmark.

    Attributes:
        tpot_s: Time per output token after the first.
        ttft_s: Time to first token, from the moment of sending.
        e2e_s: End-to-end latency.
    """

    tpot_s: Float[np.ndarray, " n"]
    ttft_s: Float[np.ndarray, " n"]
    e2e_s: Float[np.ndarray, " n"]


def simulate_rows(
    rows: ServingRows,
    beta: Float[np.ndarray, "m step_features"],
    alpha: Float[np.ndarray, "m request_features"],
    workers: int | None = None,
) -> SimulatedRows:
    """Simulate every row.

    Args:
        rows: Measured deployments.
        beta: Step coefficients of each of ``rows.deployments``.
        alpha: Request coefficients of each.
        workers: Threads; as many as there are cores by default.
    """
    jobs = [
        Job(m.served, m.workload, LinearLatency(m.served, beta[i], alpha[i]))
        for m, i in zip(rows.measured, rows.deployment, strict=True)
    ]
    means = np.array(map_runs(_means, jobs, workers)).reshape(-1, 3)
    return SimulatedRows(*means.T)


def _means(_: Job, run: Run) -> tuple[float, float, float]:
    requests = run.requests
    served = requests.finished
    return (
        float(np.nanmean(requests.mean_itl_s[served])),
        float(requests.ttft_s[served].mean()),
        float(requests.e2e_s[served].mean()),
    )
