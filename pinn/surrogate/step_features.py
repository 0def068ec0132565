"""The step features: the one ordered registry that beta belongs to.

A step takes ``beta . features`` seconds. Each feature is a non-negative number of seconds at
datasheet rates (then its beta is a plain multiplier) or a count (then its beta is in seconds).
Every feature grows, or stays, with each request, token and context token, and shrinks, or stays,
with bandwidth and peak; with non-negative betas a step time does the same.

The five roofline features have betas of at least 1, and together they are at least the physical
floor, so that every step time is.

Priors are guesses, not fits; a spread is the standard deviation of a guess's logarithm. Where
measured kernels say something of a beta, the spread is how far their betas lie from the prior
(root mean square; ``git show a8211689:scripts/beta_priors.py``). The priors are not set to what
kernels say: they would know kernels of models and GPUs that an experiment leaves out.
"""

import numpy as np
from jaxtyping import Float

from pinn.physics import step_values as values
from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts
from pinn.physics.step_values import gemm_compute_s
from pinn.surrogate.feature_entry import Overhead, StepFeature, assumed

#: Betas that only bend what a roofline feature says start small; kernels that need them need more.
_SMALL = "small, since the roofline feature beside it holds most of the time"

_FEATURES = (
    StepFeature(
        "step", "s", 0.0, 0.0, Overhead(2e-4, 0.2), "host", "host", (),
        "Once per step: scheduling and input preparation that the GPU waits for.",
        "assumption: a fifth of the 1 ms or so of host work a step that vLLM's asynchronous "
        "scheduling is reported to hide (vllm-project/vllm#27614)",
        lambda _, s: values.busy(s),
    ),
    StepFeature(
        "layer", "s/layer", 0.0, 1e-5, Overhead(5e-6, 0.2), "host", "small_kernels", ("gemm",),
        "Per layer: launch latency and the memory latency floor of its small kernels in a graph.",
        "four matrix products of 2.5 us, as short as the shortest in the GEMM tables of H100 "
        "(2.45 us); spread 0.9",
        lambda c, s: c.layers * values.busy(s),
    ),
    StepFeature(
        "moe_layer", "s/layer", 0.0, 6e-6, Overhead(2e-6, 0.2), "host",
        "experts", ("experts", "exchange"),
        "Per mixture-of-experts layer: routing, sorting and the extra launches.",
        assumed(1.5, "two or three kernels; expert tables say 3e-5 (their shortest on H100 takes "
                     "21 us)"),
        lambda c, s: c.moe_layers * values.busy(s),
    ),
    StepFeature(
        "quantized_layer", "s/layer", 0.0, 0.0, Overhead(4e-6, 0.2), "host", "small_kernels", (),
        "Per layer whose activations are quantized in every step.",
        "assumption: two to four small kernels, no table holds them",
        lambda c, s: c.quantized_layers * values.busy(s),
    ),
    StepFeature(
        "parallel_layer", "s/layer", 0.0, 7e-6, Overhead(3e-6, 0.2), "host",
        "communication", ("all_reduce",),
        "Per layer under tensor parallelism: the latency of its two all-reduces. "
        "A short one amid it, of a full-width norm, counts as much.",
        assumed(0.6, "two all-reduces, of which the shortest on H100 takes 4.2 us in the tables"),
        lambda c, s: c.parallel_layers * values.busy(s),
    ),
    StepFeature(
        "eager_layer", "s/layer", 0.0, 0.0, Overhead(1e-4, 0.7), "host", "small_kernels", (),
        "Per layer launched without CUDA graphs: those of large prompts, all if --enforce-eager. "
        "Layers of experts, latent attention and recurrent states count for more.",
        "assumption: about ten kernels a layer, 10 us of Python and launch each",
        values.eager_layers,
    ),
    StepFeature(
        "prefill_layer", "s/layer", 0.0, 3e-6, Overhead(2e-6, 0.3), "host",
        "prefill_attention", ("prefill_attention",),
        "Per layer of a step that has prefill work: a second attention kernel, piecewise graphs.",
        assumed(1.0, "one more launch; attention tables say 1.4e-5 (their shortest on H100 takes "
                     "10 us)"),
        lambda c, s: np.where(s.prefill_requests > 0, c.layers, 0.0),
    ),
    StepFeature(
        "decode_layer", "s/layer", 0.0, 3e-6, None, "host",
        "decode_attention", ("decode_attention",),
        "Per layer of a step that has decodes: the latency of decode attention.",
        assumed(1.5, "one launch; attention tables say 1.3e-5 (their shortest on H100 takes 9 us)"),
        lambda c, s: np.where(s.decode_requests > 0, c.layers * c.decode_attention_time, 0.0),
    ),
    StepFeature(
        "request", "s/request", 0.0, 0.0, Overhead(3e-6, 0.2), "host",
        "host", ("gemm", "decode_attention"),
        "Per request in the step: block tables, output handling.",
        assumed(1.6, "a few Python statements; what kernels add for each sequence, 2e-6, is left "
                     "out"),
        lambda _, s: s.requests,
    ),
    StepFeature(
        "sampling", "1", 0.0, 1.0, None, "host", "sampling", ("sampling",),
        "The logits of every request through the sampler: draw, top-p's sort, penalties. Part of "
        "its time does not shrink with the bandwidth, so its beta is bounded as the host's are.",
        "vLLM's sampler, timed on an H100 (pinn/physics/costs.py); spread 0.15: other GPUs",
        lambda c, s: c.sampled_step_s * values.busy(s) + c.sampled_request_s * s.requests,
    ),
    StepFeature(
        "activations", "1", 0.0, 0.0, Overhead(1.0, 0.2), "bandwidth", "small_kernels", ("gemm",),
        "What norms, rotary embedding, activation functions and the cache's writes move.",
        "the bytes counted (pinn/physics/layer_work.py) at the datasheet's bandwidth, spread 1.1",
        lambda c, s: c.activation_token_s * s.tokens,
    ),
    StepFeature(
        "gemm", "1", 1.0, 1.15, None, "roofline", "gemm", ("gemm",),
        "Projections, dense and shared layers, output head: max(weights once, arithmetic).",
        assumed(0.15, "large kernels reach about 87 % of a datasheet's rates"),
        values.gemm,
    ),
    StepFeature(
        "gemm_weights", "1", 0.0, 0.05, None, "bandwidth", "gemm", ("gemm",),
        "Reading the weights of the same: the part that arithmetic does not overlap.",
        assumed(3.5, _SMALL),
        lambda c, s: c.gemm_weights_s * values.busy(s),
    ),
    StepFeature(
        "gemm_compute", "1", 0.0, 0.2, None, "peak", "gemm", ("gemm",),
        "The arithmetic of the same: the part that reading the weights does not overlap.",
        assumed(1.3, _SMALL),
        gemm_compute_s,
    ),
    StepFeature(
        "gemm_beyond_128", "1", 0.0, 0.1, None, "peak", "gemm", ("gemm",),
        "Their arithmetic for tokens beyond 128, about the size of a tile.",
        assumed(1.5, _SMALL),
        lambda c, s: c.gemm_token_s * np.maximum(s.tokens - values.TILE_TOKENS, 0.0),
    ),
    StepFeature(
        "gemm_beyond_1024", "1", 0.0, 0.05, None, "peak", "gemm", ("gemm",),
        "Their arithmetic for tokens beyond 1024, where waves of tiles fill the GPU.",
        assumed(1.7, _SMALL),
        lambda c, s: c.gemm_token_s * np.maximum(s.tokens - values.WAVE_TOKENS, 0.0),
    ),
    StepFeature(
        "experts", "1", 1.0, 1.15, None, "roofline", "experts", ("experts",),
        "Routed experts: max(reading the top-k of one token, arithmetic of all).",
        assumed(0.7, "as for matrix products"),
        values.experts,
    ),
    StepFeature(
        "experts_hit", "1", 0.0, 1.0, None, "bandwidth", "experts", ("experts",),
        "Reading the other experts that the step's tokens hit under balanced routing.",
        "their weights are read once at the datasheet's bandwidth; spread 0.7",
        lambda c, s: values.experts_hit(c, s),
    ),
    StepFeature(
        "experts_hit_tenth", "1", 0.0, 0.05, None, "bandwidth", "experts", ("experts",),
        "Reading the experts that a tenth of the tokens would hit: skewed routing, few experts.",
        assumed(2.5, _SMALL),
        lambda c, s: values.experts_hit(c, s, values.FEW_TOKENS_SHARE),
    ),
    StepFeature(
        "expert_compute", "1", 0.0, 0.2, None, "peak", "experts", ("experts",),
        "Arithmetic of the routed experts: the part that reading them does not overlap.",
        assumed(2.3, _SMALL),
        values.expert_compute_s,
    ),
    StepFeature(
        "expert_compute_beyond_1024", "1", 0.0, 0.1, None, "peak", "experts", ("experts",),
        "Their arithmetic for tokens beyond 1024.",
        assumed(2.5, _SMALL),
        values.expert_compute_beyond_wave,
    ),
    StepFeature(
        "expert_activations", "1", 0.0, 1.0, None, "bandwidth", "experts", ("experts",),
        "Gathering tokens for the experts and scattering their results.",
        "every copy of a token is read and written at the datasheet's bandwidth; spread 1.3",
        values.expert_activations,
    ),
    StepFeature(
        "decode_attention", "1", 1.0, 1.2, None, "roofline",
        "decode_attention", ("decode_attention",),
        "Decode attention: max(reading keys and values, arithmetic), windows respected.",
        assumed(0.24, "paged reads reach about 83 % of a datasheet's bandwidth"),
        values.decode_attention,
    ),
    StepFeature(
        "kv_read", "1", 0.0, 0.05, None, "bandwidth", "decode_attention", ("decode_attention",),
        "Reading the keys and values of decodes: the part that arithmetic does not overlap.",
        assumed(1.0, _SMALL),
        values.kv_read,
    ),
    StepFeature(
        "prefill_attention", "1", 1.0, 1.6, None, "roofline",
        "prefill_attention", ("prefill_attention",),
        "Causal prefill attention: max(reading cached keys and values, arithmetic).",
        assumed(0.4, "more than 1.33, what FlashAttention-3's best 75 % of an H100's peak come to "
                     "(Shah et al. 2024, arXiv:2407.08608)"),
        values.prefill_attention,
    ),
    StepFeature(
        "prefill_tokens", "1", 0.0, 1.0, None, "bandwidth",
        "prefill_attention", ("prefill_attention",),
        "Queries in and outputs out of prefill attention.",
        "each is moved once at the datasheet's bandwidth; spread 2.4",
        lambda c, s: c.prefill_token_s * s.prefill_tokens,
    ),
    StepFeature(
        "prefill_kv_read", "1", 0.0, 0.5, None, "bandwidth",
        "prefill_attention", ("prefill_attention",),
        "Reading cached keys and values of prefill chunks beside the arithmetic.",
        assumed(2.9, "half of it hides"),
        values.prefill_kv_read,
    ),
    StepFeature(
        "all_reduce", "1", 0.0, 1.0, None, "link", "communication", ("all_reduce",),
        "Tensor-parallel all-reduce bytes over the GPU links.",
        "a ring's bytes (pinn/physics/costs.py) at the datasheet's link rate; spread 0.4",
        lambda c, s: c.all_reduce_token_s * s.tokens,
    ),
    StepFeature(
        "all_reduce_first_256k", "1", 0.0, 0.5, None, "link", "communication", ("all_reduce",),
        "The same for the first 256 KiB of each message: one-shot algorithms move more bytes.",
        assumed(2.1, "one-shot moves p - 1 messages where a ring moves 2 (p - 1) / p"),
        lambda c, s: values.first_bytes(c, s, values.ONE_SHOT_BYTES),
    ),
    StepFeature(
        "all_reduce_first_8m", "1", 0.0, 0.5, None, "link", "communication", ("all_reduce",),
        "The same for the first 8 MiB of each message, up to which latency shows.",
        assumed(1.4, "half as fast as the link"),
        lambda c, s: values.first_bytes(c, s, values.CUSTOM_BYTES),
    ),
    StepFeature(
        "large_all_reduce", "s", 0.0, 3e-6, None, "host", "communication", ("all_reduce",),
        "Per all-reduce of more than 256 KiB: another algorithm with more synchronization.",
        assumed(1.5, "one more pass of synchronization, a microsecond or a few"),
        values.large_all_reduces,
    ),
    StepFeature(
        "expert_exchange", "1", 0.0, 1.3, None, "link", "communication", ("exchange",),
        "Dispatch and combine bytes between data-parallel ranks.",
        assumed(0.9, "collectives reach about three quarters of a datasheet's link rate"),
        lambda c, s: c.exchange_token_s * s.tokens,
    ),
    StepFeature(
        "pipeline", "1", 0.0, 1.3, None, "link", "communication", (),
        "Activations handed from one pipeline stage to the next; stages run one after another.",
        assumed(0.3, "as the exchange; no table holds it"),
        lambda c, s: c.pipeline_token_s * s.tokens,
    ),
    StepFeature(
        "cpu_offload", "1", 1.0, 1.1, None, "pcie", "weights", (),
        "Reading offloaded weights from host memory.",
        assumed(0.1, "PCIe packets carry 256 bytes and about 24 of headers; no table holds it"),
        lambda c, s: c.offload_s * values.busy(s),
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
