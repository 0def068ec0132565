"""Sums over the requests of a batch, from which step features and bounds are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int, Real

from pinn.specs.batch import Batch

# Sums over the requests of a batch, from which step features are computed.

#: Real numbers that broadcast together: arrays of any shape, or scalars.
Numbers = Real[np.ndarray, "..."] | np.number | float | int
Counts = Float[np.ndarray, "*batches"]
#: Numbers of tokens or requests; arrays of any shape that broadcast together.
Sizes = Real[np.ndarray, "..."]


@dataclass(frozen=True)
class BatchSums:
    """Sums over the requests of each batch; all fields have the same shape, one value per batch.

    A *pair* is a query token and a key token that it attends to. The ``windowed`` fields count only
    keys within the model's attention window; without a window they equal the full counts.

    Attributes:
        prefill_requests: Number of requests that compute prompt tokens.
        decode_requests: Number of requests that generate a token.
        prefill_tokens: Number of prompt tokens scheduled in this step.
        decode_context: Number of keys that decodes attend to, including those of their new tokens.
        prefill_cached: Number of keys that prefill chunks read from the KV cache.
        prefill_pairs: Number of (query, key) pairs of the prefill chunks.
        windowed_decode_context: Number of keys counted by ``decode_context`` within the window.
        windowed_prefill_cached: Number of keys counted by ``prefill_cached`` within the window.
        windowed_prefill_pairs: Number of pairs counted by ``prefill_pairs`` within the window.
        longest_prefill: Number of keys of the prefill chunk with the most keys: its cached and new
            tokens. It is a maximum over the requests, not a sum.
        padding: Number of rows that pad a batch of decodes to the size of a CUDA graph. The layers
            process them like tokens; they cause no work in the sampler and on the host.
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
    longest_prefill: Counts
    padding: Counts

    @cached_property
    def tokens(self) -> Counts:
        """Return the number of rows of each batch that pass through all layers."""
        return self.prefill_tokens + self.decode_requests + self.padding

    @cached_property
    def requests(self) -> Counts:
        """Return the number of requests of each batch; at most one token per request is sampled."""
        return self.prefill_requests + self.decode_requests

    def without_reread(self, tokens: Sizes) -> BatchSums:
        """Return the sums without ``tokens`` context tokens that decodes read from the L2 cache."""
        context = self.decode_context - tokens
        some = self.decode_context > 0
        share = np.divide(context, self.decode_context, out=np.ones_like(context), where=some)
        windowed = self.windowed_decode_context * share
        return replace(self, decode_context=context, windowed_decode_context=windowed)

    def padded(self, graph_sizes: Sequence[int]) -> BatchSums:
        """Return the sums with each batch padded to the next CUDA graph size.

        A batch of decodes replays the smallest graph that has a row for each of them. Batches with
        prompts, and batches larger than the largest graph, are not padded.

        Args:
            graph_sizes: Numbers of decodes for which graphs are captured, in ascending order; empty
                without padding.
        """
        if not graph_sizes:
            return self
        sizes, decodes = np.array(graph_sizes, dtype=np.float64), self.decode_requests
        size = sizes[np.minimum(np.searchsorted(sizes, decodes), len(sizes) - 1)]
        replays = (decodes > 0) & (self.prefill_requests == 0)
        return replace(self, padding=np.where(replays, np.maximum(size - decodes, 0.0), 0.0))

    def reshape(self, *shape: int) -> BatchSums:
        """Return the sums with every field reshaped to ``shape``."""
        return BatchSums(*(getattr(self, f.name).reshape(shape) for f in fields(self)))


def sum_requests(each: BatchSums, owner: Int[np.ndarray, " requests"], count: int) -> BatchSums:
    """Return the sums of ``count`` batches from the sums of each of their requests.

    Args:
        each: Sums of each request, as if it were alone in its batch.
        owner: Index of each request's batch.
        count: Number of batches.
    """
    longest = np.zeros(count)
    np.maximum.at(longest, owner, each.longest_prefill)
    # Converted to float, because bincount returns integers if there are no requests.
    sums = (np.bincount(owner, getattr(each, f.name), count) for f in fields(each))
    return replace(BatchSums(*(x.astype(np.float64) for x in sums)), longest_prefill=longest)


