"""Time of an engine step as the sum of its kernels' times."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Real

from pinn.engines.deployment import Deployment
from pinn.engines.kernel_choice import AUTO, CUTLASS, MARLIN, TRITON
from pinn.engines.recipe import OWN_KERNEL_BYTES
from pinn.kernels.gemm_attention_moe import DecodeAttention, Gemm, Moe, PrefillAttention
from pinn.kernels.hardware import Coded
from pinn.kernels.mixer_operators import INDEXED_SIZES, RECURRENT, RECURRENT_SIZES, SPARSE
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import BatchSums, UniformBatches
from pinn.physics.costs import StepCosts, model_costs, step_costs
from pinn.physics.layer_work import dense_matmuls
from pinn.physics.step_values import decode_attention, prefill_attention
from pinn.specs.gpu import GpuSpec
from pinn.specs.mixers import GATED_DELTA, KDA, MAMBA2, LinearMixerSpec
from pinn.specs.model import (
    Attention,
    AttentionSpec,
    CompressedAttentionSpec,
    LatentAttentionSpec,
    LayerGroup,
    mixer_name,
)
from pinn.specs.precision import ACTIVATION_BYTES, FP32_PRODUCT, precision
from pinn.specs.serving import VLLM, ServingSpec

# Parts of a step: the kernels of each part, their runs per step, and their sizes.

Seconds = Float[np.ndarray, " n"]
#: Time in seconds of each kernel call in each step, ``[calls, steps]``.
Times = Float[np.ndarray, "calls n"]
#: One value per kernel call, as a column that broadcasts against the calls' times.
Column = Real[np.ndarray, "..."]


@dataclass(frozen=True)
class Call:
    """A kernel with given sizes that runs in a deployment's steps.

    Attributes:
        form: Number format; for recurrent layers and sparse attention, the name of the kernel type.
        count: Number of runs per step: one number for all steps, or one per step.
        sizes: Sizes of the kernel, in the order of its surrogate's arguments; each is one number,
            or one per step.
    """

    form: str
    count: float | Seconds
    sizes: tuple[object, ...]


#: Kernel calls of one part of a step.
Calls = Iterator[Call]
#: Sizes of a kernel call, in the order of its surrogate's arguments.
Sizes = tuple[object, ...]


@dataclass(frozen=True)
class Kernels:
    """Kernels of one type in a part of a step, such as decode attention.

    Attributes:
        calls: Function that takes a deployment and its batches and yields the kernel calls of its
            steps.
        seconds: Function that takes surrogates, GPUs, number formats and sizes and returns the time
            of each call in seconds.
        sizes: Names of the first sizes of a call, as in the tables of measured kernels; empty for
            unmeasured kernels.
        operator: Name of the kernel type whose surrogate was fitted to measured kernels; empty for
            none.
    """

    calls: Callable[[Deployment, UniformBatches], Calls]
    seconds: Callable[..., Float[np.ndarray, "..."]]
    sizes: tuple[str, ...] = ()
    operator: str = ""


def call_by_call(seconds: Callable[..., Seconds], gpu: Coded, form: Coded, *sizes: Column) -> Times:
    """Return the time of each call in seconds; calls are grouped by GPU, format and sizes."""
    calls = zip(gpu.ids[:, 0], form.ids[:, 0], *np.broadcast_arrays(*sizes), strict=True)
    return np.stack([seconds(gpu.options[g], form.options[f], *call) for g, f, *call in calls])


# Quantization of the inputs of fp8 products, which is included in the measured times of the
# products.

#: Launch time (s) and share of the peak memory bandwidth of vLLM's
#: dynamic_per_token_scaled_fp8_quant, from aiconfigurator's tables of vLLM 0.24.0, whose fp8
#: products include this kernel. The kernel takes 2.0 to 3.8 us up to 64 rows on H100, H200, B200
#: and L40S. For 8,192 rows of 8,192 elements, with 3 bytes per element (read 2, write 1), the
#: kernel reaches 46 to 84 % of the peak bandwidth (H100 84, L40S 77, H200 67, B200 46). With one
#: formula for all GPUs, the median APE on a GPU's table is 10 to 50 %.
LAUNCH_SECONDS = 2.6e-6
BANDWIDTH_SHARE = 0.7
_ELEMENT_BYTES = 3.0
#: Maximum assumed share of a product's time for the quantization of its inputs. Only products with
#: narrow outputs reach this limit.
_LARGEST_SHARE = 0.5


def quantization_seconds(
    gpu: GpuSpec, rows: Float[np.ndarray, "*n"], width: Float[np.ndarray, "*#n"]
) -> Float[np.ndarray, "*n"]:
    """Return the time in seconds to quantize ``rows`` tokens of ``width`` elements to fp8."""
    moved = rows * width * _ELEMENT_BYTES
    return LAUNCH_SECONDS + moved / (gpu.memory_bandwidth_bytes_per_s * BANDWIDTH_SHARE)


def without_quantization(
    seconds: Float[np.ndarray, "*n"], scaling: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """Return the time in seconds of an fp8 matrix product without the quantization of its inputs.

    With static scales, no separate quantization is needed, because the preceding kernel writes the
    inputs in fp8. ``scaling`` is the time of the quantization in seconds.
    """
    return seconds - np.minimum(scaling, seconds * _LARGEST_SHARE)


# Composition of a step: which kernels run, how often, and with which sizes.
#
# A mixed step is one fused pass. Projections, experts and all-reduces process the tokens of decodes
# and prefill chunks together. Attention runs once for the decodes and once for the chunks. Norms,
# rotary embedding and host work are not included, because they were not measured: their overheads
# are fitted to measured servers. The sampler is included. It was not measured in steps, but the
# bytes that its kernels read and write are known.

#: Time in seconds per layer to select experts and sort tokens, for expert kernels whose measured
#: time does not include the selection. vLLM's "monolithic" kernels (mxfp4 on Hopper and Blackwell)
#: include the selection. Two small kernels of about 2 us each are assumed.
ROUTING_SECONDS = 4e-6
MONOLITHIC = ("mxfp4", "mxfp4_mxfp8")
#: Time in seconds of statistics, scaling and casts in fp32 around the all-reduce of a full-width
#: q/k norm. Three small kernels (vllm/model_executor/layers/mamba/linear_attn.py: forward_qk) of
#: about 2 us each are assumed. From their time, 3 us are subtracted, because the feature
#: ``parallel_layer`` already adds 3 us to every layer with all-reduces.
NORM_SECONDS = 3e-6


def compose(
    kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches
) -> Float[np.ndarray, "n parts"]:
    """Return the time in seconds of each part (such as experts) of ``n`` steps, over all layers."""
    return compose_many(kernels, [deployment], [batches])[0]


def compose_many(
    kernels: KernelSurrogates, deployments: Sequence[Deployment], batches: Sequence[UniformBatches]
) -> Float[np.ndarray, "m n parts"]:
    """Return the time in seconds of each part (such as experts) in ``n`` steps of each deployment.

    All calls of a kernel type are evaluated together, so that thousands of deployments take only
    seconds.

    Args:
        kernels: Fitted kernel surrogates.
        deployments: The ``m`` models, GPUs and engine configurations.
        batches: Batches of the ``n`` steps of each deployment.
    """
    seconds = np.zeros((len(deployments), len(batches[0]), len(COMPOSED_PARTS)))
    steps = list(zip(deployments, batches, strict=True))
    for column, kinds in enumerate(COMPOSED_PARTS.values()):
        for kind in kinds:
            asked = [(i, call) for i, each in enumerate(steps) for call in kind.calls(*each)]
            if asked:
                gpus, calls = [deployments[i].gpu for i, _ in asked], [call for _, call in asked]
                times = _times(kernels, kind, gpus, calls, len(batches[0]))
                np.add.at(seconds[:, :, column], [i for i, _ in asked], times)
    return seconds


def _times(
    kernels: KernelSurrogates, kind: Kernels, gpus: list[GpuSpec], calls: list[Call], width: int
) -> Times:
    """Return the time in seconds of each call in each step, multiplied by its number of runs."""

    def rows(values: Sequence[Any]) -> Float[np.ndarray, "calls n_or_1"]:
        found = np.empty((len(values), width if any(map(np.ndim, values)) else 1))
        for row, value in zip(found, values, strict=True):
            row[:] = value
        return found

    sizes = [rows(values) for values in zip(*(call.sizes for call in calls), strict=True)]
    times = kind.seconds(kernels, _coded(gpus), _coded([call.form for call in calls]), *sizes)
    return rows([call.count for call in calls]) * times


def _coded(values: Sequence[object]) -> Coded:
    """Encode one value per row as a ``Coded``: the distinct values, and an index per row."""
    number: dict[object, int] = {}
    ids = np.array([[number.setdefault(value, len(number))] for value in values])
    return Coded(tuple(number), ids)


def _gemm(deployment: Deployment, batches: UniformBatches) -> Calls:
    on_tensor_cores = deployment.recipe.tf32
    for matmul in dense_matmuls(deployment.model, deployment.recipe.tensor_parallel_size):
        rows = batches.requests if matmul.per_sequence else batches.tokens
        if matmul.name == "kv_b_proj":
            # Each prefill chunk recomputes MLA's keys and values of its cached tokens from the
            # latent cache (vLLM's MLACommonImpl._compute_prefill_context).
            rows = rows + batches.prefill_requests * batches.prefill_cached
        # TF32 products were not measured. They are timed as 16-bit products.
        form = "bf16" if on_tensor_cores and matmul.weights == FP32_PRODUCT else matmul.weights.name
        yield Call(form, matmul.count, (rows, matmul.n, matmul.k))


def _products(
    kernels: KernelSurrogates, gpu: Coded, form: Coded, m: Column, n: Column, k: Column
) -> Times:
    """Return the time of matrix products in seconds; static scales avoid quantizing activations.

    fp32 products outside the tensor cores take the time of a 16-bit product, or longer where their
    arithmetic does at the GPU's fp32 rate. They were not measured.
    """
    seconds = kernels.gemm.seconds(gpu, form, m, n, k)
    for row, (g, f) in enumerate(zip(gpu.ids[:, 0], form.ids[:, 0], strict=True)):
        chip, weights = gpu.options[g], precision(form.options[f])
        if form.options[f] == FP32_PRODUCT.name:
            arithmetic = 2.0 * m[row] * n[row] * k[row] / chip.matmul_flop_per_s(FP32_PRODUCT)
            seconds[row] = np.maximum(seconds[row], arithmetic)
        if weights.static_activations and weights.math in chip.peak_flop_per_s:
            scaling = quantization_seconds(chip, m[row], k[row])
            seconds[row] = without_quantization(seconds[row], scaling)
    return seconds


def _experts(deployment: Deployment, batches: UniformBatches) -> Calls:
    if deployment.model.moe is not None and deployment.expert_kernels in (AUTO, MARLIN):
        yield _expert_call(deployment, batches)


def _other_experts(deployment: Deployment, batches: UniformBatches) -> Calls:
    # The last size of the call encodes the kernels: 1 for Triton, 0 for CUTLASS.
    if deployment.expert_kernels not in (AUTO, MARLIN):
        yield _expert_call(deployment, batches, float(deployment.expert_kernels == TRITON))


def _expert_call(deployment: Deployment, batches: UniformBatches, *more: float) -> Call:
    model, recipe = deployment.model, deployment.recipe
    assert model.moe is not None
    tokens, moe = batches.tokens * recipe.data_parallel_size, model.moe
    widths, matrices = (moe.stream_width(model.hidden_size), moe.width), 3.0 if moe.gated else 2.0
    ranks = recipe.expert_tensor_parallel_size, recipe.expert_parallel_size
    sizes = (tokens, *widths, moe.experts, moe.top_k, *ranks, matrices, *more)
    return Call(deployment.expert_kernel_format.name, model.moe_layers, sizes)


def _routed_experts(kernels: KernelSurrogates, gpu: Coded, form: Coded, *sizes: Column) -> Times:
    monolithic = np.array([name in MONOLITHIC for name in form.options])[form.ids]
    return kernels.moe.seconds(gpu, form, *sizes) + np.where(monolithic, 0.0, ROUTING_SECONDS)


def _routed_otherwise(kernels: KernelSurrogates, gpu: Coded, form: Coded, *sizes: Column) -> Times:
    def seconds(chip: GpuSpec, name: str, triton: Column, *shape: Column) -> np.ndarray:
        return kernels.other_experts_seconds(chip, name, TRITON if triton[0] else CUTLASS, *shape)

    *shape, triton = sizes
    return call_by_call(seconds, gpu, form, triton, *shape) + ROUTING_SECONDS


def _decode_attention(deployment: Deployment, batches: UniformBatches) -> Calls:
    rows = (batches.decode_requests, batches.decode_context + 1)
    # Another engine's decode attention kernels take a constant multiple of vLLM's time.
    return _attention(deployment, rows, deployment.decode_attention_time)


def _prefill_attention(deployment: Deployment, batches: UniformBatches) -> Calls:
    """Yield prefill attention calls, with each chunk as a prompt without cached tokens.

    A chunk of p tokens after s cached ones counts as a prompt of sqrt(p^2 + 2 p s) tokens.
    """
    new, cached = batches.prefill_tokens, batches.prefill_cached
    chunks = batches.prefill_requests
    splits_keys = model_costs([deployment]).prefill_key_s[0] == 0
    longest = np.where((chunks > 0) & (cached > 0) & ~splits_keys, new + cached, 0.0)
    for call in _attention(deployment, (chunks, np.sqrt(new**2 + 2 * new * cached))):
        *_, window = call.sizes
        yield replace(call, sizes=(*call.sizes, 0.0 if window else longest))


#: Number of keys from which the time of one thread block grows in proportion to the keys. A prompt
#: of this length with one head has at most 64 blocks, about one per multiprocessor of an L4.
_BLOCK_KEYS = 4096.0


def _prefill_seconds(kernels: KernelSurrogates, gpu: Coded, form: Coded, *sizes: Column) -> Times:
    """Return the time of prefill attention in seconds, at least that of its longest thread block.

    The last size is the number of keys of the longest chunk after cached tokens, 0 if kernels split
    keys. One block passes over all these keys. This takes as long as a prompt of as many tokens
    with a single head, whose last block passes over all keys, too.
    """
    *shape, longest = sizes
    *_, head_dim, _ = shape

    def one_head(keys: Column) -> Times:
        return kernels.prefill_attention.seconds(gpu, form, 1.0, keys, 1.0, 1.0, head_dim, 0.0)

    launch_s = kernels.prefill_attention.operator.launch_seconds
    beyond = np.maximum(longest / _BLOCK_KEYS - 1.0, 0.0)
    block = one_head(np.minimum(longest, _BLOCK_KEYS))
    block = block + beyond * (one_head(np.full_like(longest, _BLOCK_KEYS)) - launch_s)
    return np.maximum(kernels.prefill_attention.seconds(gpu, form, *shape), block)


def _attention(deployment: Deployment, rows: Sizes, times: float = 1.0) -> Calls:
    """Yield calls of grouped-query attention; ``rows`` is (sequences, tokens per sequence)."""
    tp = deployment.recipe.tensor_parallel_size
    for group in deployment.model.layer_groups:
        attention = group.attention
        if isinstance(attention, AttentionSpec) and attention.indexer is None:
            heads = (attention.heads // tp, max(attention.kv_heads // tp, 1))
            # The measured kernels have keys and values of equal width, so the mean of the two
            # widths is used.
            sizes = (*rows, *heads, attention.pair_width // 2, attention.window_tokens or 0)
            yield Call(deployment.kv_cache_precision.name, group.count * times, sizes)


def _latent_decode(deployment: Deployment, batches: UniformBatches) -> Calls:
    rows = (batches.decode_requests, batches.decode_context + 1)
    for count, attention, heads in _latent_layers(deployment):
        sizes = (*rows, heads, attention.kv_lora_rank, attention.qk_rope_head_dim)
        yield Call(deployment.kv_cache_precision.name, count, sizes)


def _latent_prefill(deployment: Deployment, batches: UniformBatches) -> Calls:
    rows = (batches.prefill_requests, batches.prefill_tokens, batches.prefill_cached)
    for count, attention, heads in _latent_layers(deployment):
        yield Call("bf16", count, (*rows, heads, attention.head_dim, attention.v_head_dim))


def _latent_layers(deployment: Deployment) -> Iterator[tuple[int, LatentAttentionSpec, int]]:
    """Yield (number of layers, attention, heads per rank) of each MLA without an indexer."""
    for group in deployment.model.layer_groups:
        attention = group.attention
        if isinstance(attention, LatentAttentionSpec) and attention.indexer is None:
            yield group.count, attention, attention.heads // deployment.recipe.tensor_parallel_size


def _all_reduce(deployment: Deployment, batches: UniformBatches) -> Calls:
    """Yield all-reduces: two per layer, one for the embedding, one per full-width q/k norm.

    Such a norm spans all heads of q, and all heads of k. Its all-reduce sums two fp32 values per
    token: the squared norms of q and of k.
    """
    model, tp = deployment.model, deployment.recipe.tensor_parallel_size
    if tp == 1:
        return
    size = batches.tokens * model.hidden_size * ACTIVATION_BYTES
    recipe = deployment.recipe
    fused = recipe.fused_all_reduce_bytes
    faster = 0.0 if fused else 1 - recipe.all_reduce_latency
    halves = sum(g.count * g.halves for g in model.layer_groups if g.runs)
    yield Call("bf16", 1 + halves, (tp, size, 0, faster, fused))
    for group in model.layer_groups:
        if getattr(group.attention, "qk_norm_full_width", False):
            yield Call("fp32", group.count, (tp, batches.tokens * 8.0, 1, faster, 0))


def _reduce(kernels: KernelSurrogates, gpu: Coded, _: Coded, *sizes: Column) -> Times:
    """Return vLLM's all-reduce time in seconds, minus the time that another engine's kernel saves.

    All-reduces that are fused with a norm have the time of the fused kernel.
    """
    ranks, size, norm, faster, fused_bytes = sizes
    fused = kernels.fused_all_reduce.seconds(gpu, ranks, np.minimum(size, fused_bytes))
    saved = faster * kernels.all_reduce.seconds(gpu, ranks, np.minimum(size, OWN_KERNEL_BYTES))
    unfused = kernels.all_reduce.seconds(gpu, ranks, size) - saved + norm * NORM_SECONDS
    return np.where(size <= fused_bytes, fused, unfused)


def _exchange(deployment: Deployment, batches: UniformBatches) -> Calls:
    """Yield the exchange between expert ranks: dispatch of all tokens, and combine of the results.

    vLLM runs NCCL's all-gather and reduce-scatter (0.20.1
    vllm/distributed/device_communicators/all2all.py: AgRsAll2AllManager). The exchanges of other
    engines were not measured. Dispatch and combine together are treated as one all-reduce of the
    same bytes.
    """
    model, recipe = deployment.model, deployment.recipe
    if model.moe is None or recipe.data_parallel_size == 1:
        return
    ranks = recipe.tensor_parallel_size * recipe.data_parallel_size
    size = batches.tokens * ranks * model.hidden_size * ACTIVATION_BYTES
    by_nccl = float(deployment.serving.engine == VLLM)
    yield Call("bf16", model.moe_layers, (ranks, size, by_nccl))


def _exchanged(
    kernels: KernelSurrogates, gpu: Coded, _: Coded, ranks: Column, size: Column, by_nccl: Column
) -> Times:
    gathered = kernels.exchange.seconds(gpu, ranks, size)
    return np.where(by_nccl > 0, gathered, kernels.all_reduce.seconds(gpu, ranks, size))


def _sampling(deployment: Deployment, batches: UniformBatches) -> Calls:
    """Yield the sampler's call; its size is the measured time, scaled by the memory bandwidth."""
    costs = step_costs([deployment])
    yield Call("fp32", 1, (costs.sampled_step_s + batches.requests * costs.sampled_request_s,))


