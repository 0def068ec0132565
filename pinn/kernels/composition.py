"""The time of a whole step, kernel by kernel."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.engines.kernel_choice import AUTO, CUTLASS, MARLIN, TRITON
from pinn.kernels.gemm_attention import DecodeAttention, Gemm, PrefillAttention
from pinn.kernels.hardware import Coded
from pinn.kernels.mixer_calls import DECODES, PROMPTS, Call, Kernels, call_by_call, mixer_kernels
from pinn.kernels.moe import Moe
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import UniformBatches
from pinn.physics.costs import step_costs
from pinn.physics.layer_work import dense_matmuls
from pinn.physics.step_values import hit_expert_read_s
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import AttentionSpec, LatentAttentionSpec
from pinn.specs.precision import ACTIVATION_BYTES, precision
from pinn.specs.serving import VLLM

# Scaling the inputs of an fp8 multiplication in each step, which its tables' times include.

#: aiconfigurator's tables of vLLM 0.24.0's dynamic_per_token_scaled_fp8_quant, which its products
#: in fp8 contain: 2.0 to 3.8 us up to 64 rows on H100, H200, B200 and L40S, and 3 bytes an element
#: (read 2, write 1) at 46 to 84 % of the datasheet's bandwidth for 8,192 rows of 8,192 (H100 84,
#: L40S 77, H200 67, B200 46). One formula for all: 10 to 50 % off in the median of a chip's table.
LAUNCH_SECONDS = 2.6e-6
BANDWIDTH_SHARE = 0.7
_ELEMENT_BYTES = 3.0
#: Of a product's time that scaling its inputs may be; an assumption that only the narrowest meet.
_LARGEST_SHARE = 0.5


def quantization_seconds(
    gpu: GpuSpec, rows: Float[np.ndarray, "*n"], width: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """Scales of ``rows`` tokens of ``width`` 16-bit elements, and the elements in fp8."""
    moved = rows * width * _ELEMENT_BYTES
    return LAUNCH_SECONDS + moved / (gpu.memory_bandwidth_bytes_per_s * BANDWIDTH_SHARE)


def without_quantization(
    seconds: Float[np.ndarray, "*n"], scaling: Float[np.ndarray, "*n"]
) -> Float[np.ndarray, "*n"]:
    """A product whose inputs the kernel before it has written in fp8, with static scales."""
    return seconds - np.minimum(scaling, seconds * _LARGEST_SHARE)


# A step composed of kernels: which run, how often, and at which sizes.
#
# A mixed step is one fused pass: projections, experts and all-reduces see the tokens of decodes
# and prefill chunks together; attention runs once over the decodes and once over the chunks.
# Norms, rotary embedding and host work are not composed here: nobody measured them, so the
# teacher learns them as overheads. Nobody measured sampling either, but it is known what its
# kernels move.

#: Choosing experts and sorting tokens, per layer, where the measured kernel starts from a given
#: choice; vLLM's "monolithic" kernels (mxfp4 on Hopper and Blackwell) choose inside. An assumption:
#: two small kernels of about 2 us.
ROUTING_SECONDS = 4e-6
MONOLITHIC = ("mxfp4", "mxfp4_mxfp8")
#: Statistics, scaling and casts in fp32 around the all-reduce of a full-width q/k norm: three
#: small kernels (vllm/model_executor/layers/mamba/linear_attn.py: forward_qk) of about 2 us each,
#: an assumption.
NORM_SECONDS = 6e-6
#: Largest message of an engine's own all-reduce; beyond, all run NCCL's
#: (custom_all_reduce.py: max_size = 8192 * 1024).
OWN_KERNEL_BYTES = 2.0**23


def compose(
    kernels: KernelSurrogates, deployment: Deployment, batches: UniformBatches
) -> Float[np.ndarray, "n parts"]:
    """Seconds that each part of ``n`` steps of one deployment takes, summed over the layers."""
    return compose_many(kernels, [deployment], [batches])[0]


def compose_many(
    kernels: KernelSurrogates, deployments: Sequence[Deployment], batches: Sequence[UniformBatches]
) -> Float[np.ndarray, "m n parts"]:
    """Seconds that each part of ``n`` steps of each of ``m`` deployments takes.

    All calls of one kind are looked up together: thousands of deployments take seconds.

    Args:
        kernels: Fitted operator surrogates.
        deployments: Models, GPUs and engine configurations.
        batches: The steps' batches of each deployment; equally many.
    """
    seconds = np.zeros((len(deployments), len(batches[0]), len(COMPOSED_PARTS)))
    for column, kinds in enumerate(COMPOSED_PARTS.values()):
        for kind in kinds:
            asked = [list(kind.calls(*each)) for each in zip(deployments, batches, strict=True)]
            _add(seconds[:, :, column], kernels, kind, deployments, asked)
    return seconds


def _add(
    seconds: Float[np.ndarray, "m n"],
    kernels: KernelSurrogates,
    kind: Kernels,
    deployments: Sequence[Deployment],
    asked: Sequence[Sequence[Call]],
) -> None:
    """Look the calls of each deployment up and add their times to its steps."""
    places = [i for i, of_deployment in enumerate(asked) for _ in of_deployment]
    calls = [call for of_deployment in asked for call in of_deployment]
    if not calls:
        return
    gpus = tuple(dict.fromkeys(deployments[i].gpu for i in places))
    forms = tuple(dict.fromkeys(c.form for c in calls))
    gpu_ids = np.array([[gpus.index(deployments[i].gpu)] for i in places])
    form_ids = np.array([[forms.index(c.form)] for c in calls])
    width = seconds.shape[1]
    sizes = [
        np.stack([np.broadcast_to(np.asarray(c.sizes[i], dtype=np.float64), width) for c in calls])
        for i in range(len(calls[0].sizes))
    ]
    times = kind.seconds(kernels, Coded(gpus, gpu_ids), Coded(forms, form_ids), *sizes)
    counts = np.stack([np.broadcast_to(np.float64(c.count), width) for c in calls])
    np.add.at(seconds, places, counts * times)


def _gemm(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    for matmul in dense_matmuls(deployment.model, deployment.recipe.tensor_parallel_size):
        rows = batches.requests if matmul.per_sequence else batches.tokens
        if matmul.name == "kv_b_proj":
            # A chunk expands the keys and values of the tokens before it once more (vLLM's
            # MLACommonImpl._compute_prefill_context).
            rows = rows + batches.prefill_requests * batches.prefill_cached
        yield Call(matmul.weights.name, matmul.count, (rows, matmul.n, matmul.k))


def _products(kernels: KernelSurrogates, gpu: Coded, form: Coded, m, n, k) -> np.ndarray:
    """Static scales of activations are applied by the kernel before: vLLM's compiler fuses them."""
    seconds = kernels.gemm.seconds(gpu, form, m, n, k)
    for row, (g, f) in enumerate(zip(gpu.ids[:, 0], form.ids[:, 0], strict=True)):
        chip, weights = gpu.options[g], precision(form.options[f])
        if weights.static_activations and weights.math in chip.peak_flop_per_s:
            scaling = quantization_seconds(chip, m[row], k[row])
            seconds[row] = without_quantization(seconds[row], scaling)
    return seconds


