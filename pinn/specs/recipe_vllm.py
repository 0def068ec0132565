"""What vLLM runs beyond what one flag says: its schedule, memory and CUDA graphs."""

from __future__ import annotations

from pinn.specs.recipe import ALL_TO_ALL, FLAG, FUSED, LEAST_LOADED, NEXT_STEP, TOTAL
from pinn.specs.recipe_fields import RecipeFields
from pinn.specs.serving import VLLM


def settle_vllm(found: RecipeFields) -> None:
    """``vllm/v1/core/sched/scheduler.py`` of 0.15.1 and its docs."""
    serving = found.serving
    source = "vllm 0.15.1 vllm/v1/core/sched/scheduler.py"
    found.put("schedule", FUSED, source)
    found.put("prompt_budget", found.values["token_budget"], source)
    found.put("chunk_multiple", 1, source)
    found.put("admission", NEXT_STEP, source)
    found.put("admission_share", 0.0, source)
    found.put("poll_interval", 1, "vllm 0.15.1 vllm/v1/engine/core.py: _process_input_queue")
    found.put("routing", LEAST_LOADED, "vllm 0.15.1 vllm/v1/engine/core_client.py")
    found.put("expert_exchange", ALL_TO_ALL, "dispatch and combine as the features count them")
    found.take("memory_share", "gpu_memory_utilization")
    found.put("memory_share_of", TOTAL, "vllm 0.15.1 vllm/v1/worker/gpu_worker.py")
    limit, origin = found.look_up("max_cudagraph_capture_size")
    if origin.kind != FLAG:
        drafts = found.values["speculation"]
        rows = 1 + (drafts.tokens if drafts else 0)
        limit = min(2 * rows * found.values["max_requests"], limit)
    found.put_graphs(limit, 0, (), origin)
    assert serving.engine == VLLM
