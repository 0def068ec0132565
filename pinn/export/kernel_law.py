"""The step-time law of BLIS's latency kernel, and its coefficients projected on a deployment.

The law is that of ``blis-latency-kernel`` 0.1 with no overlap, as its documentation states it. With
m scheduled tokens a step takes the sum of

- matrix products: FLOP of m + ``gemm_m_half`` tokens at peak x ``gemm_eps_max``;
- weights, and those of the experts that m tokens hit, at bandwidth x ``hbm_derate``;
- with decodes: ``attention_decode_floor`` per layer, and their keys at ``attention_decode_rate``;
- with prompts: ``attention_prefill_floor`` per layer, and the FLOP of causal pairs at the matrix
  products' efficiency x ``attention_prefill_work_scale``;
- collectives: a floor each, and their bytes at a rate;
- the host: ``host_replay_graph_per_step`` up to the largest captured batch, beyond it
  ``host_launch_eager_per_layer``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import linprog

from pinn.export.blis_batches import MOST_PROMPTS
from pinn.memory.kv_layout import max_model_len
from pinn.physics.batch_sums import BatchSums, sum_batches
from pinn.physics.costs import StepCosts, model_costs
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.batch import Batch
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.step_features import STEP_FEATURES

Seconds = Float[np.ndarray, " batches"]

#: Values of ``gemm_m_half`` that are tried, in tokens.
_HALVES = (0.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0)
#: Batches that a projection is fitted to, and as many others that it is evaluated on.
BATCHES = 900
#: Shortest prompt of a random batch, in tokens.
_SHORTEST = 32
#: Largest relative error that is accepted by default, of a dense model and of a mixture of experts.
WORST = {"dense": 0.20, "experts": 0.30}
#: Shares of it that no batch of the fit shall exceed: the first with which others keep within it.
_MARGINS = (1.1, 1.0, 0.95, 0.9, 0.85)
#: Seeds of the batches of the fit, of the choice of a share, and of the errors that are reported.
_FIT, _CHOICE, _REPORT = 0, 1, 2
#: Weight of an error beyond that, relative to a mean error.
_BEYOND = 20.0
#: Columns of the law; the least of each, relative to the datasheet's rate, and 0 for floors.
_LEAST = {
    "memory": 1.0, "flop": 1.0, "decode": 0.0, "keys": 1e-3, "windowed_keys": 1e-3, "prefill": 0.0,
    "pairs": 1e-3, "replay": 0.0, "eager": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class KernelLaw:
    """Coefficients of the law for one deployment, as multiples of datasheet times.

    Attributes:
        memory: 1 / ``hbm_derate``.
        flop: 1 / ``gemm_eps_max``.
        m_half: ``gemm_m_half`` in tokens.
        decode: Attention floor of a step with decodes, in seconds per layer.
        keys: Time of reading keys over that at the datasheet's bandwidth.
        windowed_keys: As ``keys``, for layers with an attention window.
        prefill: Attention floor of a step with prompts, in seconds per layer.
        pairs: Time of causal pairs over that at the datasheet's peak, before ``m_half``.
        replay: Host time of a step within the captured graphs, in seconds.
        eager: Host time of a step beyond them, in seconds per layer.
        collective_floor: Seconds of an all-reduce of no bytes.
        collective_rate: Bytes per second of an all-reduce; 0 on one GPU.
    """

    memory: float
    flop: float
    m_half: float
    decode: float
    keys: float
    windowed_keys: float
    prefill: float
    pairs: float
    replay: float
    eager: float
    collective_floor: float
    collective_rate: float


def collectives(costs: StepCosts) -> tuple[float, float]:
    """Return the all-reduces of a step and the bytes of one per token."""
    bytes_of_token = float(costs.all_reduce_token_bytes[0])
    return (2 * float(costs.layers[0]) if bytes_of_token else 0.0), bytes_of_token


def law_columns(costs: StepCosts, sums: BatchSums, m_half: float) -> dict[str, np.ndarray]:
    """Return datasheet times of batches, each to be multiplied by the field of ``KernelLaw``.

    Args:
        costs: Costs of the deployment, of shape ``[1]``.
        sums: Sums of the batches.
        m_half: Tokens at which matrix products have half of their efficiency.
    """
    tokens, captured = sums.tokens, sums.tokens <= costs.graph_tokens
    hit = costs.experts * -np.expm1(tokens * np.log1p(-costs.expert_share))
    token_s = costs.gemm_token_s + costs.expert_token_s
    pairs = (
        costs.prefill_pair_s * sums.prefill_pairs
        + costs.windowed_prefill_pair_s * sums.windowed_prefill_pairs
    )
    return {
        "memory": costs.gemm_weights_s + hit * costs.expert_read_s,
        "flop": token_s * (tokens + m_half) + costs.head_sequence_s * sums.requests,
        "decode": costs.layers * (sums.decode_requests > 0),
        "keys": costs.kv_read_s * sums.decode_context,
        "windowed_keys": costs.windowed_kv_read_s * sums.windowed_decode_context,
        "prefill": costs.layers * (sums.prefill_requests > 0),
        "pairs": pairs * (1 + m_half / np.maximum(tokens, 1)),
        "replay": captured.astype(float),
        "eager": costs.layers * ~captured,
    }


def law_seconds(law: KernelLaw, costs: StepCosts, sums: BatchSums) -> Seconds:
    """Return the law's step time of batches."""
    columns = law_columns(costs, sums, law.m_half)
    count, bytes_of_token = collectives(costs)
    total = sum(getattr(law, name) * column for name, column in columns.items())
    moved = bytes_of_token * sums.tokens / law.collective_rate if law.collective_rate else 0.0
    return total + count * (law.collective_floor + moved)


