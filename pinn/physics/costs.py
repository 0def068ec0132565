"""Costs per unit of work, in seconds at the GPU's memory bandwidth, FLOP/s and link bandwidth.

The features of a step are sums over the batch multiplied by these costs. A Go program or a user of
a coefficient table therefore needs no other information about the model and the GPU. Each cost has
one formula.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

import numpy as np
from jaxtyping import Int

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import GATHER
from pinn.errors import PinnError
from pinn.physics.cost_facts import NO_SAMPLER, CostFacts, Flags, Values, fact_row, sampler_time
from pinn.specs.model import ModelSpec, Sampling
from pinn.specs.precision import ACTIVATION_BYTES
from pinn.specs.serving import VLLM
from pinn.units import GIB

# Formulas of ``StepCosts`` that need more than a line, as functions of ``CostFacts``.

#: Share of a tensor-parallel layer's communication latency outside its all-reduces: 3 us of the 10
#: us that are the prior coefficient of the feature ``parallel_layer``.
AROUND_ALL_REDUCE = 0.3


#: Maximum bytes of a message that vLLM's own all-reduce sends in one shot with more than 4 GPUs
#: (csrc/custom_all_reduce.cuh). With up to 4 GPUs, the maximum is 512 KiB.
ONE_SHOT_BYTES = 2.0**18


def token_bytes(w: CostFacts) -> Values:
    """Return the bytes of one token in the residual stream."""
    return w.hidden_size * ACTIVATION_BYTES


def weights_s(w: CostFacts) -> Values:
    """Return the time in seconds to read all weights on a GPU once, except routed experts."""
    return w.dense_weight_bytes / w.memory_bytes_per_s


#: Launch time of a recurrent layer in a step with prompts, beyond that of an attention layer, in
#: units of a dense layer's launches. vLLM 0.20.1's gated delta net makes about 16 launches between
#: two pieces of a CUDA graph; attention makes three. Eight of the 16 are Triton kernels, which
#: Python starts (model_executor/layers/mamba/gdn_linear_attn.py: _forward_core, fla/ops/chunk.py).
#: The value follows from two groups of steps that are bound by launching (B300, vLLM 0.20.1, beyond
#: the largest graph). 1,024 tokens of Qwen3-32B on 8 GPUs take 17.7 ms for 64 dense layers.
#: Qwen3.6-35B-A3B takes 40 to 42 ms with any number of tokens; 30 of its 40 layers are recurrent.
#: The value is assumed for all types of recurrent layers.
STATE_LAUNCHES = 2.5

#: Ratio of the launch time of uncompiled modules to that of compiled modules. The value is the
#: median of three ratios of a measured, launch-bound step time to 0.25 ms per ``launched_layers``:
#: a prompt of DeepSeek-R1 on 8 H200 (SGLang 0.5.12, 116 ms at any length, ratio 2.3), steps of
#: gpt-oss-120b with up to 256 prompt tokens on B200 (TensorRT-LLM, 34 ms, ratio 2.1), and decodes
#: of Qwen3-14B on A100 with --enforce-eager (vLLM 0.9.1, 20.6 ms, ratio 2.1).
UNCOMPILED = 2.1


def launched_layers(w: CostFacts) -> Values:
    """Return the kernel launches of all layers, relative to those of a dense 16-bit layer.

    The numbers are assumptions based on counts of launches in vLLM's modules; a dense layer has
    about ten. Experts add eight (routing, sorting, two grouped multiplications). Latent attention
    adds eight (down and up projections with norms, concatenation and copies). Shared experts add
    four, and quantizing activations adds three. A recurrent layer adds ``STATE_LAUNCHES`` units. In
    uncompiled modules, every launch counts ``UNCOMPILED`` times.
    """
    experts = 0.8 * w.moe_layers + 0.4 * w.shared_layers
    layers = w.layers + experts + 0.8 * w.latent_layers + STATE_LAUNCHES * w.state_layers
    quantized = 0.3 * w.layers * w.quantized
    return (layers + quantized) * (UNCOMPILED + (1.0 - UNCOMPILED) * w.compiled)


def activation_token_s(w: CostFacts) -> Values:
    """Return the time of kernels between matrix products to move one token's data, in seconds."""
    return w.small_kernel_elements * ACTIVATION_BYTES / w.memory_bytes_per_s


def experts(w: CostFacts) -> Values:
    """Return the number of routed experts on each GPU."""
    return w.routed_experts / w.expert_spread


def expert_read_s(w: CostFacts) -> Values:
    """Return the time to read the weights of one expert in every MoE layer, in seconds."""
    return w.expert_weights * w.expert_weight_bytes / w.memory_bytes_per_s


