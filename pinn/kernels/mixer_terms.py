"""Times at datasheet rates that the kernels of recurrent and sparse mixers are sums of.

Each function takes the sizes of a table's rows and the GPUs' rates, all ``[rows]``, and gives its
terms in seconds. Each term grows, or stays, with requests, tokens and context, and so does a sum
with weights that are not negative.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pinn.specs.mixers import CHUNK_TOKENS, GATED_DELTA, IndexerSpec
from pinn.specs.precision import ACTIVATION_BYTES

Seconds = Float[np.ndarray, " rows"]
Columns = dict[str, Float[np.ndarray, " rows"]]

#: Unit of counts of launches, waves and chunks: a fitted weight is then of order one.
LAUNCH_SECONDS = 1e-5
#: Of the widest operator.
MOST_TERMS = 16
#: GLM-5's indexer, the one that was timed (its config.json), and its heads as timed: what rows of
#: the tables do not say.
_INDEXER = IndexerSpec(top_k=2048, heads=32)
TIMED_SIZES = {"index_heads": _INDEXER.heads, "top_k": _INDEXER.top_k, "heads": 64}
#: Key and value widths of DeepSeek-V2's latent space; bytes of a cached key in SGLang's fp8 layout
#: (512 + 64 x 2 + 4 x 4 of scales).
_PAIR_WIDTH, _KEY_BYTES = 576 + 512, 656.0


def recurrence(c: Columns, gpu: Columns) -> list[Seconds]:
    """A decode's states in fp32, read and written; beyond the cache, and four times it; waves."""
    heads = c["batch_size"] * c["num_v_heads"]
    moved = heads * c["head_k_dim"] * c["head_v_dim"] * 8.0
    return [*_beyond_cache(moved, gpu), *_waves(heads, gpu)]


def convolution(c: Columns, gpu: Columns) -> list[Seconds]:
    """Channels in and out, the tails of the requests, and the blocks of threads."""
    channels = 2 * c["num_k_heads"] * c["head_k_dim"] + c["num_v_heads"] * c["head_v_dim"]
    moved = 2 * ACTIVATION_BYTES * c["batch_size"] * c["seq_len"] * channels
    tails = c["batch_size"] * channels * 3 * 2 * ACTIVATION_BYTES
    blocks = c["batch_size"] * np.ceil(c["seq_len"] / 8) * channels / 256
    large = c["batch_size"] * np.ceil(c["seq_len"] / 1024) * channels / 64
    return [
        *_beyond_cache(moved, gpu),
        np.minimum(moved, gpu["l2"]) / gpu["l2"] * LAUNCH_SECONDS,
        tails / gpu["bandwidth"],
        *_waves(blocks, gpu),
        *_waves(large, gpu),
        c["batch_size"] / gpu["sms"] * LAUNCH_SECONDS,
        np.ceil(c["seq_len"] / 128) / 16 * LAUNCH_SECONDS,
    ]


def scan(c: Columns, gpu: Columns) -> list[Seconds]:
    """Arithmetic of chunks, keys and values, states, and chunks one after the other."""
    k, v, chunk = c["head_k_dim"], c["head_v_dim"], CHUNK_TOKENS[GATED_DELTA]
    heads, tokens = c["num_v_heads"], c["batch_size"] * c["seq_len"]
    rows, chunks = c["batch_size"] * heads, np.ceil(c["seq_len"] / chunk)
    flop = tokens * heads * (6 * k * v + 2 * chunk * (3 * k + 2 * v))
    moved = tokens * ACTIVATION_BYTES * (2 * c["num_k_heads"] * k + 2 * heads * v)
    states = rows * k * v
    return [
        flop / gpu["peak"],
        moved / gpu["bandwidth"],
        states * 8.0 / gpu["bandwidth"],
        states * chunks * 2 * ACTIVATION_BYTES / gpu["bandwidth"],
        chunks * LAUNCH_SECONDS,
        chunks * np.ceil(rows / gpu["sms"]) * LAUNCH_SECONDS,
        chunks * rows / gpu["sms"] * LAUNCH_SECONDS,
        *_waves(rows, gpu),
    ]


def state_update(c: Columns, gpu: Columns) -> list[Seconds]:
    """A decode's states read and written; their elements, as if of four bytes each.

    vLLM's kernel takes hardly less for states of two bytes.
    """
    elements = c["batch_size"] * c["num_v_heads"] * c["head_k_dim"] * c["head_v_dim"]
    return [
        elements * 2 * c["state"] / gpu["bandwidth"],
        elements * 8.0 / gpu["bandwidth"],
    ]


def state_scan(c: Columns, gpu: Columns) -> list[Seconds]:
    """Arithmetic of chunks (arXiv 2405.21060, section 6), inputs, states, chunks in a row.

    A chunk's state is written and read in fp32, then written and read as the engine keeps it.
    """
    heads, tokens = c["num_v_heads"], c["batch_size"] * c["seq_len"]
    k, v, chunk = c["head_k_dim"], c["head_v_dim"], c["chunk_size"]
    chunks = np.ceil(c["seq_len"] / chunk)
    states = c["batch_size"] * heads * k * v
    scores = 2 * chunk * c["num_k_heads"] * k
    moved = tokens * ACTIVATION_BYTES * 2 * (heads * v + c["num_k_heads"] * k)
    return [
        tokens * heads * (2 * chunk * v + 4 * k * v) / gpu["peak"],
        tokens * scores / gpu["peak"],
        moved / gpu["bandwidth"],
        states * chunks * 2 * (4.0 + c["state"]) / gpu["bandwidth"],
        states * c["state"] / gpu["bandwidth"],
        chunks * LAUNCH_SECONDS,
    ]