# Kernels of recurrent states and of sparse attention's indexers in a step.
#
# Measured kernels have the times of their fits. Lightning Attention and Mamba-1 were not measured,
# and other kernels may be held out. The times of such kernels are computed from bytes, FLOP, memory
# bandwidth and peak FLOP/s. The coefficients of the attention features, fitted to measured steps,
# correct for the difference.

#: Values of the flags that disable speculative decoding.
_NO_DRAFTS: dict[str, Any] = {
    f.name: f.default for f in fields(ServingSpec) if f.name.startswith("speculative_")
}


@dataclass(frozen=True)
class Phase:
    """Decode or prefill phase, with its kernels for recurrent layers and sparse attention.

    Attributes:
        rows: Function that takes batches and returns the number of requests, and the new and cached
            tokens per request.
        operators: Kernel types by type of recurrent layer; for DeepSeek-V4, by number of tokens per
            compressed key. DeepSeek-V4's layers with only a window (key 0) were not measured. They
            are assigned the time of the attention with the fewest keys.
        datasheet: Function that returns the time in seconds of a recurrent layer or attention at
            the GPU's memory bandwidth and peak FLOP/s.
    """

    rows: Callable[[UniformBatches], tuple[object, object, object]]
    operators: Mapping[str | int, tuple[str, ...]]
    datasheet: Callable[[StepCosts, BatchSums], Seconds]


