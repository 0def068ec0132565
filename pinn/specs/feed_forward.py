"""The feed-forward part of each layer of a config.json: which layers have experts, and widths."""

from __future__ import annotations

from dataclasses import replace

from pinn.errors import PinnError
from pinn.specs.config_fields import ConfigFields
from pinn.specs.limits import MOST_MODEL_SIZE, written
from pinn.specs.model import DenseFfnSpec, MoeFfnSpec
from pinn.specs.model_types import UNGATED_TYPES

_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "top_k_experts",
    "moe_top_k",
    "moe_topk",
    "experts_per_token",
    "moe_k",
)
_DENSE_WIDTH = ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner")
_LLAMA4 = frozenset({"llama4", "llama4_text"})


def feed_forwards(fields: ConfigFields, layers: int) -> list[DenseFfnSpec | MoeFfnSpec]:
    """The feed-forward part of each layer, first to last.

    Raises:
        PinnError: If a needed size is missing or the experts do not add up.
    """
    moe = moe_spec(fields)
    plan = [moe is not None and is_moe for is_moe in moe_plan(fields, layers)]
    if not all(plan):
        dense = DenseFfnSpec(_dense_width(fields), fields.model_type not in UNGATED_TYPES)
    return [moe if is_moe and moe is not None else dense for is_moe in plan]


def moe_spec(fields: ConfigFields) -> MoeFfnSpec | None:
    """The shape of the mixture-of-experts layers; None where the config names no experts."""
    experts = _expert_count(fields)
    if not experts:
        return None
    top_k = fields.integer(*_TOP_K)
    if top_k > experts:
        raise PinnError(f"{fields.source}: {top_k} experts per token exceed the {experts} experts")
    width = fields.integer("moe_intermediate_size", *_DENSE_WIDTH)
    latent = fields.get("moe_latent_size")
    return MoeFfnSpec(
        experts,
        top_k,
        width,
        _shared_width(fields, width),
        gated=fields.model_type not in UNGATED_TYPES,
        latent_width=None if latent is None else fields.integer("moe_latent_size"),
    )


def _expert_count(fields: ConfigFields) -> int:
    value = fields.get(*_EXPERTS)
    if isinstance(value, list):  # Ernie: one entry per modality, all equal
        value = value[0] if value else 0
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_MODEL_SIZE:
        raise PinnError(
            f"{fields.source}: the number of experts must be a whole number from 0 to "
            f"{MOST_MODEL_SIZE:,}, got {written(value)}"
        )
    return value


def _shared_width(fields: ConfigFields, expert_width: int) -> int:
    if fields.model_type in _LLAMA4:  # llama4.py: Llama4MoE always has one, without a key
        return fields.integer("intermediate_size")
    for key in (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ):
        if fields.get(key) is not None:
            return fields.integer(key, least=0)
    count = fields.integer(
        "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, least=0
    )
    return count * expert_width


def _dense_width(fields: ConfigFields) -> int:
    if fields.model_type in _LLAMA4:
        return fields.integer("intermediate_size_mlp")
    if fields.model_type == "falcon":
        default = 4 * fields.integer("hidden_size")
        return fields.integer(*_DENSE_WIDTH, default=default)
    if fields.model_type == "granitemoehybrid":  # its dense layers are the shared part alone
        return fields.integer("shared_intermediate_size", *_DENSE_WIDTH)
    widths = fields.get(*_DENSE_WIDTH)
    if isinstance(widths, list) and widths and all(each == widths[0] for each in widths):
        return replace(fields, text={"width": widths[0]}).integer("width")  # Gemma-3n: per layer
    return fields.integer(*_DENSE_WIDTH)


def moe_plan(fields: ConfigFields, layers: int) -> list[bool]:
    """Which layers are mixtures of experts, in a model that has experts.

    The keys and their meaning are those of vLLM 0.15.1's model files: ``mlp_layer_types``;
    ``moe_layers`` or ``interleave_moe_layer_step`` (llama4.py); ``decoder_sparse_step`` and
    ``mlp_only_layers`` (qwen2_moe.py, qwen3_moe.py); ``first_k_dense_replace`` and
    ``moe_layer_freq`` (deepseek_v2.py); ``expert_layer_period`` and ``expert_layer_offset``
    (jamba.py); letters of ``hybrid_override_pattern`` or ``layers_block_type`` (nemotron_h.py).
    Without any of them, every layer is.
    """
    pattern = fields.get("layers_block_type", "hybrid_override_pattern")
    if isinstance(pattern, list | str) and len(pattern) >= layers:
        return [kind in ("moe", "E") for kind in pattern[:layers]]
    if fields.get("expert_layer_period") is not None:
        step = fields.integer("expert_layer_period")
        offset = fields.integer("expert_layer_offset", default=0, least=0)
        return [i % step == offset for i in range(layers)]
    types = fields.per_layer("mlp_layer_types", layers)
    if types is not None:
        return [kind in ("sparse", "moe") for kind in types]
    if fields.get("moe_layers") is not None:
        chosen = fields.layer_indices("moe_layers")
        return [i in chosen for i in range(layers)]
    if fields.get("interleave_moe_layer_step") is not None:
        step = fields.integer("interleave_moe_layer_step", least=0)
        return [step > 0 and (i + 1) % step == 0 for i in range(layers)]
    if fields.get("decoder_sparse_step", "mlp_only_layers") is not None:
        step = fields.integer("decoder_sparse_step", default=1)
        dense = fields.layer_indices("mlp_only_layers")
        return [i not in dense and (i + 1) % step == 0 for i in range(layers)]
    return _frequency_plan(fields, layers)


def _frequency_plan(fields: ConfigFields, layers: int) -> list[bool]:
    first = fields.integer("first_k_dense_replace", default=0, least=0)
    frequency = fields.get("moe_layer_freq")
    if isinstance(frequency, list):
        flags = fields.per_layer("moe_layer_freq", layers) or []
        return [i >= first and bool(on) for i, on in enumerate(flags)]
    step = fields.integer("moe_layer_freq", default=1)
    return [i >= first and i % step == 0 for i in range(layers)]
