"""What one unit of work costs a deployment at its GPU's datasheet rates.

The features of a step are sums over the batch times these constants, so a Go program or a table
reader needs nothing else of the model and the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from pinn.physics.matmuls import MatMul, dense_matmuls, expert_weights
from pinn.physics.sampling import logit_bytes
from pinn.specs.deployment import Deployment
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import AttentionSpec, LatentAttentionSpec, LayerGroup, ModelSpec
from pinn.specs.precision import Precision
from pinn.units import GIB

#: Residual reads and writes of one layer per token, in units of the hidden size: two norms with
#: residual add (read 2, write 2 each), the activation function and the KV write are of that order.
#: An assumption; what it misses is in the beta of ``activations``.
ACTIVATION_PASSES = 12.0
#: Activations are bf16.
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class StepCosts:
    """Seconds at datasheet rates per unit of work on one GPU; fields are arrays of one shape.

    Attributes:
        layers: Transformer layers.
        moe_layers: Layers with routed experts.
        quantized_layers: Layers whose activations are quantized in every step.
        parallel_layers: Layers with a tensor-parallel all-reduce.
        graph_tokens: Tokens of the largest step that a CUDA graph was captured of.
        gemm_weights_s: Reading every weight but the routed experts' once.
        gemm_token_s: Computing them for one token, the output head apart.
        head_sequence_s: Computing the output head for one sequence.
        sampled_request_s: Moving the logits of one request through the sampler's kernels.
        activation_token_s: Residual-stream traffic of one token.
        experts: Routed experts on this GPU; 0 for a dense model.
        expert_share: Chance that a token uses a given expert: top-k / experts.
        expert_read_s: Reading one of them in every MoE layer.
        expert_token_s: Computing this GPU's share of one token's top-k experts.
        expert_activation_token_s: Gathering and scattering that share.
        expert_replicas: Data-parallel replicas whose tokens share the experts.
        kv_read_s: Reading one cached token in the layers that see everything.
        windowed_kv_read_s: Reading one cached token in the windowed layers.
        decode_pair_s: Attention arithmetic of a decode per key, in full layers.
        windowed_decode_pair_s: The same in windowed layers.
        prefill_token_s: Queries in and outputs out of prefill attention, per token.
        prefill_pair_s: Attention arithmetic of a prefill per pair, in full layers.
        windowed_prefill_pair_s: The same in windowed layers.
        all_reduces: All-reduces of a step; 0 on one GPU.
        all_reduce_token_bytes: Message of one of them, per token.
        all_reduce_token_s: Moving one token's all-reduces over the GPU links.
        exchange_token_s: Moving one token to its experts and back between GPUs.
        pipeline_token_s: Handing one token from stage to stage.
        offload_s: Reading the weights that lie in host memory over PCIe.
    """

    layers: Float[np.ndarray, "*n"]
    moe_layers: Float[np.ndarray, "*n"]
    quantized_layers: Float[np.ndarray, "*n"]
    parallel_layers: Float[np.ndarray, "*n"]
    graph_tokens: Float[np.ndarray, "*n"]
    gemm_weights_s: Float[np.ndarray, "*n"]
    gemm_token_s: Float[np.ndarray, "*n"]
    head_sequence_s: Float[np.ndarray, "*n"]
    sampled_request_s: Float[np.ndarray, "*n"]
    activation_token_s: Float[np.ndarray, "*n"]
    experts: Float[np.ndarray, "*n"]
    expert_share: Float[np.ndarray, "*n"]
    expert_read_s: Float[np.ndarray, "*n"]
    expert_token_s: Float[np.ndarray, "*n"]
    expert_activation_token_s: Float[np.ndarray, "*n"]
    expert_replicas: Float[np.ndarray, "*n"]
    kv_read_s: Float[np.ndarray, "*n"]
    windowed_kv_read_s: Float[np.ndarray, "*n"]
    decode_pair_s: Float[np.ndarray, "*n"]
    windowed_decode_pair_s: Float[np.ndarray, "*n"]
    prefill_token_s: Float[np.ndarray, "*n"]
    prefill_pair_s: Float[np.ndarray, "*n"]
    windowed_prefill_pair_s: Float[np.ndarray, "*n"]
    all_reduces: Float[np.ndarray, "*n"]
    all_reduce_token_bytes: Float[np.ndarray, "*n"]
    all_reduce_token_s: Float[np.ndarray, "*n"]
    exchange_token_s: Float[np.ndarray, "*n"]
    pipeline_token_s: Float[np.ndarray, "*n"]
    offload_s: Float[np.ndarray, "*n"]

    def reshape(self, *shape: int) -> StepCosts:
        """The same costs with every field reshaped."""
        return StepCosts(*(getattr(self, f.name).reshape(shape) for f in fields(self)))

    def take(self, index) -> StepCosts:
        """The costs of the deployments at ``index``; a whole number keeps one of them."""
        return StepCosts(*(np.atleast_1d(getattr(self, f.name)[index]) for f in fields(self)))


COST_NAMES: tuple[str, ...] = tuple(f.name for f in fields(StepCosts))


def step_costs(deployments: Sequence[Deployment]) -> StepCosts:
    """The costs of ``n`` deployments, fields of shape ``[n]``."""
    rows = np.array([_cost_row(d) for d in deployments], dtype=np.float64)
    return StepCosts(*rows.reshape(-1, len(COST_NAMES)).T)


def _cost_row(deployment: Deployment) -> tuple[float, ...]:
    serving = deployment.serving
    return _cached_cost_row(
        deployment.model,
        deployment.gpu,
        serving.tensor_parallel_size,
        serving.data_parallel_size,
        serving.pipeline_parallel_size,
        serving.enable_expert_parallel,
        serving.graph_tokens,
        serving.cpu_offload_gb,
        deployment.kv_cache_precision.bytes_per_weight,
        logit_bytes(deployment.sampling),
    )


@lru_cache(maxsize=65536)
def _cached_cost_row(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int,
    dp: int,
    pp: int,
    expert_parallel: bool,
    graph_tokens: int,
    offload_gb: float,
    kv_bytes: float,
    sampled_bytes: float,
) -> tuple[float, ...]:
    bandwidth, link = gpu.memory_bandwidth_bytes_per_s, gpu.link_bandwidth_bytes_per_s
    token_bytes = model.hidden_size * ACTIVATION_BYTES
    dense, attention = _dense_work(model, tp), _attention_work(model, tp)
    bf16 = gpu.peak_flop_per_s["bf16"]
    layers = float(model.layers)
    experts = _expert_costs(model, gpu, tp * dp, expert_parallel, float(dp))
    weights_s = dense.weight_bytes / bandwidth
    # vLLM offloads parameters until the flag or the model is used up; the flag counts GiB per GPU
    # (vllm/config/cache.py: cpu_offload_gb), and a GPU of a pipeline holds its stage alone.
    held_bytes = (weights_s + experts["experts"] * experts["expert_read_s"]) * bandwidth / pp
    values = {
        "layers": layers,
        "moe_layers": float(model.moe_layers),
        "quantized_layers": layers * dense.quantized,
        "parallel_layers": layers * (tp > 1),
        "graph_tokens": float(graph_tokens),
        "gemm_weights_s": weights_s,
        "gemm_token_s": sum(flop / gpu.matmul_flop_per_s(w) for w, flop in dense.token_flop),
        "head_sequence_s": sum(flop / gpu.matmul_flop_per_s(w) for w, flop in dense.head_flop),
        # Every rank of a tensor-parallel group samples from the gathered logits.
        "sampled_request_s": model.vocab_size * sampled_bytes / bandwidth,
        "activation_token_s": layers * ACTIVATION_PASSES * token_bytes / bandwidth,
        **experts,
        "kv_read_s": attention.full.kv_width * kv_bytes / bandwidth,
        "windowed_kv_read_s": attention.windowed.kv_width * kv_bytes / bandwidth,
        "decode_pair_s": attention.full.decode_flop / bf16,
        "windowed_decode_pair_s": attention.windowed.decode_flop / bf16,
        "prefill_token_s": attention.prefill_token_bytes / bandwidth,
        "prefill_pair_s": attention.full.prefill_flop / bf16,
        "windowed_prefill_pair_s": attention.windowed.prefill_flop / bf16,
        # A ring moves 2 (p - 1) / p of the message over each link (Patarasuk and Yuan 2009).
        "all_reduces": attention.all_reduces * (tp > 1.0),
        "all_reduce_token_bytes": token_bytes,
        "all_reduce_token_s": attention.all_reduces * token_bytes * 2 * (tp - 1) / tp / link,
        "exchange_token_s": _exchange_token_s(
            model, tp * dp, expert_parallel, dp, token_bytes, link
        ),
        "pipeline_token_s": (pp - 1) * token_bytes / link,
        "offload_s": min(offload_gb * GIB, held_bytes) / gpu.pcie_bandwidth_bytes_per_s,
    }
    return tuple(float(values[name]) for name in COST_NAMES)


@dataclass(frozen=True)
class _DenseWork:
    """What no GPU changes of all multiplications but the routed experts'."""

    weight_bytes: float
    token_flop: tuple[tuple[Precision, float], ...]
    head_flop: tuple[tuple[Precision, float], ...]
    quantized: bool


