"""Baselines that predict an engine's step time with a formula of few coefficients.

A formula is linear in basis functions of a step, averaged over each benchmark's steps. As for the
network's training rows, the steps are simulated with prior step-time coefficients, which are
estimates made before any training.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import nnls

from pinn.engines.deployment import Deployment
from pinn.evaluation.methods import Method, Prediction, Predictor
from pinn.export.blis_features import BlisSums, blis_features
from pinn.export.blis_model import blis_model
from pinn.measurements.deployments.measured import measured_deployments
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import step_costs
from pinn.physics.step_values import floor_seconds
from pinn.simulator.metric_features import MeanSteps, mean_steps
from pinn.simulator.simulate import map_runs
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.training.serving_rows import ServingRows, prior_jobs
from pinn.units import MICROSECOND

#: Global coefficients of BLIS (its ``defaults.yaml``, ``trained_physics_coefficients``, August
#: 2026). Step coefficients (betas) multiply ``blis_basis``. Request coefficients (alphas) are the
#: microseconds before the queue, at completion, and per output token.
BLIS_ALPHA = (15563.2, 777.3, 45.9)
BLIS_BETA = (0.152, 0.0, 1.363, 0.752, 32.1, 4.42, 126.0, 482.0, 0.0, 1.947, 0.752)

#: Function that returns the values of a formula's basis functions, ``[batches, functions]``, given
#: a deployment, batches and a prompt length.
StepBasis = Callable[[Deployment, BatchSums, float], Float[np.ndarray, "batches functions"]]


@dataclass(frozen=True)
class Bases:
    """Values of a formula's basis functions for measured deployments, by row id.

    Attributes:
        index: Position of each row in the arrays, by row id.
        tpot: Mean values over the steps from one output token to the next, ``[rows, functions]``.
        ttft: Sums over the steps from arrival to first token, ``[rows, functions]``.
    """

    index: Mapping[str, int]
    tpot: Float[np.ndarray, "n functions"]
    ttft: Float[np.ndarray, "n functions"]

    def of(
        self, rows: ServingRows
    ) -> tuple[Float[np.ndarray, "rows functions"], Float[np.ndarray, "rows functions"]]:
        """Return values of the basis functions of TPOT and of TTFT for the given rows."""
        places = [self.index[row_id] for row_id in rows.row_id]
        return self.tpot[places], self.ttft[places]


def row_bases(observations: pd.DataFrame, basis: StepBasis) -> Bases:
    """Return the values of a formula's basis functions for every measured deployment.

    Args:
        observations: Measured deployments, as ``read_observations`` returns them.
        basis: Basis functions of a step.
    """
    measured = measured_deployments(observations)
    tpot, ttft = [], []
    for one, steps in zip(measured, _steps(observations), strict=True):
        prompt = float(one.workload.prompt_tokens.mean())
        values = basis(one.served, steps.sums, prompt)
        tpot.append(steps.tpot_share @ values)
        ttft.append(steps.ttft_share @ values)
    index = {one.row_id: i for i, one in enumerate(measured)}
    return Bases(index, np.array(tpot), np.array(ttft))


_known_steps: dict[tuple[str, ...], list[MeanSteps]] = {}


def _steps(observations: pd.DataFrame) -> list[MeanSteps]:
    """Simulate each row's benchmark once and return its mean steps, for all formulas."""
    key = tuple(observations["row_id"])
    if key not in _known_steps:
        _known_steps.clear()
        jobs = prior_jobs(measured_deployments(observations))
        _known_steps[key] = map_runs(lambda _, run: mean_steps(run), jobs)
    return _known_steps[key]


def phase_floors(
    deployment: Deployment, sums: BatchSums, _: float
) -> Float[np.ndarray, "batches 2"]:
    """Return roofline lower bounds of the prefill and decode parts of each batch, in seconds."""
    costs = step_costs([deployment])
    parts = [_phase(sums, phase) for phase in ("prefill", "decode")]
    return np.stack([floor_seconds(costs, part) for part in parts], axis=1)


def _phase(sums: BatchSums, phase: str) -> BatchSums:
    """Return the batch sums restricted to requests in one phase (``prefill`` or ``decode``)."""
    others = [f.name for f in fields(sums) if phase not in f.name]
    return replace(sums, **{name: np.zeros_like(getattr(sums, name)) for name in others})


def hierarchical_basis(
    deployment: Deployment, sums: BatchSums, _: float
) -> Float[np.ndarray, "batches 6"]:
    """Return the basis functions F_base and F_config of HFD-TL, a hierarchical two-stage pipeline.

    F_base has three functions: prefill tokens x FLOPs per token / peak FLOP/s, decode tokens x KV
    bytes per token / memory bandwidth, and batch tokens / token budget. F_config has 1 / TP,
    experts / 8, and whether CPU offload is enabled. The residual of HFD-TL is omitted, because it
    cannot be fitted for an unseen pair of model and GPU.
    """
    costs = step_costs([deployment])
    moe = deployment.model.moe
    experts = moe.experts / 8 if moe is not None else 0.0
    one = np.ones_like(sums.tokens)
    columns = [
        sums.prefill_tokens * (costs.gemm_token_s + costs.expert_token_s),
        sums.decode_requests * costs.kv_read_s,
        sums.tokens / deployment.recipe.token_budget,
        one / deployment.recipe.tensor_parallel_size,
        one * experts,
        one * (deployment.serving.cpu_offload_gb > 0),
    ]
    return np.stack(columns, axis=1)


