"""A benchmark's file, parsed as far as its kind can be told from its content."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinn.data.benchmarks.given_load import NotUsable
from pinn.errors import PinnError
from pinn.specs.documents import parse_json, parse_yaml, read_text
from pinn.specs.limits import MOST_CSV_BYTES


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
        NotUsable: If it cannot be read, is empty, too large or cut off.
    """
    try:
        text = read_text(path, MOST_CSV_BYTES, "text")
    except PinnError as error:
        raise NotUsable("cannot be read as text, or is too large") from error
    if not text.strip():
        raise NotUsable("empty file")
    if text.lstrip()[0] in "{[":
        return Document(path, "", _json(text))
    if path.suffix in (".yaml", ".yml"):
        try:
            return Document(path, "", (parse_yaml(text, "invalid YAML"),))
        except PinnError as error:
            raise NotUsable(str(error)) from error
    return Document(path, text, ())


def _json(text: str) -> tuple[Any, ...]:
    """One JSON value (a list is its entries), or one a line; Infinity is read as such."""
    try:
        whole = parse_json(text, "invalid JSON")
        return tuple(whole) if isinstance(whole, list) else (whole,)
    except PinnError as error:
        reason = error
    try:
        lines = [line for line in text.splitlines() if line.strip()]
        return tuple(parse_json(line, "invalid JSON") for line in lines)
    except PinnError as error:
        # A log may begin with a brace or a bracket too.
        if text.lstrip().startswith(('{"', "{\n", "[{", "[\n", "[[")):
            is_malformed = isinstance(reason.__cause__, ValueError)
            raise NotUsable("invalid JSON: cut off?" if is_malformed else reason) from error
        return ()
