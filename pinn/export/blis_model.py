"""A deployment's model and engine as BLIS configures them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.memory.kv_cache import kv_layout
from pinn.memory.kv_layout import max_model_len
from pinn.specs import model as models
from pinn.specs.gpu import GpuSpec, gpu_aliases
from pinn.specs.precision import ACTIVATION_BYTES

# Inputs of the Go simulator BLIS: its numbers of a model, a GPU and a configuration.
#
# They follow its code of August 2026. Its simplifications are kept, because its step time has them.


@dataclass(frozen=True)
class BlisModel:
    """Numbers that BLIS's basis functions use, with BLIS's symbols.

    Attributes:
        layers: L, number of layers.
        hidden_size: d, width of the residual stream.
        heads: h, number of attention heads.
        kv_heads: At least one per GPU, since BLIS panics where TP does not divide them and vLLM
            replicates fewer ones. For MLA as many as heads, as in its configs.
        expert_width: f_m, width of one routed expert; 0 for a dense model.
        dense_width: f_d, width of a dense feed-forward layer.
        shared_width: f_s, width of all shared experts together.
        experts: N, number of routed experts; 0 for a dense model.
        top_k: k, experts per token.
        interleave: s, dense layers between two of routed experts.
        weight_bytes: w, bytes per weight.
        activation_bytes: a, bytes per activation.
        tensor_parallel: tp, tensor-parallel size.
        data_parallel: dp, data-parallel size.
        peak_tflops: Dense peak of the format that BLIS picks, TFLOP/s.
        bandwidth_tb_s: Bandwidth of the device memory, TB/s.
    """

    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    expert_width: int
    dense_width: int
    shared_width: int
    experts: int
    top_k: int
    interleave: int
    weight_bytes: float
    activation_bytes: float
    tensor_parallel: int
    data_parallel: int
    peak_tflops: float
    bandwidth_tb_s: float

    @property
    def head_dim(self) -> int:
        """Return the width of a head, d div h; an explicit head_dim is ignored."""
        return self.hidden_size // self.heads

    @property
    def moe_layers(self) -> int:
        """Return L_m: every layer of a mixture of experts, or one in s + 1."""
        if not self.experts:
            return 0
        return self.layers // (self.interleave + 1) if self.interleave else self.layers

    @property
    def dense_layers(self) -> int:
        """Return L_d, the number of dense layers."""
        return self.layers - self.moe_layers


def check_expressible(deployment: Deployment) -> None:
    """Check that BLIS accepts and can express a deployment.

    Raises:
        PinnError: If it does not; the message has BLIS's reason and a remedy.
    """
    model, recipe = deployment.model, deployment.recipe
    if not model.is_plain:
        raise PinnError(
            "BLIS's step time formula covers plain attention in layers of one "
            f"shape only, and {model.name} has other layers "
            f"({models.mixer_names(model)}): export a table for the Go adapter "
            "with 'pinn export table'"
        )
    if recipe.data_parallel_size > 1 and model.moe is None:
        raise PinnError(
            f"BLIS does not accept --dp {recipe.data_parallel_size} for "
            f"{model.name}: dp > 1 needs routed experts. Simulate the replicas of "
            "a dense model as separate servers: export data_parallel_size 1 and "
            "send each simulated server its share of the requests"
        )
    if recipe.pipeline_parallel_size > 1:
        raise PinnError(
            "BLIS does not simulate pipeline parallelism, and would run the "
            f"{recipe.pipeline_parallel_size} of {model.name} one after another: "
            "export tensor_parallel_size instead of pipeline_parallel_size, or "
            "use the Go adapter"
        )
    if recipe.speculation is not None:
        raise PinnError(
            "BLIS decodes one token per request and step, but "
            f"{recipe.speculation.method} verifies several: leave "
            "speculative_config out, or use 'pinn simulate', or the Go package "
            "with 'pinn export table'"
        )


def blis_model(deployment: Deployment) -> BlisModel:
    """Return the numbers that BLIS reads from the files of a deployment."""
    model, recipe = deployment.model, deployment.recipe
    moe, attention = model.moe, model.layer_groups[0].attention
    assert isinstance(attention, models.Attention)
    weights = model.precisions.experts if moe else model.precisions.dense_ffn
    # BLIS counts the element alone, without scales.
    weight_bytes = int(2 * weights.bytes_per_weight) / 2
    grouped = isinstance(attention, models.AttentionSpec)
    kv_heads = attention.kv_heads if grouped else attention.heads
    dense = [g.ffn.width for g in model.layer_groups if isinstance(g.ffn, models.DenseFfnSpec)]
    # BLIS takes the FP8 rate only where a weight takes one byte and the GPU has one.
    fp8 = deployment.gpu.peak_flop_per_s.get("fp8") if weight_bytes == 1 else None
    return BlisModel(
        layers=model.layers,
        hidden_size=model.hidden_size,
        heads=attention.heads,
        kv_heads=max(kv_heads, recipe.tensor_parallel_size),
        expert_width=moe.width if moe else 0,
        dense_width=dense[0] if dense else 0,
        shared_width=moe.shared_width if moe else 0,
        experts=moe.experts if moe else 0,
        top_k=max(moe.top_k, 1) if moe else 1,
        # The first few dense layers of DeepSeek-like models are no pattern: BLIS counts none.
        interleave=model.layers // model.moe_layers - 1 if moe else 0,
        weight_bytes=weight_bytes,
        activation_bytes=ACTIVATION_BYTES,
        tensor_parallel=recipe.tensor_parallel_size,
        data_parallel=recipe.data_parallel_size,
        peak_tflops=(fp8 or deployment.gpu.peak_flop_per_s["bf16"]) / 1e12,
        bandwidth_tb_s=deployment.gpu.memory_bandwidth_bytes_per_s / 1e12,
    )


# Files of a deployment for BLIS: config.json, the hardware file and flags of the KV cache.
#
# All keys that BLIS reads are written, and no others, so that it does not have to guess. Its step
# time uses these shapes and bytes, on which the exported coefficients depend.

#: Parts of a model's name from which BLIS takes bytes per weight if the config does not state them.
_FORMAT_IN_NAME = re.compile(r"(?:^|[./_-])(?:w\d+a16|fp8)(?:$|[./_-])", re.IGNORECASE)
#: GPU names in BLIS's own hardware file, which are preferred to other names.
_BLIS_GPUS = ("H100", "A100-SXM", "A100-80", "L40S")


def blis_config(deployment: Deployment) -> dict[str, object]:
    """Return the config.json for ``--model-config-folder``.

    Its bytes per weight are the deployment's, whatever the model's name says. ``intermediate_size``
    is the experts' where no layer is dense, since BLIS refuses 0. ``hidden_act`` is the one that
    BLIS knows for its gated layers; it does not affect step times.
    """
    model, m = deployment.model, blis_model(deployment)
    attention = model.layer_groups[0].attention
    assert isinstance(attention, models.Attention)
    found: dict[str, object] = {
        "model_type": model.model_type,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        "max_position_embeddings": model.max_position,
        "num_hidden_layers": m.layers,
        "hidden_size": m.hidden_size,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": m.dense_width or m.expert_width,
    }
    if isinstance(attention, models.LatentAttentionSpec):
        found["kv_lora_rank"] = attention.kv_lora_rank
        found["qk_rope_head_dim"] = attention.qk_rope_head_dim
    if m.experts:
        found |= _experts(m)
    if m.weight_bytes != m.activation_bytes or _FORMAT_IN_NAME.search(model.name):
        found["quantization_config"] = {"bits": round(8 * m.weight_bytes)}
    return found


def _experts(m: BlisModel) -> dict[str, int]:
    found = {
        "num_experts": m.experts,
        "num_experts_per_tok": m.top_k,
        "moe_intermediate_size": m.expert_width,
    }
    if m.shared_width:
        found["shared_expert_intermediate_size"] = m.shared_width
    if m.interleave:
        found["interleave_moe_layer_step"] = m.interleave
        found["intermediate_size_mlp"] = m.dense_width
    return found


def blis_gpu_name(gpu: GpuSpec) -> str:
    """Return the name for ``--hardware``: BLIS's own where it has the GPU, else the catalog's."""
    return next((name for name in _BLIS_GPUS if name in gpu_aliases(gpu)), gpu.name)


def blis_hardware(gpu: GpuSpec) -> dict[str, Mapping[str, float]]:
    """Return the file for ``--hardware-config``: the GPU under every name without a blank."""
    names = [name for name in (gpu.name, *gpu_aliases(gpu)) if " " not in name]
    return {name: hardware_entry(gpu) for name in names}


def hardware_entry(gpu: GpuSpec) -> Mapping[str, float]:
    """Return a GPU as BLIS's hardware file describes it; step times do not use the two mfu."""
    tflops = {kind: rate / 1e12 for kind, rate in gpu.peak_flop_per_s.items()}
    return {
        "TFlopsPeak": tflops["bf16"],
        "TFlopsFP8": tflops.get("fp8", 0.0),
        "BwPeakTBs": gpu.memory_bandwidth_bytes_per_s / 1e12,
        "mfuPrefill": 0.5,
        "mfuDecode": 0.5,
        "MemoryGiB": gpu.memory_bytes / 2**30,
    }


