"""Conversion of a config.json into a model: layers, sizes and number formats."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pinn.common import documents
from pinn.common.documents import check_size, is_finite, written
from pinn.errors import UnknownLayersError, warn_user
from pinn.specs import config_fields, mixers, model
from pinn.specs.audio import audio_reader
from pinn.specs.config_fields import ConfigFields, inverted, keys, models_file
from pinn.specs.encoder import encoder_parameters, has_encoder, thinker
from pinn.specs.images import image_reader
from pinn.specs.layers import attentions, dense_layer, feed_forwards
from pinn.specs.mixers import LinearMixerSpec, Part, Projection
from pinn.specs.module_patterns import module_names
from pinn.specs.nearest_family import nearest_remedy
from pinn.specs.precision import Precision, precision
from pinn.specs.quantization import Quantization, read_quantization

# Parts of a model outside its layers, such as per-layer embeddings.


def _beside_layers(fields: ConfigFields, hidden: int, layers: int) -> dict[str, Any]:
    """Return the fields of ``ModelSpec`` for parts outside the layers that process every token.

    These parts are lookup tables, projections, and reads of earlier layers' outputs. Tensor
    parallelism does not divide their narrow matrices.

    - Gemma's per-layer embeddings: a token reads one row per layer. Gemma-3n also has LAuReL's
      low-rank pair and AltUp's streams (transformers' modeling_gemma3n.py, modeling_gemma4.py).
    - ModernBERT's head has one projection. Each use of a shared layer has a projection in Zamba,
      and an adapter in Zamba2 (modeling_zamba2.py).
    - Kimi-K3 and Inkling-2 attend over the outputs of blocks of layers (vllm 0.33.0
      models/kimi_k3/nvidia/model.py: attn_res).
    """
    shared = fields.is_type("doubled_input") * fields.listed("layers_block_type").count("hybrid")
    adapter = fields.integer("adapter_rank", default=0, least=0)
    width = fields.integer("hidden_size_per_layer_input", default=0, least=0)
    rank = fields.integer("laurel_rank", default=0, least=0)
    streams = fields.integer("altup_num_inputs", default=1)
    projections = (
        (width > 0, "per_layer_model_projection", layers * width, hidden),
        (layers, "per_layer_input_gate", width, hidden),
        (layers, "per_layer_projection", hidden, width),
        (layers, "laurel_left", rank, hidden),
        (layers, "laurel_right", hidden, rank),
        (2 * (streams - 1), "altup_projection", hidden, hidden),
        (fields.is_type("projected_head"), "head_dense", hidden, hidden),
        (shared, "linear", hidden, hidden),
        (shared, "adapter_a", adapter, hidden),
        (shared, "adapter_b", 2 * fields.integer("dense_width", default=0, least=0), adapter),
    )
    kept = [(int(n), name, a, b) for n, name, a, b in projections if n and a and b]
    found: dict[str, Any] = {
        "side_projections": tuple(
            (n, Projection(name, (Part(1, a),), Part(1, b))) for n, name, a, b in kept
        )
    }
    if width:
        found["lookup_parameters"] = fields.integer("vocab_size_per_layer_input") * layers * width
    if fields.get("residual_block") is not None:
        size = fields.integer("residual_block")
        found["reread_rows"] = 2 * sum(i // size + 1 for i in range(layers))
    return found


# Attention or recurrence, and feed-forward part, of each layer in a config.json.

FULL, LINEAR, BOTH, CROSS, NETWORK = "full", "linear", "both", "cross", "network"
#: Word in a list of layer types for a layer of two attention and two dense parts, with experts in
#: parallel (LongCat-Flash).
DOUBLE = "double"
#: Word in a list of layer types for a recurrent layer that is followed by a shared layer (Zamba).
SHARED = "shared"


def layer_count(fields: ConfigFields) -> int:
    """Return the model's number of layers."""
    types = fields.get("layers_block_type")
    default = len(types) if isinstance(types, list) else None
    if fields.get("H_cycles") is not None:
        cycles, runs = fields.integer("H_cycles"), fields.integer("L_cycles") + 1
        return cycles * runs * fields.integer("num_layers_per_stack")
    return fields.integer("num_hidden_layers", default=default, most=documents.MOST_LAYERS)


