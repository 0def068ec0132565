"""What cannot run is refused before it runs, with the number that breaks it."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool

from pinn.errors import PinnError
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.memory import KvLayout, max_model_len, tokens_beyond
from pinn.simulator.workloads.workload import Workload
from pinn.specs.deployment import Deployment
from pinn.specs.recipe import COMPLETION, NEXT_STEP, PREFILL_FIRST


def check_run(
    deployment: Deployment, workload: Workload, engine: EngineSpec, layout: KvLayout
) -> Bool[np.ndarray, " n"]:
    """Check a workload against a deployment.

    Returns:
        Mask of the requests that the server answers with an error.

    Raises:
        PinnError: If flags contradict each other, or a request exceeds max_model_len or the KV
            cache.
    """
    _check_flags(deployment)
    _check_workload(deployment, workload)
    too_long = _too_long(deployment, workload, engine)
    _check_cache_holds(deployment, workload, layout, too_long)
    return too_long


def _check_flags(deployment: Deployment) -> None:
    """``SchedulerConfig.verify_max_model_len``, and what the schedules leave out."""
    recipe, longest = deployment.recipe, max_model_len(deployment)
    if recipe.schedule == PREFILL_FIRST and recipe.pipeline_parallel_size > 1:
        raise PinnError(
            "steps of prompts apart are not modelled with pipeline stages: leave "
            "--pipeline-parallel-size out"
        )
    if recipe.admission != NEXT_STEP:
        return
    if not recipe.chunked_prefill and recipe.token_budget < longest:
        raise PinnError(
            f"--max-num-batched-tokens {recipe.token_budget} is smaller than "
            f"--max-model-len {longest} and chunked prefill is off: raise the one, lower the "
            "other, or leave chunked prefill on"
        )


def _check_workload(deployment: Deployment, workload: Workload) -> None:
    """TensorRT-LLM refuses prompts beyond its budget, and only vLLM's connectors are modelled."""
    recipe, longest = deployment.recipe, int(workload.prompt_tokens.max())
    whole = recipe.admission == COMPLETION and not recipe.chunked_prefill
    if whole and longest > recipe.token_budget:
        raise PinnError(
            f"a prompt of {longest} tokens exceeds max_num_tokens {recipe.token_budget} and "
            "chunked prefill is off: raise the one, or give --enable-chunked-prefill"
        )
    if recipe.admission != NEXT_STEP and (workload.transferred_tokens > 0).any():
        raise PinnError(
            "keys and values from a prefill server (transferred_tokens) are modelled with "
            "--engine vllm alone: leave the column out"
        )


def _too_long(deployment: Deployment, workload: Workload, engine: EngineSpec) -> np.ndarray:
    """Requests that the server answers with an error (``OpenAIServing._validate_input``)."""
    longest = max_model_len(deployment)
    total = workload.prompt_tokens + workload.output_tokens
    too_long = total > longest
    if too_long.any() and not engine.reject_long_requests:
        r = int(np.flatnonzero(too_long)[0])
        raise PinnError(
            f"request {r} has {workload.prompt_tokens[r]} prompt and {workload.output_tokens[r]} "
            f"output tokens, {total[r]} together, more than --max-model-len {longest} "
            f"({int(too_long.sum())} of {len(workload)} requests do): raise it or shorten them"
        )
    return too_long


def _check_cache_holds(
    deployment: Deployment, workload: Workload, layout: KvLayout, too_long: np.ndarray
) -> None:
    tokens = np.where(too_long, 0, workload.prompt_tokens + workload.output_tokens)
    longest = np.maximum(max_model_len(deployment), tokens)
    tokens = np.minimum(tokens + tokens_beyond(deployment), longest)
    size = deployment.recipe.block_tokens
    needed = int(layout.request_blocks(tokens.max(), size))
    if needed > layout.blocks:
        raise PinnError(
            f"request {int(tokens.argmax())} needs {needed} KV cache blocks of {size} tokens for "
            f"its {int(tokens.max())} tokens, the GPU has room for {layout.blocks}"
        )
