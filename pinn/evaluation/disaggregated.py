"""Measured deployments with prefill and decode apart: decode TPOT, and TTFT, of the networks.

Thousands of clients on dozens of GPUs make a simulation of all rows long, so a row is worked out in
its steady state, by the laws of closed queueing networks (Denning and Buzen, "The operational
analysis of queueing network models", 1978). ``C`` clients send at the rate

    X = min(C / (prefill + n x step(B)),  prompts per second that the prefill pool computes)

where ``n`` is the number of output tokens and ``B = X x n x step(B) / ranks`` what each decode
rank has running (Little's law). TPOT is ``step(B)``; a client waits ``C / X - n x step(B)`` for its
first token, but for the first of its requests, which is sent with all others' at once and waits for
half of them on average. Left out: transfers and the API server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pinn.coefficients.surrogate import predict_coefficients
from pinn.coefficients.trained_network import TrainedNetwork
from pinn.data.disaggregated import MeasuredPools, measured_pools
from pinn.data.silicon import LENGTH_RANGE, PROMPTS_PER_CONCURRENCY
from pinn.evaluation.metrics import error_summary
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.physics.uniform_batches import UniformBatches
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.deployment import Deployment

#: Of nominal lengths, on average.
_LENGTH = sum(LENGTH_RANGE) / 2
_HALVINGS = 40


@dataclass(frozen=True)
class SteadyState:
    """Means of a benchmark's run.

    Attributes:
        tpot_s: Time per output token.
        ttft_s: Time to first token.
        batch: Requests on each decode rank.
    """

    tpot_s: float
    ttft_s: float
    batch: float


def score_pools(
    rows: pd.DataFrame, network: TrainedNetwork, left_out: Mapping[str, TrainedNetwork]
) -> pd.DataFrame:
    """Rows with ``network_tpot_s`` and ``network_ttft_s``; nothing is fitted to them.

    Args:
        rows: As :func:`pinn.data.disaggregated.read_disaggregated` gives them.
        network: For models that no network learned from.
        left_out: Model -> the network that never saw its deployments.
    """
    found = []
    for _, row in rows.iterrows():
        measured = measured_pools(row)
        chosen = left_out.get(measured.decode.model.name, network)
        state = steady_state(
            measured,
            _latency(chosen, measured.prefill),
            _latency(chosen, measured.decode),
            clients=int(row["concurrency"]),
            prompt_tokens=_LENGTH * row["prompt_tokens"],
            output_tokens=_LENGTH * row["output_tokens"],
        )
        found.append((state.tpot_s, state.ttft_s))
    tpot_s, ttft_s = np.array(found).T
    return rows.assign(network_tpot_s=tpot_s, network_ttft_s=ttft_s)


def _latency(network: TrainedNetwork, deployment: Deployment) -> LinearLatency:
    found = predict_coefficients(network, [deployment])
    return LinearLatency(deployment, found.beta[0], found.alpha[0])


def steady_state(
    pools: MeasuredPools,
    prefill: LinearLatency,
    decode: LinearLatency,
    *,
    clients: int,
    prompt_tokens: float,
    output_tokens: float,
) -> SteadyState:
    """Solve for the batch by halving: with more on each rank steps are longer and clients slower.

    Args:
        pools: The servers.
        prefill: Coefficients of a prefill server.
        decode: Those of a decode server.
        clients: In the closed loop.
        prompt_tokens: Mean.
        output_tokens: Mean.
    """
    ranks = pools.decode_workers * pools.decode.recipe.data_parallel_size
    prompt_s, prompts_per_s = _prefill_pool(pools, prefill, prompt_tokens)
    context = prompt_tokens + output_tokens / 2

    def rate_per_s(answer_s: float) -> float:
        return min(clients / (prompt_s + answer_s), prompts_per_s)

    least, most = 0.0, clients / ranks
    for _ in range(_HALVINGS):
        batch = (least + most) / 2
        answer_s = output_tokens * _decode_seconds(decode, batch, context)
        if rate_per_s(answer_s) * answer_s / ranks > batch:
            least = batch
        else:
            most = batch
    step_s = _decode_seconds(decode, batch, context)
    answer_s = output_tokens * step_s
    later_s = clients / rate_per_s(answer_s) - answer_s
    first_s = max(prompt_s, clients / 2 / prompts_per_s)
    share = 1 / PROMPTS_PER_CONCURRENCY
    return SteadyState(step_s, share * first_s + (1 - share) * later_s, batch)


def _prefill_pool(
    pools: MeasuredPools, latency: LinearLatency, prompt_tokens: float
) -> tuple[float, float]:
    """Seconds of a lone prompt, and prompts per second of all servers when they are busy.

    A busy step holds as many prompts as the token budget, a long prompt several steps' worth.
    """
    recipe = pools.prefill.recipe
    together = max(recipe.token_budget // prompt_tokens, 1.0)
    ranks = pools.prefill_workers * recipe.data_parallel_size
    return (
        _prompt_seconds(latency, 1.0, prompt_tokens),
        ranks * together / _prompt_seconds(latency, together, prompt_tokens),
    )


def _prompt_seconds(latency: LinearLatency, requests: float, tokens: float) -> float:
    """A step of whole prompts, or the sum of the steps that a prompt beyond the budget takes."""
    budget = latency.deployment.recipe.token_budget
    cuts = np.arange(0.0, tokens, budget)
    chunks = np.minimum(tokens - cuts, budget)
    zeros = np.zeros(len(cuts))
    batches = UniformBatches(zeros, zeros, zeros + requests, chunks, cuts)
    return float(_seconds(latency, batches).sum())


def _decode_seconds(latency: LinearLatency, batch: float, context: float) -> float:
    """A decode step; no fewer than one request runs in a step."""
    none = np.zeros(1)
    batches = UniformBatches(none + max(batch, 1.0), none + context, none, none, none)
    return float(_seconds(latency, batches)[0])


def _seconds(latency: LinearLatency, batches: UniformBatches) -> np.ndarray:
    deployment = latency.deployment
    sums = batches.sums(deployment.model.window_tokens)
    return step_features(step_costs([deployment] * len(batches)), sums) @ latency.beta


def pools_lines(scores: pd.DataFrame) -> Iterator[str]:
    """Errors as Markdown: a line for all, each engine, and each kind of its decode servers."""
    spread = np.where(scores["decode_attention_dp_size"] > 1, "DP", "TP")
    whole = scores.assign(decode=spread)
    yield "| engine | model | GPU | decode ranks | rows | TPOT | TTFT |"
    yield "|---|---|---|---|---:|---:|---:|"
    yield _line(("all", "all", "all", "all"), whole)
    for engine, part in whole.groupby("engine"):
        yield _line((str(engine), "all", "all", "all"), part)
    for key, part in whole.groupby(["engine", "model", "gpu", "decode"]):
        yield _line(tuple(map(str, key)), part)


def _line(about: tuple[str, ...], part: pd.DataFrame) -> str:
    cells = []
    for metric in ("tpot_s", "ttft_s"):
        found = error_summary(part[f"network_{metric}"].to_numpy(), part[metric].to_numpy())
        cells.append(f"{found['median']:.1f} / {found['mean']:.1f} ({found['bias']:+.1f})")
    return "| " + " | ".join([*about, str(len(part)), *cells]) + " |"
