"""Batches at which steps are composed: decodes, prefills and mixtures over the range in use."""

from __future__ import annotations

import numpy as np

from pinn.physics.uniform_batches import UniformBatches
from pinn.specs.batch import Batch

#: These four bound what the betas are fitted for; they are assumptions about what is served. No
#: batch caches more tokens than this in all; a large engine holds a few million.
MAX_CACHED_TOKENS = 2_000_000
MAX_DECODES = 512
MAX_CONTEXT = 32_768
#: Twice vLLM's default token budget on large GPUs (8,192).
MAX_CHUNK = 16_384


def beyond_taught(batch: Batch) -> list[str]:
    """Bounds above that a batch exceeds, each in a few words."""
    decodes = sum(
        n for n, prefill in zip(batch.entry_counts, batch.is_prefill, strict=True) if not prefill
    )
    entries = list(zip(batch.new_tokens, batch.cached_tokens, batch.is_prefill, strict=True))
    context = max((cached for _, cached, prefill in entries if not prefill), default=0)
    chunk = max((new for new, _, prefill in entries if prefill), default=0)
    before = max((cached for _, cached, prefill in entries if prefill), default=0)
    cached = sum(n * c for n, c in zip(batch.entry_counts, batch.cached_tokens, strict=True))
    bounds = (
        ("decodes", decodes, MAX_DECODES),
        ("tokens of context", context, MAX_CONTEXT),
        ("tokens of a prompt at once", chunk, MAX_CHUNK),
        ("cached tokens of a prompt", before, MAX_CHUNK),
        ("cached tokens in all", cached, MAX_CACHED_TOKENS),
    )
    return [
        f"{got:,} {what}, learned from were at most {most:,}"
        for what, got, most in bounds
        if got > most
    ]


def sample_batches(
    seed: int, decodes: int = 40, prefills: int = 16, mixed: int = 40
) -> UniformBatches:
    """Draw batches log-uniformly; the same seed gives the same batches.

    Args:
        seed: Of the draw.
        decodes: Batches of decodes alone: 1 to 512 requests, context 16 to 32,768 tokens.
        prefills: Batches of prefill alone: one chunk of 8 to 16,384 tokens, half of them after
            cached tokens.
        mixed: Batches of both.
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


def _log_uniform(draw: np.random.Generator, low, high, n: int) -> np.ndarray:
    return np.exp(draw.uniform(np.log(low), np.log(high), n))
