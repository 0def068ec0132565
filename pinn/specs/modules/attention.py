"""Attention and recurrent mixers by their classes and the shapes of their projections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from pinn.specs import mixers
from pinn.specs.config_fields import ConfigFields
from pinn.specs.mixers import IndexerSpec, LinearMixerSpec
from pinn.specs.model import AttentionSpec, LatentAttentionSpec
from pinn.specs.modules.weights import Shape, Unrecognized, attribute, matrices, rest, vectors

if TYPE_CHECKING:
    from torch import nn

# Attention: roles of projections by their names, sizes by their shapes.

_CLASS = re.compile(r"(Attention|Attn)(?!.*(Layer|Block)$)")
#: Names of projections, without affixes, by role.
_ROLES = {
    "q": ("q", "wq", "query"),
    "k": ("k", "wk", "key"),
    "v": ("v", "wv", "value"),
    "qkv": ("qkv", "wqkv", "query_key_value", "c_attn", "att", "w_pack"),
    "o": ("o", "wo", "out", "dense", "c", "attention_out", "output"),
    "gate": ("g", "gate", "output_gate"),
    "q_a": ("q_a",), "q_b": ("q_b",), "kv_a": ("kv_a_proj_with_mqa",), "kv_b": ("kv_b",),
    "wq_b": ("wq_b",), "index_k": ("index_wk",), "weights": ("weights",),
}  # fmt: skip
_ROLE_OF = {name: role for role, names in _ROLES.items() for name in names}
_AFFIX = re.compile(r"^(?:project_|linear_)|(?:_proj|_lin|_linear)$")
#: Vectors of attention that change nothing but numbers, beside norms and biases.
_VECTORS = ("bias", "sinks", "sink")
_HEAD_WIDTHS = ("head_dim", "head_size", "attention_head_size", "d_head", "dim_head", "depth")


def is_attention(module: nn.Module) -> bool:
    """Whether a module is attention, by its class."""
    return bool(_CLASS.search(type(module).__name__))


def read_attention(
    module: nn.Module, fields: ConfigFields, window: int | None
) -> tuple[AttentionSpec | LatentAttentionSpec, list[Shape]]:
    """Read attention.

    Args:
        module: An attention module.
        fields: The model's configuration.
        window: Tokens that a query may look back on; None for all.

    Returns:
        The attention, and its matrices beside that: gates of one value a head.

    Raises:
        Unrecognized: If its weights are not those of attention that has a cost model.
    """
    if getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__:
        raise Unrecognized("attention to something else than the text")
    shapes = _by_role(module)
    norms = {path for path, each in module.named_modules() if "Norm" in type(each).__name__}
    for path in vectors(module):
        owner, _, name = path.rpartition(".")
        if owner not in norms and not name.endswith(_VECTORS):
            raise Unrecognized(f"{path}, which no attention with a cost model has")
    if rest(module):
        raise Unrecognized(f"{rest(module)[0]}, which no attention with a cost model has")
    if "kv_a" in shapes:
        return _latent(module, shapes, window)
    return _grouped(module, shapes, fields, window)


def _by_role(module: nn.Module) -> dict[str, Shape]:
    found: dict[str, Shape] = {}
    for path, shape in matrices(module).items():
        words = [_AFFIX.sub("", word) for word in path.lower().split(".")]
        if "indexer" in words and words[-1] == "wk":
            words[-1] = "index_wk"
        role = next((_ROLE_OF[word] for word in reversed(words) if word in _ROLE_OF), None)
        if role is None or role in found:
            raise Unrecognized(f"its matrix {path} has no known role")
        found[role] = shape
    return found


def _grouped(
    module: nn.Module, shapes: dict[str, Shape], fields: ConfigFields, window: int | None
) -> tuple[AttentionSpec, list[Shape]]:
    if "o" not in shapes or not {"q", "qkv"} & set(shapes):
        raise Unrecognized(f"its matrices are {', '.join(sorted(shapes))}")
    stated = attribute(module, *_HEAD_WIDTHS)
    width = stated or mixers.head_width(fields, fields.integer("num_attention_heads"))
    queries, shares = shapes["o"].inputs, False
    if "qkv" in shapes:
        asked, keys = queries, (shapes["qkv"].outputs - queries) / 2
    else:
        asked, shares = shapes["q"].outputs, "k" not in shapes and "v" not in shapes
        keys = width * attribute_or(module, 1, "num_key_value_heads") if shares else -1.0
        if {"k", "v"} <= set(shapes) and shapes["k"] == shapes["v"]:
            keys = shapes["k"].outputs
    gates, sides = asked == 2 * queries, []
    if "gate" in shapes:
        gates = shapes["gate"].outputs == queries
        sides = [] if gates else [shapes["gate"]]
    wrong = queries % width or keys % width or keys < width or asked not in (queries, 2 * queries)
    if wrong or (sides and sides[0].outputs != queries // width):
        text = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise Unrecognized(f"heads of {width} do not fit its matrices {text}")
    norm = next((n for p, n in vectors(module).items() if re.search(r"\bq_?(layer)?norm\.", p)), 0)
    is_wide = norm == queries > width
    heads, kv_heads = queries // width, int(keys) // width
    return AttentionSpec(heads, kv_heads, width, window, is_wide, gates, shares), sides


def attribute_or(module: nn.Module, default: int, *names: str) -> int:
    """Return an attribute that is a whole number, else the default."""
    return attribute(module, *names) or default


def _latent(
    module: nn.Module, shapes: dict[str, Shape], window: int | None
) -> tuple[LatentAttentionSpec, list[Shape]]:
    heads = attribute_or(module, 0, "num_heads", "num_attention_heads")
    rank, nope, rope, value = (
        attribute_or(module, 0, name)
        for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    down = shapes["q_a"].outputs if "q_a" in shapes else None
    queries = shapes.get("q_b" if down else "q")
    expected = {
        "kv_a": rank + rope, "kv_b": heads * (nope + value), "gate": heads,
        "q" if down is None else "q_b": heads * (nope + rope),
    }  # fmt: skip
    odd = [n for n, rows in expected.items() if n in shapes and shapes[n].outputs != rows]
    if queries is None or odd or shapes["o"].inputs != heads * value:
        raise Unrecognized(f"its {odd[0] if odd else 'o'} projection is of another latent attention")
    spec = LatentAttentionSpec(heads, down, rank, nope, rope, value, window, _indexer(module, shapes))
    return spec, [shapes["gate"]] if "gate" in shapes else []


def _indexer(module: nn.Module, shapes: Mapping[str, Shape]) -> IndexerSpec | None:
    own = next((m for m in module.modules() if "Indexer" in type(m).__name__), None)
    if own is None:
        return None
    names = (("index_topk", "topk", "top_k"), ("n_heads", "num_heads"), ("head_dim",))
    top_k, heads, width = (attribute_or(own, 0, *each) for each in names)
    found = tuple(shapes[role].outputs for role in ("wq_b", "index_k", "weights") if role in shapes)
    if not top_k or found != (heads * width, width, heads):
        raise Unrecognized("its indexer's projections are of another sparse attention")
    return IndexerSpec(top_k, heads, width)


# Recurrent mixers by their classes.

#: Kind, classes, and attributes: value heads, key heads, key width, value width, taps, and the last
#: field of the kind.
_RECURRENT: tuple[tuple[str, str, dict[str, str]], ...] = (
    (mixers.GATED_DELTA, "GatedDeltaNet", {
        "heads": "num_v_heads", "key_heads": "num_k_heads", "key_dim": "head_k_dim",
        "value_dim": "head_v_dim", "conv_width": "conv_kernel_size"}),
    (mixers.KDA, "DeltaAttention", {
        "heads": "num_heads", "key_heads": "num_heads", "key_dim": "head_dim",
        "value_dim": "head_dim", "conv_width": "conv_kernel_size"}),
    (mixers.LIGHTNING, "LightningAttention", {
        "heads": "num_attention_heads", "key_heads": "num_attention_heads", "key_dim": "head_dim",
        "value_dim": "head_dim"}),
    (mixers.MAMBA2, "Mamba|Mixer", {
        "heads": "num_heads", "key_heads": "n_groups", "key_dim": "ssm_state_size",
        "value_dim": "head_dim", "conv_width": "conv_kernel_size", "chunk_tokens": "chunk_size"}),
    (mixers.MAMBA1, "Mamba|Mixer", {
        "heads": "intermediate_size", "key_dim": "ssm_state_size",
        "conv_width": "conv_kernel_size", "step_rank": "time_step_rank"}),
)  # fmt: skip
_USUAL = {mixers.LIGHTNING: {"conv_width": 0}, mixers.MAMBA1: {"key_heads": 1, "value_dim": 1}}


def read_recurrent(module: nn.Module, fields: ConfigFields, hidden: int) -> LinearMixerSpec | None:
    """Read a recurrent mixer; None for a module that is none by its class.

    Raises:
        Unrecognized: If its matrices are not those of its kind.
    """
    for kind, classes, names in _RECURRENT:
        values = {size: getattr(module, name, None) for size, name in names.items()}
        is_kind = re.search(classes, type(module).__name__)
        if is_kind and all(isinstance(value, int) for value in values.values()):
            break
    else:
        return None
    sizes = {"chunk_tokens": mixers.CHUNK_TOKENS[kind], **_USUAL.get(kind, {}), **values}
    is_sized = kind in (mixers.KDA, mixers.LIGHTNING)
    spec = LinearMixerSpec(kind, **sizes)  # type: ignore[arg-type]
    stated = {mixers.KDA: 4.0}.get(kind, spec.state_bytes_per_element)
    spec = LinearMixerSpec(
        kind, **sizes,  # type: ignore[arg-type]
        state_bytes_per_element=stated if is_sized else mixers.stated_state_bytes(fields),
    )  # fmt: skip
    expected = sum(prod(projection.shape()) for projection in spec.projections(hidden))
    found = sum(prod(shape) for shape in matrices(module).values())
    if found != expected:
        raise Unrecognized(f"its projections have {found:,} weights, those of {kind} {expected:,}")
    return spec
