"""Architectures whose caches vLLM describes layer by layer, for record_vllm_layers.py.

A case is a model of the catalog, or a config.json of small sizes, and the class that vLLM builds
its language part of.
"""

from __future__ import annotations

from typing import Any

MODELS = {
    "meta-llama/Meta-Llama-3-8B": "LlamaForCausalLM",
    "mistralai/Mistral-7B-v0.1": "MistralForCausalLM",
    "mistralai/Mixtral-8x7B-v0.1": "MixtralForCausalLM",
    "Qwen/Qwen2.5-7B-Instruct": "Qwen2ForCausalLM",
    "Qwen/Qwen1.5-MoE-A2.7B": "Qwen2MoeForCausalLM",
    "Qwen/Qwen3-14B": "Qwen3ForCausalLM",
    "Qwen/Qwen3-235B-A22B": "Qwen3MoeForCausalLM",
    "Qwen/Qwen3-Next-80B-A3B-Instruct": "Qwen3NextForCausalLM",
    "Qwen/Qwen3.5-27B": "Qwen3_5ForCausalLM",
    "Qwen/Qwen3.5-35B-A3B": "Qwen3_5MoeForCausalLM",
    "microsoft/Phi-3-medium-4k-instruct": "Phi3ForCausalLM",
    "google/gemma-2-2b": "Gemma2ForCausalLM",
    "google/gemma-3-27b-it": "Gemma3ForCausalLM",
    "google/gemma-3n-E4B-it": "Gemma3nForCausalLM",
    "google/gemma-4-26B-A4B": "Gemma4ForCausalLM",
    "openai/gpt-oss-20b": "GptOssForCausalLM",
    "zai-org/GLM-4.5-Air": "Glm4MoeForCausalLM",
    "zai-org/GLM-5": "GlmMoeDsaForCausalLM",
    "deepseek-ai/DeepSeek-V2-Lite": "DeepseekV2ForCausalLM",
    "deepseek-ai/DeepSeek-V3": "DeepseekV3ForCausalLM",
    "deepseek-ai/DeepSeek-V3.2": "DeepseekV32ForCausalLM",
    "moonshotai/Kimi-K2-Instruct": "DeepseekV3ForCausalLM",
    "XiaomiMiMo/MiMo-7B-Base": "MiMoForCausalLM",
    "XiaomiMiMo/MiMo-V2-Flash": "MiMoV2FlashForCausalLM",
    "MiniMaxAI/MiniMax-M2.5": "MiniMaxM2ForCausalLM",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "DeciLMForCausalLM",
    "nvidia/Nemotron-H-8B-Base-8K": "NemotronHForCausalLM",
    "ai21labs/Jamba-v0.1": "JambaForCausalLM",
    "ibm-granite/granite-4.0-h-small": "GraniteMoeHybridForCausalLM",
    "tiiuae/Falcon-H1-7B-Instruct": "FalconH1ForCausalLM",
    "tiiuae/falcon-mamba-7b-instruct": "FalconMambaForCausalLM",
    "mistralai/Mamba-Codestral-7B-v0.1": "Mamba2ForCausalLM",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": "Llama4ForCausalLM",
}

_USUAL = {
    "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "vocab_size": 1024,
    "num_key_value_heads": 2, "num_hidden_layers": 6, "max_position_embeddings": 8192,
    "pad_token_id": 0,
}  # fmt: skip
_EXPERTS = {"moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2}
_LATENT = {
    "kv_lora_rank": 128, "q_lora_rank": 96, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}  # fmt: skip
_MIXED = ["sliding_attention", "sliding_attention", "full_attention"] * 2

#: ``model_type`` -> class and what its config.json has beside the usual sizes.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere2": ("Cohere2ForCausalLM", {"layer_types": _MIXED, "sliding_window": 1024}),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", {"layer_types": _MIXED, "sliding_window": 1024}),
    "olmoe": ("OlmoeForCausalLM", {"num_experts": 8, "num_experts_per_tok": 2}),
    "exaone4": ("Exaone4ForCausalLM", {"layer_types": _MIXED, "sliding_window": 1024}),
    "smollm3": ("SmolLM3ForCausalLM", {}),
    "seed_oss": ("SeedOssForCausalLM", {"head_dim": 128}),
    "starcoder2": ("Starcoder2ForCausalLM", {}),
    "stablelm": ("StableLmForCausalLM", {}),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 128}),
    "phimoe": ("PhiMoEForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "ernie4_5_moe": ("Ernie4_5_MoeForCausalLM", {
        "moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 256,
        "moe_num_shared_experts": 1, "moe_layer_start_index": 1, "moe_layer_end_index": 5,
        "moe_layer_interval": 1,
    }),
    "gemma4_text": ("Gemma4ForCausalLM", {
        "layer_types": _MIXED, "sliding_window": 1024, "head_dim": 128, "global_head_dim": 256,
        "num_kv_shared_layers": 3, "hidden_size_per_layer_input": 64, "attention_k_eq_v": False,
        "vocab_size_per_layer_input": 1024, "use_double_wide_mlp": True,
        "enable_moe_block": False,
    }),
    "lfm2": ("Lfm2ForCausalLM", {
        "layer_types": ["conv", "conv", "full_attention"] * 2, "conv_L_cache": 3,
        "conv_bias": False, "block_dim": 512, "conv_dim": 512,
    }),
    "lfm2_moe": ("Lfm2MoeForCausalLM", {
        "layer_types": ["conv", "conv", "full_attention"] * 2, "conv_L_cache": 3,
        "conv_bias": False, "num_dense_layers": 1, **_EXPERTS,
    }),
    "zamba2": ("Zamba2ForCausalLM", {
        "layers_block_type": ["mamba", "mamba", "hybrid"] * 2, "mamba_d_state": 64,
        "mamba_expand": 2, "n_mamba_heads": 8, "num_key_value_heads": 8, "num_mem_blocks": 1,
        "mamba_headdim": 128, "attention_head_dim": 128, "mamba_ngroups": 1, "mamba_d_conv": 4,
    }),
    "longcat_flash": ("LongcatFlashForCausalLM", {
        **_LATENT, "num_layers": 6, "num_hidden_layers": None, "ffn_hidden_size": 1024,
        "expert_ffn_hidden_size": 256,
        "n_routed_experts": 8, "zero_expert_num": 4, "moe_topk": 3, "zero_expert_type": "identity",
        "head_dim": 32, "mla_scale_q_lora": True, "mla_scale_kv_lora": True,
    }),
    "glm4_moe_lite": ("Glm4MoeLiteForCausalLM", {
        **_LATENT, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "head_dim": 32,
    }),
}  # fmt: skip


def config_of(model_type: str) -> dict[str, Any]:
    """Return a config.json of small sizes."""
    found = {"model_type": model_type, **_USUAL, **CONFIGS[model_type][1]}
    return {key: value for key, value in found.items() if value is not None}
