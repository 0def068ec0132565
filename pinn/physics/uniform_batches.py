"""Many batches whose requests are alike: the form in which steps are composed and sampled."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import BatchSums, uniform_sums

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
