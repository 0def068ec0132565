"""Fit of BLIS's latency kernel coefficients to a deployment, over random batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.export.blis_features import least_deviations
from pinn.export.kernel_law import LEAST, KernelLaw, Seconds, collectives, law_columns
from pinn.memory.kv_layout import max_model_len
from pinn.physics.batch_sums import BatchSums, sum_batches
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.batch import Batch
from pinn.surrogate.deployment_features import padded_features
from pinn.surrogate.step_features import step_time

#: Maximum number of prompts in a batch, and minimum prompt and context length in tokens.
MOST_PROMPTS, SHORTEST_PROMPT, SHORTEST_CONTEXT = 8, 32, 64
#: Candidate values in tokens. ``_HALVES``: of ``gemm_m_half``, at which matrix products reach half
#: of their efficiency. ``_KNEES``: of a collective's knee, from which on it is bandwidth-bound.
_HALVES = (0.0, 16.0, 64.0, 128.0, 256.0)
_KNEES = (64.0, 128.0, 192.0, 256.0, 320.0, 448.0, 640.0)
#: Numbers of random batches. ``_FITTED``: in a fit. ``_MEAN``: in a fit, those whose mean error is
#: minimized. ``_REPORTED``: for the reported errors.
_FITTED, _MEAN, _REPORTED = 4000, 300, 2000
#: Random seeds. ``_FIT``: for the batches in a fit. ``_REPORT``: for the batches of the reported
#: errors.
_FIT, _REPORT = 0, 2
#: Share of the error limit that a fit uses, so that batches outside the fit meet the full limit.
_SHARE = 0.95
#: Weight, relative to the mean error, of the amount by which the maximum error exceeds its limit.
_BEYOND = 20.0
#: ``_ROUNDS``: number of rounds of a fit. ``_ADDED``: number of batches with the largest errors
#: that each round adds to the fit.
_ROUNDS, _ADDED = 6, 40


@dataclass(frozen=True)
class ErrorLimit:
    """Limits of the median and the maximum absolute relative error of step times."""

    median: float
    worst: float


def error_limit(deployment: Deployment) -> ErrorLimit:
    """Return the step time error limits within which a deployment is exported by default."""
    return ErrorLimit(0.04, 0.20) if deployment.model.moe is None else ErrorLimit(0.06, 0.30)


def random_batches(deployment: Deployment, seed: int, count: int = _REPORTED) -> BatchSums:
    """Return the batch sums of random batches within the ranges that a fit covers.

    A batch has up to ``MOST_PROMPTS`` prompts of ``SHORTEST_PROMPT`` to ``max_model_len`` tokens,
    as many as fit in a step, and up to ``max_num_seqs`` decodes with contexts of
    ``SHORTEST_CONTEXT`` to ``max_model_len`` tokens. A third of the batches has only decodes,
    another third has one prompt. Numbers and lengths are distributed log-uniformly.
    """
    rng, recipe = np.random.default_rng(seed), deployment.recipe
    longest = max_model_len(deployment)

    def length(shortest: int) -> int:
        return int(np.exp(rng.uniform(np.log(min(shortest, longest)), np.log(longest))))

    batches: list[Batch] = []
    while len(batches) < count:
        decodes = round(np.exp(rng.uniform(0, np.log(recipe.max_requests + 1)))) - 1
        prompts = (0, 1, int(rng.integers(2, MOST_PROMPTS + 1)))[len(batches) % 3]
        batch, left = Batch(), recipe.token_budget - decodes
        for _ in range(min(prompts, recipe.max_requests - decodes)):
            tokens = length(SHORTEST_PROMPT)
            if tokens <= left:
                batch, left = batch + Batch.prefill(1, tokens), left - tokens
        if decodes:
            batch += Batch.decode(decodes, length(SHORTEST_CONTEXT))
        if len(batch):
            batches.append(batch)
    return sum_batches(batches, deployment.model.window_tokens)


def step_seconds(latency: LinearLatency, sums: BatchSums) -> Seconds:
    """Return the surrogate's step times of batches, in seconds."""
    return step_time(padded_features(latency.deployment, sums), latency.beta)


def project_law(latency: LinearLatency, worst: float) -> KernelLaw:
    """Fit the coefficients of the latency kernel's law to a deployment's step times.

    The fit minimizes the mean absolute relative error over random batches, with the maximum error
    limited to ``_SHARE`` of ``worst``. If the law cannot meet this limit, the excess is minimized
    with the weight ``_BEYOND``.

    The law has no term for matrix products that become slower only with many tokens. Under tensor
    parallelism, the number of tokens from which collectives are bandwidth-bound (their knee) is
    fitted such that it also represents these products.

    Args:
        latency: Latency model of the deployment.
        worst: Maximum accepted absolute relative error of a step time.
    """
    deployment = latency.deployment
    sums = random_batches(deployment, _FIT, _FITTED)
    wanted = step_seconds(latency, sums)[:, None]

    def fitted(m_half: float, knee: float) -> _Fitted:
        rows = law_columns(deployment, sums, m_half, knee) / wanted
        error, values = _fit(rows, _SHARE * worst)
        terms = dict(zip(LEAST, values.tolist(), strict=True))
        return _Fitted(error, KernelLaw(terms, m_half, knee))

    knees = _KNEES if collectives(deployment) else _KNEES[:1]
    best = min((fitted(_HALVES[0], knee) for knee in knees), key=lambda each: each.error)
    more = [fitted(m_half, best.law.knee) for m_half in _HALVES[1:]]
    return min([best, *more], key=lambda each: each.error).law


@dataclass(frozen=True)
class _Fitted:
    """Fitted law with its objective value, by which fits are compared."""

    error: float
    law: KernelLaw


def _fit(rows: Float[np.ndarray, "batches terms"], worst: float) -> tuple[float, np.ndarray]:
    """Fit coefficients to batches, and return them with the minimized objective.

    Each round solves a linear program on a few batches, including those with the largest errors in
    earlier rounds.
    """
    size = np.linalg.norm(rows, axis=0)
    used = size > 0
    rows, least = rows[:, used] / size[used], np.array(list(LEAST.values()))
    few = rows[:: len(rows) // _MEAN]
    kept = np.arange(0, len(rows), len(rows) // _ADDED)
    for _ in range(_ROUNDS):
        limited = [
            (few, 0.0, np.arange(len(few))), (rows[kept], worst, np.zeros(len(kept), int)),
        ]  # fmt: skip
        found = least_deviations(limited, (1 / len(few), _BEYOND), (least * size)[used])
        errors = np.abs(rows @ found - 1)
        largest = np.argsort(-errors)[:_ADDED]
        if errors[largest[0]] <= max(worst, errors[kept].max()) + 1e-3:
            break
        kept = np.union1d(kept, largest)
    values = least.copy()
    values[used] = found / size[used]
    mean = np.abs(few @ found - 1).mean()
    return float(mean + _BEYOND * max(errors.max() - worst, 0.0)), values


def errors_by_kind(
    latency: LinearLatency, law: KernelLaw, seed: int = _REPORT
) -> dict[str, Seconds]:
    """Return the law's relative step time errors on held-out random batches, by type of step.

    Types of steps are ``decodes alone``, ``one prompt`` and ``more prompts``.
    """
    sums = random_batches(latency.deployment, seed)
    errors = law.seconds(latency.deployment, sums) / step_seconds(latency, sums) - 1
    prompts = sums.prefill_requests
    kinds = {"decodes alone": prompts == 0, "one prompt": prompts == 1, "more prompts": prompts > 1}
    return {kind: errors[rows] for kind, rows in kinds.items() if rows.any()}