def layer_parts(fields: ConfigFields, max_position: int) -> list[model.LayerPart]:
    """Return the parts of each layer, first to last: attention or recurrence, and feed-forward.

    Raises:
        PinnError: If a needed size is missing or wrong, or a layer's type is unknown.
    """
    layers, found = layer_count(fields), list[model.LayerPart]()
    is_half = fields.is_type("halves")
    plan = layer_plan(fields, layers)
    has_attention = not set(plan) <= {LINEAR, NETWORK}
    attention = attentions(fields, layers, max_position) if has_attention else []
    linear = mixers.family_mixer(fields, fields.mixer) if fields.mixer else None
    ffns = feed_forwards(fields, layers) if not is_half or NETWORK in plan else []
    for i, word in enumerate(plan):
        mixer: model.Mixer | None = linear if word in (LINEAR, BOTH, SHARED) else None
        if word == BOTH:  # attention and state space run in parallel, each with an all-reduce
            found.append(model.LayerPart(i, attention[i], None))
        elif word == DOUBLE:
            found += [model.LayerPart(i, attention[i], dense_layer(fields))] * 2
        elif word == SHARED:
            again = plan[:i].count(SHARED) >= fields.integer("num_mem_blocks", default=1)
            found.append(model.LayerPart(i, attention[i], dense_layer(fields), again))
        elif word == FULL:
            mixer = attention[i]
        elif word == CROSS:
            own = attention[i]
            mixer = own and mixers.CrossAttentionSpec(own.heads, own.kv_heads, own.head_dim)
        has_ffn = not is_half or word == NETWORK
        found.append(model.LayerPart(i, mixer, ffns[i] if has_ffn else None))
    return _run_again(fields, [part for part in found if part.mixer or part.ffn])


def _run_again(fields: ConfigFields, parts: list[model.LayerPart]) -> list[model.LayerPart]:
    """Return layer parts in order of execution; layers that run several times are repeated.

    In HRM each run counts as a layer: two stacks run alternately (modeling_hrm_text.py). Other
    models repeat the layers between the first and the last ones (vLLM's dory.py).
    """
    if fields.get("H_cycles") is not None:
        own = 2 * fields.integer("num_layers_per_stack")
        return [part._replace(again=i >= own) for i, part in enumerate(parts)]
    passes = fields.integer("loop_passes", default=1)
    if passes == 1:
        return parts
    first = fields.integer("loop_start")
    last = fields.integer("n_output_layers", default=0, least=0)
    end = fields.integer("loop_layer_index_end", default=layer_count(fields) - last)
    loop = [part._replace(again=True) for part in parts if first <= part.layer < end]
    return parts + loop * (passes - 1)


