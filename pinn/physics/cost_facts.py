"""Sizes, counts and rates derived from a deployment's model, GPU and flags for cost formulas."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float

from pinn.physics import layer_work
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import ModelSpec, MoeFfnSpec, Sampling
from pinn.specs.precision import FP32_PRODUCT, Precision, precision

# Facts about a model, a GPU and engine flags, from which a deployment's costs are computed.

#: Array with one number for each of ``n`` deployments.
Values: TypeAlias = Float[np.ndarray, "*n"]


class Flags(NamedTuple):
    """Engine settings on which costs depend, as a tuple because tuples are fast to hash."""

    tensor_parallel_size: int
    data_parallel_size: int
    pipeline_parallel_size: int
    expert_parallel_size: int
    graph_tokens: int
    graph_requests: int
    fused_all_reduce: bool
    fused_all_reduce_bytes: float
    fused_quantization: bool
    all_reduce_latency: float
    compiled: bool
    tf32: bool
    gathers: bool
    waits_for_host: bool
    decode_attention_time: float
    cpu_offload_gb: float
    kv_element_bytes: float
    logit_bytes: float
    sampler_launch_s: float
    sampler_logit_s: float


@dataclass(frozen=True)
class CostFacts:
    """Sizes, counts and rates of ``n`` deployments for the formulas of ``StepCosts``, each ``[n]``.

    Attributes:
        layers: Number of layers; a layer that lacks attention (or a recurrent part) or a
            feed-forward part counts as half.
        moe_layers: Number of layers with routed experts.
        shared_layers: Number of layers with routed and shared experts.
        latent_layers: Number of layers with latent attention.
        state_layers: Number of layers with a recurrent state.
        quantized: 1 if activations are quantized in every step, else 0.
        fp32_products: Number of fp32 matrix products in all layers that run outside the tensor
            cores.
        hidden_size: Width of the residual stream.
        vocab_size: Number of logits per sequence.
        logit_bytes: Bytes per logit whose transfer at peak bandwidth would take as long as the
            sampler.
        sampler_launch_s: Sampling time in seconds that does not depend on the batch.
        sampler_logit_s: Sampling time in seconds per logit of the vocabulary that does not depend
            on the batch.
        tensor_parallel_size: Number of GPUs that share an attention layer.
        data_parallel_size: Number of data-parallel ranks.
        pipeline_parallel_size: Number of pipeline stages.
        graph_tokens: Tokens of the largest captured CUDA graph.
        graph_requests: Number of decodes of the largest graph without prompts; 0 for no limit.
        fused_all_reduce: 1 if norms are part of the all-reduce kernel, else 0.
        fused_all_reduce_bytes: Maximum size in bytes of a message whose all-reduce is fused with a
            norm.
        fused_quantization: 1 if quantization is also part of the all-reduce kernel, else 0.
        faster_all_reduce: Share of the all-reduce time of a small message that the engine's kernel
            saves compared with vLLM's.
        compiled: 1 if modules are compiled, else 0.
        waits_for_host: 1 if the GPU waits for the host's work between two steps, else 0.
        decode_attention_time: Ratio of the engine's to vLLM's attention kernel time; 1 for latent
            attention, whose kernels were not measured separately.
        cpu_offload_gb: GiB of weights per GPU that are offloaded to the host.
        memory_bytes_per_s: Peak bandwidth of the GPU's memory.
        link_bytes_per_s: Bandwidth between GPUs in one direction.
        pcie_bytes_per_s: Bandwidth to host memory in one direction.
        bf16_flop_per_s: Peak FLOP/s in bf16.
        fp8_flop_per_s: Peak fp8 FLOP/s, at which indexers compute scores.
        dense_weight_bytes: Bytes of all weights on one GPU except routed experts.
        small_kernel_elements: 16-bit elements that norms and other small kernels read or write per
            token.
        dense_token_s: Time in seconds of arithmetic per token with the dense weights, without the
            output head.
        head_sequence_s: Time in seconds of arithmetic per sequence in the output head.
        kv_element_bytes: Bytes of one element of the KV cache.
        kv_width: Cached elements per token, summed over layers without a limit on the number of
            keys.
        windowed_kv_width: Cached elements per token, summed over layers with a limited number of
            keys.
        state_bytes: Bytes of a request's recurrent states, which every step reads and writes once.
        index_key_bytes: Bytes that the indexers read per cached token: its key and its score.
        index_pair_bytes: Bytes of scores written and read per (query, key) pair of a prefill.
        index_flop: FLOP of the indexers per (query, key) pair.
        decode_flop: Attention FLOP of a decode per key, in layers without a limit on keys.
        windowed_decode_flop: Attention FLOP of a decode per key, in layers with such a limit.
        prefill_flop: Attention FLOP of a prefill per (query, key) pair, in layers without a limit.
        windowed_prefill_flop: Attention FLOP of a prefill per pair, in layers with such a limit.
        prefill_key_s: Time in seconds of one thread block of prefill attention to pass over one key
            in all layers without a limit on keys; 0 if kernels split keys over thread blocks.
        prefill_token_bytes: Bytes of queries read and outputs written per token of a prefill.
        short_all_reduces: Number of all-reduces of a few values per token in a step under tensor
            parallelism.
        routed_experts: Number of routed experts of the model; 0 for a dense model.
        top_k: Number of routed experts that a token uses.
        expert_width: Width of one expert's feed-forward layer.
        expert_weights: Number of weights of one expert's slice on one GPU, over all layers.
        expert_weight_bytes: Bytes per weight of an expert.
        expert_flop_per_s: Peak FLOP/s in the experts' number format.
        expert_spread: Number of GPUs over which whole experts are distributed.
        expert_cut: Number of GPUs over which each expert is split.
        exchange_copies: Number of copies of a token that are sent between data-parallel ranks; 0
            without an exchange.
    """

    layers: Values
    moe_layers: Values
    shared_layers: Values
    latent_layers: Values
    state_layers: Values
    quantized: Values
    fp32_products: Values
    hidden_size: Values
    vocab_size: Values
    logit_bytes: Values
    sampler_launch_s: Values
    sampler_logit_s: Values
    tensor_parallel_size: Values
    data_parallel_size: Values
    pipeline_parallel_size: Values
    graph_tokens: Values
    graph_requests: Values
    fused_all_reduce: Values
    fused_all_reduce_bytes: Values
    fused_quantization: Values
    faster_all_reduce: Values
    compiled: Values
    waits_for_host: Values
    decode_attention_time: Values
    cpu_offload_gb: Values
    memory_bytes_per_s: Values
    link_bytes_per_s: Values
    pcie_bytes_per_s: Values
    bf16_flop_per_s: Values
    fp8_flop_per_s: Values
    dense_weight_bytes: Values
    small_kernel_elements: Values
    dense_token_s: Values
    head_sequence_s: Values
    kv_element_bytes: Values
    kv_width: Values
    windowed_kv_width: Values
    state_bytes: Values
    index_key_bytes: Values
    index_pair_bytes: Values
    index_flop: Values
    decode_flop: Values
    windowed_decode_flop: Values
    prefill_flop: Values
    windowed_prefill_flop: Values
    prefill_key_s: Values
    prefill_token_bytes: Values
    short_all_reduces: Values
    routed_experts: Values
    top_k: Values
    expert_width: Values
    expert_weights: Values
    expert_weight_bytes: Values
    expert_flop_per_s: Values
    expert_spread: Values
    expert_cut: Values
    exchange_copies: Values


_NAMES = tuple(f.name for f in fields(CostFacts))

#: Number of queries that one thread block of prefill attention processes together, from compute
#: capability on; 0 if kernels split the keys of a chunk over thread blocks. FlashAttention 3 splits
#: them on Hopper (vLLM 0.19.0 v1/attention/backends/flash_attn.py: max_num_splits = 0, its
#: heuristics); FlashAttention 2 does not (vllm_flash_attn/flash_attn_interface.py refuses more than
#: one split). The numbers are those of 64, 128 and 256 for which ``block_key_s`` agrees best with
#: one-head prompts in the kernel tables, within 25 % (``tests/physics/test_key_passes.py``).
#: Older GPUs were not measured; they have the number of the next newer ones.
_BLOCK_QUERIES = ((12.0, 64), (10.0, 256), (9.0, 0), (8.6, 64), (0.0, 128))
#: Time per key of a block while most multiprocessors are idle, relative to its time in a full GPU.
#: The median over kernel tables of GPUs that do not split keys: prompts of 8,192 tokens with one
#: head take 0.67 (A100) to 0.98 (RTX PRO 6000) of the time expected from the FLOP/s that prompts of
#: at least 4,096 tokens with at least 64 heads reach.
_ALONE = 0.8


def block_key_s(gpu: GpuSpec, head_flop: float) -> float:
    """Return the time in seconds for one thread block of prefill attention to pass over one key.

    The block uses one multiprocessor.

    Args:
        gpu: GPU, whose peak FLOP/s are divided by its number of multiprocessors.
        head_flop: FLOP per (query, key) pair of one head, summed over layers.
    """
    capability = gpu.compute_capability
    queries = next(number for since, number in _BLOCK_QUERIES if capability >= since)
    return _ALONE * queries * head_flop * gpu.sm_count / gpu.peak_flop_per_s["bf16"]


@lru_cache(maxsize=65536)
def fact_row(model: ModelSpec, gpu: GpuSpec, flags: Flags) -> tuple[float, ...]:
    """Return the values of all fields of ``CostFacts`` for one deployment, in field order.

    Raises:
        TypeError: If a computed number is not a field of ``CostFacts``.
    """
    tp = flags.tensor_parallel_size
    dense, model_has = dense_work(model, tp), model_facts(model, tp)
    rate = partial(gpu.matmul_flop_per_s, tf32=flags.tf32)
    as_they_are = {name: float(v) for name, v in flags._asdict().items() if name in _NAMES}
    found = {
        **model_has,
        **as_they_are,
        "fused_all_reduce": float(flags.fused_all_reduce and tp > 1),
        "fused_quantization": float(flags.fused_quantization and tp > 1),
        "faster_all_reduce": 1.0 - flags.all_reduce_latency,
        "decode_attention_time": 1.0 if model_has["latent_layers"] else flags.decode_attention_time,
        "memory_bytes_per_s": gpu.memory_bandwidth_bytes_per_s,
        "link_bytes_per_s": gpu.link_bandwidth_bytes_per_s,
        "pcie_bytes_per_s": gpu.pcie_bandwidth_bytes_per_s,
        "bf16_flop_per_s": gpu.peak_flop_per_s["bf16"],
        "fp8_flop_per_s": gpu.matmul_flop_per_s(precision("fp8")),
        "dense_token_s": sum((flop / rate(weights) for weights, flop in dense.token_flop), 0.0),
        "head_sequence_s": sum((flop / rate(weights) for weights, flop in dense.head_flop), 0.0),
        "fp32_products": 0.0 if flags.tf32 else dense.fp32_products,
        "prefill_key_s": block_key_s(gpu, layer_work.head_pair_flop(model)),
    } | _expert_facts(model, gpu, flags)
    if len(found) != len(_NAMES):
        extra = ", ".join(sorted(found.keys() - set(_NAMES)))
        raise TypeError(f"the class CostFacts has no fields {extra}: declare them")
    return tuple(map(found.__getitem__, _NAMES))


@lru_cache(maxsize=16384)
def model_facts(model: ModelSpec, tp: int) -> dict[str, float]:
    """Return a model's sizes and work on one of ``tp`` GPUs, by name of the ``CostFacts`` field."""
    dense = dense_work(model, tp)
    found = layer_work.attention_facts(model, tp) | {
        "moe_layers": float(model.moe_layers),
        "shared_layers": float(model.moe_layers if model.moe and model.moe.shared_width else 0),
        "quantized": float(dense.quantized),
        "hidden_size": float(model.hidden_size),
        "vocab_size": float(model.vocab_size),
        "dense_weight_bytes": dense.weight_bytes,
        "small_kernel_elements": layer_work.small_kernel_elements(model, tp),
    }
    return {name: found[name] for name in _NAMES if name in found}


