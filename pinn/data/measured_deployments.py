"""The load behind a row of measured deployments: the closed loop that its benchmark ran.

Clients keep the stated number of requests in flight, all of them sent at once in the beginning.
Warm-up requests that a benchmark sends before have ended by then and leave nothing behind but, with
a prefix cache, one prompt, so they are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from pinn.data.deployments import Row, observed_deployment
from pinn.data.launch_facts import LOAD_FLAGS, UNKNOWN
from pinn.data.silicon import LENGTH_RANGE
from pinn.simulator.workloads.synthetic import closed_loop
from pinn.simulator.workloads.workload import Workload
from pinn.specs.deployment import Deployment
from pinn.specs.serving import VLLM, ServingSpec

#: Share of memory of SGLang and TensorRT-LLM where nobody knows it.
_ROOMY_SHARE = 0.97


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
    if row["facts"] == UNKNOWN:
        served = replace(served, serving=_roomy(served.serving, row))
    nothing: dict[str, Any] = dict.fromkeys(LOAD_FLAGS)
    shared = replace(served.serving, **nothing)
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


def _roomy(serving: ServingSpec, row: Row) -> ServingSpec:
    """Flags nobody knows, with room for what the clients sent: such rows did not wait for memory.

    Rows whose requests waited are refused, so any length and share will do that hold the others.
    """
    longest = int(row["prompt_tokens"]) + int(row["output_tokens"])
    share = serving.gpu_memory_utilization if serving.engine == VLLM else _ROOMY_SHARE
    return replace(serving, max_model_len=longest, gpu_memory_utilization=share)