def layer_plan(fields: ConfigFields, layers: int) -> list[str]:
    """Return the type of each layer, such as ``full`` or ``linear``, first to last.

    Several keys of a config.json can specify the types; the first one present is used. Model
    families whose layers are all of one type have no such key; every layer then has full attention.

    - Jamba: attention if ``i % attn_layer_period == attn_layer_offset`` (configuration_jamba.py).
    - Kimi-Linear: layers are counted from 1 (configuration_kimi.py: ``is_kda_layer``).
    - Qwen3-Next without a list: full attention every ``full_attention_interval`` layers
      (qwen3_next.py).

    Raises:
        PinnError: If no key has a plan, or a layer's type is unknown.
    """
    usual = models_file("types.json")["every_layer"].get(fields.model_type)
    if usual is None and not fields.is_type("halves") and fields.mixer is None:
        return [FULL] * layers
    if fields.get("attn_layer_period") is not None and not fields.get("layers_block_type"):
        step = fields.integer("attn_layer_period")
        first = fields.integer("attn_layer_offset", default=0, least=0)
        return [FULL if i % step == first else LINEAR for i in range(layers)]
    for key, (inside, outside) in models_file("types.json")["layer_indices"].items():
        if fields.get(key) is not None:
            chosen = fields.layer_indices(key)
            return [inside if i in chosen else outside for i in range(layers)]
    nested = fields.get("linear_attn_config")
    if nested is not None:
        kda = nested.get("kda_layers") if isinstance(nested, dict) else None
        if not isinstance(kda, list):
            rule = "linear_attn_config must have the list kda_layers"
            raise fields.misfit(rule, kda)
        return [LINEAR if i + 1 in kda else FULL for i in range(layers)]
    found = fields.get("layer_plan")
    if found is None and fields.get("full_attention_interval") is not None:
        step = fields.integer("full_attention_interval")
        return [LINEAR if (i + 1) % step else FULL for i in range(layers)]
    if found is None and usual is not None:
        return [usual] * layers
    words = list(found) if isinstance(found, list | str) else []
    # RecurrentGemma's list is a pattern that is repeated until all layers have a type.
    if words and fields.get("block_types") is not None:
        words *= -(-layers // len(words))
    if len(words) < layers:
        names = " or ".join(keys("layer_plan"))
        raise fields.misfit(f"{names} must have a type for each of {layers} layers", found)
    kinds = inverted(models_file("types.json")["layer_words"])
    for each in words[:layers]:
        is_text = isinstance(each, str | int) and not isinstance(each, bool)
        if not is_text or each not in kinds:
            known = ", ".join(map(str, kinds))
            fault = f"the layer type {written(each)} is unknown, expected one of {known}"
            raise UnknownLayersError(fields.error(fault))
    return [kinds[each] for each in words[:layers]]


# Conversion of a Hugging Face config.json into a ``ModelSpec``, as vLLM 0.15.1 reads it.

#: Formats in which vLLM serves a checkpoint, by its ``torch_dtype``; vLLM casts fp32 to bf16
#: (``vllm/config/model.py``, ``_resolve_auto_dtype``).
_DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "bf16", "float": "bf16",
}  # fmt: skip


class ReadSettings(NamedTuple):
    """Information about a model that its config.json lacks.

    Attributes:
        name: Name of the model.
        quant_config: Content of a separate ``hf_quant_config.json``; as in vLLM, it is used only if
            the config itself specifies no quantization.
        sampling: Sampling settings of the generation_config.json. If None, the keys of config.json
            itself are used, as in vLLM (``GenerationConfig.from_model_config``).
        fallback_precision: Weight format to assume, with a warning, if the quantization is unknown.
        processor: Content of a preprocessor_config.json, which limits image sizes.
    """

    name: str
    quant_config: Mapping[str, object] | None = None
    sampling: model.Sampling | None = None
    fallback_precision: str | None = None
    processor: Mapping[str, object] | None = None


def model_from_config(
    config: Mapping[str, Any], source: str, settings: ReadSettings | None = None
) -> model.ModelSpec:
    """Convert a parsed config.json into a model.

    Args:
        config: Parsed config.json.
        source: File name in error messages.
        settings: Information about the model that the config.json lacks; by default, its name is
            ``source``.

    Raises:
        PinnError: If a field is missing or wrong, or a layer type or quantization is unknown.
    """
    fields, own = config_fields.read_fields(config, source), settings or ReadSettings(source)
    try:
        return _model_by_keys(fields, own)
    except UnknownLayersError as error:
        remedy = nearest_remedy(fields, lambda other: _model_by_keys(other, own))
        raise UnknownLayersError(f"{error}{remedy}") from error


def _model_by_keys(fields: ConfigFields, settings: ReadSettings) -> model.ModelSpec:
    config_fields.check_supported(fields)
    note = config_fields.notice(fields)
    if note is not None:
        warn_user(note)
    max_position = longest_context(fields)
    parts = layer_parts(fields, max_position)
    hidden = fields.integer("hidden_size")
    is_tied = fields.truth("tie_word_embeddings")
    stem: dict[str, Any] = {
        "hidden_size": hidden,
        "vocab_size": fields.integer("vocab_size", "padded_vocab_size"),
        "tied_embeddings": fields.is_type("tied") if is_tied is None else is_tied,
        "max_position": max_position,
        "extra_parameters": _extra_parameters(
            fields, hidden, [part for part in parts if not part.again]
        ),
        "streams": fields.integer("hc_mult", default=0, least=0),
        **_beside_layers(fields, hidden, layer_count(fields)),
    }
    return model_of(fields, parts, stem, settings)


