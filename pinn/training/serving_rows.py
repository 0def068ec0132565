"""Measured deployments as rows of features for training the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from pinn.common.store import remembered_table
from pinn.engines.deployment import Deployment
from pinn.measurements.deployments.measured import MeasuredDeployment, measured_deployments
from pinn.physics.costs import step_costs
from pinn.physics.step_values import floor_seconds
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import mean_steps, request_delay_features
from pinn.simulator.run import Run
from pinn.simulator.simulate import Job, map_runs, measured_job
from pinn.surrogate.group_features import group_features
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES, overlapped

# Measured deployments as rows whose metrics are linear in the coefficients.
#
# Each row's benchmark is simulated once, with every coefficient at its prior mean. Which requests
# share a step hardly depends on step times, so other coefficients yield nearly the same batches.
# Mean TPOT and TTFT are then linear in step features and in the API server's work. Training uses
# these features. Predictions of a trained network simulate the benchmark again (``simulate_rows``).

#: Prior means of the coefficients, with which the benchmarks of rows are simulated.
PRIOR_BETA = np.array([f.prior for f in STEP_FEATURES.values()])
PRIOR_ALPHA = np.array([f.prior for f in REQUEST_FEATURES.values()])

#: A row counts as saturated if its TTFT is at least this multiple of the TTFT at the lowest load.
#: Most of its TTFT is queue time, which magnifies errors of the step time.
SATURATED = 3.0


@dataclass(frozen=True)
class ServingRows:
    """Measurements of ``m`` deployments: ``n`` closed-loop benchmarks, as rows of features.

    TPOT = beta . tpot_features and TTFT = beta . ttft_features + alpha . request_features +
    ttft_offset_s, in seconds, where beta and alpha are seconds per unit of a feature.

    Attributes:
        measured: Deployment, load and measurements of each row.
        deployments: Distinct deployments.
        deployment: Index of each row's deployment.
        tpot_features: Mean step features of a decode interval, ``[n, step_features]``.
        ttft_features: Step features summed over the steps from the request's handover to the engine
            until its first token, ``[n, step_features]``.
        request_features: Request features of the mean request, which are multiplied by alpha to
            give seconds of TTFT, ``[n, request_features]``.
        ttft_offset_s: Remaining seconds of TTFT. The API server works while the engine does, so a
            request waits for less than the sum of the two.
        tpot_floor_s: Mean roofline lower bound of a decode interval, seconds.
        ttft_floor_s: Sum of the roofline lower bounds of the steps from the request's handover to
            the engine until its first token, seconds.
        weight: Weight of each row in a loss; mean 1.
    """

    measured: tuple[MeasuredDeployment, ...]
    deployments: tuple[Deployment, ...]
    deployment: Int[np.ndarray, " n"]
    tpot_features: Float[np.ndarray, "n step_features"]
    ttft_features: Float[np.ndarray, "n step_features"]
    request_features: Float[np.ndarray, "n request_features"]
    ttft_offset_s: Float[np.ndarray, " n"]
    tpot_floor_s: Float[np.ndarray, " n"]
    ttft_floor_s: Float[np.ndarray, " n"]
    weight: Float[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.measured)

    @property
    def row_id(self) -> tuple[str, ...]:
        """Return the id of each row in the table of measured deployments."""
        return tuple(m.row_id for m in self.measured)

    @property
    def concurrency(self) -> Int[np.ndarray, " n"]:
        """Return the number of clients of each row's benchmark."""
        return np.array([m.concurrency for m in self.measured])

    @property
    def tpot_s(self) -> Float[np.ndarray, " n"]:
        """Return the measured mean time per output token, in seconds."""
        return np.array([m.tpot_s for m in self.measured])

    @property
    def ttft_s(self) -> Float[np.ndarray, " n"]:
        """Return the measured mean time to first token, in seconds."""
        return np.array([m.ttft_s for m in self.measured])

    def take(self, keep: Bool[np.ndarray, " n"]) -> ServingRows:
        """Select rows by the mask ``keep``, with their deployments and new weights."""
        used, index = np.unique(self.deployment[keep], return_inverse=True)
        deployments = tuple(self.deployments[i] for i in used)
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {name: each[keep] for name, each in values.items() if isinstance(each, np.ndarray)}
        kept |= {
            "measured": tuple(compress(self.measured, keep)),
            "deployments": deployments,
            "deployment": index,
            "weight": model_weights([deployments[i].model.name for i in index]),
        }
        return replace(self, **kept)


def model_weights(models: Sequence[str]) -> Float[np.ndarray, " n"]:
    """Return 1 / sqrt(rows of the same model), scaled to mean 1, so that no model dominates."""
    if not len(models):
        return np.zeros(0)
    _, index, counts = np.unique(np.array(models), return_inverse=True, return_counts=True)
    weight = 1 / np.sqrt(counts[index])
    return weight / weight.mean()