def blis_kv_blocks(deployment: Deployment, request_tokens: int) -> int:
    """Return the blocks for ``--total-kv-blocks``, of all data-parallel replicas, as BLIS counts.

    Where every layer keeps every token, these are the simulator's own blocks. In a model with
    windowed layers, tokens take several blocks, but only one in BLIS. The number of requests that
    fit then depends on their length.

    Args:
        deployment: Deployment that is served.
        request_tokens: Prompt and output tokens of a typical request.

    Raises:
        PinnError: If the deployment, or one request of max_model_len, does not fit.
    """
    layout, size = kv_layout(deployment, EngineSpec()), deployment.recipe.block_tokens
    tokens = min(request_tokens, max_model_len(deployment))
    held, plain = layout.request_blocks(tokens, size), -(-tokens // size)
    return layout.blocks * plain // int(held) * deployment.recipe.data_parallel_size


def blis_flags(deployment: Deployment, kv_blocks: int) -> dict[str, str]:
    """Return BLIS's flags of a deployment, except those that name files.

    BLIS steps all data-parallel replicas of a mixture of experts as one engine, which has the
    requests and tokens of all of them.
    """
    recipe = deployment.recipe
    replicas = recipe.data_parallel_size
    return {
        "model": deployment.model.name,
        "hardware": blis_gpu_name(deployment.gpu),
        "latency-model": "trained-physics",
        "tp": str(recipe.tensor_parallel_size),
        "dp": str(replicas),
        "max-num-seqs": str(recipe.max_requests * replicas),
        "max-num-batched-tokens": str(recipe.token_budget * replicas),
        "max-model-len": str(max_model_len(deployment)),
        "block-size-in-tokens": str(recipe.block_tokens),
        "total-kv-blocks": str(kv_blocks),
    }
