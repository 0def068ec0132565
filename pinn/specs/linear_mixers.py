"""The recurrent mixer of each family's config.json."""

from __future__ import annotations

from typing import Any

from pinn.errors import PinnError
from pinn.specs.config_fields import ConfigFields
from pinn.specs.limits import written
from pinn.specs.mixers import (
    CHUNK_TOKENS,
    GATED_DELTA,
    KDA,
    LIGHTNING,
    MAMBA1,
    MAMBA2,
    LinearMixerSpec,
)

_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def gated_delta_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Qwen3-Next and Qwen3.5 (vLLM's qwen3_next.py: Qwen3NextGatedDeltaNet)."""
    return LinearMixerSpec(
        GATED_DELTA,
        heads=fields.integer("linear_num_value_heads"),
        key_heads=fields.integer("linear_num_key_heads"),
        key_dim=fields.integer("linear_key_head_dim"),
        value_dim=fields.integer("linear_value_head_dim"),
        conv_width=fields.integer("linear_conv_kernel_dim", default=4),
        chunk_tokens=CHUNK_TOKENS[GATED_DELTA],
        state_bytes_per_element=_state_bytes(fields),
    )


def kda_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Kimi-Linear; its state is fp32 (vLLM's mamba_utils.py: kda_state_dtype)."""
    config = fields.get("linear_attn_config")
    inner = ConfigFields(config, config, f"{fields.source}: linear_attn_config")
    heads, width = inner.integer("num_heads"), inner.integer("head_dim")
    taps = inner.integer("short_conv_kernel_size", default=4)
    return LinearMixerSpec(
        KDA, heads, heads, width, width, taps, 0, CHUNK_TOKENS[KDA], _BYTES["float32"]
    )


def lightning_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """MiniMax-01 (vLLM's layers/mamba/linear_attn.py), without a convolution.

    Its state has the model's format (mamba_utils.py: linear_attention_state_dtype).
    """
    heads, width = fields.integer("num_attention_heads"), fields.integer("head_dim")
    return LinearMixerSpec(
        LIGHTNING, heads, heads, width, width, 0, 0, CHUNK_TOKENS[LIGHTNING], _BYTES["bfloat16"]
    )


def jamba_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Jamba: Mamba-1."""
    channels = fields.integer("mamba_expand", default=2) * fields.integer("hidden_size")
    return _mamba1(fields, channels, "mamba_d_state", "mamba_d_conv", "mamba_dt_rank")


def mamba1_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Mamba and Falcon-Mamba."""
    channels = fields.integer(
        "intermediate_size", "d_inner", default=2 * fields.integer("hidden_size")
    )
    return _mamba1(fields, channels, "state_size", "conv_kernel", "time_step_rank")


def _mamba1(
    fields: ConfigFields, channels: int, state: str, taps: str, rank: str
) -> LinearMixerSpec:
    stated = fields.get(rank)
    default = -(-fields.integer("hidden_size") // 16)  # "auto", as Mamba's own code
    return LinearMixerSpec(
        MAMBA1,
        heads=channels,
        key_heads=1,
        key_dim=fields.integer(state, default=16),
        value_dim=1,
        conv_width=fields.integer(taps, default=4),
        step_rank=default if stated in (None, "auto") else fields.integer(rank),
        chunk_tokens=CHUNK_TOKENS[MAMBA1],
        state_bytes_per_element=_state_bytes(fields),
    )


def granite_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Granite-4 and Bamba: Mamba-2."""
    return _mamba2(fields, "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups")


#: Falcon-H1's keys are the same.
falcon_h1_mixer = granite_mixer


def nemotron_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Nemotron-H and Nemotron-3: Mamba-2."""
    return _mamba2(fields, "mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups")


def mamba2_mixer(fields: ConfigFields) -> LinearMixerSpec:
    """Mamba-2 by itself."""
    return _mamba2(fields, "num_heads", "head_dim", "state_size", "n_groups")


def _mamba2(
    fields: ConfigFields, heads: str, width: str, state: str, groups: str
) -> LinearMixerSpec:
    return LinearMixerSpec(
        MAMBA2,
        heads=fields.integer(heads),
        key_heads=fields.integer(groups, default=1),
        key_dim=fields.integer(state),
        value_dim=fields.integer(width),
        conv_width=fields.integer("mamba_d_conv", "conv_kernel", default=4),
        chunk_tokens=fields.integer("mamba_chunk_size", "chunk_size", default=CHUNK_TOKENS[MAMBA2]),
        state_bytes_per_element=_state_bytes(fields),
    )


def _state_bytes(fields: ConfigFields) -> float:
    """Bytes of an element: what the config asks for, else the model's 16 bits.

    vLLM's ``--mamba-ssm-cache-dtype auto`` (v1 config/cache.py) does the same.
    """
    stated: Any = fields.get("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
    if stated is None:
        return _BYTES["bfloat16"]
    if not isinstance(stated, str) or stated not in _BYTES:
        raise PinnError(
            f"{fields.source}: mamba_ssm_dtype must be one of {', '.join(_BYTES)}, got "
            f"{written(stated)}"
        )
    return _BYTES[stated]
