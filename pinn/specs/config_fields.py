"""Typed access to the fields of a config.json, with errors that name the file and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pinn.common.documents import MOST_MODEL_SIZE, check_size, written
from pinn.errors import PinnError

#: What the Hugging Face configuration classes fill in where a config.json of that type leaves a
#: key out (``transformers`` 4.57, ``configuration_<type>.py``).
CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"num_key_value_heads": 8},
    "gemma": {"head_dim": 256},
    "gemma2": {
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 256000,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
        "max_position_embeddings": 8192,
    },
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
    },
    **{key: {"use_sliding_window": False} for key in ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")},
    "cohere2": {"sliding_window": 4096, "sliding_window_pattern": 4},
    "gpt_oss": {"sliding_window": 128, "sliding_window_pattern": 2},
    "llama4_text": {
        "attention_chunk_size": 8192,
        "no_rope_layer_interval": 4,
        "interleave_moe_layer_step": 1,
    },
}


@dataclass(frozen=True)
class ConfigFields:
    """The language part of a config.json.

    Attributes:
        root: The whole document.
        text: Its language part: ``text_config`` where it is nested, else the document itself.
        source: Name or path for error messages.
    """

    root: Mapping[str, Any]
    text: Mapping[str, Any]
    source: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """The type of the language part."""
        return str(self.text.get("model_type") or self.root.get("model_type") or "")

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
        self,
        *keys: str,
        default: int | None = None,
        least: int = 1,
        most: int = MOST_MODEL_SIZE,
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
            raise PinnError(
                f"{self.source}: {' or '.join(keys)} is missing: "
                "give the config.json of a decoder language model"
            )
        where = f"{self.source}: {next((k for k in keys if self.get(k) is not None), keys[0])}"
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise PinnError(f"{where} must be a whole number, got {written(value)}")
        if value < least:
            raise PinnError(f"{where} must be at least {least}, got {written(value)}")
        check_size(value, most, where, "correct the file")
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
                raise PinnError(
                    f"{self.source}: {key} must be true or false, without quotes, got "
                    f"{written(value)}"
                )
        return None

    def layer_indices(self, key: str) -> set[int]:
        """A list of layers, counted from 0; empty where the key is absent or null.

        Raises:
            PinnError: If it is no list of whole numbers.
        """
        value = self.listed(key)
        for each in value:
            if isinstance(each, bool) or not isinstance(each, int) or each < 0:
                raise PinnError(
                    f"{self.source}: {key} must list layers such as [0, 1], got {written(each)}"
                )
        return set(value)

    def listed(self, key: str) -> list[Any]:
        """A list; empty where the key is absent or null.

        Raises:
            PinnError: If it is no list.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, list):
            raise PinnError(f"{self.source}: {key} must be a list, got {written(value)}")
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
            raise PinnError(
                f"{self.source}: {key} must be a list of {layers} entries, one per layer, got {got}"
            )
        return value[:layers]


def read_fields(config: Mapping[str, Any], source: str) -> ConfigFields:
    """Find the language part of a config.json.

    Raises:
        PinnError: If the document or its ``text_config`` is no JSON object.
    """
    if not isinstance(config, Mapping):
        raise PinnError(f"{source}: a config.json must hold a JSON object, got {config!r:.60}")
    text = next(
        (config[key] for key in ("text_config", "llm_config") if config.get(key) is not None),
        config,
    )
    if not isinstance(text, Mapping):
        raise PinnError(f"{source}: text_config must be a JSON object, got {text!r:.60}")
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    return ConfigFields(config, text, source, CLASS_DEFAULTS.get(model_type, {}))
