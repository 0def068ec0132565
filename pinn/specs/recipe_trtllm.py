"""What TensorRT-LLM runs beyond what one flag says: its schedule, memory and CUDA graphs."""

from __future__ import annotations

import math

from pinn.specs.graph_sizes import trtllm_sizes
from pinn.specs.recipe import ALL_TO_ALL, ASSUMED, COMPLETION, FREE, FUSED, LEAST_LOADED
from pinn.specs.recipe_fields import RecipeFields
from pinn.specs.serving import TRTLLM


def settle_trtllm(found: RecipeFields) -> None:
    """TensorRT-LLM's PyTorch backend: ``tensorrt_llm/_torch/pyexecutor``."""
    values = found.values
    scheduler = "tensorrt_llm/_torch/pyexecutor/scheduler.py, microBatchScheduler.cpp"
    found.put("schedule", FUSED, scheduler)
    found.put("prompt_budget", values["token_budget"], scheduler)
    found.put("chunk_multiple", values["block_tokens"], scheduler)
    found.put("admission", COMPLETION, "llm_args.py: capacity_scheduler_policy GUARANTEED_NO_EVICT")
    found.put("admission_share", 1.0, "llm_args.py: capacity_scheduler_policy GUARANTEED_NO_EVICT")
    found.put("poll_interval", 1, "tensorrt_llm/_torch/pyexecutor/py_executor.py")
    found.put("routing", LEAST_LOADED, "py_executor.py: _balance_adp_requests")
    # As many copies of a token as ranks, or as experts of a token where those are fewer.
    found.put(
        "expert_exchange",
        ALL_TO_ALL,
        "_torch/modules/fused_moe: a gather, all-to-all where ranks outnumber a token's experts, "
        "as remembered",
        ASSUMED,
    )
    found.take("memory_share", "gpu_memory_utilization")
    found.put("memory_share_of", FREE, "llm_args.py: KvCacheConfig.free_gpu_memory_fraction")
    limit, origin = found.look_up("max_cudagraph_capture_size")
    limit = min(limit, values["max_requests"])
    sizes = trtllm_sizes(limit, found.look_up("cudagraph_padding")[0])
    found.put_graphs(1, sizes[-1], sizes, origin)


def settle_prompt_wait(found: RecipeFields) -> None:
    """How long prompts wait for others in TensorRT-LLM's ``py_executor.py``.

    ``_waiting_requests``, and ``_balance_adp_requests`` under attention data parallelism.
    """
    if found.serving.engine != TRTLLM:
        for name in ("prompt_wait_steps", "prompt_wait_tokens"):
            found.put(name, 0, "TensorRT-LLM alone lets prompts wait for others")
        return
    ranks = found.values["data_parallel_size"]
    steps = "batch_wait_timeout_iters" if ranks == 1 else "attention_dp_timeout_iters"
    found.take("prompt_wait_steps", steps)
    budget = found.values["token_budget"]
    found.take(
        "prompt_wait_tokens",
        "batch_wait_max_tokens_ratio",
        lambda ratio: math.ceil(ratio * budget) if ranks == 1 else 0,
    )
