"""Helpers of recordings of engines' own schedulers and of the tests that repeat them.

Needs neither an engine nor this project, so that recorders run where only the engine is.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

#: Random loads that vLLM's schedulers are recorded for, and those whose batches are kept whole.
LOADS, WHOLE = 200, 3


def random_case(seed: int) -> dict[str, Any]:
    """A workload and an engine, small enough to run out of everything."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(10, 30))
    budget = int(rng.choice([4, 16, 64]))
    chunked = bool(budget < 64 or rng.random() < 0.6)
    patience = float(rng.choice([5e-3, 3e-2]))
    gap = float(rng.choice([3e-4, 1e-3, 5e-3]))
    stages = int(rng.choice([1, 1, 1, 2, 3]))
    # With three stages vLLM 0.15.1 fails an assertion of its own once it preempts.
    blocks = int(rng.choice([18, 24, 40, 400])) if stages < 3 else 400
    return {
        "prompts": rng.integers(1, 40, n).tolist(),
        "outputs": rng.integers(1, 24, n).tolist(),
        "offsets": np.cumsum(rng.exponential(gap, n)).round(9).tolist(),
        "donors": [int(rng.integers(-1, i)) for i in range(n)],
        "shared": rng.integers(0, 60, n).tolist(),
        "timeouts": [patience if rng.random() < 0.1 else None for _ in range(n)],
        "serving": {
            "max_num_batched_tokens": budget,
            "max_num_seqs": int(rng.choice([s for s in (1, 4, 8) if s <= budget])),
            "enable_chunked_prefill": chunked,
            "enable_prefix_caching": bool(rng.random() < 0.7),
            "pipeline_parallel_size": stages,
            "block_size": 4,
            "max_model_len": 64,
        },
        "engine": {
            "async_scheduling": bool(rng.random() < 0.6),
            "num_gpu_blocks_override": blocks,
            "long_prefill_token_threshold": int(rng.choice([0, 0, 3])),
        },
    }


def paced_case(seed: int) -> dict[str, Any]:
    """Return the load with prompts in every second to fifth step alone, while requests decode."""
    case = random_case(seed)
    case["serving"]["prefill_schedule_interval"] = 2 + seed % 4
    return case


def offload_case(seed: int) -> dict[str, Any]:
    """Return the load with a second tier of KV, one pipeline stage and more in common."""
    case, rng = random_case(seed), np.random.default_rng([seed, 1])
    case["serving"]["pipeline_parallel_size"] = 1
    n = len(case["prompts"])
    case["donors"] = [int(rng.integers(max(i - 4, -1), i)) if i else -1 for i in range(n)]
    case["engine"]["num_gpu_blocks_override"] = int(rng.choice([30, 40, 60]))
    case["offload"] = {
        "block_size": int(rng.choice([4, 4, 8])),
        "chunks": int(rng.choice([6, 12, 30, 200])),
        "policy": str(rng.choice(["lru", "lru", "arc"])),
        "prompt_only": bool(rng.random() < 0.5),
    }
    return case


def transfer_seconds(blocks: int) -> float:
    """Time of a transfer between the simulated GPU and its host."""
    return 2e-4 + 3e-4 * blocks


def digest(value: Any) -> str:
    """SHA-256 of a value's JSON, times rounded to nanoseconds."""
    rounded = json.loads(json.dumps(value), parse_float=lambda text: round(float(text), 9))
    return hashlib.sha256(json.dumps(rounded, separators=(",", ":")).encode()).hexdigest()


def step_seconds(tokens: int, cached: int) -> float:
    """Step time of the simulated GPU."""
    return 1e-3 + 1e-5 * tokens + 1e-7 * cached


def sequences(case: dict[str, Any]) -> list[list[int]]:
    """Prompt and output tokens of every request, with the shared beginnings."""
    rng = np.random.default_rng(0)
    found: list[list[int]] = []
    for r, donor in enumerate(case["donors"]):
        tokens = rng.integers(0, 2**31, case["prompts"][r] + case["outputs"][r]).tolist()
        if donor >= 0:
            same = min(case["shared"][r], len(tokens), len(found[donor]))
            tokens[:same] = found[donor][:same]
        found.append(tokens)
    return found
