"""Detection of strings in a request that may name a file or another external resource."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pinn.errors import PinnError
from pinn.specs.model_names import find_in_catalog

#: Pattern of strings without a path separator. Such a string may still name a file in the working
#: directory.
_PLAIN = re.compile(r"(?:[\w@+,. %:-]|<=)*")
#: Arguments that name a model, which may be in a local cache or on the Hugging Face hub.
_MODELS = {"model", "serve", "speculative_draft_model_path"}


def plain_texts(body: object) -> frozenset[str] | None:
    """Return all strings of a request if none names a file, a model on a hub, or a command.

    Args:
        body: Arguments of an endpoint.

    Returns:
        The strings and their words; None if a string may name a file. A plain name is accepted if
        the working directory contains no file of this name.
    """
    found: set[str] = set()
    for name, text in _texts(body, ""):
        if not _is_plain(name, text):
            return None
        found |= {text, *re.split(r"[ ,]+", text)}
    return None if any_exists(found) else frozenset(found)


def any_exists(texts: frozenset[str] | set[str]) -> bool:
    """Return whether any of the strings is the path of an existing file or folder."""
    try:
        return any(Path(text).exists() for text in texts if text)
    except (OSError, ValueError):  # the string is too long for a path, or has a null byte
        return True


def check_no_files(texts: frozenset[str] | None) -> None:
    """Raise an error for a request that may name a file.

    Raises:
        PinnError: If the request may name a file.
    """
    if texts is None:
        raise PinnError(
            "this service reads no files, but an argument may name a file (a "
            "path, a launch command, JSON as text, or a model that 'pinn models' "
            "does not list): give names and values, or start the service with "
            "--files"
        )


def _is_plain(name: str, text: str) -> bool:
    try:
        if find_in_catalog(text) is not None:
            return True
    except PinnError:  # the model name matches several models
        return False
    return name not in _MODELS and _PLAIN.fullmatch(text) is not None


def _texts(value: object, name: str) -> Iterator[tuple[str, str]]:
    """Yield each string in a JSON value, with the name of its argument."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(each, str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, name)
