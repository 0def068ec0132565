"""Many batches whose requests are alike: the form in which steps are composed and sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums, uniform_sums
from pinn.specs.batch import Batch

Counts = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class UniformBatches:
    """``n`` batches, each of equal decodes beside equal prefill chunks.

    Attributes:
        decode_requests: Decodes of each batch.
        decode_context: Cached tokens of each decode.
        prefill_requests: Prefill chunks of each batch.
        prefill_tokens: New tokens of each chunk.
        prefill_cached: Cached tokens of each chunk.
    """

    decode_requests: Counts
    decode_context: Counts
    prefill_requests: Counts
    prefill_tokens: Counts
    prefill_cached: Counts

    def __len__(self) -> int:
        return len(self.decode_requests)

    @property
    def tokens(self) -> Counts:
        """Tokens that pass the layers."""
        return self.decode_requests + self.prefill_requests * self.prefill_tokens

    @property
    def requests(self) -> Counts:
        """Sequences in the step."""
        return self.decode_requests + self.prefill_requests

    def sums(self, window: float | None = None) -> BatchSums:
        """Their sums, fields of shape ``[n]``."""
        return uniform_sums(**{f.name: getattr(self, f.name) for f in fields(self)}, window=window)


def alike(batches: Sequence[Batch]) -> UniformBatches:
    """Batches of equal requests with the work of the given ones.

    Decodes get their mean context. Prefill chunks get their mean length and as many cached tokens
    as keep the sum of p^2 + 2 p s over chunks of p tokens after s cached ones: twice the pairs
    that they attend to. Batches whose decodes and chunks are equal already come back as they are.

    Args:
        batches: The batches, ``n`` of them.
    """
    return UniformBatches(*np.array([_alike(batch) for batch in batches]).reshape(-1, 5).T)


def _alike(batch: Batch) -> tuple[float, float, float, float, float]:
    is_prefill = np.array(batch.is_prefill, dtype=bool)
    count = np.array(batch.entry_counts, dtype=np.float64)
    new = np.array(batch.new_tokens, dtype=np.float64)[is_prefill]
    cached = np.array(batch.cached_tokens, dtype=np.float64)
    context, before = cached[~is_prefill], cached[is_prefill]
    decodes, chunks = count[~is_prefill], count[is_prefill]
    mean_context = float(context @ decodes / decodes.sum()) if len(context) else 0.0
    if not len(new):
        return float(decodes.sum()), mean_context, 0.0, 0.0, 0.0
    tokens = float(new @ chunks / chunks.sum())
    pairs = float((new**2 + 2 * new * before) @ chunks / chunks.sum())
    mean_cached = (pairs - tokens**2) / (2 * tokens)
    return float(decodes.sum()), mean_context, float(chunks.sum()), tokens, mean_cached
