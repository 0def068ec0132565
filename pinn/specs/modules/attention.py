"""Recognition of attention and recurrent layers by class name and by shapes of projections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING

from pinn.errors import UnknownLayersError
from pinn.specs import mixers
from pinn.specs.config_fields import ConfigFields, models_file
from pinn.specs.mixers import IndexerSpec, LinearMixerSpec
from pinn.specs.model import AttentionSpec, LatentAttentionSpec
from pinn.specs.modules.weights import Shape, UnrecognizedError, attribute, matrices, rest, vectors

if TYPE_CHECKING:
    from torch import nn

# Attention: projections are recognized by name, and sizes are derived from their shapes.

_CLASS = re.compile(r"(Attention|Attn)(?!.*(Layer|Block)$)")
#: Names of projections, without common prefixes and suffixes, by role in attention.
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
#: Name endings of vectors, such as biases, that an attention module may contain without effect on
#: its time.
_VECTORS = ("bias", "sinks", "sink")
_HEAD_WIDTHS = ("head_dim", "head_size", "attention_head_size", "d_head", "dim_head", "depth")


def is_attention(module: nn.Module) -> bool:
    """Return whether a module's class name is that of an attention module."""
    return bool(_CLASS.search(type(module).__name__))


def read_attention(
    module: nn.Module, fields: ConfigFields, window: int | None
) -> tuple[AttentionSpec | LatentAttentionSpec, list[Shape]]:
    """Return the attention of a module, recognized from its projections.

    Args:
        module: An attention module.
        fields: The model's configuration.
        window: Window of the layer, in tokens; None for full attention.

    Returns:
        The sizes of the attention, and the shapes of gate matrices that compute one value per head.

    Raises:
        UnrecognizedError: If its weights do not match any supported attention.
    """
    if getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__:
        raise UnrecognizedError("cross-attention to tokens outside the text is not supported")
    if getattr(module, "is_causal", True) is False:
        raise UnrecognizedError("bidirectional attention is not supported")
    shapes = _by_role(module)
    norms = {path for path, each in module.named_modules() if "Norm" in type(each).__name__}
    for path in vectors(module):
        owner, _, name = path.rpartition(".")
        if owner not in norms and not name.endswith(_VECTORS):
            raise UnrecognizedError(f"no supported type of attention has the vector {path}")
    if rest(module):
        raise UnrecognizedError(f"no supported type of attention has the weight {rest(module)[0]}")
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
            raise UnrecognizedError(f"the name of the attention's projection {path} is unknown")
        found[role] = shape
    return found


def _grouped(
    module: nn.Module, shapes: dict[str, Shape], fields: ConfigFields, window: int | None
) -> tuple[AttentionSpec, list[Shape]]:
    if "o" not in shapes or not {"q", "qkv"} & set(shapes):
        names = ", ".join(sorted(shapes))
        raise UnrecognizedError(f"the attention has the matrices {names}, expected q or qkv, and o")
    stated = attribute(module, *_HEAD_WIDTHS)
    width = stated or mixers.head_width(fields, fields.integer("num_attention_heads"))
    queries, gate = shapes["o"].inputs, shapes.get("gate")
    asked, keys = _asked(module, shapes, width)
    sides = [gate] if gate is not None and gate.outputs != queries else []
    gates = asked == 2 * queries or (gate is not None and not sides)
    fits = queries % width == keys % width == 0 and keys >= width
    if (
        not fits
        or asked not in (queries, 2 * queries)
        or any(side.outputs * width != queries for side in sides)
    ):
        text = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise UnrecognizedError(f"the head width {width} does not fit the projections {text}")
    norm = next((n for p, n in vectors(module).items() if re.search(r"\bq_?(layer)?norm\.", p)), 0)
    heads, kv_heads, is_wide = queries // width, int(keys) // width, norm == queries > width
    shares = "qkv" not in shapes and "k" not in shapes
    return AttentionSpec(heads, kv_heads, width, window, is_wide, gates * width, shares), sides


def _asked(module: nn.Module, shapes: Mapping[str, Shape], width: int) -> tuple[int, float]:
    """Return the output widths of the query and of the key projection.

    If the projections of keys and values have different shapes, the key width is 0.
    """
    if "qkv" in shapes:
        queries = shapes["o"].inputs
        return queries, (shapes["qkv"].outputs - queries) / 2
    if "k" not in shapes and "v" not in shapes:
        return shapes["q"].outputs, width * (attribute(module, "num_key_value_heads") or 1)
    alike = shapes.get("k") == shapes.get("v")
    return shapes["q"].outputs, shapes["k"].outputs if alike else 0


def _latent(
    module: nn.Module, shapes: dict[str, Shape], window: int | None
) -> tuple[LatentAttentionSpec, list[Shape]]:
    heads = attribute(module, "num_heads", "num_attention_heads") or 0
    rank, nope, rope, value = (
        attribute(module, name) or 0
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
        raise UnrecognizedError(
            f"the projection {odd[0] if odd else 'o'} fits no supported type of attention"
        )
    spec = LatentAttentionSpec(
        heads, down, rank, nope, rope, value, window, _indexer(module, shapes)
    )
    return spec, [shapes["gate"]] if "gate" in shapes else []


def _indexer(module: nn.Module, shapes: Mapping[str, Shape]) -> IndexerSpec | None:
    own = next((m for m in module.modules() if "Indexer" in type(m).__name__), None)
    if own is None:
        return None
    names = (("index_topk", "topk", "top_k"), ("n_heads", "num_heads"), ("head_dim",))
    top_k, heads, width = (attribute(own, *each) or 0 for each in names)
    found = tuple(shapes[role].outputs for role in ("wq_b", "index_k", "weights") if role in shapes)
    if not top_k or found != (heads * width, width, heads):
        raise UnrecognizedError("the indexer's projections fit no supported type of attention")
    return IndexerSpec(top_k, heads, width)


# Recurrent layers (linear attention, state spaces), recognized by class name.


def read_recurrent(module: nn.Module, fields: ConfigFields, hidden: int) -> LinearMixerSpec | None:
    """Return the recurrent layer in a module; None if class or attributes do not match any.

    Raises:
        UnrecognizedError: If its number of weights does not match its type of recurrent layer.
    """
    own = ConfigFields({}, vars(module), type(module).__name__)
    for entry in models_file("mixers.json")["modules"]:
        if re.search(entry["classes"], type(module).__name__):
            with suppress(UnknownLayersError):  # an attribute of this type is missing
                return _checked(module, mixers.recurrent_mixer(entry, own, fields), hidden)
    return None


def _checked(module: nn.Module, spec: LinearMixerSpec, hidden: int) -> LinearMixerSpec:
    expected = sum(prod(projection.shape()) for projection in spec.projections(hidden))
    found = sum(prod(shape) for shape in matrices(module).values())
    if found != expected:
        text = f"the projections have {found:,} weights, expected {expected:,} for {spec.kind}"
        raise UnrecognizedError(text)
    return spec
