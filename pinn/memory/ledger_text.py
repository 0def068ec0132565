"""The memory of one GPU as a terminal shows it, beside the lines that the engine logs of it."""

from collections.abc import Iterator, Mapping

from pinn.common.screen import Column, Grid
from pinn.engines.recipe import FLAG, FLAGS, STATIC
from pinn.memory.kv_layout import max_model_len
from pinn.memory.start_up import StartUp
from pinn.specs.serving import SGLANG, VLLM
from pinn.units import GIB

#: Characters of a bar that stands for the whole board.
_BAR = 24
_LOGS = "start-ups that were logged"


def ledger_grid(found: StartUp, logged: Mapping[str, float] | None = None) -> Grid:
    """What lies on one GPU, with what says so.

    Args:
        found: Whether it starts, and on what that rests.
        logged: Name of an entry -> bytes that a start-up log has in its place.
    """
    logged = logged or {}
    grid = Grid.of("on one GPU", "GiB", Column("", True), Column("by", True, most=40))
    for name, size, source in _entries(found):
        shown = logged.get(name, size)
        bar = "#" * round(_BAR * max(shown, 0.0) / found.ledger.board)
        grid.add(name, f"{shown / GIB:.2f}", bar, "the log" if name in logged else source)
    return grid


def _entries(found: StartUp) -> Iterator[tuple[str, float, str]]:
    """(name, bytes, what says so), from what the driver keeps to what is left for the cache."""
    ledger, held, recipe = found.ledger, found.ledger.reserve, found.deployment.recipe
    yield (
        "kept by the driver",
        ledger.board - ledger.visible,
        "not offered by CUDA",
    )
    outside = ledger.visible - ledger.usable_bytes
    if ledger.share_of == STATIC:
        outside -= held.context + held.communication
    flag = FLAGS["gpu_memory_utilization"].spelled_for(found.deployment.serving.engine)
    given = "" if recipe.origins["memory_share"].kind == FLAG else ", the default"
    yield "outside the share", outside, f"{flag} {ledger.share:g}{given}"
    offload = found.deployment.serving.cpu_offload_gb
    less = f", less {offload:g} GiB on the host" if offload else ""
    yield "weights", ledger.weights, f"its shapes, padded for kernels{less}"
    yield "context", held.context, _LOGS
    if held.communication:
        yield "communication", held.communication, _LOGS
    if ledger.reserved_bytes:
        yield "activations", held.peak, _peak_source(found)
        if held.graphs:
            yield "CUDA graphs", held.graphs, _LOGS
    yield "KV cache", max(found.fit.kv_bytes or 0.0, 0.0), _ends(found)


def _peak_source(found: StartUp) -> str:
    recipe, held = found.deployment.recipe, found.ledger.reserve
    if held.sampler >= held.forward:
        requests = min(recipe.max_requests, recipe.token_budget)
        return f"sampling for {requests:,} requests"
    return f"a step of {recipe.token_budget:,} tokens"


def _ends(found: StartUp) -> str:
    if found.fit.byte_ends is None:
        return "nothing is left"
    low, high = (end / GIB for end in found.fit.byte_ends)
    return f"the rest; {low:.2f} to {high:.2f} by logs of its kind"


def log_lines(found: StartUp) -> list[str]:
    """What the engine would log at start, to be compared line by line.

    vLLM: ``v1/worker/gpu_model_runner.py``, ``gpu_worker.py``, ``v1/core/kv_cache_utils.py``.
    SGLang: ``model_executor/model_runner.py``, ``mem_cache/memory_pool.py``. TensorRT-LLM:
    ``_torch/pyexecutor/resource_manager.py``, as remembered.
    """
    fit, weights = found.fit, found.ledger.weights / GIB
    engine, longest = found.deployment.serving.engine, max_model_len(found.deployment)
    kv_gib, tokens = (fit.kv_bytes or 0.0) / GIB, fit.kv_tokens or 0
    if engine == SGLANG:
        return [
            f"Load weight end. ... mem usage={weights:.2f} GB.",
            f"KV Cache is allocated. #tokens: {tokens}, KV size: {kv_gib:.2f} GB",
            f"max_total_num_tokens={tokens}",
        ]
    if engine != VLLM:
        return [f"Allocated {kv_gib:.2f} GiB for max tokens in paged KV cache ({tokens})."]
    lines = [
        f"Model loading took {weights:.2f} GiB memory",
        f"Available KV cache memory: {kv_gib:.2f} GiB",
    ]
    if fit.longest_requests is None:
        return [*lines, f"and refuse: {fit.fault}"]
    return [
        *lines,
        f"GPU KV cache size: {tokens:,} tokens",
        f"Maximum concurrency for {longest:,} tokens per request: {fit.longest_requests:.2f}x",
    ]
