"""Model, GPU and engine settings of a deployment in the format that the simulator BLIS reads."""

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

# Inputs of the Go simulator BLIS: numbers that describe a model, a GPU and a configuration.
#
# The numbers follow BLIS's code of August 2026, including its simplifications, because these affect
# BLIS's step times.


@dataclass(frozen=True)
class BlisModel:
    """Inputs of BLIS's basis functions, each with BLIS's symbol.

    Attributes:
        layers: L, number of layers.
        hidden_size: d, width of the residual stream.
        heads: h, number of attention heads.
        kv_heads: Number of KV heads, at least one per GPU: BLIS panics if the tensor-parallel size
            does not divide it, and vLLM replicates KV heads if there are fewer of them than GPUs.
            For MLA it equals ``heads``, as in the config.json of such models.
        expert_width: f_m, intermediate size of one routed expert; 0 for a dense model.
        dense_width: f_d, intermediate size of a dense feed-forward layer.
        shared_width: f_s, intermediate size of all shared experts together.
        experts: N, number of routed experts; 0 for a dense model.
        top_k: k, experts per token.
        interleave: s, number of dense layers between two MoE layers.
        weight_bytes: w, bytes per weight.
        activation_bytes: a, bytes per activation.
        tensor_parallel: tp, tensor-parallel size.
        data_parallel: dp, data-parallel size.
        peak_tflops: Dense peak rate of the number format that BLIS chooses for arithmetic, in
            TFLOP/s.
        bandwidth_tb_s: Bandwidth of the GPU's memory, in TB/s.
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
        """Return the width of an attention head, floor(d / h).

        BLIS ignores an explicit head_dim.
        """
        return self.hidden_size // self.heads

    @property
    def moe_layers(self) -> int:
        """Return L_m, the number of MoE layers: all layers, or one in s + 1."""
        if not self.experts:
            return 0
        return self.layers // (self.interleave + 1) if self.interleave else self.layers

    @property
    def dense_layers(self) -> int:
        """Return L_d, the number of dense layers."""
        return self.layers - self.moe_layers


def check_expressible(deployment: Deployment) -> None:
    """Check that BLIS accepts a deployment and can represent it.

    Raises:
        PinnError: If BLIS rejects or cannot represent the deployment; the message gives the reason
            and a remedy.
    """
    model, recipe = deployment.model, deployment.recipe
    if not model.is_plain:
        raise PinnError(
            "BLIS's step time formula covers plain attention in layers of one "
            f"shape only, but {model.name} has other layers "
            f"({models.mixer_names(model)}): export a table for the Go adapter "
            "with 'pinn export table'"
        )
    if recipe.data_parallel_size > 1 and model.moe is None:
        raise PinnError(
            f"BLIS does not accept --dp {recipe.data_parallel_size} for "
            f"{model.name}, as dp > 1 needs routed experts: export "
            "data_parallel_size 1, simulate each replica as a separate server, and "
            "send each server its share of the requests"
        )
    if recipe.pipeline_parallel_size > 1:
        raise PinnError(
            "BLIS does not simulate pipeline parallelism, but "
            f"pipeline_parallel_size is {recipe.pipeline_parallel_size} for "
            f"{model.name}: use tensor_parallel_size instead, or "
            "export a table for the Go adapter with 'pinn export table'"
        )
    if recipe.speculation is not None:
        raise PinnError(
            "BLIS decodes one token per request and step, but "
            f"{recipe.speculation.method} verifies several tokens: remove "
            "speculative_config, use 'pinn simulate', or export a table for the Go "
            "adapter with 'pinn export table'"
        )


def blis_model(deployment: Deployment) -> BlisModel:
    """Return the model and GPU parameters that BLIS would read from the exported files."""
    model, recipe = deployment.model, deployment.recipe
    moe, attention = model.moe, model.layer_groups[0].attention
    assert isinstance(attention, models.Attention)
    weights = model.precisions.experts if moe else model.precisions.dense_ffn
    # BLIS counts only the bytes of the weights themselves, without those of quantization scales.
    weight_bytes = int(2 * weights.bytes_per_weight) / 2
    grouped = isinstance(attention, models.AttentionSpec)
    kv_heads = attention.kv_heads if grouped else attention.heads
    dense = [g.ffn.width for g in model.layer_groups if isinstance(g.ffn, models.DenseFfnSpec)]
    # BLIS uses the GPU's FP8 rate only if a weight has one byte and the GPU has such a rate.
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
        # BLIS ignores the few dense layers at the start of DeepSeek-like models.
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
# Exactly the keys that BLIS reads are written, so that BLIS infers no values. BLIS's step times and
# the exported coefficients depend on these shapes and bytes.

#: Parts of a model's name from which BLIS infers bytes per weight if the config does not state
#: them.
_FORMAT_IN_NAME = re.compile(r"(?:^|[./_-])(?:w\d+a16|fp8)(?:$|[./_-])", re.IGNORECASE)
#: GPU names in BLIS's own hardware file, which are used instead of the catalog's names.
_BLIS_GPUS = ("H100", "A100-SXM", "A100-80", "L40S")


def blis_config(deployment: Deployment) -> dict[str, object]:
    """Return the content of config.json for BLIS's ``--model-config-folder``.

    Bytes per weight are the deployment's, even if BLIS would infer another value from the model's
    name. If no layer is dense, ``intermediate_size`` is that of the experts, because BLIS rejects
    0. ``hidden_act`` is a value that BLIS accepts for gated layers; it does not affect step times.
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
    """Return a GPU's name for BLIS's ``--hardware``: BLIS's own name, or else the catalog's."""
    return next((name for name in _BLIS_GPUS if name in gpu_aliases(gpu)), gpu.name)


def blis_hardware(gpu: GpuSpec) -> dict[str, Mapping[str, float]]:
    """Return the content of BLIS's ``--hardware-config``: rates by GPU name without spaces."""
    names = [name for name in (gpu.name, *gpu_aliases(gpu)) if " " not in name]
    return {name: hardware_entry(gpu) for name in names}


def hardware_entry(gpu: GpuSpec) -> Mapping[str, float]:
    """Return a GPU's peak rates and memory size, as an entry of BLIS's hardware file.

    The file also needs two MFU values, which do not affect step times.
    """
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
    """Return the value of ``--total-kv-blocks``: the KV blocks of all data-parallel replicas.

    If every layer keeps the keys of all tokens, this is the number of blocks in pinn's own
    simulator. In a model with windowed layers, a token occupies several blocks, but only one in
    BLIS. The number is then chosen such that the same number of requests of ``request_tokens``
    tokens fit.

    Args:
        deployment: Deployment that is served.
        request_tokens: Prompt and output tokens of a typical request.

    Raises:
        PinnError: If the deployment, or one request of max_model_len tokens, does not fit into GPU
            memory.
    """
    layout, size = kv_layout(deployment, EngineSpec()), deployment.recipe.block_tokens
    tokens = min(request_tokens, max_model_len(deployment))
    held, plain = layout.request_blocks(tokens, size), -(-tokens // size)
    return layout.blocks * plain // int(held) * deployment.recipe.data_parallel_size


def blis_flags(deployment: Deployment, kv_blocks: int) -> dict[str, str]:
    """Return BLIS's options and their values for a deployment, except options that take files.

    BLIS simulates all data-parallel replicas of a MoE model as one engine with the requests and
    tokens of all replicas.
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
