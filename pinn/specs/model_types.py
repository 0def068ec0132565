"""Which ``model_type`` values of a config.json are read, and why the others are refused."""

from __future__ import annotations

from pinn.errors import PinnError
from pinn.specs.config_fields import ConfigFields


def _names(text: str) -> list[str]:
    return text.split()


#: Types whose layers are a mixer plus a (mixture of) feed-forward network(s), as vLLM 0.15.1
#: builds them (``vllm/model_executor/models``); ``pinn.specs.layer_plan`` has the mixers.
KNOWN_TYPES = frozenset(
    _names(
        "bamba chatglm cohere cohere2 deepseek_v2 deepseek_v3 deepseek_v32 exaone4 falcon "
        "falcon_h1 falcon_mamba gemma gemma2 gemma3 gemma3_text gemma3n_text glm glm4 glm4_moe "
        "glm4_moe_lite glm_moe_dsa gpt_oss granite granitemoe granitemoehybrid granitemoeshared "
        "internlm2 jamba kimi_k2 kimi_linear llama llama4 llama4_text mamba mamba2 mimo minimax "
        "minimax_m2 minimax_text_01 mistral mixtral mllama_text_model nemotron nemotron_h olmo2 "
        "olmo3 olmoe phi3 qwen2 qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 "
        "qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next qwen3_vl_moe_text qwen3_vl_text "
        "seed_oss starcoder2"
    )
)

#: Types with two matrices per feed-forward layer instead of three.
UNGATED_TYPES = frozenset({"falcon", "nemotron", "nemotron_h", "starcoder2"})

#: Types whose configuration class ties the embeddings unless the file says otherwise.
TIED_TYPES = frozenset(
    _names("cohere cohere2 falcon gemma gemma2 gemma3 gemma3_text gemma3n_text starcoder2")
)

#: Types with multi-head latent attention (``ModelArchConfigConvertorBase.is_deepseek_mla``).
LATENT_TYPES = frozenset(
    _names("deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_k2 kimi_linear")
)

#: Types that normalize q and k over all heads together, not head by head.
FULL_WIDTH_QK_NORM_TYPES = frozenset(_names("minimax_m2 olmo2 olmo3 olmoe"))

#: Types whose attention multiplies its output by a gate (qwen3_next.py: ``attn_output_gate``).
GATED_ATTENTION_TYPES = frozenset(_names("qwen3_next qwen3_5_text qwen3_5_moe_text"))

#: Types whose config lists mixers of several kinds: what gives those away elsewhere is read here.
_PLANNED_TYPES = frozenset(
    _names(
        "bamba deepseek_v32 falcon_h1 falcon_mamba glm_moe_dsa granitemoehybrid jamba kimi_linear "
        "mamba mamba2 minimax minimax_text_01 nemotron_h qwen3_5_moe_text qwen3_5_text qwen3_next"
    )
)

_MAMBA = "state-space (mamba) layers"
_DELTA = "linear attention (gated delta net)"
_SPARSE = "sparse attention (DSA)"
UNSUPPORTED_TYPES: dict[str, str] = {
    **dict.fromkeys(_names("plamo2 zamba2"), f"a hybrid of attention and {_MAMBA}"),
    **dict.fromkeys(_names("lfm2 lfm2_moe"), "a hybrid of attention and convolution layers"),
    **dict.fromkeys(_names("deepseek_v4 deepseek_ref"), _SPARSE),
    **dict.fromkeys(_names("minimax_m3 minimax_m3_vl"), "block-sparse attention"),
    "nemotron-nas": "layers of different shapes (block_configs)",
    "mimo_v2_flash": "full and windowed layers with different KV heads",
    **dict.fromkeys(_names("gemma4 gemma4_text"), "layers of different head widths"),
}

#: Keys that give such layers away under any type.
_MARKERS: dict[str, str] = {
    "hybrid_override_pattern": f"a hybrid of attention and {_MAMBA}",
    "ssm_state_size": _MAMBA,
    "mamba_d_state": _MAMBA,
    "linear_attn_config": "linear attention",
    "linear_num_key_heads": _DELTA,
    "index_topk": _SPARSE,
    "sparse_attention_config": "block-sparse attention",
    "block_configs": "layers of different shapes (block_configs)",
}
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})


def check_supported(fields: ConfigFields) -> None:
    """Refuse models with layers that have no cost model here.

    Raises:
        PinnError: If a layer kind is not supported, or the type is unknown or missing.
    """
    kind = UNSUPPORTED_TYPES.get(fields.model_type) or _marked_kind(fields)
    if kind is not None:
        raise PinnError(
            f"{fields.source}: {fields.model_type} has {kind}, which is not supported: "
            "docs/models.md lists the kinds of layers that are"
        )
    if fields.model_type not in KNOWN_TYPES:
        raise PinnError(
            f"{fields.source}: model_type {fields.model_type!r} is unknown: known ones are "
            f"{', '.join(sorted(KNOWN_TYPES))}; to read it as a Llama-like decoder, set "
            '"model_type": "llama" in a copy of the file'
        )


def _marked_kind(fields: ConfigFields) -> str | None:
    if fields.get("attn_res_block_size") is not None:
        return "attention over the outputs of earlier layers"
    if fields.model_type in _PLANNED_TYPES:
        return None
    for key, kind in _MARKERS.items():
        if fields.get(key) is not None:
            return kind
    others = set(map(str, fields.listed("layer_types"))) - _LAYER_TYPES
    if others:
        return f"layers of type {', '.join(sorted(others))}"
    if 0 in fields.listed("attn_type_list"):  # MiniMax: 0 linear, 1 softmax attention
        return "linear attention"
    return None
