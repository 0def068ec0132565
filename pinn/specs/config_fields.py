"""Typed access to the fields of a config.json, with errors that name the file and the remedy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pinn.common.documents import MOST_MODEL_SIZE, check_size, misfit, read_json, written
from pinn.common.files import data_folder
from pinn.errors import PinnError


@cache
def models_file(name: str) -> dict[str, Any]:
    """Return a file of ``data/models``, read once.

    Args:
        name: ``types.json`` for what is known of a ``model_type`` without its config.json,
            ``config_keys.json`` for what files call a size, ``name_words.json`` for what words of a
            name say, ``quantization.json`` for formats, ``aliases.json`` or ``generation.json``.
    """
    return dict(read_json(data_folder("models") / name))


def is_type(model_type: str, trait: str) -> bool:
    """Return whether a ``model_type`` has a trait, which the file defines under its name."""
    return model_type in models_file("types.json")["traits"][trait]["types"]


def keys(size: str) -> tuple[str, ...]:
    """Return what files call a size; the first one counts."""
    return tuple(models_file("config_keys.json")[size])


@dataclass(frozen=True)
class ConfigFields:
    """The language part of a config.json.

    Attributes:
        root: The whole document.
        text: Its language part: ``text_config`` where it is nested, else the document itself.
        source: Name or path for error messages.
    """

    root: Mapping[str, object]
    text: Mapping[str, object]
    source: str
    defaults: Mapping[str, object] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """The type of the language part."""
        return str(self.text.get("model_type") or self.root.get("model_type") or "")

    def is_type(self, trait: str) -> bool:
        """Return whether models of this type have a trait; see :func:`is_type`."""
        return is_type(self.model_type, trait)

    def error(self, text: str) -> PinnError:
        """What is wrong with the file."""
        return PinnError(f"{self.source}: {text}")

    def misfit(self, key: str, rule: str, value: object) -> PinnError:
        """What is wrong with a key's value."""
        return misfit(f"{self.source}: {key}", rule, value)

    def get(self, *keys: str) -> Any:
        """The first of the keys that is neither absent nor null; None without any.

        A 0 is a value. A key that the file leaves out has its configuration class's default; one
        that the file sets to null has none.
        """
        for values in (self.text, self.defaults):
            for key in keys:
                value = values.get(key)
                if value is not None and not (values is self.defaults and key in self.text):
                    return value
        return None

    def integer(
        self, *keys: str, default: int | None = None, least: int = 1, most: int = MOST_MODEL_SIZE
    ) -> int:
        """A whole number under the first of the keys that has one.

        Raises:
            PinnError: If there is none and no default, or it is no whole number from ``least`` to
                ``most``.
        """
        value = self.get(*keys)
        if value is None:
            value = default
        if value is None:
            remedy = "give the config.json of a decoder language model"
            raise self.error(f"{' or '.join(keys)} is missing: {remedy}")
        key = next((key for key in keys if self.get(key) is not None), keys[0])
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise self.misfit(key, "be a whole number", value)
        if value < least:
            raise self.misfit(key, f"be at least {least}", value)
        check_size(value, most, f"{self.source}: {key}", "correct the file")
        return int(value)

    def truth(self, key: str) -> bool | None:
        """True or false, at the root or in the language part, which goes first; None without.

        Raises:
            PinnError: If it is neither: a word such as ``"false"`` would count as true.
        """
        for values in (self.text, self.root):
            value = values.get(key)
            if isinstance(value, bool):
                return value
            if value is not None:
                raise self.misfit(key, "be true or false, without quotes", value)
        return None

    def layer_indices(self, key: str) -> set[int]:
        """A list of layers, counted from 0; empty where the key is absent or null.

        Raises:
            PinnError: If it is no list of whole numbers.
        """
        value = self.listed(key)
        for each in value:
            if isinstance(each, bool) or not isinstance(each, int) or each < 0:
                raise self.misfit(key, "list layers such as [0, 1]", each)
        return set(value)

    def listed(self, key: str) -> list[Any]:
        """A list; empty where the key is absent or null.

        Raises:
            PinnError: If it is no list.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise self.misfit(key, "be a list", value)
        return value or []

    def per_layer(self, key: str, layers: int) -> list[Any] | None:
        """A list with one entry per layer; None where the key is absent, null or empty.

        Raises:
            PinnError: If it is no list or is shorter than the model.
        """
        value = self.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(value) < layers:
            got = f"{len(value)} entries" if isinstance(value, list) else written(value)
            raise self.error(f"{key} must be a list of {layers} entries, one per layer, got {got}")
        return value[:layers]


def read_fields(config: Mapping[str, object], source: str) -> ConfigFields:
    """Find the language part of a config.json.

    Raises:
        PinnError: If the document or its ``text_config`` is no JSON object.
    """
    if not isinstance(config, Mapping):
        raise PinnError(f"{source}: a config.json must hold a JSON object, got {config!r:.60}")
    nested = [config.get("text_config"), config.get("llm_config")]
    text = next((value for value in nested if value is not None), config)
    if not isinstance(text, Mapping):
        raise PinnError(f"{source}: text_config must be a JSON object, got {text!r:.60}")
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    defaults = models_file("types.json")["defaults"].get(model_type, {})
    return ConfigFields(config, text, source, defaults)


# Which ``model_type`` values of a config.json are read, and why the others are refused.


_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})


def check_supported(fields: ConfigFields) -> None:
    """Refuse models with layers that have no cost model here.

    Raises:
        PinnError: If a layer kind is not supported, or the type is unknown or missing.
    """
    kind = models_file("types.json")["unsupported"].get(fields.model_type) or _marked_kind(fields)
    if kind is not None:
        listed = "docs/models.md lists the kinds of layers that are"
        raise fields.error(f"{fields.model_type} has {kind}, which is not supported: {listed}")
    if not (fields.is_type("known") or fields.is_type("planned")):
        fault = f"model_type {fields.model_type!r} is unknown"
        traits = models_file("types.json")["traits"]
        names = sorted((*traits["known"]["types"], *traits["planned"]["types"]))
        known = f"known ones are {', '.join(names)}"
        remedy = 'set "model_type": "llama" in a copy of the file'
        raise fields.error(f"{fault}: {known}; to read it as a Llama-like decoder, {remedy}")


def _marked_kind(fields: ConfigFields) -> str | None:
    if fields.get("attn_res_block_size") is not None:
        return "attention over the outputs of earlier layers"
    if fields.is_type("planned"):
        return None
    for key, kind in models_file("types.json")["markers"].items():
        if fields.get(key) is not None:
            return kind
    others = set(map(str, fields.listed("layer_types"))) - _LAYER_TYPES
    if others:
        return f"layers of type {', '.join(sorted(others))}"
    if 0 in fields.listed("attn_type_list"):  # MiniMax: 0 linear, 1 softmax attention
        return "linear attention"
    return None


#: Ending of the config files of aiconfigurator-core.
PACKAGE_SUFFIX = "_config.json"


def name_of(path: Path) -> str:
    """The model's name by its file: the folder's, or ``org/name`` of ``org--name.json``."""
    if path.name == "config.json":
        return path.resolve().parent.name
    return path.name.removesuffix(PACKAGE_SUFFIX).removesuffix(".json").replace("--", "/", 1)
