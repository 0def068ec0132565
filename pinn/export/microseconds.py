"""Whole microseconds, rounded alike in every language that exports reach."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def whole_microseconds(seconds: Float[np.ndarray, "..."]) -> Int[np.ndarray, "..."]:
    """Seconds as whole microseconds, rounded half to even as Go's ``math.RoundToEven``.

    >>> whole_microseconds(np.array([1.5e-6, 2.5e-6])).tolist()
    [2, 2]
    """
    return np.asarray(np.rint(seconds * 1e6), dtype=np.int64)