def _experts(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    if deployment.model.moe is not None and deployment.expert_kernels in (AUTO, MARLIN):
        yield _expert_call(deployment, batches)


def _other_experts(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    # Which kernels is one size more: 1 for Triton's, 0 for CUTLASS's.
    if deployment.expert_kernels not in (AUTO, MARLIN):
        yield _expert_call(deployment, batches, float(deployment.expert_kernels == TRITON))


def _expert_call(deployment: Deployment, batches: UniformBatches, *more: float) -> Call:
    model, recipe = deployment.model, deployment.recipe
    assert model.moe is not None
    sizes = (
        batches.tokens * recipe.data_parallel_size,
        model.moe.stream_width(model.hidden_size),
        model.moe.width,
        model.moe.experts,
        model.moe.top_k,
        recipe.expert_tensor_parallel_size,
        recipe.expert_parallel_size,
        3.0 if model.moe.gated else 2.0,
    )
    form, count = deployment.expert_kernel_format.name, model.moe_layers
    return Call(form, count * _expert_time(deployment, batches), (*sizes, *more))


def _expert_time(
    deployment: Deployment, batches: UniformBatches
) -> float | Float[np.ndarray, " n"]:
    """Time of the engine's experts relative to vLLM's, by what takes longer on the datasheet."""
    times = deployment.expert_times(deployment.model)
    if times == (1.0, 1.0):
        return 1.0
    costs = step_costs([deployment])
    read_s = hit_expert_read_s(costs, batches.tokens)
    compute_s = costs.expert_token_s * batches.tokens * costs.expert_replicas
    return np.where(read_s >= compute_s, *times)


def _routed_experts(kernels: KernelSurrogates, gpu: Coded, form: Coded, *sizes) -> np.ndarray:
    monolithic = np.array([name in MONOLITHIC for name in form.options])[form.ids]
    return kernels.moe.seconds(gpu, form, *sizes) + np.where(monolithic, 0.0, ROUTING_SECONDS)


def _routed_otherwise(kernels: KernelSurrogates, gpu: Coded, form: Coded, *sizes) -> np.ndarray:

    def seconds(chip: GpuSpec, name: str, triton, *shape) -> np.ndarray:
        chosen = TRITON if triton[0] else CUTLASS
        return kernels.other_experts_seconds(chip, name, chosen, *shape)

    *shape, triton = sizes
    return call_by_call(seconds, gpu, form, triton, *shape) + ROUTING_SECONDS


def _decode_attention(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    rows = (batches.decode_requests, batches.decode_context + 1)
    # Other kernels than vLLM's count as so many of them.
    return _attention(deployment, rows, deployment.decode_attention_time)


def _prefill_attention(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """A chunk of p tokens after s cached ones attends to as many pairs as sqrt(p^2 + 2 p s)."""
    new, cached = batches.prefill_tokens, batches.prefill_cached
    return _attention(deployment, (batches.prefill_requests, np.sqrt(new**2 + 2 * new * cached)))


def _attention(
    deployment: Deployment, rows: tuple[np.ndarray, np.ndarray], times: float = 1.0
) -> Iterator[Call]:
    """Ordinary attention of ``rows``: sequences and tokens of each."""
    tp = deployment.recipe.tensor_parallel_size
    for group in deployment.model.layer_groups:
        attention = group.attention
        if isinstance(attention, AttentionSpec):
            heads = (attention.heads // tp, max(attention.kv_heads // tp, 1))
            sizes = (*rows, *heads, attention.head_dim, attention.window_tokens or 0)
            yield Call(deployment.kv_cache_precision.name, group.count * times, sizes)


def _latent_decode(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    rows = (batches.decode_requests, batches.decode_context + 1)
    for count, attention, heads in _latent_layers(deployment):
        sizes = (*rows, heads, attention.kv_lora_rank, attention.qk_rope_head_dim)
        yield Call(deployment.kv_cache_precision.name, count, sizes)


def _latent_prefill(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    rows = (batches.prefill_requests, batches.prefill_tokens, batches.prefill_cached)
    for count, attention, heads in _latent_layers(deployment):
        sizes = (*rows, heads, attention.head_dim, attention.v_head_dim)
        yield Call("bf16", count, sizes)


def _latent_layers(deployment: Deployment) -> Iterator[tuple[int, LatentAttentionSpec, int]]:
    """Latent attention to all keys: in how many layers, what it is, and its heads on a rank."""
    for group in deployment.model.layer_groups:
        attention = group.attention
        if isinstance(attention, LatentAttentionSpec) and attention.indexer is None:
            yield group.count, attention, attention.heads // deployment.recipe.tensor_parallel_size


def _all_reduce(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """Two per layer and one for the embedding; a full-width q/k norm needs one more.

    The norm sums one fp32 square per token for q and one for k.
    """
    model, tp = deployment.model, deployment.recipe.tensor_parallel_size
    if tp == 1:
        return
    size = batches.tokens * model.hidden_size * ACTIVATION_BYTES
    faster = 1 - deployment.recipe.all_reduce_latency
    halves = sum(g.count * g.halves for g in model.layer_groups if g.runs)
    yield Call("bf16", 1 + halves, (tp, size, 0, faster))
    for group in model.layer_groups:
        if getattr(group.attention, "qk_norm_full_width", False):
            yield Call("fp32", group.count, (tp, batches.tokens * 8.0, 1, faster))


def _reduce(
    kernels: KernelSurrogates, gpu: Coded, _: Coded, ranks, size, norm, faster
) -> np.ndarray:
    """As vLLM's own kernel takes, less what another engine's saves on a message's first bytes."""
    saved = faster * kernels.all_reduce.seconds(gpu, ranks, np.minimum(size, OWN_KERNEL_BYTES))
    return kernels.all_reduce.seconds(gpu, ranks, size) - saved + norm * NORM_SECONDS


def _exchange(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """Dispatch and combine of everyone's tokens.

    vLLM's are an all-gather and a reduce-scatter by NCCL (0.20.1
    vllm/distributed/device_communicators/all2all.py: AgRsAll2AllManager). Those of other engines,
    which nobody timed, move together what one all-reduce of as many bytes does.
    """
    model, recipe = deployment.model, deployment.recipe
    if model.moe is None or recipe.data_parallel_size == 1:
        return
    ranks = recipe.tensor_parallel_size * recipe.data_parallel_size
    size = batches.tokens * ranks * model.hidden_size * ACTIVATION_BYTES
    by_nccl = float(deployment.serving.engine == VLLM)
    yield Call("bf16", model.moe_layers, (ranks, size, by_nccl))


def _gather_and_scatter(
    kernels: KernelSurrogates, gpu: Coded, _: Coded, ranks, size, by_nccl
) -> np.ndarray:
    gathered = kernels.exchange.seconds(gpu, ranks, size)
    return np.where(by_nccl > 0, gathered, kernels.all_reduce.seconds(gpu, ranks, size))


def _sampling(deployment: Deployment, batches: UniformBatches) -> Iterator[Call]:
    """As long as the kernels took when they were timed, scaled by the datasheet's bandwidth."""
    costs = step_costs([deployment])
    seconds = costs.sampled_step_s + batches.requests * costs.sampled_request_s
    yield Call("fp32", 1, (seconds,))


_MESSAGE = ("gpus", "bytes")

#: Parts of a composed step, in the order of every composed array, and what each is made of.
COMPOSED_PARTS: dict[str, tuple[Kernels, ...]] = {
    "gemm": (
        Kernels(_gemm, _products, Gemm.sizes(), Gemm.name),
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
        Kernels(_prefill_attention, lambda fits, *asked: fits.prefill_attention.seconds(*asked),
                PrefillAttention.sizes(), PrefillAttention.name),
        Kernels(_latent_prefill,
                lambda fits, gpu, _, *sizes: fits.latent_prefill_attention_seconds(gpu, *sizes),
                ("sequences", "tokens", "cached", "heads", "qk_head_dim", "v_head_dim")),
        *mixer_kernels(PROMPTS),
    ),
    "all_reduce": (Kernels(_all_reduce, _reduce, _MESSAGE),),
    "exchange": (Kernels(_exchange, _gather_and_scatter, _MESSAGE),),
    "sampling": (Kernels(_sampling, lambda _, __, ___, seconds: seconds),),
}  # fmt: skip
