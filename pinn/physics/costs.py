"""What one unit of work costs a deployment at its GPU's datasheet rates.

The features of a step are sums over the batch times these constants, so a Go program or a table
reader needs nothing else of the model and the GPU. Each has one formula
(``scripts/generating`` writes the Go package from them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import GATHER
from pinn.errors import PinnError
from pinn.physics import cost_facts as formulas
from pinn.physics.cost_facts import CostFacts, Flags, Values, fact_row, facts_of_rows
from pinn.specs.model import ModelSpec, Sampling

# What a sampler takes: bytes moved by the kernels of vLLM's own, and how long those took.
#
# vLLM 0.15.1 samples with PyTorch's operators, one kernel each, every one of which reads and
# writes all logits of all requests of the step; FlashInfer's sampler has to be asked for
# (``VLLM_USE_FLASHINFER_SAMPLER``). A kernel's bytes are those of its operands and results per
# logit: 4 in fp32, 8 in int64, 1 for a mask; a row that a softmax reads again comes from the
# cache.
#
# How far the kernels are from the datasheet's bandwidth, and what they take whatever the batch,
# was timed on an H100 (``python scripts/time_sampler.py``,
# ``data/kernels/sampler_h100_sxm.csv``) and fitted with non-negative terms (``python
# scripts/fit_sampler.py``, 11 % off in the mean over 240 points). Other GPUs are assumed to be
# as far from their bandwidth. Not counted is what the host prepares beside a running step: the
# ids of all output tokens for penalties.

#: bf16 logits become fp32 (``vllm/v1/sample/sampler.py: forward``).
_COPY = 2 + 4
#: The largest one (``greedy_sample``, and the end of ``random_sample``).
_LARGEST = 4
_SOFTMAX = 4 + 4
#: Division by the temperature, softmax, exponential noise, division by it (``random_sample``).
_DRAW = (4 + 4) + _SOFTMAX + 4 + (4 + 4 + 4)
#: Comparison to a mask, then ``masked_fill_``.
_MASK = (4 + 1) + (4 + 1 + 4)
#: ``apply_top_k_only``: ``topk`` reads all logits once per 8 bits of the key and once to gather.
_COUNT = 5 * 4 + _MASK
#: A radix sort of fp32 keys with (row, index) pairs of 8 bytes: numbering, a histogram, four
#: passes over keys and pairs, a histogram and one pass over the pairs by row, then values and int64
#: indices (PyTorch, ``aten/src/ATen/native/cuda/SortStable.cu: segmented_sort_pairs_by_full_sort``,
#: for fewer than 128 rows, on CUB's radix sort of 8 bits at a time).
_SORT = 8 + 4 + 4 * 2 * (4 + 8) + (8 + 2 * 8) + (8 + 4 + 4 + 8)
#: ``apply_top_k_top_p``: sort, softmax, running sum, mask, and a copy scattered back by index.
_MASS = _SORT + _SOFTMAX + (4 + 4) + _MASK + (4 + 4) + (4 + 8 + 4)
#: ``MinPLogitsProcessor``: softmax, its largest, mask.
_RATIO = _SOFTMAX + 4 + _MASK
#: ``apply_penalties``: counts in int64 cleared and compared, of the prompt and of the output; the
#: repetition kernel, which reads both masks and few logits; presence and frequency penalties, which
#: are computed with it in any case.
_PENALTIES = 2 * (8 + 8 + 1) + (1 + 1) + (8 + 4 + 4 + 4 + 4) + (1 + 4 + 4 + 4 + 4)


@dataclass(frozen=True)
class SamplerKernels:
    """Kernels that a setting of the sampler asks for.

    Attributes:
        logit_bytes: Bytes read and written per logit.
        slowdown: Their time over that of the bytes at the datasheet's bandwidth.
        launch_s: What they take whatever the batch and the vocabulary.
        logit_s: What a block takes for a logit of its row; rows are worked on side by side.
    """

    logit_bytes: float
    slowdown: float
    launch_s: float
    logit_s: float


#: Two digits of ``scripts/fit_sampler.py``: what takes the likeliest token, and what drawing, a
#: top-p, a top-k beside it or alone, a min-p and penalties add.
TAKEN = SamplerKernels(_COPY + _LARGEST, 1.4, 1.1e-5, 2.5e-11)
DRAWN = SamplerKernels(_DRAW, 1.2, 1.1e-5, 2.7e-10)
MASS = SamplerKernels(_MASS, 2.1, 7.5e-5, 7.8e-10)
COUNT_BESIDE_MASS = SamplerKernels(_MASK, 0.81, 1.2e-5, 1.7e-10)
COUNT = SamplerKernels(_COUNT, 1.8, 5.3e-5, 2.6e-10)
RATIO = SamplerKernels(_RATIO, 1.2, 7.9e-6, 4.7e-10)
PENALIZED = SamplerKernels(_PENALTIES, 1.3, 2.5e-5, 0.0)


def sampler_kernels(sampling: Sampling) -> tuple[SamplerKernels, ...]:
    """The kernels that settings ask for."""
    limits: tuple[SamplerKernels, ...] = (MASS,) if sampling.limits_mass else ()
    if sampling.limits_count:
        limits = (MASS, COUNT_BESIDE_MASS) if sampling.limits_mass else (COUNT,)
    return (
        TAKEN,
        *((PENALIZED,) if sampling.is_penalized else ()),
        *(() if sampling.is_greedy else (DRAWN,)),
        *((RATIO,) if sampling.limits_ratio else ()),
        *limits,
    )


@dataclass(frozen=True)
class SamplerTime:
    """Sampling takes launch + vocabulary x (logit + requests x bytes / bandwidth) seconds.

    Attributes:
        timed_bytes: Of a logit: as many as take that long at the datasheet's bandwidth.
        launch_s: Of a step.
        logit_s: Of a step, for each logit of the vocabulary.
    """

    timed_bytes: float
    launch_s: float
    logit_s: float


@lru_cache(maxsize=1024)
def sampler_time(sampling: Sampling) -> SamplerTime:
    """How long the kernels that settings ask for take."""
    asked = sampler_kernels(sampling)
    return SamplerTime(
        sum(kernels.logit_bytes * kernels.slowdown for kernels in asked),
        sum(kernels.launch_s for kernels in asked),
        sum(kernels.logit_s for kernels in asked),
    )


def cost(meaning: str, formula: Callable[[CostFacts], Values]) -> dict[str, Any]:
    """What is known of a field of ``StepCosts``.

    Args:
        meaning: What it is.
        formula: Its values of shape ``[n]`` for the numbers of ``n`` deployments.
    """
    return {"meaning": meaning, "formula": formula}


@dataclass(frozen=True)
class StepCosts:
    """Seconds at datasheet rates per unit of work on one GPU; fields are arrays of one shape.

    What each is stands beside it, with its formula.
    """

    layers: Float[np.ndarray, "*n"] = field(
        metadata=cost("Transformer layers.", lambda w: w.layers)
    )
    moe_layers: Float[np.ndarray, "*n"] = field(
        metadata=cost("Layers with routed experts.", lambda w: w.moe_layers)
    )
    quantized_layers: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Layers whose activations are quantized in every step by kernels of their own.",
            lambda w: w.layers * w.quantized * (1 - w.fused_quantization),
        )
    )
    launched_layers: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Layers by their kernels: one of experts or of latent attention counts for more.",
            formulas.launched_layers,
        )
    )
    parallel_layers: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Layers with a tensor-parallel all-reduce, as vLLM's own kernel takes.",
            formulas.parallel_layers,
        )
    )
    graph_tokens: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Largest captured CUDA graph, in tokens.",
            lambda w: w.graph_tokens,
        )
    )
    graph_requests: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Decodes of the largest step without prompts that one was; 0 for no limit.",
            lambda w: w.graph_requests,
        )
    )
    gemm_weights_s: Float[np.ndarray, "*n"] = field(
        metadata=cost("Reading every weight but the routed experts' once.", formulas.weights_s)
    )
    gemm_token_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Computing them for one token, the output head apart.", lambda w: w.dense_token_s
        )
    )
    head_sequence_s: Float[np.ndarray, "*n"] = field(
        metadata=cost("Computing the output head for one sequence.", lambda w: w.head_sequence_s)
    )
    # Every rank of a tensor-parallel group samples from the gathered logits.
    sampled_request_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Moving the logits of one request through the sampler's kernels.",
            lambda w: w.vocab_size * w.logit_bytes / w.memory_bytes_per_s,
        )
    )
    sampled_step_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "What those kernels take in a step whatever its requests.",
            lambda w: w.sampler_launch_s + w.vocab_size * w.sampler_logit_s,
        )
    )
    activation_token_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "What the kernels between the multiplications move of one token.",
            formulas.activation_token_s,
        )
    )
    experts: Float[np.ndarray, "*n"] = field(
        metadata=cost("Routed experts on this GPU; 0 for a dense model.", formulas.experts)
    )
    expert_share: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Chance that a token uses a given expert: top-k / experts.",
            lambda w: w.top_k / np.maximum(w.routed_experts, 1.0),
        )
    )
    expert_read_s: Float[np.ndarray, "*n"] = field(
        metadata=cost("Reading one of them in every MoE layer.", formulas.expert_read_s)
    )
    expert_token_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Computing this GPU's share of one token's top-k experts.",
            lambda w: 2.0 * w.expert_weights * formulas.expert_copies(w) / w.expert_flop_per_s,
        )
    )
    expert_activation_token_s: Float[np.ndarray, "*n"] = field(
        metadata=cost("Gathering and scattering that share.", formulas.expert_activation_token_s)
    )
    expert_reading_time: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Reading experts by the engine's own kernels, relative to those that vLLM runs.",
            lambda w: w.expert_reading_time,
        )
    )
    expert_computing_time: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "The same of computing, gathering and scattering.", lambda w: w.expert_computing_time
        )
    )
    expert_replicas: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Data-parallel replicas whose tokens share the experts.", lambda w: w.data_parallel_size
        )
    )
    kv_read_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Reading one cached token in the layers that see everything, or in their indexers.",
            lambda w: (w.kv_width * w.kv_element_bytes + w.index_key_bytes) / w.memory_bytes_per_s,
        )
    )
    windowed_kv_read_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Reading one cached token in the layers that see a limited number; a recurrent state "
            "counts as one, read and written.",
            lambda w: (
                (w.windowed_kv_width * w.kv_element_bytes + w.state_bytes) / w.memory_bytes_per_s
            ),
        )
    )
    decode_pair_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Attention arithmetic of a decode per key, in full layers.",
            lambda w: w.decode_flop / w.bf16_flop_per_s + w.index_flop / w.fp8_flop_per_s,
        )
    )
    windowed_decode_pair_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "The same in windowed layers.", lambda w: w.windowed_decode_flop / w.bf16_flop_per_s
        )
    )
    decode_attention_time: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Decode attention by the engine's own kernels, relative to those that vLLM runs.",
            lambda w: w.decode_attention_time,
        )
    )
    prefill_token_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Queries in and outputs out of prefill attention, per token.",
            lambda w: w.prefill_token_bytes / w.memory_bytes_per_s,
        )
    )
    prefill_pair_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Attention arithmetic of a prefill per pair, in full layers.",
            lambda w: (
                w.prefill_flop / w.bf16_flop_per_s
                + w.index_flop / w.fp8_flop_per_s
                + w.index_pair_bytes / w.memory_bytes_per_s
            ),
        )
    )
    windowed_prefill_pair_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "The same in windowed layers.", lambda w: w.windowed_prefill_flop / w.bf16_flop_per_s
        )
    )
    all_reduces: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "All-reduces of a step, as vLLM's own kernel takes; 0 on one GPU.",
            lambda w: w.all_reduces * (w.tensor_parallel_size > 1) * (1 - w.faster_all_reduce),
        )
    )
    all_reduce_token_bytes: Float[np.ndarray, "*n"] = field(
        metadata=cost("Message of one of them, per token.", formulas.token_bytes)
    )
    all_reduce_token_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Moving one token's all-reduces over the GPU links.", formulas.all_reduce_token_s
        )
    )
    small_all_reduce_token_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "The same for tokens of small messages, as vLLM's own kernel takes.",
            lambda w: formulas.all_reduce_token_s(w) * (1 - w.faster_all_reduce),
        )
    )
    exchange_token_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Moving one token to its experts and back between GPUs.", formulas.exchange_token_s
        )
    )
    pipeline_token_s: Float[np.ndarray, "*n"] = field(
        metadata=cost(
            "Handing one token from stage to stage.",
            lambda w: (w.pipeline_parallel_size - 1) * formulas.token_bytes(w) / w.link_bytes_per_s,
        )
    )
    offload_s: Float[np.ndarray, "*n"] = field(
        metadata=cost("Reading the weights that lie in host memory over PCIe.", formulas.offload_s)
    )

    def reshape(self, *shape: int) -> StepCosts:
        """The costs with every field reshaped."""
        return StepCosts(*(getattr(self, f.name).reshape(shape) for f in fields(self)))

    def take(self, index) -> StepCosts:
        """The costs of the deployments at ``index``; a whole number keeps one of them."""
        return StepCosts(*(np.atleast_1d(getattr(self, f.name)[index]) for f in fields(self)))


COST_NAMES: tuple[str, ...] = tuple(f.name for f in fields(StepCosts))
_FORMULAS = tuple(f.metadata["formula"] for f in fields(StepCosts))


def step_costs(deployments: Sequence[Deployment]) -> StepCosts:
    """The costs of ``n`` deployments, fields of shape ``[n]``.

    Raises:
        PinnError: If one of them speculates: its steps are more than one pass
            (``pinn.physics.speculation``).
    """
    if any(d.recipe.speculation is not None for d in deployments):
        raise PinnError(
            "speculative decoding is not known here: leave --speculative-config out, or time its "
            "steps with 'pinn coefficients', 'pinn breakdown', 'pinn simulate' or 'pinn plan'"
        )
    return model_costs(deployments)


def model_costs(deployments: Sequence[Deployment]) -> StepCosts:
    """The costs of a pass of each deployment's model, fields of shape ``[n]``."""
    return _costs_of_rows([_fact_row(d, d.model, d.sampling) for d in deployments])