def expert_copies(w: CostFacts) -> Values:
    """Return the mean number of expert slices on one GPU that a token uses.

    It is the GPU's share of the token's top-k experts.
    """
    return w.top_k / w.expert_spread


def expert_activation_token_s(w: CostFacts) -> Values:
    """Return the time in seconds to gather a token's hidden state and scatter experts' results."""
    width = 2 * w.hidden_size + 3 * w.expert_width / w.expert_cut
    passes = expert_copies(w) * width * w.moe_layers
    return passes * ACTIVATION_BYTES / w.memory_bytes_per_s


def parallel_layers(w: CostFacts) -> Values:
    """Return the number of tensor-parallel layers, weighted by the latency of their all-reduces.

    An engine's faster all-reduce kernel saves a share of the latency (``faster_all_reduce``). A
    fused kernel saves the overhead around a layer's all-reduces. An all-reduce of a few values per
    token, with the small kernels around it, takes about as long as the two all-reduces of a layer.
    """
    layers = w.layers * (1 - AROUND_ALL_REDUCE * w.fused_all_reduce) + w.short_all_reduces
    return layers * (w.tensor_parallel_size > 1) * (1 - w.faster_all_reduce)


def all_reduces(w: CostFacts) -> Values:
    """Return the number of all-reduces of hidden states: two per layer, one for the embedding."""
    return (2 * w.layers + 1) * (w.tensor_parallel_size > 1)


def all_reduce_token_s(w: CostFacts) -> Values:
    """Return the time in seconds for which a token's all-reduces occupy the GPU links.

    A ring of p GPUs moves 2 (p - 1) / p of the message over each link (Patarasuk and Yuan 2009).
    """
    tp = w.tensor_parallel_size
    return all_reduces(w) * token_bytes(w) * 2 * (tp - 1) / tp / w.link_bytes_per_s


def exchange_token_s(w: CostFacts) -> Values:
    """Return the link time in seconds to send a token's state to other ranks' experts and back."""
    ranks = w.tensor_parallel_size * w.data_parallel_size
    remote = (ranks - 1) / ranks
    return w.moe_layers * 2 * w.exchange_copies * remote * token_bytes(w) / w.link_bytes_per_s


def offload_s(w: CostFacts) -> Values:
    """Return the time per step to read the offloaded weights over PCIe, in seconds.

    Weights are offloaded up to the limit of vLLM's flag ``cpu_offload_gb``, in GiB per GPU
    (vllm/config/cache.py). Each GPU in a pipeline only has the weights of its stage.
    """
    read_s = weights_s(w) + experts(w) * expert_read_s(w)
    held_bytes = read_s * w.memory_bytes_per_s / w.pipeline_parallel_size
    return np.minimum(w.cpu_offload_gb * GIB, held_bytes) / w.pcie_bytes_per_s


def cost(formula: Callable[[CostFacts], Values]) -> Any:
    """Declare a field of ``StepCosts`` by the formula that computes it from ``CostFacts``."""
    return field(metadata={"formula": formula})


