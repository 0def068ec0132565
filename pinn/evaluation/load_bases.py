"""What formulas of a step need of closed-loop rows: mean basis functions and the load itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.observations.closed_loop import ClosedLoop, closed_loop_steps
from pinn.observations.deployments import observed_deployments
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.floor import floor_seconds
from pinn.specs.deployment import Deployment
from pinn.specs.serving_defaults import default_max_num_batched_tokens

#: Basis functions of a deployment's batches, ``[batches, functions]``, given the prompt length.
StepBasis = Callable[[Deployment, BatchSums, float], Float[np.ndarray, "batches functions"]]


@dataclass(frozen=True)
class Bases:
    """Basis functions of rows by row id.

    Attributes:
        index: Row id -> place.
        tpot: Means over a decode interval.
        ttft: Sums over the steps from arrival to first token.
    """

    index: Mapping[str, int]
    tpot: Float[np.ndarray, "n functions"]
    ttft: Float[np.ndarray, "n functions"]

    def of(self, row_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Both, for the given rows."""
        places = [self.index[row_id] for row_id in row_ids]
        return self.tpot[places], self.ttft[places]


def row_loads(
    observations: pd.DataFrame, deployments: Mapping[str, Deployment]
) -> dict[str, ClosedLoop]:
    """The closed loop of every row."""
    columns = ["row_id", "concurrency", "prompt_tokens", "output_tokens"]
    loads = {}
    for row_id, concurrency, prompt, output in observations[columns].itertuples(index=False):
        deployment = deployments[row_id]
        loads[row_id] = ClosedLoop(
            int(concurrency),
            int(prompt),
            int(output),
            default_max_num_batched_tokens(deployment.gpu),
            deployment.model.window_tokens,
        )
    return loads


def row_bases(
    observations: pd.DataFrame,
    basis: StepBasis,
    deployments: Mapping[str, Deployment] | None = None,
) -> Bases:
    """Work out basis functions for every observation.

    Args:
        observations: Closed-loop rows, as ``read_observations`` gives them.
        basis: Of a step.
        deployments: By row id; by default those that were measured.
    """
    deployments = deployments or observed_deployments(observations)
    loads = row_loads(observations, deployments)
    tpot, ttft = [], []
    for row_id, load in loads.items():
        steps = closed_loop_steps(load)
        values = basis(deployments[row_id], steps.sums, load.mean_prompt_tokens)
        tpot.append(steps.tpot_share @ values)
        ttft.append(steps.ttft_share @ values)
    return Bases({row_id: i for i, row_id in enumerate(loads)}, np.array(tpot), np.array(ttft))


def phase_floors(
    deployment: Deployment, sums: BatchSums, _: float
) -> Float[np.ndarray, "batches 2"]:
    """The floor of the prefill work alone and of the decode work alone."""
    costs = step_costs([deployment])
    parts = [_phase(sums, phase) for phase in ("prefill", "decode")]
    return np.stack([floor_seconds(costs, part) for part in parts], axis=1)


def _phase(sums: BatchSums, phase: str) -> BatchSums:
    """The sums of one phase, those of the other set to 0."""
    names = [f.name for f in fields(sums)]
    values = [getattr(sums, name) for name in names]
    return BatchSums(
        *(v if phase in name else np.zeros_like(v) for name, v in zip(names, values, strict=True))
    )


def token_counts(_: Deployment, sums: BatchSums, __: float) -> Float[np.ndarray, "batches 3"]:
    """1, prefill tokens and decode tokens: the black box."""
    busy = (sums.tokens > 0) * 1.0
    return np.stack([busy, sums.prefill_tokens, sums.decode_requests], axis=1)