def causal_pairs(
    new: Numbers, cached: Numbers, window: Numbers = np.inf
) -> Float[np.ndarray, "..."]:
    """Count the causal (query, key) pairs of ``new`` prompt tokens after ``cached`` tokens.

    The i-th token of a sequence sees min(i, window) keys, including its own. The sum over a chunk
    is a difference of prefix sums, so that chunks of a prompt add up to the whole prompt.

    >>> float(causal_pairs(4.0, 0.0)), float(causal_pairs(2.0, 2.0) + causal_pairs(2.0, 0.0))
    (10.0, 10.0)
    >>> float(causal_pairs(4.0, 0.0, window=2))
    7.0
    """

    def prefix(tokens: Numbers) -> Numbers:
        inside = np.minimum(tokens, window)
        return inside * (inside + 1) / 2 + np.where(tokens > inside, (tokens - inside) * inside, 0)

    return np.asarray(prefix(np.asarray(cached) + new) - prefix(np.asarray(cached)))


def uniform_sums(
    *,
    decode_requests: Numbers | Sequence[float] = 0.0,
    decode_context: Numbers | Sequence[float] = 0.0,
    prefill_requests: Numbers | Sequence[float] = 0.0,
    prefill_tokens: Numbers | Sequence[float] = 0.0,
    prefill_cached: Numbers | Sequence[float] = 0.0,
    window: Numbers | None = None,
) -> BatchSums:
    """Return the batch sums for batches of identical requests; arguments broadcast.

    Args:
        decode_requests: Number of decodes per batch.
        decode_context: Cached tokens of each decode.
        prefill_requests: Number of prefill chunks per batch.
        prefill_tokens: New tokens of each chunk.
        prefill_cached: Cached tokens of each chunk.
        window: The model's attention window in tokens; None or infinity for no window.
    """
    given = (decode_requests, decode_context, prefill_requests, prefill_tokens, prefill_cached)
    decodes, context, chunks, new, cached = np.broadcast_arrays(
        *(np.asarray(x, dtype=np.float64) for x in given)
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
        longest_prefill=np.where(chunks > 0, new + cached, 0.0),
        padding=np.zeros_like(decodes),
    )


def sum_batches(batches: Sequence[Batch], window: float | None = None) -> BatchSums:
    """Return the batch sums of given batches; the sums of an empty batch are 0.

    Args:
        batches: Batches, ``n`` of them.
        window: The model's attention window in tokens; None for no window.

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
    # Sums of integers below 2^53 are exact in float64, so a product with the number of equal
    # requests equals the sum over these requests.
    sums = sum_requests(each, owner, len(batches))
    return sums.without_reread(np.array([b.reread_tokens for b in batches], dtype=np.float64))


# Many batches, each with equal requests, as sampled for training.

AlikeCounts = Float[np.ndarray, " n"]


@dataclass(frozen=True)
class UniformBatches:
    """``n`` batches, each with identical decodes and identical prefill chunks.

    Attributes:
        decode_requests: Number of decodes of each batch, ``[n]``.
        decode_context: Cached tokens of each decode, ``[n]``.
        prefill_requests: Number of prefill chunks of each batch, ``[n]``.
        prefill_tokens: New tokens of each chunk, ``[n]``.
        prefill_cached: Cached tokens of each chunk, ``[n]``.
    """

    decode_requests: AlikeCounts
    decode_context: AlikeCounts
    prefill_requests: AlikeCounts
    prefill_tokens: AlikeCounts
    prefill_cached: AlikeCounts

    def __len__(self) -> int:
        return len(self.decode_requests)

    @property
    def tokens(self) -> AlikeCounts:
        """Return the number of new tokens of each batch, ``[n]``."""
        return self.decode_requests + self.prefill_requests * self.prefill_tokens

    @property
    def requests(self) -> AlikeCounts:
        """Return the number of requests of each batch, ``[n]``."""
        return self.decode_requests + self.prefill_requests

    def sums(self, window: float | None = None) -> BatchSums:
        """Return the sums over the requests of each batch, with fields of shape ``[n]``."""
        return uniform_sums(**{f.name: getattr(self, f.name) for f in fields(self)}, window=window)


def alike(batches: Sequence[Batch]) -> UniformBatches:
    """Return batches of identical requests with the same total work as the given batches.

    Decodes have their mean context. Prefill chunks have their mean length, and a number of cached
    tokens that preserves the sum of p^2 + 2 p s over chunks of p tokens after s cached tokens. This
    sum is about twice the number of (query, key) pairs. Batches of identical requests are
    unchanged.

    Args:
        batches: Batches, ``n`` of them.
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


