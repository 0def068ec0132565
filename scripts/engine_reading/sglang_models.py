"""Check that a person has read SGLang's rules by architecture and GPU in a release.

These rules are spread over functions of hundreds of lines. A person reads the functions and edits
the rows of ``data/engines/defaults.csv`` (``block_size``, ``async_scheduling``, ``moe_backend``,
``prompt_graph_tokens``), which no script changes. For each release that a person has read, this
module has a digest of the functions; a release with another digest raises an error.
"""

import hashlib
from collections.abc import Iterable

from engine_reading.table import Line
from engine_reading.wheel import EngineSource, fingerprint

#: ``model_type`` of the checkpoints of each SGLang architecture with a rule.
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
#: Files with rules by architecture and GPU, ordered by the first release that contains them.
_FILES = (
    f"{_SRT}/server_args.py",
    *(f"{_SRT}/arg_groups/{name}.py" for name in (
        "speculative_hook", "cuda_graph_hook", "overrides", "model_override_base", "parallel_hook",
        "serving_hook", "nemotron_h_hook", "model_overrides/deepseek_v2", "model_overrides/gpt_oss",
        "model_overrides/qwen3_moe", "model_overrides/qwen3_5", "model_overrides/nemotron_h",
        "model_overrides/llama4", "model_overrides/olmo2",
    )),
    f"{_SRT}/configs/model_config.py", f"{_SRT}/model_executor/cuda_graph_config.py",
)  # fmt: skip
_NAMES = (
    *(f"ServerArgs._{name}" for name in (
        "handle_model_specific_adjustments", "handle_attention_backend_compatibility",
        "get_default_attn_backend", "handle_mamba_radix_cache", "support_mamba_cache_extra_buffer",
        "handle_page_size", "handle_speculative_decoding", "handle_piecewise_cuda_graph",
        "apply_cuda_graph_compatibility", "disable_breakable_cudagraph_if_incompatible",
        "disable_tc_piecewise_cudagraph_if_incompatible", "handle_data_parallelism",
        "disable_prefill_cuda_graph_for_deepseek_trtllm_mla", "handle_moe_kernel_config",
        "generate_cuda_graph_batch_sizes", "generate_decode_cuda_graph_batch_sizes",
        "handle_load_balance_method",
    )),
    "auto_choose_speculative_params", "_handle_eagle_family", "_handle_ngram",
    "_auto_choose_speculative_params", "apply_cuda_graph_compatibility",
    "disable_breakable_cudagraph_if_incompatible",
    "disable_prefill_cuda_graph_for_deepseek_trtllm_mla", "generate_decode_cuda_graph_batch_sizes",
    "generate_prefill_cuda_graph_batch_sizes", "_deepseek_family_overrides",
    "_deepseek_moe_quant_resolution", "_gpt_oss_overrides", "_qwen3_moe_family_overrides",
    "_qwen3_5_hybrid_overrides", "_nemotron_h_overrides", "_falcon_h1_jet_overrides",
    "_granite_moe_hybrid_overrides", "_llama4_overrides", "_olmo2_overrides", "_page_size_default",
    "_mamba_radix_cache_resolution", "_MAMBA_RADIX_CACHE_ARCHS", "_MAMBA_EXTRA_BUFFER_ARCHS",
    "_DEEPSEEK_FAMILY_ARCHS", "_dsa_kv_cache_dtype_default", "_attention_backend_default",
    "_fa4_page_constraint", "get_default_attn_backend", "handle_data_parallelism",
    "handle_load_balance_method", "apply_nemotron_h_defaults",
    "piecewise_cuda_graph_disabled_model_archs",
    "multimodal_piecewise_cuda_graph_supported_model_archs",
    "multimodal_breakable_cuda_graph_supported_model_archs", "CudaGraphConfig",
    "default_prefill_backend",
)  # fmt: skip
#: Digests of the functions that contain the rules, by release whose rules were read by a person,
#: oldest first.
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
    """Return the known ``model_type`` values of checkpoints with these architectures."""
    return tuple(t for each in dict.fromkeys(architectures) for t in _TYPES.get(each, ()))


def check_read(source: EngineSource) -> list[Line]:
    """Check that a person has read the rules of this release; return an empty list of rows."""
    rules = [
        place
        for place in (f"{path}: {name}" for path in _FILES for name in _NAMES)
        if source.has(place)
    ]
    said = "\n".join(f"{place} {fingerprint(source.node(place))}" for place in rules)
    digest = hashlib.sha256(said.encode()).hexdigest()[:12]
    if DIGESTS.get(source.version) != digest:
        names = ", ".join(place.partition(": ")[2] for place in rules)
        raise source.unread(names, f"the functions have the unknown digest {digest}")
    return []
