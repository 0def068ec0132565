"""Marks by which a benchmark tool's files are recognized, and what a file lacks of them."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pinn.measurements.benchmarks.documents import Document
from pinn.measurements.benchmarks.tree import Tree

#: Says by what it recognizes a document; empty where it does not.
Mark = Callable[[Document], str]

#: Least share of a tool's keys that makes a file look like one of its own.
_SIMILAR = 0.5


@dataclass(frozen=True)
class Keys:
    """Keys that all files of a tool have in their first document.

    Attributes:
        names: The keys; a dot leads into a mapping, such as ``metrics.throughput_rps``.
    """

    names: tuple[str, ...]

    def __call__(self, document: Document) -> str:
        """Return the keys in words where a document has all of them."""
        return "" if self.lacking(document) else f"the keys {', '.join(self.names)}"

    def lacking(self, document: Document) -> list[str]:
        """Return the keys that a document does not have."""
        return [name for name in self.names if not _has(document.first, name)]

    def share(self, document: Document) -> float:
        """Return the share of the keys that a document has."""
        return 1 - len(self.lacking(document)) / len(self.names)


def keys(*names: str) -> Keys:
    """Return the mark of files that have some keys."""
    return Keys(names)


def _has(values: Tree, name: str) -> bool:
    *path, last = name.split(".")
    for key in path:
        values = values.find(key)
    return last in values


def pattern(what: str, text: re.Pattern[str]) -> Mark:
    """Return the mark of files whose text a pattern is found in.

    Args:
        what: The pattern in words, such as ``the heading 'Serving Benchmark Result'``.
        text: The pattern.
    """
    return lambda document: what if text.search(document.text) else ""


def any_of(*marks: Mark) -> Mark:
    """Return the mark of files that have one of several marks."""
    return lambda document: next(filter(None, (mark(document) for mark in marks)), "")


def nearest(document: Document, tools: Iterable[tuple[str, Mark]]) -> str:
    """Return which tool's files a document looks like, and the keys that it lacks of theirs.

    Args:
        document: That no mark recognizes.
        tools: Each tool with its mark.
    """
    known = [(tool, mark) for tool, mark in tools if isinstance(mark, Keys)]
    tool, mark = max(known, key=lambda pair: pair[1].share(document))
    if mark.share(document) < _SIMILAR:
        return ""
    return f"like {tool}'s, but without {', '.join(mark.lacking(document))}"