_NO_EXPERTS = MoeFfnSpec(0, 0, 0)


def _expert_facts(model: ModelSpec, gpu: GpuSpec, flags: Flags) -> dict[str, float]:
    """Return a model's values of the ``CostFacts`` fields for routed experts, by name.

    A dense model has 0 experts of width 0.
    """
    moe, ranks = model.moe or _NO_EXPERTS, flags.tensor_parallel_size * flags.data_parallel_size
    spread = flags.expert_parallel_size
    cut = ranks // spread
    weights, held = model.precisions.experts, layer_work.expert_weights(moe, model.hidden_size, cut)
    # Without data parallelism every rank has every token, and the all-reduce after the experts is
    # the only exchange (vLLM's FusedMoE without all-to-all kernels). With data parallelism, each
    # token goes to every rank if tokens are all-gathered or experts are split over GPUs; otherwise
    # only to the ranks of its top-k experts.
    copies = min(moe.top_k, ranks) if cut == 1 and not flags.gathers else ranks
    return {
        "routed_experts": float(moe.experts),
        "top_k": float(moe.top_k),
        "expert_width": float(moe.width),
        "expert_weights": float(held * model.moe_layers),
        "expert_weight_bytes": weights.bytes_per_weight,
        "expert_flop_per_s": gpu.matmul_flop_per_s(weights),
        "expert_spread": float(spread),
        "expert_cut": float(cut),
        "exchange_copies": float(copies) if flags.data_parallel_size > 1 else 0.0,
    }