@dataclass(frozen=True)
class StepCosts:
    """Seconds per unit of work on one GPU, at its memory bandwidth, FLOP/s and link bandwidth.

    Each field is declared with its formula. All fields are arrays of equal shape, with one value
    for each deployment. Names that end in ``_s`` are times in seconds; their descriptions name the
    work that takes this time.

    Attributes:
        layers: Number of layers.
        moe_layers: Number of layers with routed experts.
        quantized_layers: Number of layers with separate kernels that quantize activations in every
            step. An fp32 product outside the tensor cores counts as one: it is split over its inner
            dimension, and a second kernel adds up the parts.
        launched_layers: Number of layers, weighted by number of kernels: layers with experts or
            latent attention have a weight above 1.
        parallel_layers: Number of layers with a tensor-parallel all-reduce, in units of vLLM's own
            all-reduce.
        graph_tokens: Tokens of the largest captured CUDA graph.
        graph_requests: Number of decodes of the largest captured step without prompts; 0 for no
            limit.
        waits_for_host: 1 if the GPU waits for the host's work between two steps (no asynchronous
            scheduling), else 0.
        gemm_weights_s: Reading all weights, except those of routed experts, once.
        gemm_token_s: Arithmetic per token with all weights except routed experts and output head.
        head_sequence_s: Arithmetic per sequence in the output head.
        sampled_request_s: Moving one request's logits through the sampler's kernels. Every rank of
            a tensor-parallel group samples from the gathered logits.
        sampled_step_s: Time of the sampler's kernels per step that does not depend on the requests.
        activation_token_s: Moving one token through the kernels between the multiplications.
        experts: Number of routed experts on each GPU; 0 for a dense model.
        expert_share: Probability that a token uses a given expert: top-k / experts.
        expert_read_s: Reading one expert in every MoE layer.
        expert_token_s: Arithmetic per token with this GPU's share of the token's top-k experts.
        expert_activation_token_s: Gathering and scattering a token's hidden states for this GPU's
            share of its experts.
        expert_replicas: Number of data-parallel replicas whose tokens share the experts.
        kv_read_s: Reading one cached token in layers without a limit on keys, or in indexers.
        windowed_kv_read_s: Reading one cached token in layers with a limited number of keys; a
            recurrent state counts as one token, which is read and written.
        decode_pair_s: Attention arithmetic of a decode per key, in layers without a limit on keys.
        windowed_decode_pair_s: Attention arithmetic of a decode per key, in layers with such a
            limit.
        decode_attention_time: Ratio of the engine's to vLLM's time of decode attention.
        prefill_token_s: Reading queries and writing outputs of prefill attention, per token.
        prefill_pair_s: Attention arithmetic of a prefill per (query, key) pair, in layers without
            a limit on keys.
        windowed_prefill_pair_s: Attention arithmetic of a prefill per pair, in layers with such a
            limit.
        prefill_key_s: Passing one thread block of prefill attention over one key, in layers without
            a limit on keys; 0 if the kernel splits the keys of a chunk over thread blocks.
        all_reduces: Number of all-reduces of hidden states per step, in units of vLLM's own
            all-reduce; 0 on one GPU.
        all_reduce_token_bytes: Bytes of the message of one all-reduce, per token.
        one_shot_bytes: Maximum message size in bytes of a one-shot or fused all-reduce.
        all_reduce_token_s: Moving one token over the GPU links in all its all-reduces.
        small_all_reduce_token_s: Moving one token in small messages, in units of vLLM's own
            all-reduce.
        exchange_token_s: Moving one token between GPUs to its experts and back.
        pipeline_token_s: Sending one token from each pipeline stage to the next.
        offload_s: Reading the weights in host memory over PCIe.
    """

    layers: Values = cost(lambda w: w.layers)
    moe_layers: Values = cost(lambda w: w.moe_layers)
    quantized_layers: Values = cost(
        lambda w: w.layers * w.quantized * (1 - w.fused_quantization) + w.fp32_products
    )
    launched_layers: Values = cost(launched_layers)
    parallel_layers: Values = cost(parallel_layers)
    graph_tokens: Values = cost(lambda w: w.graph_tokens)
    graph_requests: Values = cost(lambda w: w.graph_requests)
    waits_for_host: Values = cost(lambda w: w.waits_for_host)
    gemm_weights_s: Values = cost(weights_s)
    gemm_token_s: Values = cost(lambda w: w.dense_token_s)
    head_sequence_s: Values = cost(lambda w: w.head_sequence_s)
    sampled_request_s: Values = cost(lambda w: w.vocab_size * w.logit_bytes / w.memory_bytes_per_s)
    sampled_step_s: Values = cost(lambda w: w.sampler_launch_s + w.vocab_size * w.sampler_logit_s)
    activation_token_s: Values = cost(activation_token_s)
    experts: Values = cost(experts)
    expert_share: Values = cost(lambda w: w.top_k / np.maximum(w.routed_experts, 1.0))
    expert_read_s: Values = cost(expert_read_s)
    expert_token_s: Values = cost(
        lambda w: 2.0 * w.expert_weights * expert_copies(w) / w.expert_flop_per_s
    )
    expert_activation_token_s: Values = cost(expert_activation_token_s)
    expert_replicas: Values = cost(lambda w: w.data_parallel_size)
    kv_read_s: Values = cost(
        lambda w: (w.kv_width * w.kv_element_bytes + w.index_key_bytes) / w.memory_bytes_per_s
    )
    windowed_kv_read_s: Values = cost(
        lambda w: (w.windowed_kv_width * w.kv_element_bytes + w.state_bytes) / w.memory_bytes_per_s
    )
    decode_pair_s: Values = cost(
        lambda w: w.decode_flop / w.bf16_flop_per_s + w.index_flop / w.fp8_flop_per_s
    )
    windowed_decode_pair_s: Values = cost(lambda w: w.windowed_decode_flop / w.bf16_flop_per_s)
    decode_attention_time: Values = cost(lambda w: w.decode_attention_time)
    prefill_token_s: Values = cost(lambda w: w.prefill_token_bytes / w.memory_bytes_per_s)
    prefill_pair_s: Values = cost(
        lambda w: (
            w.prefill_flop / w.bf16_flop_per_s
            + w.index_flop / w.fp8_flop_per_s
            + w.index_pair_bytes / w.memory_bytes_per_s
        )
    )
    windowed_prefill_pair_s: Values = cost(lambda w: w.windowed_prefill_flop / w.bf16_flop_per_s)
    prefill_key_s: Values = cost(lambda w: w.prefill_key_s)
    all_reduces: Values = cost(lambda w: all_reduces(w) * (1 - w.faster_all_reduce))
    all_reduce_token_bytes: Values = cost(token_bytes)
    one_shot_bytes: Values = cost(lambda w: np.maximum(w.fused_all_reduce_bytes, ONE_SHOT_BYTES))
    all_reduce_token_s: Values = cost(all_reduce_token_s)
    small_all_reduce_token_s: Values = cost(
        lambda w: all_reduce_token_s(w) * (1 - w.faster_all_reduce)
    )
    exchange_token_s: Values = cost(exchange_token_s)
    pipeline_token_s: Values = cost(
        lambda w: (w.pipeline_parallel_size - 1) * token_bytes(w) / w.link_bytes_per_s
    )
    offload_s: Values = cost(offload_s)

    def reshape(self, *shape: int) -> StepCosts:
        """Return the costs with every field reshaped to ``shape``."""
        return StepCosts(*(getattr(self, f.name).reshape(shape) for f in fields(self)))

    def take(self, index: int | slice | Int[np.ndarray, " rows"]) -> StepCosts:
        """Select the costs of the deployments at ``index``; a single index drops the dimension."""
        return StepCosts(*(np.atleast_1d(getattr(self, f.name)[index]) for f in fields(self)))


