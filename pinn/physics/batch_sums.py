"""Sums over a batch's requests: all that the step features need to know of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float, Real

from pinn.specs.batch import Batch

Counts = Float[np.ndarray, "*batches"]
#: Of any shapes that broadcast.
Sizes = Real[np.ndarray, "..."]


@dataclass(frozen=True)
class BatchSums:
    """Per batch, sums over its requests; every field has the same shape.

    A *pair* is a (query token, key token) that causal attention combines. The ``windowed`` fields
    count only keys within the model's attention window; without one they equal the full counts.

    Attributes:
        prefill_requests: Requests that work on their prompt.
        decode_requests: Requests that generate.
        prefill_tokens: Prompt tokens scheduled now.
        decode_context: Keys that decodes read, their own new token included.
        prefill_cached: Keys that prefill chunks read from the cache.
        prefill_pairs: Pairs of the prefill chunks.
        windowed_decode_context: As ``decode_context``, within the window.
        windowed_prefill_cached: As ``prefill_cached``, within the window.
        windowed_prefill_pairs: As ``prefill_pairs``, within the window.
    """

    prefill_requests: Counts
    decode_requests: Counts
    prefill_tokens: Counts
    decode_context: Counts
    prefill_cached: Counts
    prefill_pairs: Counts
    windowed_decode_context: Counts
    windowed_prefill_cached: Counts
    windowed_prefill_pairs: Counts

    @property
    def tokens(self) -> Counts:
        """Tokens that pass the layers."""
        return self.prefill_tokens + self.decode_requests

    @property
    def requests(self) -> Counts:
        """Sequences in the step, each of which is sampled at most once."""
        return self.prefill_requests + self.decode_requests

    def without_reread(self, tokens: Sizes) -> BatchSums:
        """The sums when so many tokens of the decodes' contexts come from the GPU's cache."""
        context = self.decode_context - tokens
        some = self.decode_context > 0
        share = np.divide(context, self.decode_context, out=np.ones_like(context), where=some)
        return replace(
            self,
            decode_context=context,
            windowed_decode_context=self.windowed_decode_context * share,
        )

    def reshape(self, *shape: int) -> BatchSums:
        """The sums with every field reshaped."""
        return BatchSums(*(getattr(self, f.name).reshape(shape) for f in fields(self)))


def causal_pairs(
    new: Sizes | float, cached: Sizes | float, window: Sizes | float = np.inf
) -> Float[np.ndarray, "..."]:
    """Pairs that ``new`` tokens after ``cached`` ones attend to, each also to itself.

    The i-th token of a sequence sees min(i, window) keys; the sum over the chunk is a difference
    of prefix sums, so that cutting a prompt into chunks changes nothing.

    >>> float(causal_pairs(4.0, 0.0)), float(causal_pairs(2.0, 2.0) + causal_pairs(2.0, 0.0))
    (10.0, 10.0)
    >>> float(causal_pairs(4.0, 0.0, window=2))
    7.0
    """

    def prefix(tokens):
        inside = np.minimum(tokens, window)
        return inside * (inside + 1) / 2 + np.where(tokens > inside, (tokens - inside) * inside, 0)

    return np.asarray(prefix(np.asarray(cached) + new) - prefix(np.asarray(cached)))


def uniform_sums(
    *,
    decode_requests=0.0,
    decode_context=0.0,
    prefill_requests=0.0,
    prefill_tokens=0.0,
    prefill_cached=0.0,
    window=None,
) -> BatchSums:
    """Sums of batches whose requests are alike; the arguments broadcast together.

    Args:
        decode_requests: Number of decodes.
        decode_context: Cached tokens of each decode.
        prefill_requests: Number of prefill chunks.
        prefill_tokens: New tokens of each chunk.
        prefill_cached: Cached tokens of each chunk.
        window: The model's attention window in tokens; None without one.
    """
    decodes, context, chunks, new, cached = np.broadcast_arrays(
        *(
            np.asarray(x, dtype=np.float64)
            for x in (
                decode_requests,
                decode_context,
                prefill_requests,
                prefill_tokens,
                prefill_cached,
            )
        )
    )
    limit = np.inf if window is None else np.asarray(window, dtype=np.float64)
    return BatchSums(
        prefill_requests=chunks,
        decode_requests=decodes,
        prefill_tokens=chunks * new,
        decode_context=decodes * (context + 1),
        prefill_cached=chunks * cached,
        prefill_pairs=chunks * causal_pairs(new, cached),
        windowed_decode_context=decodes * np.minimum(context + 1, limit),
        windowed_prefill_cached=chunks * np.minimum(cached, limit),
        windowed_prefill_pairs=chunks * causal_pairs(new, cached, limit),
    )


def sum_batches(batches: Sequence[Batch], window: float | None = None) -> BatchSums:
    """Sums of any batches; an empty batch gives zeros.

    Args:
        batches: The batches, ``n`` of them.
        window: The model's attention window in tokens; None without one.

    Returns:
        Sums with fields of shape ``[n]``.
    """
    owner = np.repeat(np.arange(len(batches)), [len(b.new_tokens) for b in batches])
    count = np.array([n for b in batches for n in b.entry_counts], dtype=np.float64)
    new = np.array([t for b in batches for t in b.new_tokens], dtype=np.float64)
    cached = np.array([t for b in batches for t in b.cached_tokens], dtype=np.float64)
    prefill = np.array([p for b in batches for p in b.is_prefill], dtype=np.float64)
    each = uniform_sums(
        decode_requests=count * (1 - prefill),
        decode_context=cached,
        prefill_requests=count * prefill,
        prefill_tokens=new,
        prefill_cached=cached,
        window=window,
    )
    # Sums of whole numbers are exact in float64 below 2^53: equal requests may stand together.
    sums = BatchSums(
        *(
            # Of no requests at all, bincount makes whole numbers.
            np.bincount(owner, getattr(each, f.name), len(batches)).astype(np.float64)
            for f in fields(each)
        )
    )
    return sums.without_reread(np.array([b.reread_tokens for b in batches], dtype=np.float64))
