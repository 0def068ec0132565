"""A row of measured deployments, as ``pinn.data.table`` keeps it."""

from __future__ import annotations

from typing import Any


def observation_row(**changes: Any) -> dict[str, Any]:
    """A made-up row with other values in some columns."""
    row = {
        "row_id": "a",
        "model": "openai/gpt-oss-120b",
        "gpu": "h100_sxm",
        "precision": "mxfp4",
        "tensor_parallel_size": 2,
        "data_parallel_size": 1,
        "enable_expert_parallel": False,
        "kv_cache_dtype": "auto",
        "max_num_batched_tokens": 8192,
        "max_cudagraph_capture_size": 512,
        "moe_backend": "",
        "poll_interval": 1,
        "prompt_wait_steps": 0,
        "concurrency": 8,
        "prompt_tokens": 1024,
        "output_tokens": 1024,
        "ttft_s": 0.1,
        "tpot_s": 0.01,
        "engine": "vllm",
        "engine_version": "0.15.1",
        "date": "",
        "series": "made up",
    }
    return row | changes