def model_of(
    fields: ConfigFields,
    parts: Sequence[model.LayerPart],
    stem: Mapping[str, Any],
    settings: ReadSettings,
) -> model.ModelSpec:
    """Return a model from its layers, with the number formats in its config.json.

    Args:
        fields: Fields of the config.json.
        parts: Parts of each layer, first to last.
        stem: Values of ``ModelSpec``'s fields for parts outside the layers, by name.
        settings: Information about the model that the config.json lacks.
    """
    quantization = quantization_of(fields, settings.quant_config, settings.fallback_precision)
    base, stored = _base_precision(fields), [part for part in parts if not part.again]
    precisions, kv_cache = _precisions(quantization, stored, stem["hidden_size"], base)
    if fields.is_type("compressed"):
        precisions, kv_cache = _compressed_formats(fields, precisions), precision("fp8")
    shapes = Counter(part[1:] for part in parts)
    sampling = settings.sampling
    if sampling is None:
        sampling = model.sampling_from_generation_config(fields.root, fields.source)
    hears_or_sees = has_encoder(fields.root)
    return model.ModelSpec(
        name=settings.name,
        model_type=str(fields.root.get("model_type") or fields.model_type),
        layer_groups=tuple(model.LayerGroup(count, *shape) for shape, count in shapes.items()),
        precisions=precisions,
        kv_cache_precision=kv_cache,
        sampling=sampling,
        left_out=_left_out(fields),
        pooled=fields.is_pooled,
        bidirectional=fields.is_bidirectional,
        encoder_parameters=encoder_parameters(fields.root),
        images=image_reader(fields.root, settings.processor) if hears_or_sees else None,
        audio=audio_reader(fields.root) if hears_or_sees else None,
        **stem,
    )


def _left_out(fields: ConfigFields) -> str:
    """Return a note about a multimodal model's encoders that no step includes; empty if none."""
    root = thinker(fields.root)
    parts = [part for part in ("vision", "audio") if root.get(f"{part}_config")]
    if not parts and "text_config" in fields.root:
        return "encoders"
    return " and ".join(f"{part} encoder" for part in parts)


def longest_context(fields: ConfigFields) -> int:
    """Return the maximum context length in tokens (vLLM's ``_get_and_verify_max_len``)."""
    found = [fields.integer(key) for key in keys("max_position") if fields.get(key) is not None]
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
        got = f"{written(factor)} and {written(original)}"
        raise fields.error(
            "factor and original_max_position_embeddings of the rope scaling must be positive, "
            f"got {got}"
        )
    stretched, where = int(original * factor), f"{fields.source}: the context length in tokens"
    check_size(stretched, documents.MOST_MODEL_SIZE, where, "correct the value")
    return max(stretched, 1)


def _base_precision(fields: ConfigFields) -> Precision:
    dtype = fields.get("dtype", "torch_dtype") or (
        fields.root.get("dtype") or fields.root.get("torch_dtype") or "float32"
    )
    name = _DTYPES.get(str(dtype).removeprefix("torch."))
    if name is None:
        known = ", ".join(_DTYPES)
        raise fields.error(f"torch_dtype must be one of {known}, got {dtype!r}")
    return precision(name)


def quantization_of(
    fields: ConfigFields, separate: Mapping[str, object] | None, fallback: str | None = None
) -> Quantization | None:
    """Return the quantization in a config.json, or else in the separate quantization file.

    Raises:
        PinnError: If the scheme is unknown and there is no fallback.
    """
    keys = "quantization_config", "compression_config"
    own = [values.get(key) for values in (fields.root, fields.text) for key in keys]
    found = next((entry for entry in [*own, separate] if entry not in (None, {})), None)
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise fields.error(f"quantization_config must be a JSON object, got {found!r:.60}")
    return read_quantization(found, fields.source, fallback)


