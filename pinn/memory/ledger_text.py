"""Tables of one GPU's memory by use, and of the lines that the engine would log about it."""

from collections.abc import Iterator

from pinn.common.screen import Column, Grid
from pinn.engines.recipe import FLAG, FLAGS, STATIC
from pinn.memory.kv_cache import least_blocks
from pinn.memory.kv_layout import empty_layout, max_model_len
from pinn.memory.start_up import StartUp
from pinn.memory.startup_log import StartupLog
from pinn.memory.weights import draft_weight_bytes
from pinn.specs.model import LatentAttentionSpec
from pinn.specs.serving import SGLANG, VLLM
from pinn.units import GIB

#: Width, in characters, of the bar that represents the GPU's whole memory.
_BAR = 24
_LOGS = "start-up logs"


def ledger_grid(found: StartUp) -> Grid:
    """Return a table of one GPU's memory by use, with GiB, a bar and the source of each entry."""
    grid = Grid.of("on one GPU", "GiB", Column("", True), Column("source", True, most=40))
    logged = _logged_sizes(found.log)
    for name, size, source in _entries(found):
        shown = logged.get(name, size)
        bar = "#" * min(round(_BAR * max(shown, 0.0) / found.ledger.board), _BAR)
        beside = f"start-up log; {size / GIB:.2f} predicted" if name in logged else source
        grid.add(name, f"{shown / GIB:.2f}", bar, beside)
    return grid


def _logged_sizes(log: StartupLog | None) -> dict[str, float]:
    """Return the logged bytes that replace predicted entries, by the entry's name."""
    if log is None:
        return {}
    found = {
        "weights": log.weights,
        "activations": log.activation_peak,
        "CUDA graphs": log.graphs_estimated,
        "KV cache": log.kv_cache,
    }
    return {name: size for name, size in found.items() if size is not None}


def _entries(found: StartUp) -> Iterator[tuple[str, float, str]]:
    """Yield name, bytes and source of each use of GPU memory; the KV cache is the last one."""
    ledger, held, recipe = found.ledger, found.ledger.reserve, found.deployment.recipe
    yield (
        "reserved by CUDA",
        ledger.board - ledger.visible,
        "memory total that CUDA reports",
    )
    outside = ledger.visible - ledger.usable_bytes
    if ledger.share_of == STATIC:
        outside -= held.context + held.communication
    flag = FLAGS["gpu_memory_utilization"].spelled_for(found.deployment.serving.engine)
    given = "" if recipe.origins["memory_share"].kind == FLAG else ", the default"
    yield "not used", outside, f"{flag} {ledger.share:g}{given}"
    offload = found.deployment.serving.cpu_offload_gb
    less = f", less {offload:g} GiB on the host" if offload else ""
    draft = draft_weight_bytes(found.deployment) / GIB
    drafts = f", {draft:.2f} GiB of the draft model" if draft else ""
    yield "weights", ledger.weights, f"shapes of config.json, padded{less}{drafts}"
    if ledger.lora:
        yield "LoRA slots", ledger.lora, "--max-loras x --max-lora-rank"
    yield "context", held.context, _LOGS
    if held.communication:
        yield "communication", held.communication, _LOGS
    if ledger.reserved_bytes:
        yield "activations", held.peak, _peak_source(found)
        if held.graphs:
            yield "CUDA graphs", held.graphs, _LOGS
    yield "KV cache", max(found.predicted.kv_bytes or 0.0, 0.0), _ends(found)


def _peak_source(found: StartUp) -> str:
    recipe, held = found.deployment.recipe, found.ledger.reserve
    if held.sampler >= held.forward:
        requests = min(recipe.max_requests, recipe.token_budget)
        return f"peak memory of the sampler for {requests:,} requests"
    return f"a step of {recipe.token_budget:,} tokens"


def _ends(found: StartUp) -> str:
    if found.predicted.byte_ends is None:
        return "nothing is left"
    low, high = (end / GIB for end in found.predicted.byte_ends)
    return f"remainder; interval {low:.2f} to {high:.2f}"


def log_grid(found: StartUp) -> Grid:
    """Return a table of the log lines predicted for the engine, next to those in its log.

    Sources. vLLM: ``v1/worker/gpu_model_runner.py``, ``gpu_worker.py``,
    ``v1/core/kv_cache_utils.py``. SGLang: ``model_executor/model_runner.py``,
    ``mem_cache/memory_pool.py``. TensorRT-LLM (assumed): ``_torch/pyexecutor/resource_manager.py``.
    """
    name = found.deployment.serving.engine
    logged = [Column("logged", False)] if found.log else []
    grid = Grid.of(Column(f"predicted start-up log of {name}, for one GPU", True), *logged)
    for line, told in _lines(found):
        grid.add(line, *([told] if found.log else []))
    return grid


def _lines(found: StartUp) -> Iterator[tuple[str, str]]:
    """Yield each predicted log line, with the logged value of the same quantity."""
    fit, log, engine = found.predicted, found.log or StartupLog(), found.deployment.serving.engine
    weights, kv_gib, tokens = found.ledger.weights / GIB, (fit.kv_bytes or 0) / GIB, fit.kv_tokens
    cache, held = _gib(log.kv_cache), "" if log.kv_tokens is None else f"{log.kv_tokens:,}"
    if engine == SGLANG:
        yield f"Load weight end. mem usage={weights:.2f} GB.", _gib(log.weights)
        if tokens is None:
            yield "Not enough memory. Please try to increase --mem-fraction-static.", ""
            return
        yield f"KV Cache is allocated. #tokens: {tokens}, {_sglang_sizes(found, kv_gib)}", cache
        yield f"max_total_num_tokens={tokens}", held
    elif engine != VLLM:
        yield f"Allocated {kv_gib:.2f} GiB for max tokens in paged KV cache ({tokens or 0}).", cache
    else:
        loaded = weights + found.ledger.lora / GIB
        yield f"Model loading took {loaded:.2f} GiB memory", _gib(log.weights)
        if fit.kv_bytes is None:
            yield "No available memory for the cache blocks.", ""
            return
        yield f"Available KV cache memory: {kv_gib:.2f} GiB", cache
        longest = max_model_len(found.deployment)
        if fit.longest_requests is None:
            yield f"To serve at least one request with the model's max seq len ({longest}),", ""
            yield f"({_needed_gib(found):.2f} GiB KV cache is needed, which is larger than", ""
            yield f"the available KV cache memory ({kv_gib:.2f} GiB).", ""
            return
        yield f"GPU KV cache size: {tokens:,} tokens", held
        concurrency = "" if log.max_concurrency is None else f"{log.max_concurrency:.2f}x"
        most = f"{fit.longest_requests:.2f}x"
        yield f"Maximum concurrency for {longest:,} tokens per request: {most}", concurrency


def _sglang_sizes(found: StartUp, kv_gib: float) -> str:
    """Return KV cache sizes as SGLang logs them: of keys and values, or of one latent cache."""
    groups = found.deployment.model.layer_groups
    if any(isinstance(group.attention, LatentAttentionSpec) for group in groups):
        return f"KV size: {kv_gib:.2f} GB"
    return f"K size: {kv_gib / 2:.2f} GB, V size: {kv_gib / 2:.2f} GB"


def _needed_gib(found: StartUp) -> float:
    """Return the GiB per GPU needed by a request of max_model_len tokens."""
    layout = empty_layout(found.deployment)
    return least_blocks(found.deployment, layout) * layout.block_bytes / GIB


def _gib(size: float | None) -> str:
    return "" if size is None else f"{size / GIB:.2f}"
