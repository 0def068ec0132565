"""What BLIS is told of a deployment: its config.json, its hardware file and its KV cache.

Only keys that BLIS reads are written, so that nothing is left to how it guesses. Its step time
takes shapes and bytes from here, and the exported coefficients belong to these very numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pinn.export.blis_model import BlisModel, blis_model
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.memory import kv_layout, max_model_len
from pinn.specs.deployment import Deployment
from pinn.specs.gpu import GpuSpec
from pinn.specs.gpu_catalog import gpu_aliases
from pinn.specs.model import Attention, LatentAttentionSpec

#: Parts of a model's name that BLIS takes its bytes per weight from where the config says nothing.
_FORMAT_IN_NAME = re.compile(r"(?:^|[./_-])(?:w\d+a16|fp8)(?:$|[./_-])", re.IGNORECASE)
#: Names that BLIS's own hardware file uses and its users type, before any other of a GPU.
_BLIS_GPUS = ("H100", "A100-SXM", "A100-80", "L40S")


def blis_config(deployment: Deployment) -> dict[str, Any]:
    """The config.json for ``--model-config-folder``.

    Its bytes per weight are ours, whatever the model's name says. ``intermediate_size`` is the
    experts' where no layer is dense, since BLIS refuses 0; ``hidden_act`` is the one that BLIS
    knows for its gated layers, and counts in no step time.
    """
    model, m = deployment.model, blis_model(deployment)
    attention = model.layer_groups[0].attention
    assert isinstance(attention, Attention)
    found: dict[str, Any] = {
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
    if isinstance(attention, LatentAttentionSpec):
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
    """The name for ``--hardware``: BLIS's own where it has the GPU, else the catalogue's."""
    return next((name for name in _BLIS_GPUS if name in gpu_aliases(gpu)), gpu.name)


def blis_hardware(gpu: GpuSpec) -> dict[str, Mapping[str, float]]:
    """The file for ``--hardware-config``: the GPU under every name without a blank."""
    names = [name for name in (gpu.name, *gpu_aliases(gpu)) if " " not in name]
    return {name: hardware_entry(gpu) for name in names}


def hardware_entry(gpu: GpuSpec) -> Mapping[str, float]:
    """A GPU as BLIS's hardware file describes it; step times do not use the two mfu."""
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
    """Blocks for ``--total-kv-blocks``, of all data-parallel replicas, as BLIS counts.

    Where every layer keeps every token these are the simulator's own. A model that mixes in layers
    with a window takes several blocks for the same tokens, BLIS one, so that only a length can say
    how many requests fit.

    Args:
        deployment: What is served.
        request_tokens: Prompt and output of a typical request.

    Raises:
        PinnError: If the deployment does not fit, or not one request of max_model_len.
    """
    layout, size = kv_layout(deployment, EngineSpec()), deployment.recipe.block_tokens
    tokens = min(request_tokens, max_model_len(deployment))
    held, plain = layout.request_blocks(tokens, size), -(-tokens // size)
    return layout.blocks * plain // int(held) * deployment.recipe.data_parallel_size


def blis_flags(deployment: Deployment, kv_blocks: int) -> dict[str, str]:
    """BLIS's flags of a deployment, but for those that name files.

    BLIS steps all data-parallel replicas of a mixture of experts as one engine, which takes their
    requests and tokens together.
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
