"""The step features: the one ordered registry that beta belongs to.

A step takes ``beta . features`` seconds. Each feature is a non-negative number of seconds at
datasheet rates (then its beta is a plain multiplier) or a count (then its beta is in seconds).
Every feature grows, or stays, with each request, token and context token, and shrinks, or stays,
with bandwidth and peak; with non-negative betas a step time does the same.

The five roofline features have betas of at least 1, and together they are at least the physical
floor, so that every step time is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts
from pinn.physics.floor import (
    expert_compute_s,
    gemm_compute_s,
    hit_expert_read_s,
    topk_expert_read_s,
)

Values = Float[np.ndarray, "..."]


@dataclass(frozen=True)
class StepFeature:
    """One entry of the registry.

    Attributes:
        name: Its name everywhere: checkpoint, table, ONNX, Go.
        unit: Of its beta: ``1`` for a multiplier of datasheet time, else seconds per count.
        lower_bound: Smallest beta; 1 where the feature is part of the floor.
        prior: Beta expected before any data; the source is in ``meaning``.
        resource: Which datasheet rate the feature shrinks with: ``bandwidth``, ``peak``,
            ``roofline`` (the larger of both times), ``link``, ``pcie`` or ``host``.
        meaning: What it measures and what it leaves out.
        value: Feature of (costs, sums), broadcast together.
    """

    name: str
    unit: str
    lower_bound: float
    prior: float
    resource: str
    meaning: str
    value: Callable[[StepCosts, BatchSums], Values]


def _busy(sums: BatchSums) -> Values:
    """1 where the batch has work, 0 for an empty one."""
    return (sums.tokens > 0) * 1.0


def _gemm(costs: StepCosts, sums: BatchSums) -> Values:
    return np.maximum(costs.gemm_weights_s * _busy(sums), gemm_compute_s(costs, sums))


def _experts(costs: StepCosts, sums: BatchSums) -> Values:
    return np.maximum(topk_expert_read_s(costs) * _busy(sums), expert_compute_s(costs, sums))


def _experts_hit(costs: StepCosts, sums: BatchSums, share: float = 1.0) -> Values:
    hit = hit_expert_read_s(costs, sums.tokens * share)
    return np.maximum(hit - topk_expert_read_s(costs), 0.0)


def _first_bytes(costs: StepCosts, sums: BatchSums, message_bytes: float) -> Values:
    """All-reduce time of the tokens that fit in the first bytes of a message."""
    tokens = np.minimum(sums.tokens, message_bytes / costs.all_reduce_token_bytes)
    return costs.all_reduce_token_s * tokens


def _eager_layers(costs: StepCosts, sums: BatchSums) -> Values:
    """Graphs are captured up to some tokens; the chance to exceed them grows with the prompts'.

    A jump would be vLLM's own rule, but then cutting a prompt into small chunks could pay.
    """
    share = np.minimum(sums.prefill_tokens / np.maximum(costs.graph_tokens, 1.0), 1.0)
    return costs.layers * np.where(costs.graph_tokens > 0, share, _busy(sums))


def _prefill_kv_read(costs: StepCosts, sums: BatchSums) -> Values:
    return (
        costs.kv_read_s * sums.prefill_cached
        + costs.windowed_kv_read_s * sums.windowed_prefill_cached
    )


def _kv_read(costs: StepCosts, sums: BatchSums) -> Values:
    return (
        costs.kv_read_s * sums.decode_context
        + costs.windowed_kv_read_s * sums.windowed_decode_context
    )


def _decode_attention(costs: StepCosts, sums: BatchSums) -> Values:
    return np.maximum(
        _kv_read(costs, sums),
        costs.decode_pair_s * sums.decode_context
        + costs.windowed_decode_pair_s * sums.windowed_decode_context,
    )


def _prefill_attention(costs: StepCosts, sums: BatchSums) -> Values:
    return np.maximum(
        _prefill_kv_read(costs, sums),
        costs.prefill_pair_s * sums.prefill_pairs
        + costs.windowed_prefill_pair_s * sums.windowed_prefill_pairs,
    )


_FEATURES = (
    StepFeature(
        "step", "s", 0.0, 2e-4, "host",
        "Once per step: scheduling and input preparation that the GPU waits for.",
        lambda c, s: _busy(s) + 0.0 * c.layers,
    ),
    StepFeature(
        "layer", "s/layer", 0.0, 1.5e-5, "host",
        "Per layer: launch latency and the memory latency floor of its small kernels in a graph.",
        lambda c, s: c.layers * _busy(s),
    ),
    StepFeature(
        "moe_layer", "s/layer", 0.0, 8e-6, "host",
        "Per mixture-of-experts layer: routing, sorting and the extra launches.",
        lambda c, s: c.moe_layers * _busy(s),
    ),
    StepFeature(
        "quantized_layer", "s/layer", 0.0, 4.5e-6, "host",
        "Per layer whose activations are quantized in every step.",
        lambda c, s: c.quantized_layers * _busy(s),
    ),
    StepFeature(
        "parallel_layer", "s/layer", 0.0, 1e-5, "host",
        "Per layer under tensor parallelism: the latency of its two all-reduces.",
        lambda c, s: c.parallel_layers * _busy(s),
    ),
    StepFeature(
        "eager_layer", "s/layer", 0.0, 1e-4, "host",
        "Per layer launched without CUDA graphs: those of large prompts, all if --enforce-eager.",
        _eager_layers,
    ),
    StepFeature(
        "prefill_layer", "s/layer", 0.0, 5e-6, "host",
        "Per layer of a step that has prefill work: a second attention kernel, piecewise graphs.",
        lambda c, s: c.layers * (s.prefill_requests > 0),
    ),
    StepFeature(
        "decode_layer", "s/layer", 0.0, 3e-6, "host",
        "Per layer of a step that has decodes: the latency of decode attention.",
        lambda c, s: c.layers * (s.decode_requests > 0),
    ),
    StepFeature(
        "request", "s/request", 0.0, 3e-6, "host",
        "Per request in the step: block tables, output handling.",
        lambda c, s: s.requests + 0.0 * c.layers,
    ),
    StepFeature(
        "sampling", "1", 0.0, 1.0, "bandwidth",
        "The logits of every request through the sampler: draw, top-p's sort, penalties.",
        lambda c, s: c.sampled_request_s * s.requests,
    ),
    StepFeature(
        "activations", "1", 0.0, 1.0, "bandwidth",
        "Residual-stream traffic of norms, rotary embedding, activation functions, quantization.",
        lambda c, s: c.activation_token_s * s.tokens,
    ),
    StepFeature(
        "gemm", "1", 1.0, 1.15, "roofline",
        "Projections, dense and shared layers, output head: max(weights once, arithmetic).",
        _gemm,
    ),
    StepFeature(
        "gemm_weights", "1", 0.0, 0.05, "bandwidth",
        "Reading the weights of the same: what does not hide behind the arithmetic.",
        lambda c, s: c.gemm_weights_s * _busy(s),
    ),
    StepFeature(
        "gemm_compute", "1", 0.0, 0.2, "peak",
        "The arithmetic of the same: what does not hide behind reading the weights.",
        gemm_compute_s,
    ),
    StepFeature(
        "gemm_beyond_128", "1", 0.0, 0.1, "peak",
        "Their arithmetic for tokens beyond 128, about the size of a tile.",
        lambda c, s: c.gemm_token_s * np.maximum(s.tokens - 128.0, 0.0),
    ),
    StepFeature(
        "gemm_beyond_1024", "1", 0.0, 0.05, "peak",
        "Their arithmetic for tokens beyond 1024, where waves of tiles fill the GPU.",
        lambda c, s: c.gemm_token_s * np.maximum(s.tokens - 1024.0, 0.0),
    ),
    StepFeature(
        "experts", "1", 1.0, 1.15, "roofline",
        "Routed experts: max(reading the top-k of one token, arithmetic of all).",
        _experts,
    ),
    StepFeature(
        "experts_hit", "1", 0.0, 1.0, "bandwidth",
        "Reading the other experts that the step's tokens hit under balanced routing.",
        lambda c, s: _experts_hit(c, s),
    ),
    StepFeature(
        "experts_hit_tenth", "1", 0.0, 0.05, "bandwidth",
        "Reading the experts that a tenth of the tokens would hit: skewed routing, few experts.",
        lambda c, s: _experts_hit(c, s, 0.1),
    ),
    StepFeature(
        "expert_compute", "1", 0.0, 0.2, "peak",
        "Arithmetic of the routed experts that does not hide behind reading them.",
        expert_compute_s,
    ),
    StepFeature(
        "expert_compute_beyond_1024", "1", 0.0, 0.1, "peak",
        "Their arithmetic for tokens beyond 1024.",
        lambda c, s: c.expert_token_s * np.maximum(s.tokens * c.expert_replicas - 1024.0, 0.0),
    ),
    StepFeature(
        "expert_activations", "1", 0.0, 1.0, "bandwidth",
        "Gathering tokens for the experts and scattering their results.",
        lambda c, s: c.expert_activation_token_s * s.tokens * c.expert_replicas,
    ),
    StepFeature(
        "decode_attention", "1", 1.0, 1.2, "roofline",
        "Decode attention: max(reading keys and values, arithmetic), windows respected.",
        _decode_attention,
    ),
    StepFeature(
        "kv_read", "1", 0.0, 0.05, "bandwidth",
        "Reading the keys and values of decodes: what does not hide behind the arithmetic.",
        _kv_read,
    ),
    StepFeature(
        "prefill_attention", "1", 1.0, 1.6, "roofline",
        "Causal prefill attention: max(reading cached keys and values, arithmetic).",
        _prefill_attention,
    ),
    StepFeature(
        "prefill_tokens", "1", 0.0, 1.0, "bandwidth",
        "Queries in and outputs out of prefill attention.",
        lambda c, s: c.prefill_token_s * s.prefill_tokens,
    ),
    StepFeature(
        "prefill_kv_read", "1", 0.0, 0.5, "bandwidth",
        "Reading cached keys and values of prefill chunks beside the arithmetic.",
        _prefill_kv_read,
    ),
    StepFeature(
        "all_reduce", "1", 0.0, 1.0, "link",
        "Tensor-parallel all-reduce bytes over the GPU links.",
        lambda c, s: c.all_reduce_token_s * s.tokens,
    ),
    StepFeature(
        "all_reduce_first_256k", "1", 0.0, 0.5, "link",
        "The same for the first 256 KiB of each message: one-shot algorithms move more bytes.",
        lambda c, s: _first_bytes(c, s, 2.0**18),
    ),
    StepFeature(
        "all_reduce_first_8m", "1", 0.0, 0.5, "link",
        "The same for the first 8 MiB of each message, up to which latency shows.",
        lambda c, s: _first_bytes(c, s, 2.0**23),
    ),
    StepFeature(
        "large_all_reduce", "s", 0.0, 3e-6, "host",
        "Per all-reduce of more than 256 KiB: another algorithm with more synchronization.",
        lambda c, s: c.all_reduces * (c.all_reduce_token_bytes * s.tokens > 2.0**18),
    ),
    StepFeature(
        "expert_exchange", "1", 0.0, 1.3, "link",
        "Dispatch and combine bytes between data-parallel ranks.",
        lambda c, s: c.exchange_token_s * s.tokens,
    ),
    StepFeature(
        "pipeline", "1", 0.0, 1.3, "link",
        "Activations handed from one pipeline stage to the next; stages run one after another.",
        lambda c, s: c.pipeline_token_s * s.tokens,
    ),
    StepFeature(
        "cpu_offload", "1", 1.0, 1.1, "pcie",
        "Reading offloaded weights from host memory.",
        lambda c, s: c.offload_s * _busy(s),
    ),
)  # fmt: skip

#: The registry: name -> feature, in the order of every beta vector.
STEP_FEATURES: dict[str, StepFeature] = {f.name: f for f in _FEATURES}


def step_features(costs: StepCosts, sums: BatchSums) -> Float[np.ndarray, "... features"]:
    """All features of steps.

    Args:
        costs: Of deployments; its shape broadcasts against that of ``sums``.
        sums: Of batches.

    Returns:
        Array of the broadcast shape with one more, last axis over ``STEP_FEATURES``.
    """
    columns = [f.value(costs, sums) for f in STEP_FEATURES.values()]
    return np.stack(np.broadcast_arrays(*columns), axis=-1)
