"""What Gemma-3n has beside its layers (transformers' modeling_gemma3n.py)."""

from __future__ import annotations

from pinn.specs.config_fields import ConfigFields
from pinn.specs.mixers import Part, Projection

#: ``model_type`` of its text model.
GEMMA_3N = "gemma3n_text"


def lookup_parameters(fields: ConfigFields) -> int:
    """The per-layer embeddings: of each token, a row per layer."""
    rows = fields.integer("vocab_size_per_layer_input")
    return rows * fields.integer("num_hidden_layers") * _layer_width(fields)


def side_projections(fields: ConfigFields, hidden: int) -> tuple[tuple[int, Projection], ...]:
    """The gates and projections of per-layer inputs, LAuReL's low-rank pair, and AltUp's streams.

    Every GPU computes them whole: their widths are small.
    """
    layers, width = fields.integer("num_hidden_layers"), _layer_width(fields)
    rank, streams = fields.integer("laurel_rank"), fields.integer("altup_num_inputs")
    return (
        (1, _whole("per_layer_model_projection", layers * width, hidden)),
        (layers, _whole("per_layer_input_gate", width, hidden)),
        (layers, _whole("per_layer_projection", hidden, width)),
        (layers, _whole("laurel_left", rank, hidden)),
        (layers, _whole("laurel_right", hidden, rank)),
        (2 * (streams - 1), _whole("altup_projection", hidden, hidden)),
    )


def _layer_width(fields: ConfigFields) -> int:
    return fields.integer("hidden_size_per_layer_input")


def _whole(name: str, outputs: int, inputs: int) -> Projection:
    return Projection(name, (Part(1, outputs),), Part(1, inputs))
