"""A model from its config.json."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pinn.common.documents import MOST_MATCHES, MOST_MODEL_SIZE, check_size, is_finite, written
from pinn.errors import PinnError
from pinn.specs import model
from pinn.specs.config_fields import TIED_TYPES, ConfigFields, check_supported, read_fields
from pinn.specs.layer_plan import LayerPart, layer_parts
from pinn.specs.mixers import LinearMixerSpec, Part, Projection
from pinn.specs.precision import Precision, precision
from pinn.specs.quantization import Quantization, module_names, read_quantization

# What Gemma-3n has beside its layers (transformers' modeling_gemma3n.py).

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


# A Hugging Face config.json -> ``ModelSpec``, as vLLM 0.15.1 reads it; no code is executed.

#: The format that vLLM serves a checkpoint of a ``torch_dtype`` in: fp32 is cast to bf16
#: (``vllm/config/model.py``, ``_resolve_auto_dtype``).
_DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "bf16", "float": "bf16",
}  # fmt: skip
_MAX_POSITION = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
    "max_seq_length", "seq_len",
)  # fmt: skip


def model_from_config(
    config: Mapping[str, Any],
    name: str,
    *,
    source: str | None = None,
    quant_config: Mapping[str, Any] | None = None,
    sampling: model.Sampling | None = None,
    fallback_precision: str | None = None,
) -> model.ModelSpec:
    """Turn a parsed config.json into a model.

    Args:
        config: The JSON object.
        name: What the model shall be called.
        source: File name for error messages; ``name`` by default.
        quant_config: Content of a separate ``hf_quant_config.json``; like vLLM, read only where
            the config itself has no quantization.
        sampling: What its generation_config.json asks for. Where there is none, vLLM looks for the
            same keys in config.json itself (``GenerationConfig.from_model_config``); so does None.
        fallback_precision: Format to take, with a warning, where the quantization is unknown.

    Raises:
        PinnError: If a field is missing or wrong, or a layer kind or quantization is unknown.
    """
    fields = read_fields(config, source or name)
    check_supported(fields)
    max_position = _max_position(fields)
    parts = layer_parts(fields, max_position)
    base = _base_precision(fields)
    quantization = quantization_of(fields, quant_config, fallback_precision)
    precisions, kv_cache = _precisions(quantization, parts, base)
    hidden = fields.integer("hidden_size", "n_embd", "d_model")
    if sampling is None:
        sampling = model.sampling_from_generation_config(config, source or name)
    is_gemma_3n = fields.model_type == GEMMA_3N
    return model.ModelSpec(
        name=name,
        model_type=str(config.get("model_type") or fields.model_type),
        hidden_size=hidden,
        vocab_size=fields.integer("vocab_size", "padded_vocab_size"),
        layer_groups=tuple(
            model.LayerGroup(count, *shape)
            for shape, count in Counter((part.mixer, part.ffn) for part in parts).items()
        ),
        precisions=precisions,
        kv_cache_precision=kv_cache,
        tied_embeddings=_is_tied(fields),
        max_position=max_position,
        extra_parameters=_extra_parameters(fields, hidden, parts),
        lookup_parameters=lookup_parameters(fields) if is_gemma_3n else 0,
        side_projections=side_projections(fields, hidden) if is_gemma_3n else (),
        sampling=sampling,
        left_out=_left_out(fields),
    )


def _left_out(fields: ConfigFields) -> str:
    """What a multimodal model has beside its text part; the catalogue's files name that alone."""
    parts = [part for part in ("vision", "audio") if fields.root.get(f"{part}_config")]
    if not parts and "text_config" in fields.root:
        return "encoders"
    return " and ".join(f"{part} encoder" for part in parts)


