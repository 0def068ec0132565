"""What formulas of a step need of measured deployments: means of their own basis functions.

The steps are those of each benchmark's simulation with prior coefficients, as for the surrogate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.data.measured_deployments import measured_deployments
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.floor import floor_seconds
from pinn.simulator.many import Job, map_runs
from pinn.simulator.mean_steps import MeanSteps, mean_steps
from pinn.simulator.run import Run
from pinn.specs.deployment import Deployment
from pinn.training.serving_rows import prior_jobs

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

    def of(
        self, row_ids: Sequence[str]
    ) -> tuple[Float[np.ndarray, "rows functions"], Float[np.ndarray, "rows functions"]]:
        """Both, for the given rows."""
        places = [self.index[row_id] for row_id in row_ids]
        return self.tpot[places], self.ttft[places]


def row_bases(
    observations: pd.DataFrame,
    basis: StepBasis,
    deployments: Mapping[str, Deployment] | None = None,
) -> Bases:
    """Work out basis functions for every observation.

    Args:
        observations: Measured deployments, as ``read_observations`` gives them.
        basis: Of a step.
        deployments: By row id; by default those that were measured.
    """
    measured = measured_deployments(observations)
    tpot, ttft = [], []
    for one, steps in zip(measured, _steps(observations), strict=True):
        deployment = one.served if deployments is None else deployments[one.row_id]
        prompt = float(one.workload.prompt_tokens.mean())
        values = basis(deployment, steps.sums, prompt)
        tpot.append(steps.mean_tpot(values))
        ttft.append(steps.mean_ttft(values))
    index = {one.row_id: i for i, one in enumerate(measured)}
    return Bases(index, np.array(tpot), np.array(ttft))


_known_steps: dict[tuple[str, ...], list[MeanSteps]] = {}


def _steps(observations: pd.DataFrame) -> list[MeanSteps]:
    """Simulated once per process: every formula needs the same."""
    key = tuple(observations["row_id"])
    if key not in _known_steps:
        _known_steps.clear()
        _known_steps[key] = map_runs(_mean_steps, prior_jobs(measured_deployments(observations)))
    return _known_steps[key]


def _mean_steps(_: Job, run: Run) -> MeanSteps:
    return mean_steps(run)


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
