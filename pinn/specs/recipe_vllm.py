"""What vLLM runs beyond what one flag says: its schedule, memory and CUDA graphs."""

from __future__ import annotations

from pinn.specs.graph_sizes import vllm_largest
from pinn.specs.recipe import (
    ALL_TO_ALL,
    DEFAULT,
    FLAG,
    FUSED,
    LEAST_LOADED,
    NEXT_STEP,
    NOTHING,
    PIECES,
    TOTAL,
    WHOLE,
    Origin,
)
from pinn.specs.recipe_fields import RecipeFields
from pinn.specs.serving import FULL_DECODE_ONLY, NO_GRAPHS, PIECEWISE


def settle_vllm(found: RecipeFields) -> None:
    """``vllm/v1/core/sched/scheduler.py``, and the release's defaults."""
    source = f"vllm {found.version} vllm/v1/core/sched/scheduler.py"
    found.put("schedule", FUSED, source)
    found.put("prompt_budget", found.values["token_budget"], source)
    found.put("chunk_multiple", 1, source)
    found.put("admission", NEXT_STEP, source)
    found.put("admission_share", 0.0, source)
    core = f"vllm {found.version} vllm/v1/engine/core"
    found.put("poll_interval", 1, f"{core}.py: _process_input_queue")
    found.put("routing", LEAST_LOADED, f"{core}_client.py")
    found.put("expert_exchange", ALL_TO_ALL, "dispatch and combine as the features count them")
    found.take("memory_share", "gpu_memory_utilization")
    found.put("memory_share_of", TOTAL, f"vllm {found.version} vllm/v1/worker/gpu_worker.py")
    _settle_overlap(found)
    _settle_fusion(found)
    _settle_graphs(found)


def _settle_overlap(found: RecipeFields) -> None:
    """Pipeline stages and some methods of speculation turn asynchronous scheduling off."""
    if found.serving.pipeline_parallel_size > 1:
        found.take("overlap", "async_scheduling_pipelined")
    drafts = found.values["speculation"]
    if drafts is not None:
        default = found.default("async_scheduling_drafted")
        found.put("overlap", drafts.method in default.value.split(), default.source, DEFAULT)


def _settle_fusion(found: RecipeFields) -> None:
    """Some releases fuse all-reduce and norm only without data parallelism or stages."""
    if found.origins["fused_all_reduce"].kind == FLAG or not found.values["fused_all_reduce"]:
        return
    serving = found.serving
    for size, flag in (
        (serving.data_parallel_size, "fuse_all_reduce_data_parallel"),
        (serving.pipeline_parallel_size, "fuse_all_reduce_pipelined"),
    ):
        if size > 1 and found.values["fused_all_reduce"]:
            found.take("fused_all_reduce", flag)


def _settle_graphs(found: RecipeFields) -> None:
    """Which steps are captured, and up to how many tokens."""
    limit, origin = found.look_up("max_cudagraph_capture_size")
    drafts, rows = found.values["speculation"], 1
    if drafts and found.look_up("graphs_of_drafts")[0]:
        rows += drafts.tokens
    if origin.kind != FLAG:
        asked = min(2 * rows * found.values["max_requests"], found.values["token_budget"], limit)
        limit = vllm_largest(int(asked))
    mode, said = found.look_up("cudagraph_mode")
    of_decodes = {PIECEWISE: PIECES, NO_GRAPHS: NOTHING}.get(mode, WHOLE)
    if mode == NO_GRAPHS:
        found.put_graphs(0, 0, (), said, of_decodes)
    elif mode == FULL_DECODE_ONLY:
        # Prompts are launched kernel by kernel; a request of a verifying step has several rows.
        found.put_graphs(1, max(limit // (1 + (drafts.tokens if drafts else 0)), 1), (), said)
    else:
        found.put_graphs(limit, 0, (), origin, of_decodes)
    if mode != FULL_DECODE_ONLY and not found.serving.enforce_eager:
        found.origins["decode_graphs"] = Origin(said.kind, said.text)
