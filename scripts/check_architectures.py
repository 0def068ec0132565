"""Compare pinn's parameter counts with the modules of every decoder in ``transformers``.

    PYTHONPATH=.:tests python scripts/check_architectures.py          # wrong and refused models
    PYTHONPATH=.:tests python scripts/check_architectures.py --all    # all models

The script needs an environment with ``transformers``, ``torch`` and ``platformdirs``. Each
architecture is built on the meta device, without weights, from its default configuration and from a
smaller one, in which large embeddings do not hide errors of the layers. Encoders and
encoder-decoders are skipped. For a multimodal model, only the text part is compared: decoder,
embeddings and output head. Sizes that are missing from the configuration are read from the built
modules. The exit status is 1 if a count differs by more than 1 %.
"""

import argparse
import contextlib
import copy
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from parameter_counts import count_parameters

from pinn.errors import PinnError, UnknownLayersError
from pinn.specs.huggingface import ReadSettings, model_from_config
from pinn.specs.model import ModelSpec
from pinn.specs.modules.from_modules import model_from_modules

CLOSE = 0.01
CAUSAL, MULTIMODAL = "causal", "multimodal text parts"
READ, WRONG, REFUSED, UNBUILT = "read", "wrong", "refused", "not built"
OFF_MODULES = "read off modules"
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_EXPERTS = {"n_routed_experts": 16, "num_experts_per_tok": 2, "n_shared_experts": 1}
#: Required sizes missing from a model type's default configuration in transformers, by model type.
SIZES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_vl_text": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "dots1": {**_EXPERTS, "first_k_dense_replace": 1},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 8, "moe_topk": 2},
    "emu3_text_model": {"pad_token_id": 0},
    "nemotron": {"num_key_value_heads": 8},
    "dbrx": {"attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000.0}},
    "deepseek_ocr2_text": {
        "num_experts_per_tok": 6,
        "mlp_layer_types": ["dense"] + ["sparse"] * 31,
    },
    "lfm2_moe": {"layer_types": (["conv"] * 3 + ["full_attention"]) * 8},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}
    },
}
#: Required keys of a multimodal model's default configuration, in addition to those of its text
#: part.
BESIDE: dict[str, dict[str, Any]] = {
    "aya_vision": {"vision_config": {"model_type": "siglip_vision_model"}},
    "emu3": {"pad_token_id": 0, "vocabulary_map": {"<image>": 5}},
    "granite4_vision": {
        "deepstack_layer_map": [],
        "spatial_target_layers": [],
        "downsample_rate": "1/2",
    },
}
#: Model types of decoders that are half of an encoder-decoder model, which none of their keys
#: reveals.
HALVES = frozenset({"trocr", "bert-generation"})
#: Keys of nested configurations that describe parts of the text model itself.
_OWN_PARTS = frozenset({"attn_config", "ffn_config"})
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")


class Result(NamedTuple):
    """Result of comparing the parameter counts of one architecture.

    Attributes:
        kind: Type of the model: ``causal`` or ``multimodal text parts``.
        model_type: ``model_type`` of the architecture in config.json.
        status: ``read``, ``read off modules``, ``wrong``, ``refused`` or ``not built``.
        text: Relative differences of parameter counts, or the reason for the status.
    """

    kind: str
    model_type: str
    status: str
    text: str


def architectures() -> Iterator[tuple[str, str, str]]:
    """Yield the kind (see :class:`Result`), ``model_type`` and class name of each decoder."""
    from transformers.models.auto import configuration_auto, modeling_auto

    encoders = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    for model_type, name in causal.items():
        cls = configuration_auto.CONFIG_MAPPING[model_type]
        is_wrapper = set(cls.sub_configs) - _OWN_PARTS or model_type in HALVES
        if not (is_wrapper or model_type in encoders or _is_encoder_decoder(cls)):
            yield CAUSAL, model_type, name
    for model_type, name in modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items():
        cls = configuration_auto.CONFIG_MAPPING[model_type]
        if "text_config" in cls.sub_configs and not _is_encoder_decoder(cls):
            yield MULTIMODAL, model_type, name


def _is_encoder_decoder(cls: Any) -> bool:
    field = cls.__dataclass_fields__.get("is_encoder_decoder")
    return bool(field is not None and field.default)


