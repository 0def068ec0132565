"""Arrow columns made of their buffers: ``pa.array`` would do, but imports pandas on its first call.

Every process that parses would wait for that; none of them needs pandas.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped


def numbers(values: Shaped[np.ndarray, " rows"]) -> pa.Array:
    """A column of numbers.

    >>> numbers(np.array([1, 2])).to_pylist()
    [1, 2]
    """
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def strings(texts: Sequence[str]) -> pa.Array:
    """A column of texts.

    >>> strings(["a", "bc", "é"]).to_pylist()
    ['a', 'bc', 'é']
    """
    joined = "".join(texts)
    encoded = joined.encode()
    is_ascii = len(encoded) == len(joined)
    lengths = map(len, texts if is_ascii else [text.encode() for text in texts])
    ends = np.zeros(len(texts) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(lengths, dtype=np.int32, count=len(texts)), out=ends[1:])
    return pa.StringArray.from_buffers(len(texts), pa.py_buffer(ends), pa.py_buffer(encoded))