def token_counts(_: Deployment, sums: BatchSums, __: float) -> Float[np.ndarray, "batches 3"]:
    """Return three basis functions: 1 if the batch has tokens, prefill tokens, decode tokens."""
    busy = (sums.tokens > 0) * 1.0
    return np.stack([busy, sums.prefill_tokens, sums.decode_requests], axis=1)


def blis_basis(
    deployment: Deployment, sums: BatchSums, prompt_tokens: float
) -> Float[np.ndarray, "batches basis"]:
    """Return the basis functions of BLIS, a simulator of vLLM, for closed-loop batches, in seconds.

    BLIS's prefill attention needs the sum of t (S + t / 2) over chunks of t tokens of prompts of S
    tokens. The term t^2 / 2 is computed from the query-key pairs of the chunks. These pairs also
    include cached tokens, but prompts that are computed as one chunk have none.
    """
    totals = BlisSums(
        sums.prefill_tokens,
        sums.decode_requests,
        sums.decode_context - sums.decode_requests,
        sums.requests,
        sums.prefill_tokens * prompt_tokens + sums.prefill_pairs,
    )
    return blis_features(blis_model(deployment), totals) * MICROSECOND


#: Request features in a formula's TTFT, in addition to the steps up to the first token.
_ALPHAS = ("arrival_to_queue.constant", "arrival_to_queue.prompt_token")


def formula(name: str, learn: Callable[..., Predictor], bases: Bases) -> Method:
    """Return a formula as a prediction method; ``learn`` fits its coefficients.

    Args:
        name: Name of the method in tables.
        learn: One of :func:`learn_linear`, :func:`learn_per_deployment` and :func:`learn_nothing`.
        bases: Values of the formula's basis functions for all measured deployments.
    """
    made_of = Path(__file__).read_bytes() + bases.tpot.tobytes() + bases.ttft.tobytes()
    return Method(name, partial(learn, bases), recipe=hashlib.sha256(made_of).hexdigest())


def fitted_formulas(observations: pd.DataFrame) -> list[Method]:
    """Return a prediction method for each step-time formula with fitted coefficients."""
    counts, floors = (row_bases(observations, basis) for basis in (token_counts, phase_floors))
    return [
        formula("roofline, constant efficiencies", learn_linear, floors),
        formula("blackbox", learn_linear, counts),
        formula("blackbox, per configuration", learn_per_deployment, counts),
    ]


def blis(observations: pd.DataFrame) -> Method:
    """Return BLIS's trained-physics formula with published coefficients, as a prediction method."""
    return formula("BLIS, published", learn_nothing, row_bases(observations, blis_basis))


def learn_linear(bases: Bases, train: ServingRows, *_: object) -> Predictor:
    """Fit non-negative coefficients of a formula's basis functions, shared by all rows.

    TPOT = coefficients . basis, by least squares of relative errors; rows are weighted as in the
    network's training. TTFT = coefficients . basis of the steps before the first token + a constant
    + a time per prompt token + a multiple of the step time.
    """
    tpot, ttft = bases.of(train)
    coefficients = _relative_nnls(tpot, train.tpot_s, train.weight)
    rest = np.maximum(train.ttft_s - ttft @ coefficients, 0.0)
    alphas = _relative_nnls(
        _request_columns(train, tpot @ coefficients), rest, train.weight, train.ttft_s
    )

    def from_formula(rows: ServingRows) -> Prediction:
        tpot, ttft = bases.of(rows)
        steps = tpot @ coefficients
        return steps, ttft @ coefficients + _request_columns(rows, steps) @ alphas

    return from_formula


def learn_per_deployment(bases: Bases, *_: object) -> Predictor:
    """Fit a linear step-time formula to each deployment's own rows, as an optimistic bound.

    Each formula is fitted to the same rows that it predicts, so the method cannot predict unseen
    deployments.
    """

    def fitted_to_them(rows: ServingRows) -> Prediction:
        tpot, ttft = np.empty(len(rows)), np.empty(len(rows))
        for deployment in np.unique(rows.deployment):
            own = rows.deployment == deployment
            part = rows.take(own)
            tpot[own], ttft[own] = learn_linear(bases, part)(part)
        return tpot, ttft

    return fitted_to_them


def learn_nothing(bases: Bases, *_: object) -> Predictor:
    """Return a predictor of TPOT and TTFT that uses BLIS's formula with published coefficients."""
    coefficients = np.array(BLIS_BETA)
    before_s, token_s = BLIS_ALPHA[0] * MICROSECOND, BLIS_ALPHA[2] * MICROSECOND

    def as_published(rows: ServingRows) -> Prediction:
        tpot, ttft = bases.of(rows)
        return tpot @ coefficients + token_s, ttft @ coefficients + (before_s + token_s)

    return as_published


def _request_columns(rows: ServingRows, step_s: np.ndarray) -> Float[np.ndarray, "n 3"]:
    """Return three columns per row: 1, prompt tokens to process, and step time in seconds."""
    places = [list(REQUEST_FEATURES).index(name) for name in _ALPHAS]
    columns = [rows.request_features[:, place] for place in places]
    return np.stack([*columns, step_s], axis=1)


def _relative_nnls(
    matrix: np.ndarray, target: np.ndarray, weight: np.ndarray, scale: np.ndarray | None = None
) -> np.ndarray:
    """Fit non-negative coefficients by weighted least squares of relative errors.

    Errors are relative to ``scale``, by default the target.
    """
    factor = np.sqrt(weight) / (target if scale is None else scale)
    size = np.maximum(np.abs(matrix * factor[:, None]).max(axis=0), 1e-300)
    found, _ = nnls(matrix * factor[:, None] / size, target * factor)
    return found / size