COST_NAMES: tuple[str, ...] = tuple(f.name for f in fields(StepCosts))
_FORMULAS = tuple(f.metadata["formula"] for f in fields(StepCosts))


def step_costs(deployments: Sequence[Deployment]) -> StepCosts:
    """Return the costs of ``n`` deployments, with fields of shape ``[n]``.

    Raises:
        PinnError: If a deployment uses speculative decoding, whose steps consist of several passes
            (``pinn.surrogate.deployment_features``).
    """
    if any(d.recipe.speculation is not None for d in deployments):
        raise PinnError(
            "this command does not support speculative decoding: omit "
            "--speculative-config, or use 'pinn coefficients', 'pinn "
            "breakdown', 'pinn simulate' or 'pinn plan'"
        )
    return model_costs(deployments)


def model_costs(deployments: Sequence[Deployment]) -> StepCosts:
    """Return the costs of a forward pass of ``n`` deployments, with fields of shape ``[n]``."""
    return _costs_of_rows([_fact_row(d, d.model, d.sampling) for d in deployments])


def _costs_of_rows(rows: Sequence[tuple[float, ...]]) -> StepCosts:
    facts = CostFacts(*np.array(rows, dtype=np.float64).reshape(-1, len(fields(CostFacts))).T)
    return StepCosts(*(formula(facts) for formula in _FORMULAS))


def draft_costs(deployment: Deployment, draft: ModelSpec, sampling: Sampling) -> StepCosts:
    """Return the costs of a draft model's forward pass, with fields of shape ``[1]``.

    Args:
        deployment: Deployment whose flags and GPU apply.
        draft: Draft model: its layers and output head.
        sampling: Sampling settings for the draft model's tokens.
    """
    return _costs_of_rows([_fact_row(deployment, draft, sampling)])


#: Function that returns the values of an engine configuration for ``Flags``, up to ``gathers``.
_OF_RECIPE = attrgetter(*Flags._fields[: Flags._fields.index("gathers")])


def waits_for_host(deployment: Deployment) -> bool:
    """Return whether the GPU waits for the host's work between two steps.

    The GPU waits without asynchronous scheduling, if no other pipeline stage has a batch in the
    meantime. The work was timed only in vLLM's code (``pinn.physics.step_values``), so other
    engines are treated as if they had asynchronous scheduling.
    """
    recipe = deployment.recipe
    alone = recipe.pipeline_parallel_size == 1
    return deployment.serving.engine == VLLM and alone and not recipe.overlap


def _fact_row(deployment: Deployment, model: ModelSpec, sampling: Sampling) -> tuple[float, ...]:
    recipe = deployment.recipe
    others = (
        recipe.expert_exchange == GATHER,
        waits_for_host(deployment),
        deployment.decode_attention_time,
        deployment.serving.cpu_offload_gb,
        deployment.kv_cache_precision.bytes_per_weight,
        *(NO_SAMPLER if model.pooled else sampler_time(sampling)),
    )
    return fact_row(model, deployment.gpu, Flags._make((*_OF_RECIPE(recipe), *others)))