@dataclass(frozen=True)
class DenseWork:
    """Weight bytes and FLOP of all matrix products of a model except those of routed experts.

    Attributes:
        weight_bytes: Bytes of the weights.
        token_flop: FLOP per token by number format, without the output head.
        head_flop: FLOP per sequence in the output head by number format.
        quantized: Whether activations are quantized in every step.
        fp32_products: Number of products in fp32 in all layers.
    """

    weight_bytes: float
    token_flop: tuple[tuple[Precision, float], ...]
    head_flop: tuple[tuple[Precision, float], ...]
    quantized: bool
    fp32_products: float


@lru_cache(maxsize=16384)
def dense_work(model: ModelSpec, tp: int) -> DenseWork:
    """Return the weight bytes and FLOP on one of ``tp`` GPUs, excluding routed experts."""
    dense = layer_work.dense_matmuls(model, tp)
    return DenseWork(
        sum(m.weight_bytes for m in dense),
        _flop_by_format([m for m in dense if not m.per_sequence]),
        _flop_by_format([m for m in dense if m.per_sequence]),
        any(m.weights.dynamic_activations for m in dense),
        float(sum(m.count for m in dense if m.weights == FP32_PRODUCT)),
    )


def _flop_by_format(matmuls: Sequence[layer_work.MatMul]) -> tuple[tuple[Precision, float], ...]:
    """Return the FLOP of matrix products per row of activations, summed by number format."""
    flop: dict[Precision, float] = {}
    for matmul in matmuls:
        flop[matmul.weights] = flop.get(matmul.weights, 0.0) + matmul.flop_per_row
    return tuple(flop.items())


