"""Features of a deployment: the physical inputs of the network.

Names of models and GPUs are not inputs. Shapes are per GPU, because kernels depend only on these.
The GPU's memory bandwidth, FLOP/s and link bandwidth are separate inputs (``RATES``). The network
is monotone in these rates, so that a faster GPU never has larger time coefficients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.engines.kernel_choice import CUTLASS, TRITON
from pinn.physics.costs import ONE_SHOT_BYTES
from pinn.physics.layer_work import MatMul, dense_matmuls
from pinn.specs.gpu import GpuSpec
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import (
    Attention,
    CompressedAttentionSpec,
    LatentAttentionSpec,
    Mixer,
    ModelSpec,
)
from pinn.specs.precision import Precision

#: Names of the GPU's rates. The network's inputs are their logarithms relative to an H100 SXM
#: (datasheet DS-10313-001).
RATES: tuple[str, ...] = ("memory_bandwidth", "peak_compute", "link_bandwidth")
REFERENCE_RATES = (3.35e12, 989e12, 450e9)

#: Smallest side of a tensor-core kernel's tile, in elements. The feature of a width is log2(1 +
#: width / tile).
_TILE = 64.0


def _width(elements: float) -> float:
    return float(np.log2(1 + elements / _TILE))


def _format(weights: Precision, gpu: GpuSpec) -> tuple[float, float]:
    """Return log2 of bytes per weight, and whether the GPU has such tensor-core math (1 or 0)."""
    native = weights.math != "bf16" and gpu.peak_flop_per_s.get(weights.math, 0) > 0
    return float(np.log2(weights.bytes_per_weight)), float(native)


def _largest(matmuls: Sequence[MatMul], names: tuple[str, ...], side: str) -> float:
    return max((getattr(m, side) for m in matmuls if m.name in names), default=0)


def _main_mixer(mixing: Sequence[tuple[int, Mixer]]) -> Mixer:
    """Return the attention of most layers or, without attention, the most frequent recurrence.

    Features of a deployment describe only this mixer (attention or recurrent part of a layer). The
    work of all layers is in the step features.

    Args:
        mixing: Mixers, each with the number of layers that have it.
    """
    attention = [pair for pair in mixing if isinstance(pair[1], Attention)]
    return max(attention or mixing, key=lambda pair: pair[0])[1]


def _mixer_shares(model: ModelSpec) -> dict[str, float]:
    """Return the shares of a model's layers by type of attention or recurrent state."""
    found = dict.fromkeys(("attention", "recurrent", "indexed", "compressed"), 0)
    for group in model.layer_groups:
        mixer, is_keyed = group.attention, isinstance(group.attention, Attention)
        indexer = getattr(mixer, "indexer", None)
        found["attention"] += group.count * is_keyed
        found["recurrent"] += group.count * isinstance(mixer, LinearMixerSpec)
        found["indexed"] += group.count * bool(indexer and indexer.heads)
        found["compressed"] += group.count * isinstance(mixer, CompressedAttentionSpec)
    return {f"{name}_share": layers / model.layers for name, layers in found.items()}


@lru_cache(maxsize=16384)
def model_descriptors(model: ModelSpec, tp: int, ranks: int, spread: int) -> dict[str, float]:
    """Return the features that describe the shapes of a model's layers on one GPU.

    Args:
        model: Model that is split over GPUs.
        tp: Tensor-parallel size.
        ranks: Number of GPUs of a pipeline stage.
        spread: Expert-parallel size.
    """
    mixing = [(g.count, g.attention) for g in model.layer_groups if g.attention is not None]
    attention = _main_mixer(mixing)
    matmuls = dense_matmuls(model, tp)
    heads = attention.heads / tp
    kv_heads = max(attention.kv_heads / tp, 1)
    windows = [(count, mixer.window_tokens) for count, mixer in mixing if mixer.window_tokens]
    moe, moe_layers = model.moe, model.moe_layers
    cut = ranks // spread
    ffn = ("gate_up_proj", "down_proj")
    return {
        "layers": np.log2(model.layers),
        "hidden_size": _width(model.hidden_size),
        "qkv_width": _width(_largest(matmuls, ("qkv_proj", "q_b_proj", "q_proj"), "n")),
        "output_width": _width(_largest(matmuls, ("o_proj",), "k")),
        "dense_ffn_width": _width(_largest(matmuls, ffn, "n")),
        "shared_ffn_width": _width(_largest(matmuls, ("shared_gate_up_proj",), "n")),
        "head_width": _width(model.vocab_size / tp),
        "heads": np.log2(heads),
        "kv_heads": np.log2(kv_heads),
        "head_dim": np.log2(attention.head_dim),
        "latent_attention": float(isinstance(attention, LatentAttentionSpec)),
        "full_width_norm": float(getattr(attention, "qk_norm_full_width", False)),
        "windowed_share": sum(count for count, _ in windows) / model.layers,
        "window_tokens": np.log2(1 + (windows[0][1] if windows else 0) / _TILE),
        "dense_kernels": np.log2(sum(m.count for m in matmuls) / model.layers),
        **_mixer_shares(model),
        "streams": np.log2(1 + model.streams),
        "moe_share": moe_layers / model.layers,
        "local_experts": np.log2(1 + (moe.experts / spread if moe else 0)),
        "top_k": np.log2(1 + (moe.top_k if moe else 0)),
        "expert_share": np.log2(moe.top_k / moe.experts) if moe else 0.0,
        "expert_width": _width(moe.width / cut if moe else 0),
        "expert_parallel": np.log2(spread if moe else 1),
        "tensor_parallel": np.log2(tp),
        "data_parallel": np.log2(ranks / tp),
    }


