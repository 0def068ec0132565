"""The load behind a row of measured deployments: the closed loop that its benchmark ran.

Clients keep the stated number of requests in flight, all of them sent at once in the beginning.
Warm-up requests that a benchmark sends before have ended by then and leave nothing behind but, with
a prefix cache, one prompt, so they are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pandas as pd

from pinn.data.deployments import Row, observed_deployment
from pinn.data.launch_facts import LOAD_FLAGS
from pinn.data.silicon import LENGTH_RANGE
from pinn.simulator.workloads.synthetic import closed_loop
from pinn.simulator.workloads.workload import Workload
from pinn.specs.deployment import Deployment


@dataclass(frozen=True)
class MeasuredDeployment:
    """One row of observations as something that can be simulated.

    Attributes:
        row_id: Its name.
        deployment: What ran, without the flags of ``LOAD_FLAGS``: rows that differ only in load
            share it.
        served: What ran.
        workload: What its clients sent.
        tpot_s: Measured mean time per output token after the first.
        ttft_s: Measured mean time to first token.
    """

    row_id: str
    deployment: Deployment
    served: Deployment
    workload: Workload
    tpot_s: float
    ttft_s: float

    @property
    def concurrency(self) -> int:
        """Requests in flight."""
        return self.workload.concurrency or 0


def measured_deployments(observations: pd.DataFrame) -> list[MeasuredDeployment]:
    """Every row of observations, in their order.

    Args:
        observations: As ``pinn.data.table.read_observations`` gives them.
    """
    return [measured_deployment(row) for _, row in observations.iterrows()]


def measured_deployment(row: Row) -> MeasuredDeployment:
    """One row of observations."""
    served = observed_deployment(row)
    shared = replace(served.serving, **dict.fromkeys(LOAD_FLAGS, None))
    concurrency = int(row["concurrency"])
    return MeasuredDeployment(
        str(row["row_id"]),
        replace(served, serving=shared),
        served,
        closed_loop(
            concurrency,
            int(row["prompts_per_client"]) * concurrency,
            int(row["prompt_tokens"]),
            int(row["output_tokens"]),
            length_range=LENGTH_RANGE,
            name=str(row["row_id"]),
        ),
        float(row["tpot_s"]),
        float(row["ttft_s"]),
    )
