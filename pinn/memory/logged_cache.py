"""KV cache size of a simulated server, from its start-up log."""

from dataclasses import replace

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.memory.kv_cache import kv_layout
from pinn.memory.kv_layout import empty_layout, max_model_len
from pinn.memory.longest_request import counted_blocks
from pinn.memory.startup_log import StartupLog
from pinn.specs.serving import VLLM
from pinn.units import GIB


def with_log(engine: EngineSpec, deployment: Deployment, log: StartupLog) -> EngineSpec:
    """Return the engine settings with the size of the logged KV cache.

    A logged number of blocks is used unchanged. If the log has none and all layers cache every
    token, the logged tokens determine the blocks exactly. Otherwise, the blocks follow from the
    logged memory, which is rounded to 0.01 GiB.

    Args:
        engine: Engine settings that do not set the KV cache's size.
        deployment: Deployment of the simulated server.
        log: Start-up log of this deployment.

    Raises:
        PinnError: If the log is from another engine, another number of GPUs or a failed start, if
            it does not state the cache's size, or if the settings already specify the size.
    """
    _check(engine, deployment, log)
    layout = empty_layout(deployment)
    alike = layout.full_groups == 1 and not layout.window_groups
    if log.blocks is not None:
        blocks = log.blocks
    elif log.kv_tokens is not None and (alike or log.kv_cache is None):
        blocks = _blocks_of_tokens(log, deployment)
    elif log.kv_cache is not None:
        return replace(engine, kv_cache_memory_bytes=log.kv_cache)
    else:
        raise PinnError(
            f"the log of {log.engine} does not state the size of the KV cache: "
            "give the log of the whole start, until the server is ready"
        )
    # Only vLLM's log includes the null block, which no request can use; the setting always includes
    # it.
    total = blocks if deployment.serving.engine == VLLM else blocks + 1
    return replace(engine, num_gpu_blocks_override=total)


def _check(engine: EngineSpec, deployment: Deployment, log: StartupLog) -> None:
    serving = deployment.serving
    for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        if getattr(engine, name) is not None:
            option = name.replace("_", "-")
            raise PinnError(
                f"--{option} and --memory-log both set the size of the KV cache: omit one of the "
                "two flags"
            )
    if log.failure is not None:
        raise PinnError(
            f"the log is of a failed start ({log.failure.message}): give the log "
            "of a server that started"
        )
    if log.engine != serving.engine:
        said = log.engine or "an unknown engine"
        raise PinnError(
            f"the log is of {said}, but --engine is {serving.engine}: give a log of "
            f"{serving.engine}"
        )
    size = log.tensor_parallel_size
    if size not in (None, serving.tensor_parallel_size):
        raise PinnError(
            f"the log is of a server with --tensor-parallel-size {size}, but the flag is "
            f"{serving.tensor_parallel_size}: give the log of a server with the same flags"
        )


def _blocks_of_tokens(log: StartupLog, deployment: Deployment) -> int:
    """Return the number of blocks for the logged tokens, as counted by the logged release."""
    layout, recipe = empty_layout(deployment), deployment.recipe
    tokens = log.kv_tokens or 0
    if not recipe.counts_longest_requests or deployment.serving.engine != VLLM:
        return tokens // recipe.block_tokens * (layout.full_groups + layout.window_groups)
    if log.max_model_len is not None:
        serving = replace(deployment.serving, max_model_len=log.max_model_len)
        deployment = replace(deployment, serving=serving)
    longest = max_model_len(deployment)
    return -(-tokens * counted_blocks(deployment, layout, longest) // longest)


def logged_blocks(deployment: Deployment, log: StartupLog) -> int:
    """Return the number of usable blocks of a logged KV cache.

    Raises:
        PinnError: Under the conditions in :func:`with_log`.
    """
    # The server has started, so it is irrelevant whether the longest request fits.
    short = replace(deployment, serving=replace(deployment.serving, max_model_len=1))
    return kv_layout(short, with_log(EngineSpec(), deployment, log)).blocks


def cache_sentence(log: StartupLog) -> str:
    """Return a sentence that states the size of a logged KV cache."""
    told = [] if log.kv_cache is None else [f"{log.kv_cache / GIB:,.2f} GiB"]
    counts = {"tokens": log.kv_tokens, "blocks": log.blocks}
    told += [f"{count:,} {name}" for name, count in counts.items() if count is not None]
    release = f" {log.release}" if log.release else ""
    return f"{log.engine}{release} logged a KV cache of {', '.join(told)} on each GPU"