def _costs_of_rows(rows: Sequence[tuple[float, ...]]) -> StepCosts:
    facts = facts_of_rows(rows)
    return StepCosts(*(formula(facts) for formula in _FORMULAS))


def draft_costs(deployment: Deployment, draft: ModelSpec, sampling: Sampling) -> StepCosts:
    """The costs of a pass of what drafts for a deployment, under its flags; shape ``[1]``.

    Args:
        deployment: Whose flags and GPU.
        draft: Layers and head.
        sampling: How its tokens are drawn.
    """
    return _costs_of_rows([_fact_row(deployment, draft, sampling)])


def _fact_row(deployment: Deployment, model: ModelSpec, sampling: Sampling) -> tuple[float, ...]:
    recipe, sampler = deployment.recipe, sampler_time(sampling)
    flags = Flags(
        recipe.tensor_parallel_size,
        recipe.data_parallel_size,
        recipe.pipeline_parallel_size,
        recipe.expert_parallel_size,
        recipe.expert_exchange == GATHER,
        recipe.graph_tokens,
        recipe.graph_requests,
        recipe.fused_all_reduce,
        recipe.fused_quantization,
        recipe.all_reduce_latency,
        recipe.latent_launches,
        deployment.decode_attention_time,
        *deployment.expert_times(model),
        deployment.serving.cpu_offload_gb,
        deployment.kv_cache_precision.bytes_per_weight,
        sampler.timed_bytes,
        sampler.launch_s,
        sampler.logit_s,
    )
    return fact_row(model, deployment.gpu, flags)