def serving_rows(observations: pd.DataFrame) -> ServingRows:
    """Return measured deployments as rows of features, simulated with prior coefficients.

    Args:
        observations: Table as ``observations.read_observations`` returns it.
    """
    measured = measured_deployments(observations)
    deployments = tuple(dict.fromkeys(m.deployment for m in measured))
    place = {deployment: i for i, deployment in enumerate(deployments)}
    index = np.array([place[m.deployment] for m in measured])
    sums = remembered_table(mean_sums, observations)
    tpot, ttft, request = _features(sums)
    offset_s, tpot_s, ttft_s = (sums[name].to_numpy() for name in _SECONDS)
    weight = model_weights([deployments[i].model.name for i in index])
    return ServingRows(
        tuple(measured), deployments, index, tpot, ttft, request, offset_s, tpot_s, ttft_s, weight
    )


_PARTS = ("tpot", "ttft", "request")
_SECONDS = ("ttft_offset_s", "tpot_floor_s", "ttft_floor_s")
_COLUMNS = (
    *(f"{part}:{name}" for part in _PARTS[:2] for name in STEP_FEATURES),
    *(f"request:{name}" for name in REQUEST_FEATURES),
    *_SECONDS,
)


def _features(sums: pd.DataFrame) -> list[Float[np.ndarray, "n features"]]:
    """Return three arrays: step features of TPOT, step features of TTFT, and request features."""
    named = [[c for c in _COLUMNS if c.startswith(f"{part}:")] for part in _PARTS]
    return [sums[columns].to_numpy() for columns in named]


def mean_sums(observations: pd.DataFrame) -> pd.DataFrame:
    """Return a table of each row's features, TTFT offset and roofline lower bounds.

    The benchmarks are simulated with prior coefficients.
    """
    jobs = prior_jobs(measured_deployments(observations))
    return pd.DataFrame(map_runs(_sums, jobs), columns=list(_COLUMNS))


def prior_jobs(measured: Sequence[MeasuredDeployment]) -> list[Job]:
    """Return a simulation job for each measured deployment's benchmark, with prior coefficients."""
    return [
        measured_job(m.served, m.workload, LinearLatency(m.served, PRIOR_BETA, PRIOR_ALPHA))
        for m in measured
    ]


def _sums(job: Job, run: Run) -> list[float]:
    steps = mean_steps(run)
    features = group_features(job.deployment, steps.sums, steps.shared)
    features = overlapped(features, job.latency.beta)
    floors = floor_seconds(step_costs([job.deployment]), steps.sums, steps.shared)
    served = run.requests.finished
    request = request_delay_features(run)[0][served].mean(0)
    tpot, ttft = np.asarray(steps.tpot_share @ features), np.asarray(steps.ttft_share @ features)
    known = ttft @ job.latency.beta + request @ job.latency.alpha
    offset = run.requests.ttft_s[served].mean() - known
    return [
        *tpot, *ttft, *request, offset,
        float(steps.tpot_share @ floors), float(steps.ttft_share @ floors),
    ]  # fmt: skip


def resimulated(rows: ServingRows, beta: Float[np.ndarray, "m step_features"]) -> ServingRows:
    """Return the rows with features from new simulations with given step coefficients (betas).

    Step coefficients (betas) determine which batches form, and whether a step waits for kernel
    launches or for the GPU.

    Args:
        rows: Rows whose benchmarks are resimulated.
        beta: Betas of each of ``rows.deployments``.
    """
    jobs = [
        Job(m.served, m.workload, LinearLatency(m.served, beta[i], PRIOR_ALPHA))
        for m, i in zip(rows.measured, rows.deployment, strict=True)
    ]
    sums = pd.DataFrame(map_runs(_sums, jobs), columns=list(_COLUMNS))
    tpot, ttft, request = _features(sums)
    return replace(
        rows, tpot_features=tpot, ttft_features=ttft, request_features=request,
        ttft_offset_s=sums["ttft_offset_s"].to_numpy(),
    )  # fmt: skip


# Predictions of measured deployments: simulations of their benchmarks with given coefficients.


class SimulatedRows(NamedTuple):
    """Simulated TPOT and TTFT of each row's benchmark, means over its requests, ``[n]``.

    Attributes:
        tpot_s: Time per output token after the first, seconds.
        ttft_s: Time from sending to the first token, seconds.
    """

    tpot_s: Float[np.ndarray, " n"]
    ttft_s: Float[np.ndarray, " n"]


def simulate_rows(
    rows: ServingRows,
    beta: Float[np.ndarray, "m step_features"],
    alpha: Float[np.ndarray, "m request_features"],
) -> SimulatedRows:
    """Simulate the benchmark of every row and return its mean TPOT and TTFT.

    Args:
        rows: Measured deployments.
        beta: Step coefficients of each of ``rows.deployments``.
        alpha: Request coefficients of each of ``rows.deployments``.
    """
    jobs = [
        measured_job(m.served, m.workload, LinearLatency(m.served, beta[i], alpha[i]))
        for m, i in zip(rows.measured, rows.deployment, strict=True)
    ]
    return mean_times(jobs)


def mean_times(jobs: Sequence[Job], workers: int | None = None) -> SimulatedRows:
    """Simulate benchmarks and return the mean TPOT and TTFT of each, in seconds."""
    return SimulatedRows(*np.array(map_runs(_means, jobs, workers)).reshape(-1, 2).T)


def _means(_: Job, run: Run) -> tuple[float, float]:
    requests = run.requests
    served = requests.finished
    return float(np.nanmean(requests.mean_itl_s[served])), float(requests.ttft_s[served].mean())
