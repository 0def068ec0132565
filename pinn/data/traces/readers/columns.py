"""Arrow columns made from their buffers and back.

``pa.array`` and ``to_numpy`` would do, but import pandas on their first call, into every process
that parses.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int


def numbers(values: Float[np.ndarray, " rows"] | Int[np.ndarray, " rows"]) -> pa.Array:
    """A column of 64-bit integers or numbers.

    >>> numbers(np.array([1, 2])).to_pylist()
    [1, 2]
    """
    kind, dtype = (pa.float64(), np.float64) if values.dtype.kind == "f" else (pa.int64(), np.int64)
    values = np.ascontiguousarray(values, dtype=dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def values(column: pa.Array) -> Float[np.ndarray, " rows"] | Int[np.ndarray, " rows"]:
    """A column of 64-bit integers or numbers without nulls, as it lies in memory.

    >>> values(numbers(np.array([1.5, 2.5])))
    array([1.5, 2.5])
    """
    dtype = np.float64 if pa.types.is_floating(column.type) else np.int64
    whole = np.frombuffer(column.buffers()[1], dtype=dtype)
    return whole[column.offset : column.offset + len(column)]


def strings(texts: list[str]) -> pa.Array:
    """A column of texts.

    >>> strings(["a", "bc", "é"]).to_pylist()
    ['a', 'bc', 'é']
    """
    joined = "".join(texts)
    encoded = joined.encode(errors="replace")
    if len(encoded) == len(joined):
        lengths = np.fromiter(map(len, texts), dtype=np.int32, count=len(texts))
    else:
        lengths = np.array([len(t.encode(errors="replace")) for t in texts], dtype=np.int32)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded)]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def repeated(text: str, count: int) -> pa.Array:
    """A column that holds one text throughout.

    >>> repeated("ab", 2).to_pylist()
    ['ab', 'ab']
    """
    encoded = text.encode()
    offsets = (np.arange(count + 1) * len(encoded)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(encoded * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def lists(
    owner: Int[np.ndarray, " values"], values: Int[np.ndarray, " values"], count: int
) -> pa.Array:
    """A column of lists of integers: per owner 0, ..., count - 1 its values in their order.

    >>> lists(np.array([2, 0, 2]), np.array([7, 8, 9]), 3).to_pylist()
    [[8], [], [7, 9]]
    """
    order = np.argsort(owner, kind="stable")
    ends = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count))))
    inner = numbers(values[order].astype(np.int64))
    buffers = [None, pa.py_buffer(ends.astype(np.int32))]
    return pa.Array.from_buffers(pa.list_(pa.int64()), count, buffers, children=[inner])