# Cost of sampling: bytes that the kernels of vLLM's sampler read and write, and their measured
# times.
#
# vLLM 0.15.1 samples with PyTorch's operators, one kernel each. Every kernel reads and writes all
# logits of all requests of the step. FlashInfer's sampler is used only on request
# (``VLLM_USE_FLASHINFER_SAMPLER``). A kernel's bytes are those of its operands and results per
# logit: 4 in fp32, 8 in int64, 1 for a mask. If a softmax reads a row twice, only one read is from
# memory.
#
# Two quantities were measured on an H100 (``python scripts/time_sampler.py``,
# ``data/kernels/sampler_h100_sxm.csv``): the kernels' slowdown relative to the peak bandwidth, and
# their time that does not depend on the batch. Both are fitted with non-negative terms (``python
# scripts/fit_sampler.py``, mean error 11 % over 240 points). Other GPUs are assumed to have the
# same slowdown. Host work that overlaps with a running step, such as preparing the ids of all
# output tokens for penalties, is not counted.

#: Bytes per logit of converting bf16 logits to fp32 (``vllm/v1/sample/sampler.py: forward``).
_COPY = 2 + 4
#: Bytes per logit of finding the maximum (``greedy_sample``, and the end of ``random_sample``).
_LARGEST = 4
_SOFTMAX = 4 + 4
#: Bytes per logit of dividing by the temperature, computing the softmax, generating exponential
#: noise and dividing by the noise (``random_sample``).
_DRAW = (4 + 4) + _SOFTMAX + 4 + (4 + 4 + 4)
#: Bytes per logit of computing a mask by comparison and applying it with ``masked_fill_``.
_MASK = (4 + 1) + (4 + 1 + 4)
#: Bytes per logit of ``apply_top_k_only``. ``topk`` reads all fp32 logits once per 8 bits of their
#: sort key, and once more to gather the largest; then a mask is computed and applied.
_COUNT = 5 * 4 + _MASK
#: Bytes per logit of a radix sort of fp32 keys with (row, index) pairs of 8 bytes. The sort numbers
#: the pairs, computes a histogram and makes four passes over keys and pairs. Another histogram and
#: one pass sort the pairs by row. Then values and int64 indices are written. Source: PyTorch,
#: ``aten/src/ATen/native/cuda/SortStable.cu: segmented_sort_pairs_by_full_sort``, for fewer than
#: 128 rows, with CUB's radix sort of 8 bits per pass.
_SORT = 8 + 4 + 4 * 2 * (4 + 8) + (8 + 2 * 8) + (8 + 4 + 4 + 8)
#: Bytes per logit of ``apply_top_k_top_p``: sort, softmax, cumulative sum, mask, and a scatter of
#: the sorted logits back to their original positions.
_MASS = _SORT + _SOFTMAX + (4 + 4) + _MASK + (4 + 4) + (4 + 8 + 4)
#: Bytes per logit of ``MinPLogitsProcessor``: softmax, maximum probability, mask.
_RATIO = _SOFTMAX + 4 + _MASK
#: Bytes per logit of ``apply_penalties``: int64 counts of the prompt and of the output are cleared
#: and compared. The repetition kernel reads both masks and few logits. A request for any penalty
#: computes the presence, frequency and repetition penalties.
_PENALTIES = 2 * (8 + 8 + 1) + (1 + 1) + (8 + 4 + 4 + 4 + 4) + (1 + 4 + 4 + 4 + 4)


