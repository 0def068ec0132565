"""A row of measured deployments, as ``pinn.measurements.deployments.observations`` keeps it."""

from __future__ import annotations

from typing import Any

from pinn.measurements.deployments.launch_facts import OTHER_FLAGS, SERVING_FLAGS


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
        **dict.fromkeys(SERVING_FLAGS, ""),
        **dict.fromkeys(OTHER_FLAGS, ""),
        "kv_cache_dtype": "auto",
        "max_num_batched_tokens": "8192",
        "max_cudagraph_capture_size": "512",
        "enable_prefix_caching": "no",
        "drafts": "",
        "prompts_per_client": 10,
        "warmups_per_client": 0,
        "concurrency": 8,
        "prompt_tokens": 1024,
        "output_tokens": 1024,
        "ttft_s": 0.1,
        "tpot_s": 0.01,
        "engine": "vllm",
        "engine_version": "0.15.1",
        "image": "",
        "script": "",
        "facts": "known",
        "date": "",
        "series": "made up",
    }
    return row | changes