def random_batches(latency: LinearLatency, seed: int, count: int = BATCHES) -> BatchSums:
    """Return random batches of the range of a projection.

    A batch has none to ``MOST_PROMPTS`` prompts of 32 tokens to ``max_model_len``, as far as they
    fit a step, and none to ``max_num_seqs`` decodes. A third has decodes alone, a third one prompt.
    """
    rng, recipe = np.random.default_rng(seed), latency.deployment.recipe
    longest = max_model_len(latency.deployment)
    batches = []
    while len(batches) < count:
        decodes = round(np.exp(rng.uniform(0, np.log(recipe.max_requests + 1)))) - 1
        kinds = (0, 1, int(rng.integers(2, MOST_PROMPTS + 1)))
        prompts = kinds[len(batches) % 3]
        batch, left = Batch(), recipe.token_budget - decodes
        for _ in range(min(prompts, recipe.max_requests - decodes)):
            tokens = int(np.exp(rng.uniform(np.log(_SHORTEST), np.log(longest))))
            if tokens <= left:
                batch, left = batch + Batch.prefill(1, tokens), left - tokens
        if decodes:
            context = int(np.exp(rng.uniform(np.log(64), np.log(longest))))
            batch += Batch.decode(decodes, context)
        if len(batch):
            batches.append(batch)
    return sum_batches(batches, latency.deployment.model.window_tokens)


def step_seconds(latency: LinearLatency, sums: BatchSums) -> Seconds:
    """Return the surrogate's step time of batches."""
    return deployment_features(latency.deployment, sums) @ latency.beta


def project_law(latency: LinearLatency, worst: float) -> KernelLaw:
    """Return the coefficients with the least mean relative error over random batches.

    Errors beyond ``worst`` weigh more. Communication is fitted first, to the surrogate's own part.
    """
    halves: tuple[float, ...] = _HALVES
    for share in _MARGINS:
        law = _fit(latency, share * worst, halves)
        halves = (law.m_half,)
        errors = np.concatenate(list(errors_by_kind(latency, law, _CHOICE).values()))
        if np.abs(errors).max() <= worst:
            break
    return law


def _fit(latency: LinearLatency, worst: float, halves: tuple[float, ...]) -> KernelLaw:
    sums, costs = random_batches(latency, _FIT), model_costs([latency.deployment])
    floor_s, rate = _collective_law(latency, sums, costs)
    base = KernelLaw(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, floor_s, rate)
    wanted = step_seconds(latency, sums)
    rest = (wanted - law_seconds(base, costs, sums)) / wanted
    found = []
    for m_half in halves:
        columns = np.stack(list(law_columns(costs, sums, m_half).values()), axis=-1)
        found.append((*_least_errors(columns / wanted[:, None], rest, worst), m_half))
    _, values, m_half = min(found, key=lambda each: each[0])
    named = dict(zip(_LEAST, values.tolist(), strict=True))
    return KernelLaw(**named, m_half=m_half, collective_floor=floor_s, collective_rate=rate)


def _collective_law(
    latency: LinearLatency, sums: BatchSums, costs: StepCosts
) -> tuple[float, float]:
    """Return floor and rate of an all-reduce, in seconds and bytes per second."""
    count, bytes_of_token = collectives(costs)
    if latency.deployment.recipe.tensor_parallel_size == 1:
        return 0.0, 0.0
    own = np.array([feature.part == "communication" for feature in STEP_FEATURES.values()])
    taken = deployment_features(latency.deployment, sums)[:, own] @ latency.beta[own]
    steps = step_seconds(latency, sums)
    rows = count * np.stack([np.ones_like(steps), bytes_of_token * sums.tokens], axis=-1)
    _, (floor_s, byte_s) = _least_errors(rows / steps[:, None], taken / steps, 1.0, (0.0, 1e-15))
    return float(floor_s), 1 / float(byte_s)


def _least_errors(
    rows: np.ndarray, wanted: np.ndarray, worst: float, least: tuple[float, ...] | None = None
) -> tuple[float, np.ndarray]:
    """Return the objective and the values, at least ``least``, whose rows differ least."""
    bounds = [(low, None) for low in (least or _LEAST.values())]
    count, size = rows.shape
    one, none = np.eye(count), np.zeros((count, 1))
    shared = np.ones((count, 1))
    # Each row has an error, and all share the excess of the largest one.
    zero = np.zeros((count, count))
    left = np.block(
        [[rows, -one, none], [-rows, -one, none], [rows, zero, -shared], [-rows, zero, -shared]]
    )
    solved = linprog(
        np.concatenate([np.zeros(size), np.full(count, 1 / count), [_BEYOND]]),
        A_ub=left,
        b_ub=np.concatenate([wanted, -wanted, wanted + worst, worst - wanted]),
        bounds=[*bounds, *[(0, None)] * (count + 1)],
        method="highs",
    )
    assert solved.x is not None, solved.message
    return float(solved.fun), solved.x[:size]


def errors_by_kind(
    latency: LinearLatency, law: KernelLaw, seed: int = _REPORT
) -> dict[str, Seconds]:
    """Return the law's relative errors over random batches that it was not fitted to.

    Kinds of steps: ``decodes alone``, ``one prompt`` and ``more prompts``.
    """
    sums, costs = random_batches(latency, seed), model_costs([latency.deployment])
    errors = law_seconds(law, costs, sums) / step_seconds(latency, sums) - 1
    prompts = sums.prefill_requests
    kinds = {"decodes alone": prompts == 0, "one prompt": prompts == 1, "more prompts": prompts > 1}
    return {kind: errors[rows] for kind, rows in kinds.items() if rows.any()}
