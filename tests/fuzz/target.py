"""A kind of input that is fuzzed, and what the kinds share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st


@dataclass
class Fuzzed:
    """Inputs that targets share.

    Attributes:
        folder: Theirs to write to.
        surrogate: A small network, on disk at ``checkpoint``.
        deployment: One that it predicts.
        graph: The exported graph of its coefficients.
        tab: A browser that shows a page to play with; None where there is none.
    """

    folder: Path
    surrogate: Any
    checkpoint: Path
    deployment: Any
    graph: Any
    tab: Any = None

    def file(self, name: str, content: bytes) -> Path:
        """A file with that content."""
        path = self.folder / name
        path.write_bytes(content)
        return path


@dataclass(frozen=True)
class Target:
    """A kind of input.

    Attributes:
        inputs: Strategy, given what is shared.
        check: Reads one input; it may raise ``PinnError`` and nothing else.
        refuses: Whether some inputs are to be refused.
    """

    inputs: Callable[[Fuzzed], st.SearchStrategy[Any]]
    check: Callable[[Fuzzed, Any], None]
    refuses: bool = True