def _prompting(costs: StepCosts, sums: BatchSums) -> Seconds:
    return prefill_attention(costs, sums) + costs.prefill_token_s * sums.prefill_tokens


#: Kernels in decodes, and (``PROMPTS``) in prefill. The decode kernel of Kimi Delta Attention (KDA)
#: includes the convolution. For prompts, KDA runs the gated delta net's convolution three times.
#: The measurement of these three runs is not used, because it includes 0.4 ms of host work between
#: the runs.
DECODES = Phase(
    lambda batches: (batches.decode_requests, 1.0, batches.decode_context),
    {
        GATED_DELTA: ("gated delta decode", "gated delta convolution"),
        KDA: ("KDA decode",),
        MAMBA2: ("Mamba-2 update", "Mamba-2 convolution, decode"),
        **dict.fromkeys((0, 128), ("HCA decode",)),
        4: ("CSA decode",),
    },
    decode_attention,
)
PROMPTS = Phase(
    lambda batches: (batches.prefill_requests, batches.prefill_tokens, batches.prefill_cached),
    {
        GATED_DELTA: ("gated delta scan", "gated delta convolution"),
        KDA: ("KDA scan", "gated delta convolution"),
        MAMBA2: ("Mamba-2 scan", "Mamba-2 convolution"),
        **dict.fromkeys((0, 128), ("HCA prompt",)),
        4: ("CSA prompt",),
    },
    _prompting,
)
#: Kernel types of an indexer, and of attention to the keys that it selects. The selection was
#: measured with several orders of the keys' scores. Real scores are neither equal nor sorted. The
#: slowest order is assumed: ascending scores (best last).
_CHOOSING = ("indexer scores", "indexer choice, best last")
_CHOSEN = "sparse attention"
#: Minimum number of heads of the sparse attention kernel, which pads fewer heads (vLLM's
#: flashmla_sparse.py: prefill_padding).
_LEAST_HEADS = 64


