"""Paths, JSON and YAML of strangers: bounded in size and depth, no key twice, one-line errors."""

from __future__ import annotations

import errno
import json
import os
import select
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pinn.errors import PinnError
from pinn.specs.limits import (
    MOST_DEPTH,
    MOST_JSON_BYTES,
    MOST_SILENT_SECONDS,
    MOST_YAML_BYTES,
    MOST_YAML_VALUES,
    check_size,
)

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def given_path(text: str | Path) -> Path:
    """A path with its ``~`` written out; nothing needs to be there.

    Raises:
        PinnError: If no file can have that name, or may not be looked at.

    >>> given_path("models/config.json").name
    'config.json'
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a null byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise PinnError(f"{str(text)!r:.80}: {reason}: give a known name or a path") from error
    return path


def read_text(path: Path, most_bytes: int, kind: str) -> str:
    """The text of a file, with or without a byte-order mark.

    Args:
        path: Of the file; a pipe will do.
        most_bytes: Its limit.
        kind: What it should be, for errors: ``JSON``.

    Raises:
        PinnError: If it cannot be read, is too large or no UTF-8.
    """
    try:
        if path.is_fifo():
            content = _from_pipe(path, most_bytes + 1)
        else:
            with path.open("rb") as file:
                content = file.read(most_bytes + 1)
        check_size(len(content), most_bytes, f"{path}: bytes", "give a smaller file")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise PinnError(
            f"{path}: cannot be read ({error.strerror or error}): give a readable {kind} file"
        ) from error
    except UnicodeDecodeError as error:
        raise PinnError(
            f"{path}: cannot be read (it is no UTF-8 text): give a readable {kind} file"
        ) from error


def _from_pipe(path: Path, most_bytes: int) -> bytes:
    """What somebody writes to a pipe, up to a number of bytes.

    Raises:
        OSError: If nothing comes for ``MOST_SILENT_SECONDS``: a pipe without a writer never ends.
    """
    content = b""
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        while len(content) < most_bytes:
            if not select.select([pipe], [], [], MOST_SILENT_SECONDS)[0]:
                raise OSError(errno.ETIMEDOUT, "nobody writes to this pipe")
            piece = os.read(pipe, most_bytes - len(content))
            if not piece:
                break
            content += piece
    finally:
        os.close(pipe)
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        PinnError: If it cannot be read, or is no JSON; names the file and the line.
    """
    return parse_json(read_text(path, MOST_JSON_BYTES, "JSON"), str(path))


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text.

    Args:
        text: The document.
        where: Its file, for errors.

    Raises:
        PinnError: If it is no JSON, has a key twice or nests too deeply.
    """

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            twice = next(key for key, count in counts.items() if count > 1)
            raise PinnError(f"{where}: the key {twice!r} occurs twice: leave one out")
        return found

    try:
        tree = json.loads(text, object_pairs_hook=mapping)
    except json.JSONDecodeError as error:
        raise PinnError(
            f"{where}, line {error.lineno}: malformed JSON ({error.msg}): correct the file"
        ) from error
    except RecursionError as error:
        raise _too_deep(where) from error
    except PinnError:
        raise
    except ValueError as error:  # more digits than Python turns into a number
        raise PinnError(f"{where}: malformed JSON ({error}): correct the file") from error
    _check_depth(tree, where)
    return tree


def _check_depth(tree: Any, where: str) -> None:
    level, depth = [tree] if isinstance(tree, dict | list) else [], 0
    while level:
        depth += 1
        if depth > MOST_DEPTH:
            raise _too_deep(where)
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]


def _too_deep(where: str) -> PinnError:
    return PinnError(
        f"{where}: lists and mappings are nested deeper than {MOST_DEPTH} levels: flatten the file"
    )


def read_yaml(path: Path) -> Any:
    """Read a YAML (or JSON) file.

    Raises:
        PinnError: If it cannot be read or is no YAML; names the file and the line.
    """
    return parse_yaml(read_text(path, MOST_YAML_BYTES, "YAML"), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text.

    Args:
        text: The document.
        where: Its file, for errors.

    Raises:
        PinnError: If it is no YAML, has a key twice, nests too deeply or holds too many values.
    """
    try:
        _check_events(text, where)
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it is no YAML"
        raise PinnError(f"{where}{line}: malformed YAML ({problem}): correct the file") from error
    except PinnError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:  # such as a date of month 13
        raise PinnError(f"{where}: malformed YAML ({error}): correct the file") from error


@dataclass
class _Open:
    """A list or mapping whose end has not come yet.

    Attributes:
        anchor: Its name, if it has one.
        before: Values before it.
        keys: Of a mapping, so far; None of a list.
        is_key: Whether the next value in a mapping is a key.
    """

    anchor: str | None
    before: int
    keys: set[tuple[str, bool]] | None
    is_key: bool = True


def _check_events(text: str, where: str) -> None:
    """Depth, keys and number of values, from the parser's events: before anything is built."""
    sizes: dict[str, int] = {}
    inside: list[_Open] = []
    total = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.NodeEvent):
            if inside and inside[-1].keys is not None:
                _note_key(inside[-1], event, where)
            is_alias = isinstance(event, yaml.AliasEvent)
            total += sizes.get(event.anchor or "", 1) if is_alias else 1
            if isinstance(event, yaml.AliasEvent) and any(o.anchor == event.anchor for o in inside):
                raise PinnError(f"{where}: the alias *{event.anchor} contains itself: write it out")
        if isinstance(event, yaml.CollectionStartEvent):
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            inside.append(_Open(event.anchor, total - 1, set() if is_mapping else None))
            if len(inside) > MOST_DEPTH:
                raise _too_deep(where)
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = inside.pop()
            if closed.anchor:
                sizes[closed.anchor] = total - closed.before
        check_size(total, MOST_YAML_VALUES, f"{where}: values", "split it, or use CSV")


def _note_key(mapping: _Open, event: Any, where: str) -> None:
    """Remember a scalar key of an open mapping; ``<<`` may merge several mappings."""
    mapping.is_key, was_key = not mapping.is_key, mapping.is_key
    if not was_key or not isinstance(event, yaml.ScalarEvent) or event.value == "<<":
        return
    key = (event.value, event.implicit[0])
    if mapping.keys is not None and key in mapping.keys:
        line = f", line {event.start_mark.line + 1}" if event.start_mark else ""
        raise PinnError(f"{where}{line}: the key {event.value!r} occurs twice: leave one out")
    if mapping.keys is not None:
        mapping.keys.add(key)