def _max_position(fields: ConfigFields) -> int:
    """Longest context (vLLM's ``_get_and_verify_max_len``)."""
    found = [fields.integer(key) for key in _MAX_POSITION if fields.get(key) is not None]
    longest = min(found, default=2048)
    rope = fields.get("rope_parameters", "rope_scaling")
    if not isinstance(rope, Mapping) or "gemma3" in fields.model_type:
        return longest
    kind = rope.get("rope_type", rope.get("type"))
    factor = rope.get("factor")
    if factor is None or kind in (None, "default", "su", "longrope", "llama3", "mrope"):
        return longest
    original = rope.get("original_max_position_embeddings", longest) if kind == "yarn" else longest
    if not (is_finite(factor) and is_finite(original) and original >= 1 and factor > 0):
        raise PinnError(
            f"{fields.source}: the rope scaling needs a positive factor and context, got "
            f"{written(factor)} and {written(original)}"
        )
    stretched = int(original * factor)
    check_size(stretched, MOST_MODEL_SIZE, f"{fields.source}: tokens of context", "correct it")
    return max(stretched, 1)


def _base_precision(fields: ConfigFields) -> Precision:
    dtype = fields.get("dtype", "torch_dtype") or (
        fields.root.get("dtype") or fields.root.get("torch_dtype") or "float32"
    )
    name = _DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        raise PinnError(
            f"{fields.source}: unknown torch_dtype {dtype!r}: known ones are {', '.join(_DTYPES)}"
        )
    return precision(name)


def _is_tied(fields: ConfigFields) -> bool:
    stated = fields.truth("tie_word_embeddings")
    return fields.model_type in TIED_TYPES if stated is None else stated


def quantization_of(
    fields: ConfigFields, separate: Mapping[str, Any] | None, fallback: str | None = None
) -> Quantization | None:
    """The config's own quantization, at the root or in the language part, else the separate one.

    Raises:
        PinnError: If the scheme is unknown and there is no fallback.
    """
    own = [
        values.get(key)
        for values in (fields.root, fields.text)
        for key in ("quantization_config", "compression_config")
    ]
    found = next((entry for entry in [*own, separate] if entry not in (None, {})), None)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise PinnError(
            f"{fields.source}: quantization_config must be a JSON object, got {found!r:.60}"
        )
    return read_quantization(found, fields.source, fallback)


def _precisions(
    quantization: Quantization | None, parts: Sequence[LayerPart], base: Precision
) -> tuple[model.WeightPrecisions, Precision]:
    if quantization is None:
        return model.WeightPrecisions(base, base, base, base, base), base
    check_size(
        len(parts) * quantization.expressions,
        MOST_MATCHES,
        "layers x expressions of the quantization config",
        "write fewer expressions",
    )
    kinds = {
        kind: quantization.of_kind(kind, modules, base)
        for kind, modules in module_names(parts).items()
    }
    precisions = model.WeightPrecisions(**kinds, lm_head=quantization.lm_head or base)
    return precisions, quantization.kv_cache or base


def _extra_parameters(fields: ConfigFields, hidden: int, parts: Sequence[LayerPart]) -> int:
    """Norms, biases of q, k, v and of gpt-oss's experts, and what recurrent mixers have beside.

    A norm stands before each part, and one at the end. Leaves out norms of single
    heads, output biases and the extra norms of Gemma (below 0.01 %).
    """
    total = hidden * (1 + sum((p.mixer is not None) + (p.ffn is not None) for p in parts))
    attention = [p.mixer for p in parts if isinstance(p.mixer, model.AttentionSpec)]
    qwen2 = fields.model_type.startswith("qwen2")
    if qwen2 or fields.get("attention_bias", "add_qkv_bias"):
        total += sum((a.heads + 2 * a.kv_heads) * a.head_dim for a in attention)
    if fields.model_type == "gpt_oss":
        experts = [p.ffn for p in parts if isinstance(p.ffn, model.MoeFfnSpec)]
        total += sum(f.experts * (2 * f.width + hidden) for f in experts)
    recurrent = [p.mixer for p in parts if isinstance(p.mixer, LinearMixerSpec)]
    return total + sum(mixer.small_parameters for mixer in recurrent)
