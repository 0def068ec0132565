"""Values that break readers, and documents with some of their values replaced by them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

VALUES = st.one_of(
    st.sampled_from(
        [
            None, True, False, 0, -1, 1, 2, 3, 128, 0.5, 100.5, -0.0, 1e308, 10**12, 10**18,
            10**400, -(10**400), float("nan"), float("inf"), float("-inf"), "", "abc", "false",
            "NaN", "1e999", "=1+1", "@x", "-5", "\x1b[2J\x07", "a\nb", "\udc80", "\u202e", "[/x]",
            "{}", [], [0, 0],
            [None], [128, 128], ["re:(a+)+$"], [[[]]], {}, {"a": 1}, {"": None}, [1] * 300,
        ]
    ),
    st.integers(-5, 300),
    st.floats(0, 1e6),
    st.text(max_size=6),
)  # fmt: skip


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a document."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(pairs):
        yield tree, key
        if isinstance(value, dict | list):
            yield from places(value)


@st.composite
def changed(draw: st.DrawFn, documents: list[Any]) -> Any:
    """One of the documents with up to three values replaced, dropped or added."""
    tree = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(0, 3))):
        found = list(places(tree))
        if not found:
            break
        container, key = found[draw(st.integers(0, len(found) - 1))]
        what = draw(st.integers(0, 5))
        if what == 0:
            del container[key]
        elif what == 1 and isinstance(container, dict):
            container[draw(st.text(max_size=4))] = copy.deepcopy(draw(VALUES))
        else:
            container[key] = copy.deepcopy(draw(VALUES))
    return tree


@st.composite
def changed_bytes(draw: st.DrawFn, contents: list[bytes]) -> bytes:
    """One of the contents, cut, doubled or overwritten in up to four places."""
    data = bytearray(draw(st.sampled_from(contents)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.integers(0, 40))
        piece = draw(st.one_of(st.binary(max_size=8), st.just(bytes(data[at : at + length]))))
        match draw(st.integers(0, 3)):
            case 0:
                data[at : at + len(piece)] = piece
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = piece
            case 3:
                del data[at:]
    return bytes(data)


def written(tree: Any) -> bytes:
    """A document as JSON, which YAML reads too; lone surrogates stay what they are."""
    return json.dumps(tree).encode()


def files(documents: list[Any]) -> st.SearchStrategy[bytes]:
    """Return a strategy for a file: a changed document, changed bytes of one, or neither."""
    trees = changed(documents).map(written)
    contents = changed_bytes([written(document) for document in documents])
    return st.one_of(*[trees] * 6, *[contents] * 3, st.binary(max_size=60))