def _precisions(
    quantization: Quantization | None,
    parts: Sequence[model.LayerPart],
    hidden: int,
    base: Precision,
) -> tuple[model.WeightPrecisions, Precision]:
    if quantization is None:
        return model.WeightPrecisions(base, base, base, base, base), base
    where = "layers x regular expressions in the quantization config"
    matches = len(parts) * quantization.expressions
    check_size(matches, documents.MOST_MATCHES, where, "write fewer expressions")
    modules = module_names(parts, hidden).items()
    kinds = {kind: quantization.of_kind(kind, names, base) for kind, names in modules}
    precisions = model.WeightPrecisions(**kinds, lm_head=quantization.lm_head or base)
    return precisions, quantization.kv_cache or base


#: Number format of the experts, by DeepSeek-V4's ``moe_quant_algo`` or ``expert_dtype``. With fp4
#: weights, activations have 8 bits (vLLM 0.20.1 fused_moe/oracle/mxfp4.py:
#: select_mxfp4_moe_backend, first choice).
_EXPERTS = {"NVFP4": "nvfp4", "fp4": "mxfp4_mxfp8", "fp8": "fp8_block"}


def _compressed_formats(fields: ConfigFields, of: model.WeightPrecisions) -> model.WeightPrecisions:
    """Return DeepSeek-V4's weight formats, with the routed experts' separate format.

    Source: vLLM's DeepseekV4FP8Config.
    """
    packed = (fields.get("quantization_config") or {}).get("moe_quant_algo")
    default = "fp4" if fields.model_type == "deepseek_v4" else "fp8"
    asked = str(packed or fields.get("expert_dtype") or default)
    if asked not in _EXPERTS:
        raise fields.misfit(f"expert_dtype must be one of {', '.join(_EXPERTS)}", asked)
    return replace(of, experts=precision(_EXPERTS[asked]), shared_experts=of.attention)


def _extra_parameters(fields: ConfigFields, hidden: int, parts: Sequence[model.LayerPart]) -> int:
    """Return the number of weights in norms, biases, position tables and small matrices.

    The count includes a norm before each part and one at the end, biases of q, k, v and of
    gpt-oss's experts, and small matrices of recurrent layers. Experts for images are excluded,
    because no text token passes through them. Norms of single heads, output biases and Gemma's
    extra norms are omitted (below 0.01 %).
    """
    positions = longest_context(fields) if fields.is_type("positions") else 0
    total = hidden * (
        1 + positions + sum((p.mixer is not None) + (p.ffn is not None) for p in parts)
    )
    attention = [p.mixer for p in parts if isinstance(p.mixer, model.AttentionSpec)]
    total += hidden * fields.integer("type_vocab_size", default=0, least=0)
    qwen2 = fields.model_type.startswith("qwen2")
    if qwen2 or fields.is_type("encoder") or fields.get("qkv_bias"):
        total += sum((a.heads + 2 * a.kv_heads) * a.head_dim for a in attention)
    experts = [p.ffn for p in parts if isinstance(p.ffn, model.MoeFfnSpec)]
    if fields.model_type == "gpt_oss":
        total += sum(f.experts * (2 * f.width + hidden) for f in experts)
    if fields.is_type("image_experts"):
        of_images = fields.listed("moe_intermediate_size")[-1]
        total += sum(f.experts * hidden * (3 * of_images + 1) for f in experts)
    streams = fields.integer("hc_mult", default=0, least=0)
    # DeepSeek-V4's fp32 matrices hc_attn_fn and hc_ffn_fn compute the mixing weights of each
    # residual stream from all streams (deepseek_v4.py).
    total += 2 * len(parts) * (2 + streams) * streams**2 * hidden
    recurrent = [p.mixer for p in parts if isinstance(p.mixer, LinearMixerSpec)]
    return total + sum(mixer.small_parameters for mixer in recurrent)
