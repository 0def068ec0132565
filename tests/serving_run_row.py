"""One line of a CSV of serving runs."""

from __future__ import annotations

from typing import Any


def run_row(**changes: Any) -> dict[str, Any]:
    """A stage of a run on one H100, with other values where given."""
    row = {
        "run": "run-1",
        "stage": "0",
        "model": "meta-llama/Llama-2-7b-hf",
        "gpu": "H100",
        "tensor_parallel_size": 1,
        "precision": "FP16",
        "max_num_batched_tokens": 2048,
        "workload": "codegen",
        "rate_per_s": 5.0,
        "prompt_tokens": 566,
        "output_tokens": 247,
        "ttft_mean_ms": 20.0,
        "ttft_p90_ms": 25.0,
        "ttft_p99_ms": 40.0,
        "itl_mean_reported_ms": 9.0,
        "e2e_mean_ms": 20.0 + 246 * 8.0,
        "e2e_p90_ms": 2100.0,
        "e2e_p99_ms": 2300.0,
        "itl_mean_ms": 8.0,
    }
    return row | changes
