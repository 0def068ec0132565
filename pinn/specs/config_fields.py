"""Typed access to the fields of a config.json; errors name the file and the remedy."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pinn.common.documents import MOST_MODEL_SIZE, check_size, misfit, read_json, written
from pinn.common.files import data_folder
from pinn.errors import PinnError, UnknownLayersError


@cache
def models_file(name: str) -> dict[str, Any]:
    """Return the parsed content of a file of ``data/models``; each file is read once.

    Args:
        name: ``types.json`` for facts about each ``model_type``, ``config_keys.json`` for the keys
            of each size, ``mixers.json`` for recurrent layers, ``name_words.json`` for the meaning
            of words in a name, ``quantization.json`` for formats, ``encoders.json`` for images and
            audio, ``configs.json`` for the catalog, ``aliases.json`` or ``generation.json``.
    """
    return dict(read_json(data_folder("models") / name))


def inverted(groups: Mapping[str, Any]) -> dict[Any, str]:
    """Map each entry of the lists in ``groups`` to the key of the list that contains it."""
    lists = ((key, names) for key, names in groups.items() if isinstance(names, list))
    return {name: key for key, names in lists for name in names}


def is_type(model_type: str, trait: str) -> bool:
    """Return whether types.json lists a ``model_type`` under a property, such as ``latent``."""
    known = models_file("types.json")
    return model_type in (known["traits"].get(trait) or known["releases"][trait])["types"]


def keys(*sizes: str) -> tuple[str, ...]:
    """Return the config.json keys of sizes such as ``dense_width``, in order of precedence."""
    known = models_file("config_keys.json")
    return tuple(name for size in sizes for name in known.get(size, (size,)))


#: Endings of architecture names: of generative models, and of pooling models. If both match, the
#: model is generative (vllm 0.33.0 config/model.py: _SUFFIX_TO_DEFAULTS).
_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "ChatModel", "LMHeadModel")
_POOLS = (
    "ForTextEncoding", "ForSequenceClassification", "ForTokenClassification", "ForRewardModeling",
    "Model",
)  # fmt: skip


@dataclass(frozen=True)
class ConfigFields:
    """Fields of the language model in a config.json.

    Attributes:
        root: The whole JSON document.
        text: Object of the language model: ``text_config`` if present, else the whole document.
        source: Name or path of the file, for error messages.
    """

    root: Mapping[str, object]
    text: Mapping[str, object]
    source: str
    defaults: Mapping[str, object] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """Return the ``model_type`` of the language model."""
        return str(self.text.get("model_type") or self.root.get("model_type") or "")

    def is_type(self, trait: str) -> bool:
        """Return whether types.json lists this model type under a property, such as ``latent``."""
        return is_type(self.model_type, trait)

    @cached_property
    def mixer(self) -> Mapping[str, Any] | None:
        """Return the model type's entry in mixers.json; None for types without recurrent layers."""
        families, own = models_file("mixers.json")["families"], self.model_type
        return next((each for each in families if own in each["types"]), None)

    @property
    def is_listed(self) -> bool:
        """Return whether types.json lists this model type, so that its keys' meanings are known."""
        known = models_file("types.json")
        return self.model_type in known["defaults"] or any(map(self.is_type, known["traits"]))

    @property
    def is_gated(self) -> bool:
        """Return whether feed-forward layers are gated: they have three matrices instead of two."""
        if self.is_listed:
            return not self.is_type("ungated")
        acts = models_file("types.json")["ungated_activations"]
        return self.get("hidden_act", "hidden_activation", "activation_function") not in acts

    @property
    def architecture(self) -> str:
        """Return the class name of the architecture; empty if the file names none."""
        named = self.root.get("architectures")
        return str(named[0]) if isinstance(named, list) and named else ""

    @property
    def is_pooled(self) -> bool:
        """Return whether engines serve the model for embeddings or scores instead of generation."""
        pools = not self.architecture.endswith(_GENERATES) and self.architecture.endswith(_POOLS)
        return pools or self.is_type("encoder")

    @property
    def is_bidirectional(self) -> bool:
        """Return whether tokens attend to later tokens, by ``model_type`` or architecture name."""
        named = "Bidirectional" in self.architecture or self.architecture.endswith("ForMaskedLM")
        return named or self.is_type("encoder")

    def error(self, text: str) -> PinnError:
        """Return an error whose message begins with the name of the config.json."""
        return PinnError(f"{self.source}: {text}")

    def misfit(self, rule: str, value: object) -> PinnError:
        """Return an error that states the config.json, a key's rule, and the offending value."""
        return misfit(f"{self.source}: {rule}", value)

    def get(self, *sizes: str) -> Any:
        """Return the first value under given keys that is neither absent nor null, or else None.

        A name in ``sizes`` is a key of the config.json, or a size with several keys in
        config_keys.json. The value 0 counts as present. An absent key has the default of
        transformers' configuration class; null has no default.
        """
        for values in (self.text, self.defaults):
            for key in keys(*sizes):
                value = values.get(key)
                if value is not None and not (values is self.defaults and key in self.text):
                    return value
        return None

    def integer(
        self, *sizes: str, default: int | None = None, least: int = 1, most: int = MOST_MODEL_SIZE
    ) -> int:
        """Return the whole number under the first of the given keys that has a value.

        A list of identical numbers, one per layer, counts as a single number.

        Raises:
            PinnError: If there is no value and no default, or it is not a whole number from
                ``least`` to ``most``.
        """
        names, value = keys(*sizes), self.get(*sizes)
        if isinstance(value, list) and value:
            if any(each != value[0] for each in value):
                rule = f"{' or '.join(names)} must have equal values in all layers"
                raise UnknownLayersError(self.misfit(rule, value))
            value = value[0]
        if value is None:
            value = default
        if value is None:
            remedy = "give the config.json of a decoder language model"
            # Reject a listed model type without this key, because transformers would assume a
            # default. Unlisted types are read from transformers' modules instead.
            kind = PinnError if self.is_listed else UnknownLayersError
            raise kind(self.error(f"{' or '.join(names)} is missing: {remedy}"))
        key = next((name for name in names if self.get(name) is not None), names[0])
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise self.misfit(f"{key} must be a whole number", value)
        if value < least:
            raise self.misfit(f"{key} must be at least {least}", value)
        check_size(value, most, f"{self.source}: {key}", "correct the file")
        return int(value)

    def truth(self, key: str) -> bool | None:
        """Return the boolean under a key of the language model or the whole file; None if absent.

        Raises:
            PinnError: If the value is neither true nor false. A string such as ``"false"`` is
                refused, because Python would treat it as true.
        """
        for values in (self.text, self.root):
            value = values.get(key)
            if isinstance(value, bool):
                return value
            if value is not None:
                raise self.misfit(f"{key} must be the JSON value true or false, unquoted", value)
        return None

    def of_layer(self, layer: int, kind: str, part: str) -> Mapping[str, object]:
        """Return the sizes of one layer that differ from those of the whole model, by key.

        Such sizes are in lists with an entry per layer; under keys for windowed or for full layers
        (``by_kind`` of types.json); in ``per_layer_config`` (transformers 5); or in
        ``block_configs`` (Nemotron models from architecture search, vLLM's nemotron_nas.py).

        Args:
            layer: Index of the layer, from 0.
            kind: ``windowed`` or ``full``, the type of the layer's attention.
            part: ``attention`` or ``ffn``, the part of the layer that needs the sizes.
        """
        found = {key: each[layer] for key, each in self._lists.items() if layer < len(each)}
        # Gemma 4's full-attention layers have a separate number of KV heads only if their keys also
        # serve as values.
        has_own_values = self.get("attention_k_eq_v") is False
        for key, size in models_file("types.json")["by_kind"][kind].items():
            value, name = self.get(key), keys(size)[0]
            if isinstance(value, Mapping):
                found |= value
            elif isinstance(value, list):
                found |= {name: value[layer]} if layer < len(value) else {}
            elif value is not None and (size != "kv_heads" or not has_own_values):
                found[name] = value
        blocks, given = self.listed("block_configs"), self.get("per_layer_config") or {}
        for own in (given.get(str(layer), given.get(layer)), *blocks[layer : layer + 1]):
            own = own.get(part, own) if isinstance(own, Mapping) else {}
            found |= own if isinstance(own, Mapping) else {}
        return found

    @cached_property
    def _lists(self) -> dict[str, list[object]]:
        names = keys("num_attention_heads", "kv_heads", "head_dim", "dense_width")
        values = {key: self.text.get(key) for key in names}
        return {key: value for key, value in values.items() if isinstance(value, list)}

    def having(self, own: Mapping[str, object]) -> "ConfigFields":
        """Return a copy of these fields with the values of given keys replaced."""
        return replace(self, text={**self.text, **own}) if own else self

    def layer_indices(self, key: str) -> set[int]:
        """Return the layer indices under a key, from 0; an empty set if the key is absent or null.

        Raises:
            PinnError: If the value is not a list of whole numbers.
        """
        value = self.listed(key)
        for each in value:
            if isinstance(each, bool) or not isinstance(each, int) or each < 0:
                raise self.misfit(f"{key} must be a list of layer numbers such as [0, 1]", each)
        return set(value)

    def listed(self, key: str) -> list[Any]:
        """Return the list under a key; an empty list if the key is absent or null.

        Raises:
            PinnError: If the value is not a list.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self.misfit(f"{key} must be a list", value)
        return value or []

    def per_layer(self, key: str, layers: int) -> list[Any] | None:
        """Return a key's list with one entry per layer; None if absent, null or empty.

        Raises:
            PinnError: If the value is not a list, or has fewer entries than the model has layers.
        """
        value = self.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(value) < layers:
            got = f"{len(value)} entries" if isinstance(value, list) else written(value)
            raise self.error(f"{key} must be a list of {layers} entries, one per layer, got {got}")
        return value[:layers]


def read_fields(config: Mapping[str, object], source: str) -> ConfigFields:
    """Return the fields of the language model in a config.json.

    Raises:
        PinnError: If the document or its ``text_config`` is not a JSON object.
    """
    if not isinstance(config, Mapping):
        raise PinnError(f"{source}: the config.json must be a JSON object, got {config!r:.60}")
    thinker = config.get("thinker_config")  # the part of Qwen-Omni's model that processes prompts
    outer = thinker if isinstance(thinker, Mapping) else config
    nested = [outer.get("text_config"), outer.get("llm_config")]
    text = next((value for value in nested if value is not None), config)
    elsewhere = config.get("text_model_id")  # Ultravox: repository of its text model
    if text is config and elsewhere:
        raise PinnError(
            f"{source}: the sizes of the text model are in the config.json of {written(elsewhere)}"
            ": copy the content of that config.json to text_config, and the encoder's to "
            "audio_config"
        )
    if not isinstance(text, Mapping):
        raise PinnError(f"{source}: text_config must be a JSON object, got {text!r:.60}")
    model_type, known = (
        str(text.get("model_type") or config.get("model_type") or ""),
        models_file("types.json"),
    )
    for key in known["nested"].get(model_type, ()):
        inner = text.get(key)
        text = {**inner, **text} if isinstance(inner, Mapping) else text
    return ConfigFields(config, text, source, known["defaults"].get(model_type, {}))


# Supported ``model_type`` values of a config.json, and the reasons why other values are refused.

#: Values of ``layer_types`` and similar lists in a config.json that denote a layer with attention.
LAYER_TYPES = frozenset(
    ("full_attention", "sliding_attention", "chunked_attention", "attention", "global", "local")
) | {"hybrid", "0", "1"}


def check_supported(fields: ConfigFields) -> None:
    """Check that a model has no layers whose time cannot be predicted.

    Raises:
        UnknownLayersError: If a layer type is not supported, or ``model_type`` is missing.
    """
    if not fields.model_type:
        raise UnknownLayersError(fields.error("the key model_type is missing"))
    unsupported = models_file("types.json")["unsupported"].get(fields.model_type)
    kind = unsupported or next((kind for kind, _ in marked_kinds(fields)), None)
    if not fields.is_listed and fields.architecture.endswith("ForMaskedLM"):
        kind = "bidirectional attention"
    if kind is not None:
        listed = "see docs/models.md for the supported layer types"
        fault = f"{fields.model_type} has {kind}, which is not supported: {listed}"
        raise UnknownLayersError(fields.error(fault))


def notice(fields: ConfigFields) -> str | None:
    """Return a sentence about how an unlisted ``model_type`` is interpreted, or None if listed."""
    if fields.is_listed:
        return None
    kind = "mixture of experts" if fields.get("experts") else "dense decoder"
    network = "gated" if fields.is_gated else "two-matrix"
    read = f"read as a {kind}: RMSNorm, {network} feed-forward"
    return f"{fields.source}: model_type {fields.model_type!r} is {read}"


def marked_kinds(fields: ConfigFields) -> list[tuple[str, str]]:
    """Return pairs of (unsupported layer type, config.json key that indicates it)."""
    found = list[tuple[str, str]]()
    if fields.is_type("planned"):
        return found
    marked = models_file("types.json")["markers"].items()
    for kind, key in [(kind, key) for kind, keys in marked for key in keys]:
        value = fields.get(key)
        # In Doge models without experts, ``keep_window_size`` has no effect on contexts up to this
        # number of tokens.
        if key == "keep_window_size" and not fields.get("is_moe"):
            value = value and value < fields.integer("max_position")
        if value and not (isinstance(value, list) and len(set(map(str, value))) == 1):
            found.append((kind, key))
    others = set(map(str, fields.listed("layer_types"))) - LAYER_TYPES
    if others:
        found.append((f"layers of type {', '.join(sorted(others))}", "layer_types"))
    # In MiniMax models, 0 means linear attention and 1 softmax attention.
    if 0 in fields.listed("attn_type_list"):
        found.append(("linear attention", "attn_type_list"))
    return found


#: Suffix of the names of config files in the package aiconfigurator-core.
PACKAGE_SUFFIX = "_config.json"


def name_of(path: Path) -> str:
    """Return a model's name from a path: the folder, or ``org/name`` of ``org--name.json``."""
    if path.name == "config.json":
        return path.resolve().parent.name
    return path.name.removesuffix(PACKAGE_SUFFIX).removesuffix(".json").replace("--", "/", 1)
