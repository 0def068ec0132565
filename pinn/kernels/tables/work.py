"""Bytes and FLOP of a kernel, from which its roofline is computed.

Arrays broadcast together. A multiply-add counts as two FLOP. Biases, memory traffic inside a fused
kernel, and quantization scales outside a format's bytes per element are not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.physics.batch_sums import Numbers, causal_pairs
from pinn.specs.precision import ACTIVATION_BYTES

Array = Float[np.ndarray, "..."]


@dataclass(frozen=True)
class Work:
    """Bytes that a kernel reads and writes, and FLOP that it computes.

    Attributes:
        read_bytes: Bytes of weights, or of cached keys and values, that are read from memory.
        activation_bytes: Bytes of inputs read and outputs written.
        flop: Number of floating-point operations.
    """

    read_bytes: Array
    activation_bytes: Array
    flop: Array


def _work(*, read_bytes: Numbers, activation_bytes: Numbers, flop: Numbers) -> Work:
    return Work(*(np.asarray(v, dtype=np.float64) for v in (read_bytes, activation_bytes, flop)))


def gemm_work(m: Numbers, n: Numbers, k: Numbers, bytes_per_weight: Numbers) -> Work:
    """Return bytes and FLOP of ``[m, k] x [k, n]`` with weights ``[k, n]`` in a number format."""
    return _work(
        read_bytes=n * k * bytes_per_weight,
        activation_bytes=ACTIVATION_BYTES * m * (n + k),
        flop=2.0 * m * n * k,
    )


def window_keys(keys: Numbers, window: Numbers) -> Numbers:
    """Return the number of keys that a query sees: at most ``window``, or all if that is 0."""
    return np.where(np.asarray(window) > 0, np.minimum(keys, np.maximum(window, 1)), keys)


def decode_work(
    sequences: Numbers,
    context_tokens: Numbers,
    heads: Numbers,
    kv_heads: Numbers,
    head_dim: Numbers,
    window: Numbers,
    kv_bytes: Numbers,
) -> Work:
    """Return bytes and FLOP of attention of a new token per sequence to cached keys and values."""
    keys = sequences * window_keys(context_tokens, window)
    return _work(
        read_bytes=2.0 * keys * kv_heads * head_dim * kv_bytes,
        activation_bytes=ACTIVATION_BYTES * 2.0 * sequences * heads * head_dim,
        flop=4.0 * keys * heads * head_dim,
    )


def latent_decode_work(
    sequences: Numbers,
    context_tokens: Numbers,
    heads: Numbers,
    kv_lora_rank: Numbers,
    rope_dim: Numbers,
    kv_bytes: Numbers,
) -> Work:
    """Return bytes and FLOP of MLA's attention of one new token per sequence to compressed keys.

    The keys are also the values. Per key and head, scores take ``kv_lora_rank + rope_dim``
    multiplications, and values take ``kv_lora_rank`` (DeepSeek-V2, arXiv 2405.04434, section 2.1,
    with absorbed projections).
    """
    keys = np.asarray(sequences * context_tokens, dtype=np.float64)
    return _work(
        read_bytes=keys * (kv_lora_rank + rope_dim) * kv_bytes,
        activation_bytes=ACTIVATION_BYTES * sequences * heads * (2.0 * kv_lora_rank + rope_dim),
        flop=2.0 * keys * heads * (2.0 * kv_lora_rank + rope_dim),
    )


def prefill_work(
    sequences: Numbers,
    tokens: Numbers,
    heads: Numbers,
    kv_heads: Numbers,
    head_dim: Numbers,
    window: Numbers,
) -> Work:
    """Return bytes and FLOP of causal attention in new prompts, with 16-bit keys and values."""
    sequences = np.asarray(sequences, dtype=np.float64)
    limit = np.where(np.asarray(window) > 0, window, np.inf)
    return _work(
        read_bytes=ACTIVATION_BYTES * sequences * tokens * 2.0 * kv_heads * head_dim,
        activation_bytes=ACTIVATION_BYTES * sequences * tokens * 2.0 * heads * head_dim,
        flop=4.0 * sequences * causal_pairs(tokens, 0.0, limit) * heads * head_dim,
    )


def latent_prefill_work(
    sequences: Numbers,
    tokens: Numbers,
    cached: Numbers,
    heads: Numbers,
    qk_head_dim: Numbers,
    v_head_dim: Numbers,
) -> Work:
    """Return bytes and FLOP of MLA's attention in chunks: new ``tokens`` after ``cached`` ones.

    Keys are wider than values. In any cache format, both are expanded to all heads in 16 bits
    before the kernel, which reads them once.
    """
    sequences, tokens, cached = (np.asarray(v, np.float64) for v in (sequences, tokens, cached))
    token_bytes = ACTIVATION_BYTES * heads * (np.asarray(qk_head_dim) + v_head_dim)
    pairs = sequences * (causal_pairs(tokens, 0.0) + tokens * cached)
    return _work(
        read_bytes=sequences * (tokens + cached) * token_bytes,
        activation_bytes=sequences * tokens * token_bytes,
        flop=2.0 * pairs * heads * (np.asarray(qk_head_dim) + v_head_dim),
    )


def experts_hit_balanced(
    tokens: Numbers, experts: Numbers, top_k: Numbers, expert_parallel: Numbers
) -> Numbers:
    """Return the number of experts in use on one rank if tokens are spread evenly over experts.

    Kernels were measured with this distribution of tokens.
    """
    pairs = np.ceil(tokens * top_k / expert_parallel)
    return np.minimum(experts / expert_parallel, np.maximum(pairs, 1.0))


def experts_hit_random(
    tokens: Numbers, experts: Numbers, top_k: Numbers, expert_parallel: Numbers
) -> Numbers:
    """Return the expected number of experts in use on one rank with random routing.

    Each token selects ``top_k`` experts at random.
    """
    missed = (1.0 - np.asarray(top_k / experts)) ** np.asarray(tokens, np.float64)
    return experts * (1.0 - missed) / expert_parallel


#: Expected maximum of independent standard normal values, by their number (Tippett 1925, Biometrika
#: 17, table of the mean of the largest). In between, the maximum is interpolated linearly in log2
#: of the number.
_LARGEST_OF = {1: 0.0, 2: 0.5642, 4: 1.0294, 8: 1.4236, 16: 1.7660, 32: 2.0697, 64: 2.3437}


def experts_hit_busiest(
    tokens: Numbers, experts: Numbers, top_k: Numbers, expert_parallel: Numbers
) -> Numbers:
    """Return the expected number of experts in use on the rank that has the most in use.

    All ranks wait for this rank. The number of experts in use on a rank varies like ``experts /
    expert_parallel`` random samples of equal probability, except for the part of this variation
    that all ranks share. The maximum over ranks is assumed to be as many standard deviations above
    the mean as the expected maximum of the same number of normal samples.
    """
    mean = experts_hit_random(tokens, experts, top_k, expert_parallel)
    most = experts / expert_parallel
    chance = mean / most
    deviation = np.sqrt(most * chance * (1.0 - chance) * (1.0 - 1.0 / expert_parallel))
    ranks = np.log2(list(_LARGEST_OF))
    largest = np.interp(np.log2(expert_parallel), ranks, list(_LARGEST_OF.values()))
    return np.minimum(mean + largest * deviation, most)


def moe_work(sizes: Mapping[str, Array], hit: Numbers, bytes_per_weight: Numbers) -> Work:
    """Return bytes and FLOP of the routed experts on one rank.

    Of these experts, ``hit`` are in use, and only their weights are read. (Token, expert) pairs are
    distributed evenly over ranks. Keys of ``sizes`` are the names of sizes; ``matrices`` is 3 with
    a gate and 2 without. Every rank gathers and scatters all ``tokens``.
    """
    tokens, hidden, matrices = sizes["tokens"], sizes["hidden"], sizes["matrices"]
    shard = hidden * (sizes["width"] / sizes["tensor_parallel"])
    pairs = tokens * sizes["top_k"] / sizes["expert_parallel"]
    return _work(
        read_bytes=hit * matrices * shard * bytes_per_weight,
        activation_bytes=ACTIVATION_BYTES * (2.0 * tokens * hidden + pairs * (2.0 * hidden)),
        flop=2.0 * pairs * matrices * shard,
    )