def smaller(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with at most 8 layers and a vocabulary of at most 1,024 tokens."""
    found = copy.deepcopy(dict(config))
    text = found["text_config"] if isinstance(found.get("text_config"), dict) else found
    for key in _LAYERS:
        layers = text.get(key)
        if isinstance(layers, int):
            lists = {k: v[:8] for k, v in text.items() if isinstance(v, list) and len(v) == layers}
            text.update(lists, **{key: min(layers, 8)})
    for key in ("vocab_size", "unpadded_vocab_size"):
        text.update({key: 1024} if isinstance(text.get(key), int) else {})
    text.pop("hybrid_layer_ids", None)  # Zamba2 derives these layers from its layer list
    tokens = [key for key in text if key.endswith("_token_id") and text is found]
    text.update({key: 0 for key in tokens if isinstance(text[key], int)})
    return found


def true_parameters(config: Any, name: str, kind: str) -> int:
    """Return the number of parameters of a model's text part, built on the meta device."""
    import torch
    import transformers

    with torch.device("meta"):
        model = getattr(transformers, name)._from_config(config)
    parts = [model]
    if kind == MULTIMODAL:
        parts = [model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings()]
    named = [each for part in parts if part is not None for each in part.named_parameters()]
    found = {id(p): _size(name, p, config) for name, p in named}
    return sum(found.values())


def _size(name: str, parameter: Any, config: Any) -> int:
    """Return a parameter's number of elements, without unused experts.

    transformers 5.24 allocates such experts for half of the experts of LongCat-Flash
    (modeling_longcat_flash.py); checkpoints have no weights for them.
    """
    idle = getattr(config, "zero_expert_num", None) or 0
    if name.endswith("experts.gate_up_proj") and idle:
        return int(parameter[idle:].numel())
    return int(parameter.numel())


def configurations(model_type: str) -> Iterator[Any]:
    """Yield the default configuration of an architecture, and a smaller one if it is valid.

    Raises:
        Exception: If the default configuration cannot be built.
    """
    from transformers.models.auto import configuration_auto

    cls = configuration_auto.CONFIG_MAPPING[model_type]
    values = cls().to_dict() | BESIDE.get(model_type, {})
    text, tied = values.get("text_config", values), values.get("tie_word_embeddings")
    # The default configurations of a model and of its text part may contradict each other, so both
    # get the same values.
    text |= SIZES.get(text["model_type"], {})
    text |= {} if tied is None else {"tie_word_embeddings": tied}
    yield cls.from_dict(dict(values))
    with contextlib.suppress(Exception):  # a smaller configuration may be invalid
        yield cls.from_dict(smaller(values))


def read(config: Mapping[str, Any], name: str) -> tuple[ModelSpec, str]:
    """Convert a configuration to a model, and return whether built modules supplied sizes."""
    try:
        return model_from_config(config, name), READ
    except UnknownLayersError as refusal:
        settings = ReadSettings(name)
        return model_from_modules(config, name, settings, refusal), OFF_MODULES


def compare(kind: str, model_type: str, name: str, *, quick: bool = False) -> Result:
    """Compare parameter counts of one architecture in its default and a smaller configuration.

    Args:
        kind: ``causal`` or ``multimodal text parts``.
        model_type: Model type of the architecture.
        name: Class of the architecture in transformers.
        quick: Whether to compare only the smaller configuration, if there is one.
    """
    differences, unbuilt, ways = [], "no configuration can be built", set()
    try:
        built = [*configurations(model_type)][-1 if quick else 0 :]
    except Exception as error:  # the model's code fails, or needs more packages
        return Result(kind, model_type, UNBUILT, str(error).strip().split("\n")[0])
    for config in built:
        try:
            found, way = read(config.to_dict(), model_type)
        except PinnError as error:
            return Result(kind, model_type, REFUSED, str(error))
        ways.add(way)
        try:
            true = true_parameters(config, name, kind)
            differences.append(count_parameters(found).total / true - 1)
        except Exception as error:  # the model's code fails, or needs more packages
            unbuilt = str(error)
    if not differences:
        return Result(kind, model_type, UNBUILT, unbuilt.strip().split("\n")[0])
    is_close = all(abs(each) <= CLOSE for each in differences)
    status = (READ if ways == {READ} else OFF_MODULES) if is_close else WRONG
    return Result(kind, model_type, status, ", ".join(f"{100 * d:+.2f} %" for d in differences))


def check(*, quick: bool = False) -> list[Result]:
    """Compare the parameter counts of all decoders; ``quick`` uses only smaller configurations."""
    import transformers

    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [compare(*each, quick=quick) for each in architectures()]


def main() -> int:
    """Print the comparison, and return 1 if a parameter count is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--all", action="store_true", help="print what is read, too")
    shown = (READ,) * parser.parse_args().all
    results = check()
    for kind in (CAUSAL, MULTIMODAL):
        own = [result for result in results if result.kind == kind]
        for status in (READ, OFF_MODULES, WRONG, REFUSED, UNBUILT):
            found = [result for result in own if result.status == status]
            print(f"{kind}: {len(found)} of {len(own)} {status}")
            if status in (*shown, OFF_MODULES, WRONG, REFUSED, UNBUILT):
                print("".join(f"  {each.model_type}: {each.text}\n" for each in found), end="")
    return any(result.status == WRONG for result in results)


if __name__ == "__main__":
    sys.exit(main())
