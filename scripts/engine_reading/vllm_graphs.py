"""Which steps vLLM launches as CUDA graphs by default, by release."""

from __future__ import annotations

import ast

from engine_reading.sandbox import Given, Symbol, World
from engine_reading.table import Line
from engine_reading.vllm_stand_ins import BLACKWELL, stand_ins
from engine_reading.wheel import EngineSource, compiled

_MANY = 10**6


def graph_sizes(source: EngineSource) -> list[Line]:
    """The mode, the most tokens that are captured, and whether drafts raise them."""
    path = source.first("vllm/config/vllm.py", "vllm/config/__init__.py")
    name = "VllmConfig._set_cudagraph_sizes"
    flag, where = "max_cudagraph_capture_size", f"{path}: {name}"
    wide, usual = (largest_graph(source, c, _MANY, 0) for c in (10.0, 9.0))
    lines = [Line(flag, BLACKWELL, value=str(wide), source=where)] if wide != usual else []
    lines.append(Line(flag, value=str(usual), source=where))
    drafted = largest_graph(source, 9.0, 8, 3)
    if drafted not in (16, 64):
        raise source.unread(f"{path}: {name}", f"8 requests with 3 drafts capture {drafted} tokens")
    mode, symbol = _mode(source, path)
    return [
        Line("cudagraph_mode", value=mode, source=f"{path}: {symbol}"),
        *lines,
        Line("graphs_of_drafts", value="yes" if drafted == 64 else "no", source=where),
    ]


def largest_graph(source: EngineSource, capability: float, max_num_seqs: int, drafts: int) -> int:
    """Tokens of the largest graph that a release captures.

    Args:
        source: The release.
        capability: Compute capability of the GPU.
        max_num_seqs: Most running requests.
        drafts: Tokens drafted a step.
    """
    path = source.first("vllm/config/vllm.py", "vllm/config/__init__.py")
    world = World(source, {**stand_ins(source, capability), "CUDAGraphMode": Symbol("mode")})
    scheduler = Given(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=_MANY, max_model_len=4096,
        cuda_graph_sizes=[], runner_type="generate", max_num_partial_prefills=1,
        async_scheduling=False,
    )  # fmt: skip
    settings = "vllm/config/scheduler.py"
    init = source.function(settings, "SchedulerConfig.__post_init__")
    if "cuda_graph_sizes" in ast.unparse(init):
        compiled(init, world.space(settings))(scheduler)
    captured: list[int] = []
    compilation = Given(
        cudagraph_mode=Symbol("mode.FULL"), max_cudagraph_capture_size=None, level=3,
        cudagraph_capture_sizes=None, pass_config=Given(enable_sequence_parallelism=False),
        init_with_cudagraph_sizes=captured.extend, post_init_cudagraph_sizes=lambda: None,
    )  # fmt: skip
    speculative = Given(
        num_speculative_tokens=drafts, uses_dynamic_speculative_decoding=lambda: False
    )
    config = Given(
        model_config=Given(enforce_eager=False), scheduler_config=scheduler,
        compilation_config=compilation, parallel_config=Given(tensor_parallel_size=1),
        speculative_config=speculative if drafts else None, num_speculative_tokens=drafts,
        uniform_decode_query_len=1 + drafts, performance_mode="balanced",
    )  # fmt: skip
    compiled(source.function(path, "VllmConfig._set_cudagraph_sizes"), world.space(path))(config)
    return max(compilation.cudagraph_capture_sizes or captured)


def _mode(source: EngineSource, path: str) -> tuple[str, str]:
    """The mode of the default optimization level; before there were levels, of compiled models."""
    level = "OPTIMIZATION_LEVEL_02"
    if source.has(path, level):
        text = ast.unparse(source.node(path, level))
        return text.split("'cudagraph_mode': CUDAGraphMode.")[1].split(",")[0], level
    symbol = "VllmConfig.__post_init__"
    for node in ast.walk(source.function(path, symbol)):
        if isinstance(node, ast.If) and "cudagraph_mode is None" in ast.unparse(node.test):
            return ast.unparse(node).split("= CUDAGraphMode.")[1].split("\n")[0], symbol
    raise source.unread(f"{path}: {symbol}", "it sets no mode of CUDA graphs")