def _state_calls(phase: Phase, deployment: Deployment, batches: UniformBatches) -> Calls:
    """Yield the kernel calls of recurrent layers: state updates of decodes, or scans of prompts."""
    requests, tokens, _ = phase.rows(batches)
    for group in deployment.model.layer_groups:
        mixer = group.attention
        if isinstance(mixer, LinearMixerSpec):
            widths = mixer.local_widths(deployment.recipe.tensor_parallel_size)
            kept = (mixer.chunk_tokens, mixer.state_bytes_per_element)
            names = phase.operators.get(mixer.kind, (mixer.kind,))
            seconds = _datasheet_seconds(phase, deployment, group, batches)
            yield from _calls(group, names, (requests, tokens, *widths, *kept), seconds)


def _indexed_calls(phase: Phase, deployment: Deployment, batches: UniformBatches) -> Calls:
    """Yield three kernels per layer with an indexer: score keys, select keys, attend to these."""
    for group in deployment.model.layer_groups:
        mixer = group.attention
        if isinstance(mixer, Attention) and mixer.indexer is not None:
            names: tuple[str, ...] = (*_CHOOSING, _CHOSEN) if mixer.indexer.heads else (_CHOSEN,)
            least = _LEAST_HEADS
            if isinstance(mixer, CompressedAttentionSpec):
                names, least = phase.operators[mixer.ratio], 1
            elif isinstance(mixer, AttentionSpec):  # block-sparse attention was not measured
                names, least = (mixer_name(mixer),), 1
            heads = max(mixer.heads // deployment.recipe.tensor_parallel_size, least)
            picked = mixer.indexer.top_k * (mixer.indexer.ratio if least == _LEAST_HEADS else 1)
            sizes = (*phase.rows(batches), mixer.indexer.heads, heads, picked)
            seconds = _datasheet_seconds(phase, deployment, group, batches)
            yield from _calls(group, names, sizes, seconds)


def _calls(group: LayerGroup, operators: Sequence[str], sizes: Sizes, seconds: Seconds) -> Calls:
    """Yield one call per kernel type, with the roofline time as the last size.

    The first call has the roofline time of the whole layer; all other calls have 0.
    """
    for operator in operators:
        yield Call(operator, group.count, (*sizes, seconds))
        seconds = 0.0 * seconds


def _datasheet_seconds(
    phase: Phase, deployment: Deployment, group: LayerGroup, batches: UniformBatches
) -> Seconds:
    """Return the roofline time in seconds of one layer's attention or recurrence.

    Draft tokens are not included.
    """
    model = deployment.model
    groups = tuple(g if g is group else replace(g, attention=None) for g in model.layer_groups)
    serving = replace(deployment.serving, **_NO_DRAFTS)
    alone = replace(deployment, model=replace(model, layer_groups=groups), serving=serving)
    sums = batches.sums(alone.model.window_tokens)
    return phase.datasheet(model_costs([alone]), sums) / group.count


def _streams(deployment: Deployment, batches: UniformBatches) -> Calls:
    """Yield the calls that mix residual streams, with a roofline time of 0 as the last size.

    The bytes that they move are counted with the small kernels of a step.
    """
    model = deployment.model
    for name in ("streams before", "streams after") if model.streams else ():
        yield Call(name, model.layers, (batches.tokens, model.hidden_size, 0.0))


def mixer_kernels(phase: Phase) -> tuple[Kernels, ...]:
    """Return the kernels of recurrent layers, and of indexers with sparse attention."""
    kinds = ((_state_calls, RECURRENT_SIZES, RECURRENT), (_indexed_calls, INDEXED_SIZES, SPARSE))
    return tuple(
        Kernels(partial(calls, phase), partial(_fitted_seconds, sizes), sizes, operator)
        for calls, sizes, operator in kinds
    )


def _fitted_seconds(
    names: Sequence[str], kernels: KernelSurrogates, gpu: Coded, operator: Coded, *sizes: Column
) -> Times:
    """Return the fitted time of calls in seconds or, without a fit, their roofline (last size)."""

    def seconds(chip: GpuSpec, name: str, *call: Column) -> Seconds:
        *known, datasheet = call
        found = kernels.mixers.seconds(name, chip, dict(zip(names, known, strict=True)))
        return datasheet if found is None else found

    return call_by_call(seconds, gpu, operator, *sizes)


_MESSAGE, _STREAM = ("gpus", "bytes"), ("batch_size", "hidden_size")

#: Kernels of each part of a step; arrays over parts have this order.
COMPOSED_PARTS: dict[str, tuple[Kernels, ...]] = {
    "gemm": (
        Kernels(_gemm, _products, Gemm.sizes(), Gemm.name),
        Kernels(_streams, partial(_fitted_seconds, _STREAM), _STREAM),
    ),
    "experts": (
        Kernels(_experts, _routed_experts, Moe.sizes(), Moe.name),
        Kernels(_other_experts, _routed_otherwise, (*Moe.sizes(), "triton")),
    ),
    "decode_attention": (
        Kernels(_decode_attention, lambda fits, *asked: fits.decode_attention.seconds(*asked),
                DecodeAttention.sizes(), DecodeAttention.name),
        Kernels(_latent_decode,
                lambda fits, *asked: call_by_call(fits.latent_decode_attention_seconds, *asked),
                ("sequences", "context_tokens", "heads", "kv_lora_rank", "rope_dim")),
        *mixer_kernels(DECODES),
    ),
    "prefill_attention": (
        Kernels(_prefill_attention, _prefill_seconds, PrefillAttention.sizes(),
                PrefillAttention.name),
        Kernels(_latent_prefill,
                lambda fits, gpu, _, *sizes: fits.latent_prefill_attention_seconds(gpu, *sizes),
                ("sequences", "tokens", "cached", "heads", "qk_head_dim", "v_head_dim")),
        *mixer_kernels(PROMPTS),
    ),
    "all_reduce": (Kernels(_all_reduce, _reduce, _MESSAGE),),
    "exchange": (Kernels(_exchange, _exchanged, _MESSAGE),),
    "sampling": (Kernels(_sampling, lambda _, __, ___, seconds: seconds),),
}  # fmt: skip
