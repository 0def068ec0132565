"""What looks like a model and is none that can be read: refused with what to give in its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pinn.errors import PinnError
from pinn.specs.documents import read_json

#: Word of a name -> what such a release is made for.
_OTHER_ENGINES = {
    "gguf": "llama.cpp",
    "ggml": "llama.cpp",
    "mlx": "Apple's MLX",
    "exl2": "ExLlama",
    "exl3": "ExLlama",
    "bnb": "bitsandbytes",
    "bitsandbytes": "bitsandbytes",
}
_ADAPTER = "adapter_config.json"


def check_name(name: str) -> None:
    """Refuse the name of a release for another engine.

    Raises:
        PinnError: If it is one.

    >>> check_name("TheBloke/Llama-2-7B-Chat-GGUF")
    Traceback (most recent call last):
    pinn.errors.PinnError: 'TheBloke/Llama-2-7B-Chat-GGUF' names a release for llama.cpp, whose \
kernels have no times here: give the model it was made of, with --quantization int4 for its size
    """
    words = re.split(r"[-_./:]", name.lower())
    engine = next((_OTHER_ENGINES[word] for word in words if word in _OTHER_ENGINES), None)
    if engine is not None:
        raise PinnError(
            f"{name!r} names a release for {engine}, whose kernels have no times here: give the "
            "model it was made of, with --quantization int4 for its size"
        )


def check_path(path: Path) -> None:
    """Refuse GGUF files and LoRA adapters, and folders that hold nothing else.

    Raises:
        PinnError: If the path is one, with what to give in its place.
    """
    is_folder = path.is_dir()
    if is_folder and (path / "config.json").is_file():
        return
    if path.suffix == ".gguf" or (is_folder and next(path.glob("*.gguf"), None)):
        raise PinnError(
            f"{path}: GGUF is llama.cpp's format, whose kernels have no times here: give the "
            "config.json of the model it was made of, with --quantization int4 for its size"
        )
    adapter = path / _ADAPTER if is_folder else path
    if adapter.name == _ADAPTER and adapter.is_file():
        content = read_json(adapter)
        base = content.get("base_model_name_or_path") if isinstance(content, Mapping) else None
        raise PinnError(
            f"{adapter}: a LoRA adapter, not a model: give the model that it adapts, "
            f"{base or 'which it does not name'}; what the adapter adds to a step is not predicted"
        )