@lru_cache(maxsize=16384)
def _dense_work(model: ModelSpec, tp: int) -> _DenseWork:
    dense = dense_matmuls(model, tp)
    return _DenseWork(
        sum(m.weight_bytes for m in dense),
        _flop_by_format([m for m in dense if not m.per_sequence]),
        _flop_by_format([m for m in dense if m.per_sequence]),
        any(m.weights.dynamic_activations for m in dense),
    )


def _flop_by_format(matmuls: Sequence[MatMul]) -> tuple[tuple[Precision, float], ...]:
    """FLOP per row of each number format, whose rate only a GPU knows."""
    flop: dict[Precision, float] = {}
    for matmul in matmuls:
        flop[matmul.weights] = flop.get(matmul.weights, 0.0) + matmul.flop_per_row
    return tuple(flop.items())


@dataclass(frozen=True)
class _PairWork:
    """Cached elements per token, and FLOP per decode key and per prefill pair, over layers."""

    kv_width: float = 0.0
    decode_flop: float = 0.0
    prefill_flop: float = 0.0

    def __add__(self, other: _PairWork) -> _PairWork:
        return _PairWork(
            self.kv_width + other.kv_width,
            self.decode_flop + other.decode_flop,
            self.prefill_flop + other.prefill_flop,
        )


