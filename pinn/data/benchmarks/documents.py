"""A benchmark's file, parsed as far as its kind can be told from its content."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pinn.data.benchmarks.given_load import NotUsable


@dataclass(frozen=True)
class Document:
    """A file.

    Attributes:
        path: Where it is.
        text: Its text; empty where it holds ``values``.
        values: The JSON or YAML documents that it holds, one for each line of JSON lines; empty for
            another text.
    """

    path: Path
    text: str
    values: tuple[Any, ...]

    @property
    def first(self) -> dict[str, Any]:
        """The first document where that is a mapping, else an empty one."""
        found = self.values[0] if self.values else {}
        return found if isinstance(found, dict) else {}


def read_document(path: Path) -> Document:
    """Read a file.

    Raises:
        NotUsable: If it cannot be read, is empty, or is cut off.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise NotUsable("cannot be read as text") from error
    if not text.strip():
        raise NotUsable("empty file")
    if text.lstrip()[0] in "{[":
        return Document(path, "", _json(text))
    if path.suffix in (".yaml", ".yml"):
        try:
            return Document(path, "", (yaml.safe_load(text),))
        except yaml.YAMLError as error:
            raise NotUsable("invalid YAML") from error
    return Document(path, text, ())


def _json(text: str) -> tuple[Any, ...]:
    """One JSON value (a list is its entries), or one a line; Infinity is read as such."""
    try:
        whole = json.loads(text)
        return tuple(whole) if isinstance(whole, list) else (whole,)
    except ValueError:
        pass
    try:
        return tuple(json.loads(line) for line in text.splitlines() if line.strip())
    except ValueError as error:
        # A log may begin with a brace or a bracket too.
        if text.lstrip().startswith(('{"', "{\n", "[{", "[\n")):
            raise NotUsable("invalid JSON: cut off?") from error
        return ()