def index_scores(c: Columns, gpu: Columns) -> list[Seconds]:
    """Scores' arithmetic in fp8, keys read, scores written, and tiles of 64 x 256."""
    queries, length = c["batch_size"] * c["isl"], _mean_keys(c)
    pairs, square = queries * length, queries * (c["step"] + c["isl"])
    keys = c["batch_size"] * (c["step"] + c["isl"]) * _INDEXER.key_bytes
    tiles = c["batch_size"] * np.ceil(c["isl"] / 64) * np.ceil((c["step"] + c["isl"]) / 256)
    deep = np.ceil(length / 256) / 64
    score_flop = 2.0 * c["index_heads"] * _INDEXER.head_dim
    return [
        pairs * score_flop / gpu["fp8"],
        square * score_flop / gpu["fp8"],
        keys / gpu["bandwidth"],
        np.maximum(keys - gpu["l2"], 0) / gpu["bandwidth"],
        pairs * 4.0 / gpu["bandwidth"],
        square * 4.0 / gpu["bandwidth"],
        np.maximum(pairs * 4.0 - gpu["l2"], 0) / gpu["bandwidth"],
        deep * LAUNCH_SECONDS,
        deep * np.ceil(queries / 64 / gpu["sms"]) * LAUNCH_SECONDS,
        queries / gpu["sms"] * LAUNCH_SECONDS,
        *_waves(tiles, gpu),
    ]


def index_choice(c: Columns, gpu: Columns) -> list[Seconds]:
    """Scores read and choices written; a block for each query, longer beyond the top-k.

    Two blocks share an SM; scores beyond the cache, and rows longer than 16,384, take longer.
    """
    queries, length = c["batch_size"] * c["isl"], _mean_keys(c)
    waves, pairs = np.ceil(queries / gpu["sms"]), np.ceil(queries / gpu["sms"] / 2)
    beyond, far = np.maximum(length - c["top_k"], 0), np.maximum(length - 16384, 0)
    scores = queries * length * 4.0
    return [
        length / 16384 * LAUNCH_SECONDS,
        waves * length / 16384 * LAUNCH_SECONDS,
        scores / gpu["bandwidth"],
        np.maximum(scores - gpu["l2"], 0) / gpu["bandwidth"],
        queries * c["top_k"] * 4.0 / gpu["bandwidth"],
        waves * LAUNCH_SECONDS,
        queries / gpu["sms"] * LAUNCH_SECONDS,
        beyond / 16384 * LAUNCH_SECONDS,
        waves * beyond / 16384 * LAUNCH_SECONDS,
        (beyond > 0) * LAUNCH_SECONDS,
        (beyond > 0) * waves * LAUNCH_SECONDS,
        pairs * LAUNCH_SECONDS,
        pairs * length / 16384 * LAUNCH_SECONDS,
        far / 16384 * LAUNCH_SECONDS,
        waves * far / 16384 * LAUNCH_SECONDS,
    ]


def sparse_attention(c: Columns, gpu: Columns) -> list[Seconds]:
    """Chosen pairs: arithmetic, keys gathered; queries in and outputs out; all top-k as if full."""
    queries = c["batch_size"] * c["isl"]
    pairs = c["batch_size"] * (_reached(c, c["step"] + c["isl"]) - _reached(c, c["step"]))
    flop_per_pair = 2.0 * c["heads"] * _PAIR_WIDTH
    return [
        pairs * flop_per_pair / gpu["peak"],
        queries * c["top_k"] * flop_per_pair / gpu["peak"],
        pairs * _KEY_BYTES / gpu["bandwidth"],
        np.maximum(pairs * _KEY_BYTES - gpu["l2"], 0) / gpu["bandwidth"],
        queries * c["heads"] * _PAIR_WIDTH * ACTIVATION_BYTES / gpu["bandwidth"],
        *_waves(queries, gpu),
    ]


def _beyond_cache(moved: np.ndarray, gpu: Columns) -> list[Seconds]:
    """Bytes, those that the cache does not hold, and those that four of it do not."""
    left = (np.maximum(moved - times * gpu["l2"], 0.0) for times in (0, 1, 4))
    return [each / gpu["bandwidth"] for each in left]


def _waves(blocks: np.ndarray, gpu: Columns) -> list[Seconds]:
    """Blocks of threads per SM, and rounded up to whole waves."""
    per_sm = blocks / gpu["sms"]
    return [per_sm * LAUNCH_SECONDS, np.ceil(per_sm) * LAUNCH_SECONDS]


def _mean_keys(c: Columns) -> np.ndarray:
    """Keys that a query of a causal prompt sees in the mean."""
    return c["step"] + (c["isl"] + 1) / 2


def _reached(c: Columns, tokens: np.ndarray) -> np.ndarray:
    """Pairs of the first tokens of a sequence, each with the top-k of those before it."""
    near = np.minimum(tokens, c["top_k"])
    return near * (near + 1) / 2 + np.maximum(tokens - near, 0) * c["top_k"]