@dataclass(frozen=True)
class SamplerKernels:
    """Bytes and times of the sampler kernels that one sampling setting, such as top-p, needs.

    Attributes:
        logit_bytes: Bytes that the kernels read and write per logit.
        slowdown: Ratio of the kernels' time to the transfer time of these bytes at peak bandwidth.
        launch_s: Time per step in seconds that depends on neither the batch nor the vocabulary.
        logit_s: Time per step in seconds per logit of a row. One thread block processes a row; rows
            are processed in parallel.
    """

    logit_bytes: float
    slowdown: float
    launch_s: float
    logit_s: float


#: Bytes of the sampler's kernels, and their times as fitted by ``scripts/fit_sampler.py`` (two
#: digits): first for greedy sampling, then for the additional kernels of random sampling, top-p,
#: top-k with or without top-p, min-p, and penalties.
TAKEN = SamplerKernels(_COPY + _LARGEST, 1.4, 1.1e-5, 2.5e-11)
DRAWN = SamplerKernels(_DRAW, 1.2, 1.1e-5, 2.7e-10)
MASS = SamplerKernels(_MASS, 2.1, 7.5e-5, 7.8e-10)
COUNT_BESIDE_MASS = SamplerKernels(_MASK, 0.81, 1.2e-5, 1.7e-10)
COUNT = SamplerKernels(_COUNT, 1.8, 5.3e-5, 2.6e-10)
RATIO = SamplerKernels(_RATIO, 1.2, 7.9e-6, 4.7e-10)
PENALIZED = SamplerKernels(_PENALTIES, 1.3, 2.5e-5, 0.0)


def sampler_kernels(sampling: Sampling) -> tuple[SamplerKernels, ...]:
    """Return the bytes and fitted times of each group of sampler kernels in use."""
    is_drawn, mass = not sampling.is_greedy, sampling.top_p < 1
    kernels = (
        (TAKEN, True),
        (PENALIZED, sampling.repetition_penalty != 1),
        (DRAWN, is_drawn),
        (RATIO, is_drawn and sampling.min_p > 0),
        (MASS, is_drawn and mass),
        (COUNT_BESIDE_MASS if mass else COUNT, is_drawn and sampling.top_k > 0),
    )
    return tuple(each for each, is_asked in kernels if is_asked)


class SamplerTime(NamedTuple):
    """Coefficients of the sampler's time per step.

    The time in seconds is launch_s + V x (logit_s + requests x timed_bytes / memory bandwidth),
    where V is the number of tokens in the vocabulary.

    Attributes:
        timed_bytes: Bytes per logit whose transfer at peak bandwidth would take as long as the
            sampler.
        launch_s: Time per step in seconds that depends on neither the batch nor the vocabulary.
        logit_s: Time per step in seconds per token of the vocabulary, for any number of requests.
    """

    timed_bytes: float
    launch_s: float
    logit_s: float


#: Sampler time of a model that generates no tokens.
NO_SAMPLER = SamplerTime(0.0, 0.0, 0.0)


@lru_cache(maxsize=1024)
def sampler_time(sampling: Sampling) -> SamplerTime:
    """Return the coefficients of the total time of all sampler kernels in use."""
    asked = sampler_kernels(sampling)
    return SamplerTime(
        sum(kernels.logit_bytes * kernels.slowdown for kernels in asked),
        sum(kernels.launch_s for kernels in asked),
        sum(kernels.logit_s for kernels in asked),
    )