def _format_descriptors(
    model: ModelSpec, gpu: GpuSpec, kv_bytes: float, of_experts: Precision
) -> dict[str, float]:
    formats = model.precisions
    timed = of_experts.kernels, formats.dense_ffn.kernels
    attention, attention_native = _format(formats.attention, gpu)
    dense, dense_native = _format(formats.dense_ffn, gpu)
    experts, experts_native = _format(of_experts, gpu) if model.moe else (dense, dense_native)
    return {
        "attention_bytes": attention,
        "attention_native": attention_native,
        "dense_bytes": dense,
        "dense_native": dense_native,
        "expert_bytes": experts,
        "expert_native": experts_native,
        "expert_mx_scales": float(model.moe is not None and timed[0].startswith("mx")),
        "block_scales": float(any("block" in name for name in timed)),
        "static_scales": float(formats.dense_ffn.static_activations),
        "kv_bytes": float(np.log2(kv_bytes)),
    }


@lru_cache(maxsize=1024)
def _log_rates(gpu: GpuSpec) -> np.ndarray:
    memory, links = gpu.memory_bandwidth_bytes_per_s, gpu.link_bandwidth_bytes_per_s
    return np.log((memory, gpu.peak_flop_per_s["bf16"], links)) - np.log(REFERENCE_RATES)


#: Tensor-parallel, data-parallel and expert-parallel size of a deployment.
Sizes = tuple[int, int, int]


@lru_cache(maxsize=65536)
def _row(
    model: ModelSpec,
    gpu: GpuSpec,
    sizes: Sizes,
    widths: tuple[float, float],
    kernels: str,
    experts: Precision,
) -> tuple[np.ndarray, np.ndarray]:
    tp, dp, spread = sizes
    kv_bytes, fused_bytes = widths
    values = (
        model_descriptors(model, tp, tp * dp, spread)
        | _format_descriptors(model, gpu, kv_bytes, experts)
        # Other properties of the GPU (its rates are separate inputs), and selected kernels.
        | {
            "sm_count": float(np.log2(gpu.sm_count)),
            "l2_bytes": float(np.log2(gpu.l2_bytes)),
            "compute_capability": gpu.compute_capability,
            "nvlink": float(gpu.has_nvlink),
            "fused_all_reduce": float(np.log2(1 + fused_bytes / ONE_SHOT_BYTES)),
            "expert_cutlass": float(kernels == CUTLASS),
            "expert_triton": float(kernels == TRITON),
        }
    )
    return np.array([values[name] for name in DESCRIPTORS]), _log_rates(gpu)


#: Names of the features of a deployment, without the GPU's rates, in the order of each input row.
DESCRIPTORS: tuple[str, ...] = (
    "layers", "hidden_size", "qkv_width", "output_width", "dense_ffn_width", "shared_ffn_width",
    "head_width", "heads", "kv_heads", "head_dim", "latent_attention", "full_width_norm",
    "windowed_share", "window_tokens", "dense_kernels", "attention_share", "recurrent_share",
    "indexed_share", "compressed_share", "streams", "moe_share", "local_experts", "top_k",
    "expert_share", "expert_width", "expert_parallel", "tensor_parallel", "data_parallel",
    "attention_bytes", "attention_native", "dense_bytes", "dense_native", "expert_bytes",
    "expert_native", "expert_mx_scales", "block_scales", "static_scales", "kv_bytes", "sm_count",
    "l2_bytes", "compute_capability", "nvlink", "fused_all_reduce", "expert_cutlass",
    "expert_triton",
)  # fmt: skip


def featurize(
    deployments: Sequence[Deployment],
) -> tuple[Float[np.ndarray, "n descriptors"], Float[np.ndarray, "n rates"]]:
    """Return the features of ``n`` deployments, which are the network's inputs.

    Returns:
        The features without rates, in the order of ``DESCRIPTORS``, and the log rates relative to
        an H100 SXM, in the order of ``RATES``.
    """
    rows = []
    for d in deployments:
        of = d.recipe
        widths = d.kv_cache_precision.bytes_per_weight, of.fused_all_reduce_bytes
        sizes = of.tensor_parallel_size, of.data_parallel_size, of.expert_parallel_size
        rows.append(_row(d.model, d.gpu, sizes, widths, d.expert_kernels, d.expert_kernel_format))
    free = np.array([values for values, _ in rows])
    rates = np.array([r for _, r in rows])
    return free.reshape(-1, len(DESCRIPTORS)), rates.reshape(-1, len(RATES))


#: Minimum scale of a feature. A smaller scale would magnify a feature that hardly varies in the
#: training data if a new deployment differs in it. The value is an assumption; features are
#: logarithms to base 2 or shares.
MIN_SCALE = 0.25


@dataclass(frozen=True)
class InputScale:
    """Mean, scale and range of the network's training inputs.

    Attributes:
        mean: Mean of each feature.
        scale: Standard deviation of each feature, at least ``MIN_SCALE``.
        low: Minimum of each feature, standardized.
        high: Maximum of each feature, standardized.
        rate_low: Minimum of each log rate.
        rate_high: Maximum of each log rate.
    """

    mean: Float[np.ndarray, " descriptors"]
    scale: Float[np.ndarray, " descriptors"]
    low: Float[np.ndarray, " descriptors"]
    high: Float[np.ndarray, " descriptors"]
    rate_low: Float[np.ndarray, " rates"]
    rate_high: Float[np.ndarray, " rates"]


def fit_scale(
    free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
) -> InputScale:
    """Return mean, scale and range of the features and log rates of the training deployments."""
    mean, scale = free.mean(0), np.maximum(free.std(0), MIN_SCALE)
    standard = (free - mean) / scale
    return InputScale(mean, scale, standard.min(0), standard.max(0), rates.min(0), rates.max(0))