# Batches of training steps: decodes, prefills and mixtures of the two, over the range of served
# loads.

#: Upper bounds of the training batches for the coefficients of step time: cached tokens of a batch,
#: decodes of a batch, and context of a decode in tokens. They are assumptions about served loads;
#: large servers cache a few million tokens.
MAX_CACHED_TOKENS = 2_000_000
MAX_DECODES = 512
MAX_CONTEXT = 32_768
#: Maximum prompt tokens of a training step: twice vLLM's default budget on large GPUs (8,192).
MAX_CHUNK = 16_384


def beyond_taught(batch: Batch) -> list[str]:
    """Return a description of each size of a batch that exceeds the training data's maximum."""
    counts = batch.entry_counts
    decodes = sum(n for n, prefill in zip(counts, batch.is_prefill, strict=True) if not prefill)
    entries = list(zip(batch.new_tokens, batch.cached_tokens, batch.is_prefill, strict=True))
    context = max((cached for _, cached, prefill in entries if not prefill), default=0)
    chunk = max((new for new, _, prefill in entries if prefill), default=0)
    before = max((cached for _, cached, prefill in entries if prefill), default=0)
    cached = sum(n * c for n, c in zip(counts, batch.cached_tokens, strict=True))
    bounds = (
        ("decodes", decodes, MAX_DECODES),
        ("tokens of context", context, MAX_CONTEXT),
        ("prefill tokens of a prompt in a step", chunk, MAX_CHUNK),
        ("cached tokens of a prompt", before, MAX_CHUNK),
        ("cached tokens in total", cached, MAX_CACHED_TOKENS),
    )
    beyond = [(what, got, most) for what, got, most in bounds if got > most]
    return [f"{got:,} {what} (at most {most:,} in the training data)" for what, got, most in beyond]


def sample_batches(
    seed: int, decodes: int = 40, prefills: int = 16, mixed: int = 40
) -> UniformBatches:
    """Sample batches from log-uniform distributions; the same seed gives the same batches.

    Args:
        seed: Random seed.
        decodes: Number of batches with only decodes: 1 to 512 requests, context 16 to 32,768
            tokens.
        prefills: Number of batches with only prefill: one chunk of 8 to 16,384 tokens, in half of
            them after cached tokens.
        mixed: Number of batches with decodes and prefills.
    """
    draw = np.random.default_rng(seed)
    n = decodes + prefills + mixed
    with_decodes = np.r_[np.ones(decodes), np.zeros(prefills), np.ones(mixed)]
    with_prefill = np.r_[np.zeros(decodes), np.ones(prefills), np.ones(mixed)]
    requests = np.floor(_log_uniform(draw, 1, MAX_DECODES + 1, n)) * with_decodes
    longest = np.minimum(MAX_CONTEXT, MAX_CACHED_TOKENS / np.maximum(requests, 1))
    context = np.floor(_log_uniform(draw, 16, longest, n)) * with_decodes
    chunk = np.floor(_log_uniform(draw, 8, MAX_CHUNK, n)) * with_prefill
    cached = np.floor(_log_uniform(draw, 16, MAX_CHUNK, n)) * (draw.random(n) < 0.5)
    return UniformBatches(requests, context, with_prefill, chunk, cached * with_prefill)


def _log_uniform(draw: np.random.Generator, low: Numbers, high: Numbers, n: int) -> np.ndarray:
    return np.exp(draw.uniform(np.log(low), np.log(high), n))
