"""Marks (keys or patterns) that identify the files of a benchmark tool."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pinn.measurements.benchmarks.documents import Document
from pinn.measurements.benchmarks.tree import Tree

#: Function that returns, as text, the keys or pattern that identify a document as a tool's file;
#: empty if the document is not one.
Mark = Callable[[Document], str]

#: A file with at least this share of a tool's keys counts as similar to the tool's files.
_SIMILAR = 0.5


@dataclass(frozen=True)
class Keys:
    """Mark of a tool: keys in the first JSON or YAML document of all its files.

    Attributes:
        names: Keys; a dot separates nested keys, such as ``metrics.throughput_rps``.
    """

    names: tuple[str, ...]

    def __call__(self, document: Document) -> str:
        """Return the keys as a string if a document has all of them, else an empty string."""
        return "" if self.lacking(document) else f"the keys {', '.join(self.names)}"

    def lacking(self, document: Document) -> list[str]:
        """Return the mark's keys that a document lacks."""
        return [name for name in self.names if not _has(document.first, name)]

    def share(self, document: Document) -> float:
        """Return the share of the mark's keys that a document has."""
        return 1 - len(self.lacking(document)) / len(self.names)


def keys(*names: str) -> Keys:
    """Return a mark that recognizes files with all of the given keys."""
    return Keys(names)


def _has(values: Tree, name: str) -> bool:
    *path, last = name.split(".")
    for key in path:
        values = values.find(key)
    return last in values


def pattern(what: str, text: re.Pattern[str]) -> Mark:
    """Return a mark that recognizes files whose text matches a pattern.

    Args:
        what: Description of the pattern, such as ``the heading 'Serving Benchmark Result'``.
        text: Regular expression.
    """
    return lambda document: what if text.search(document.text) else ""


def any_of(*marks: Mark) -> Mark:
    """Return a mark that recognizes files that match any of several marks."""
    return lambda document: next(filter(None, (mark(document) for mark in marks)), "")


def nearest(document: Document, tools: Iterable[tuple[str, Mark]]) -> str:
    """Return text about the tool with the most similar files, and the missing keys.

    Args:
        document: Document that no mark recognizes.
        tools: Tools with their marks.
    """
    known = [(tool, mark) for tool, mark in tools if isinstance(mark, Keys)]
    tool, mark = max(known, key=lambda pair: pair[1].share(document))
    if mark.share(document) < _SIMILAR:
        return ""
    return f"the keys resemble those of {tool}, but lack {', '.join(mark.lacking(document))}"
