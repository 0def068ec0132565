"""What is wrong with a foreign file's values, in this project's words and not the checker's."""

from __future__ import annotations

import re
from typing import Any

_KINDS = {
    "integer": "a whole number", "number": "a number", "string": "text", "list": "a list",
    "tuple": "a list", "boolean": "true or false", "dictionary": "a mapping",
}  # fmt: skip
_SAID = re.compile(r"Input should be (?:a valid (?P<kind>\w+)|(?P<other>.*))")


def first_fault(error: Any) -> tuple[str, str]:
    """The place of the first fault of a pydantic ``ValidationError``, and what was expected there.

    >>> from pydantic import BaseModel, ValidationError
    >>> class Load(BaseModel):
    ...     rate: int
    >>> try:
    ...     Load(rate="fast")
    ... except ValidationError as error:
    ...     first_fault(error)
    ('rate', "expected a whole number, got 'fast'")
    """
    first = error.errors()[0]
    return ".".join(map(str, first["loc"])), _words(first)


def _words(fault: dict[str, Any]) -> str:
    if fault["type"] == "missing":
        return "it is missing"
    if fault["type"] == "extra_forbidden":
        return "no such key is known"
    said = _SAID.match(fault["msg"])
    if said is None:
        return str(fault["msg"]).removeprefix("Value error, ")
    kind, other = said.groups()
    if kind is None and "than" in other:
        other = f"a number {other}"
    return f"expected {_KINDS.get(kind, kind) if kind else other}, got {fault['input']!r:.60}"
