"""Block keys: integers that are equal where vLLM's chained block hashes would be equal."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int

from pinn.simulator.jit import compiled
from pinn.simulator.workloads.workload import Workload
from pinn.specs.limits import MOST_ENGINE_BYTES, check_size


def block_keys(
    workload: Workload, block_size: int
) -> tuple[Int[np.ndarray, " keys"], Int[np.ndarray, " n"], int]:
    """Keys of every full block of every request, prompt and output.

    A block's hash covers all tokens up to its end (``vllm/v1/core/kv_cache_utils.py:
    hash_block_tokens``), so it equals the donor's where the shared tokens reach to its end.

    Returns:
        The keys of all requests one after the other, where each request's begin, and how many
        different keys there are.
    """
    full = (workload.prompt_tokens + workload.output_tokens) // block_size
    first = np.concatenate([[0], np.cumsum(full)[:-1]]).astype(np.int64)
    shared = np.where(workload.shares_with >= 0, workload.shared_tokens // block_size, 0)
    donors = np.maximum(workload.shares_with, 0)
    shared = np.minimum(shared, np.minimum(full, full[donors]))
    check_size(
        float(full.sum()) * np.dtype(np.int32).itemsize,
        MOST_ENGINE_BYTES,
        "bytes of the prompts' block hashes",
        "send fewer requests or shorter ones, or turn prefix caching off",
    )
    keys = np.empty(int(full.sum()), np.int32)
    return keys, first, int(_fill(keys, first, full, donors, shared))


@compiled
def _fill(keys, first, full, donors, shared):
    fresh = 0
    for r in range(len(first)):
        for i in range(full[r]):
            if i < shared[r]:
                keys[first[r] + i] = keys[first[donors[r]] + i]
            else:
                keys[first[r] + i] = fresh
                fresh += 1
    return fresh
