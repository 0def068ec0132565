"""Which models are so alike that holding one out means holding the other out too."""

from __future__ import annotations

from pinn.specs.model import DenseFfnSpec, ModelSpec

#: Hidden size and feed-forward width within 5 %, as for expert kernels (``exclusion``). An
#: assumption.
TOLERANCE = 0.05


def is_near_copy(model: ModelSpec, other: ModelSpec) -> bool:
    """Whether two models share their main shapes, whatever their depth and number formats.

    Dense models are near copies where hidden size and feed-forward width agree within 5 %. Models
    with experts are where also the experts and the top-k are the same.
    """
    if (model.moe is None) != (other.moe is None):
        return False
    if not _close(model.hidden_size, other.hidden_size):
        return False
    if model.moe is None or other.moe is None:
        return _close(_dense_width(model), _dense_width(other))
    same_experts = (model.moe.experts, model.moe.top_k) == (other.moe.experts, other.moe.top_k)
    return same_experts and _close(model.moe.width, other.moe.width)


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * b


def _dense_width(model: ModelSpec) -> int:
    """0 for a model of recurrent mixers alone."""
    dense = (g.ffn.width for g in model.layer_groups if isinstance(g.ffn, DenseFfnSpec))
    return max(dense, default=0)
