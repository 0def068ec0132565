"""Whether what SGLang decides by architecture and GPU was read in a release.

Those rules spread over functions of hundreds of lines, so a person reads them and writes their
lines of ``data/engines/defaults.csv`` (``block_size``, ``async_scheduling``, ``moe_backend``,
``prompt_graph_tokens``), which stay as they are. A digest of the functions stands here for each
release that was read: one whose digest is not here is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from engine_reading.table import Line
from engine_reading.wheel import EngineSource, fingerprint

#: ``model_type`` of checkpoints by SGLang's architecture, of those that a rule here is about.
_TYPES: dict[str, tuple[str, ...]] = {
    "DeepseekV3ForCausalLM": ("deepseek_v3", "kimi_k2"),
    "DeepseekV32ForCausalLM": ("deepseek_v32",),
    "Glm4MoeForCausalLM": ("glm4_moe",),
    "Glm4MoeLiteForCausalLM": ("glm4_moe_lite",),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa",),
    "GptOssForCausalLM": ("gpt_oss",),
    "KimiK25ForConditionalGeneration": ("kimi_k25",),
    "NemotronHForCausalLM": ("nemotron_h",),
    "Qwen3MoeForCausalLM": ("qwen3_moe",),
    "Qwen3NextForCausalLM": ("qwen3_next",),
    "Qwen3VLMoeForConditionalGeneration": ("qwen3_vl_moe",),
    "Qwen3_5ForConditionalGeneration": ("qwen3_5",),
    "Qwen3_5MoeForConditionalGeneration": ("qwen3_5_moe",),
}

_SRT = "sglang/srt"
_ARGS, _GROUPS = f"{_SRT}/server_args.py", f"{_SRT}/arg_groups"
#: Where the rules stand, from one release or another on.
_READ: tuple[tuple[str, tuple[str, ...]], ...] = (
    (_ARGS, (*(f"ServerArgs.{name}" for name in (
        "_handle_model_specific_adjustments", "_handle_attention_backend_compatibility",
        "_get_default_attn_backend", "_handle_mamba_radix_cache",
        "_support_mamba_cache_extra_buffer", "_handle_page_size", "_handle_speculative_decoding",
        "_handle_piecewise_cuda_graph", "_apply_cuda_graph_compatibility",
        "_disable_breakable_cudagraph_if_incompatible",
        "_disable_tc_piecewise_cudagraph_if_incompatible", "_handle_data_parallelism",
        "_disable_prefill_cuda_graph_for_deepseek_trtllm_mla", "_handle_moe_kernel_config",
        "_generate_cuda_graph_batch_sizes", "_generate_decode_cuda_graph_batch_sizes",
        "_handle_load_balance_method",
    )), "auto_choose_speculative_params")),
    (f"{_GROUPS}/speculative_hook.py", (
        "_handle_eagle_family", "_handle_ngram", "_auto_choose_speculative_params",
    )),
    (f"{_GROUPS}/cuda_graph_hook.py", (
        "apply_cuda_graph_compatibility", "disable_breakable_cudagraph_if_incompatible",
        "disable_prefill_cuda_graph_for_deepseek_trtllm_mla",
        "generate_decode_cuda_graph_batch_sizes", "generate_prefill_cuda_graph_batch_sizes",
    )),
    (f"{_GROUPS}/overrides.py", (
        "_deepseek_family_overrides", "_deepseek_moe_quant_resolution", "_gpt_oss_overrides",
        "_qwen3_moe_family_overrides", "_qwen3_5_hybrid_overrides", "_nemotron_h_overrides",
        "_falcon_h1_jet_overrides", "_granite_moe_hybrid_overrides", "_llama4_overrides",
        "_olmo2_overrides", "_page_size_default", "_mamba_radix_cache_resolution",
        "_MAMBA_RADIX_CACHE_ARCHS", "_MAMBA_EXTRA_BUFFER_ARCHS", "_DEEPSEEK_FAMILY_ARCHS",
        "_dsa_kv_cache_dtype_default", "_attention_backend_default", "_fa4_page_constraint",
    )),
    (f"{_GROUPS}/model_override_base.py", ("get_default_attn_backend",)),
    (f"{_GROUPS}/parallel_hook.py", ("handle_data_parallelism",)),
    (f"{_GROUPS}/serving_hook.py", ("handle_load_balance_method",)),
    (f"{_GROUPS}/nemotron_h_hook.py", ("apply_nemotron_h_defaults",)),
    *((f"{_GROUPS}/model_overrides/{family}.py", names) for family, names in (
        ("deepseek_v2", ("_deepseek_family_overrides",)), ("gpt_oss", ("_gpt_oss_overrides",)),
        ("qwen3_moe", ("_qwen3_moe_family_overrides",)),
        ("qwen3_5", ("_qwen3_5_hybrid_overrides",)), ("nemotron_h", ("_nemotron_h_overrides",)),
        ("llama4", ("_llama4_overrides",)), ("olmo2", ("_olmo2_overrides",)),
    )),
    (f"{_SRT}/configs/model_config.py", (
        "piecewise_cuda_graph_disabled_model_archs",
        "multimodal_piecewise_cuda_graph_supported_model_archs",
        "multimodal_breakable_cuda_graph_supported_model_archs",
    )),
    (f"{_SRT}/model_executor/cuda_graph_config.py", ("CudaGraphConfig", "default_prefill_backend")),
)  # fmt: skip
#: Releases that were read, oldest first, and the digest of those functions in each.
DIGESTS: dict[str, str] = {
    "0.5.3.post1": "3c3e9029abfe",
    "0.5.5": "8be7c1938ce7",
    "0.5.6.post2": "eb4ca4879cca",
    "0.5.7": "678ba0e5082b",
    "0.5.8": "70be9ead3318",
    "0.5.9": "04fe0a19fc69",
    "0.5.10": "44be4bd84891",
    "0.5.11": "f32146c359b5",
    "0.5.12.post1": "caaa41a2dd0c",
    "0.5.13.post1": "596bc5f7dad1",
    "0.5.14": "61a5573c2c83",
    "0.5.15.post1": "ddb6832bf5fd",
    "0.5.16": "5274826871a9",
    "0.5.17": "3088c73d9d97",
    "0.5.18": "437240acd023",
    "0.5.19": "64fc799a48e6",
    "0.5.20": "3e43f6e17a9e",
    "0.5.21": "1e7270c07c87",
    "0.5.22": "152ff5323941",
    "0.5.23": "588b1cffb7b9",
}


def model_types(architectures: Iterable[str]) -> tuple[str, ...]:
    """``model_type`` of checkpoints of some architectures, those that are known here."""
    return tuple(t for each in dict.fromkeys(architectures) for t in _TYPES.get(each, ()))


def digest(source: EngineSource) -> str:
    """Of all functions that the rules were read in."""
    found = [
        f"{path}: {name} {fingerprint(source.node(path, name))}"
        for path, names in _READ
        for name in names
        if source.has(path, name)
    ]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:12]


def check_read(source: EngineSource) -> list[Line]:
    """No line: that the rules were read in this very release."""
    if DIGESTS.get(source.version) != digest(source):
        names = ", ".join(n for path, names in _READ for n in names if source.has(path, n))
        raise source.unread(names, f"their digest {digest(source)} was not read")
    return []
