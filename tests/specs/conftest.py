from collections.abc import Callable
from typing import Any

import pytest

from pinn.specs.huggingface import ReadSettings, model_from_config
from pinn.specs.model import ModelSpec

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def config() -> Callable[..., dict[str, Any]]:
    """A small Llama config; keyword arguments replace or add keys, ``...`` drops them."""

    def make(**changes: Any) -> dict[str, Any]:
        return {key: value for key, value in {**LLAMA, **changes}.items() if value is not ...}

    return make


@pytest.fixture
def parse(config: Callable[..., dict[str, Any]]) -> Callable[..., ModelSpec]:
    """The model of that config."""

    def make(**changes: Any) -> ModelSpec:
        return model_from_config(config(**changes), "config.json", ReadSettings("test"))

    return make