@dataclass(frozen=True)
class _AttentionWork:
    """What no GPU changes of attention and of the all-reduces around it."""

    full: _PairWork
    windowed: _PairWork
    prefill_token_bytes: float
    all_reduces: float


@lru_cache(maxsize=16384)
def _attention_work(model: ModelSpec, tp: int) -> _AttentionWork:
    full, windowed = _PairWork(), _PairWork()
    for group in model.layer_groups:
        if group.attention.window_tokens is None:
            full += _pair_work(group, tp)
        else:
            windowed += _pair_work(group, tp)
    return _AttentionWork(
        full,
        windowed,
        float(sum(_prefill_token_bytes(g, tp) for g in model.layer_groups)),
        sum(_all_reduces(g) * g.count for g in model.layer_groups) + 1.0,
    )


def _pair_work(group: LayerGroup, tp: int) -> _PairWork:
    """Of the layers of one shape.

    Scores and weighted values take 2 FLOP per head and element each. MLA decodes in the latent
    space: its keys are kv_lora_rank + rope wide and its values kv_lora_rank, for every head.
    """
    attention, heads = group.attention, group.attention.heads // tp
    if isinstance(attention, LatentAttentionSpec):
        kv_width: float = attention.kv_width
        decode_width = attention.kv_width + attention.kv_lora_rank
        prefill_width = attention.head_dim + attention.v_head_dim
    else:
        kv_width = 2 * max(attention.kv_heads / tp, 1) * attention.head_dim
        decode_width = prefill_width = 2 * attention.head_dim
    flop_per_width = 2.0 * heads * group.count
    return _PairWork(
        group.count * kv_width, flop_per_width * decode_width, flop_per_width * prefill_width
    )


def _prefill_token_bytes(group: LayerGroup, tp: int) -> float:
    """Queries read and outputs written over the group's layers, in the activations' format."""
    heads = group.attention.heads // tp
    return group.count * 2 * heads * group.attention.head_dim * ACTIVATION_BYTES


def _all_reduces(group: LayerGroup) -> int:
    """Two per layer (after attention and after the FFN); one more for a full-width q/k norm."""
    attention = group.attention
    return 2 + (isinstance(attention, AttentionSpec) and attention.qk_norm_full_width)


def _expert_costs(
    model: ModelSpec, gpu: GpuSpec, ranks: int, expert_parallel: bool, replicas: float
) -> dict[str, float]:
    names = (
        "experts",
        "expert_share",
        "expert_read_s",
        "expert_token_s",
        "expert_activation_token_s",
    )
    if model.moe is None:
        return dict.fromkeys(names, 0.0) | {"expert_replicas": replicas}
    moe, weights = model.moe, model.precisions.experts
    spread, cut = (ranks, 1) if expert_parallel else (1, ranks)
    per_expert = expert_weights(moe, model.hidden_size, cut) * model.moe_layers
    # Copies of a token per GPU: top-k expert slices, or the share of them that live here.
    copies = moe.top_k / spread
    passes = copies * (2 * model.hidden_size + 3 * moe.width / cut) * model.moe_layers
    values = (
        moe.experts / spread,
        moe.top_k / moe.experts,
        per_expert * weights.bytes_per_weight / gpu.memory_bandwidth_bytes_per_s,
        2.0 * per_expert * copies / gpu.matmul_flop_per_s(weights),
        passes * ACTIVATION_BYTES / gpu.memory_bandwidth_bytes_per_s,
    )
    return dict(zip(names, values, strict=True)) | {"expert_replicas": replicas}


def _exchange_token_s(
    model: ModelSpec, ranks: int, expert_parallel: bool, dp: int, token_bytes: float, link: float
) -> float:
    """Dispatch and combine between data-parallel ranks.

    Without data parallelism every rank of the group holds every token, and the all-reduce after
    the experts is all there is (vLLM's FusedMoE without all-to-all kernels).
    """
    if model.moe is None or dp == 1:
        return 0.0
    remote = (ranks - 1) / ranks
    copies = min(model.moe.top_k, ranks) if expert_parallel else ranks
    return model.moe_layers * 2 * copies * remote * token_bytes / link
