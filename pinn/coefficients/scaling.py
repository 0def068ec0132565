"""Standardization of descriptors, fitted once and carried inside the network's buffers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

#: A descriptor that hardly varies in training gets this scale, so that it can neither blow up nor
#: be ignored when a new deployment differs in it. An assumption; descriptors are logarithms to base
#: 2 or shares.
MIN_SCALE = 0.25


@dataclass(frozen=True)
class EmbeddingScale:
    """Mean, scale and range of the training embedding.

    Attributes:
        mean: Of each free descriptor.
        scale: Standard deviation of each, at least ``MIN_SCALE``.
        low: Smallest standardized value seen.
        high: Largest standardized value seen.
        rate_low: Smallest log rate seen.
        rate_high: Largest log rate seen.
    """

    mean: Float[np.ndarray, " descriptors"]
    scale: Float[np.ndarray, " descriptors"]
    low: Float[np.ndarray, " descriptors"]
    high: Float[np.ndarray, " descriptors"]
    rate_low: Float[np.ndarray, " rates"]
    rate_high: Float[np.ndarray, " rates"]


def fit_scale(
    free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
) -> EmbeddingScale:
    """Fit the scale on the embedding of the training deployments."""
    mean, scale = free.mean(0), np.maximum(free.std(0), MIN_SCALE)
    standard = (free - mean) / scale
    return EmbeddingScale(mean, scale, standard.min(0), standard.max(0), rates.min(0), rates.max(0))
