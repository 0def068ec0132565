"""Which steps vLLM launches as CUDA graphs, and whether it plans one while the last runs."""

from __future__ import annotations

import ast
import typing

from engine_reading.sandbox import Given, Symbol, World
from engine_reading.table import Line, default
from engine_reading.vllm_stand_ins import BLACKWELL, world_of
from engine_reading.wheel import EngineSource, compiled

CONFIG = "vllm/config/vllm.py"
_SETTINGS = "vllm/config/scheduler.py"
_INIT = "VllmConfig.__post_init__"
_MANY = 10**6
#: What drafts, as ``pinn.specs.speculation`` and vLLM both name it.
_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model")


def graph_sizes(source: EngineSource) -> list[Line]:
    """The mode, the most tokens that are captured, and whether drafts raise them."""
    path = CONFIG if source.exists(CONFIG) else "vllm/config/__init__.py"
    name, flag = "VllmConfig._set_cudagraph_sizes", "max_cudagraph_capture_size"
    where = f"{path}: {name}"
    wide, usual, drafted = (
        _largest_graph(source, path, name, *about)
        for about in ((10.0, _MANY, 0), (9.0, _MANY, 0), (9.0, 8, 3))
    )
    if drafted not in (16, 64):
        raise source.unread(where, f"8 requests with 3 drafts capture {drafted} tokens")
    mode, symbol = _mode(source, path)
    return [
        default("cudagraph_mode", mode, f"{path}: {symbol}"),
        *([default(flag, wide, where, gpu=BLACKWELL)] if wide != usual else []),
        default(flag, usual, where),
        default("graphs_of_drafts", word(drafted == 64), where),
    ]


def _largest_graph(
    source: EngineSource, path: str, name: str, capability: float, max_num_seqs: int, drafts: int
) -> int:
    """Tokens of the largest graph captured for so many requests with so many tokens drafted."""
    world = world_of(source, capability, CUDAGraphMode=Symbol("mode"))
    scheduler = Given(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=_MANY, max_model_len=4096,
        cuda_graph_sizes=[], runner_type="generate", max_num_partial_prefills=1,
        async_scheduling=False,
    )  # fmt: skip
    init = "SchedulerConfig.__post_init__"
    if "cuda_graph_sizes" in ast.unparse(source.node(_SETTINGS, init)):
        world.ask(_SETTINGS, init, scheduler)
    captured: list[int] = []
    compilation = Given(
        cudagraph_mode=Symbol("mode.FULL"), max_cudagraph_capture_size=None, level=3,
        cudagraph_capture_sizes=None, pass_config=Given(enable_sequence_parallelism=False),
        init_with_cudagraph_sizes=captured.extend, post_init_cudagraph_sizes=lambda: None,
    )  # fmt: skip
    config = Given(
        model_config=Given(enforce_eager=False), scheduler_config=scheduler,
        compilation_config=compilation, parallel_config=Given(tensor_parallel_size=1),
        speculative_config=_drafting(num_speculative_tokens=drafts) if drafts else None,
        num_speculative_tokens=drafts, uniform_decode_query_len=1 + drafts,
        performance_mode="balanced",
    )  # fmt: skip
    world.ask(path, name, config)
    return max(compilation.cudagraph_capture_sizes or captured)


def _drafting(**given: typing.Any) -> Given:
    return Given(uses_dynamic_speculative_decoding=lambda: False, **given)


def _mode(source: EngineSource, path: str) -> tuple[str, str]:
    """The mode of the default optimization level; before there were levels, of compiled models."""
    level = "OPTIMIZATION_LEVEL_02"
    if source.has(path, level):
        text = ast.unparse(source.node(path, level))
        return text.split("'cudagraph_mode': CUDAGraphMode.")[1].split(",")[0], level
    for node in ast.walk(source.node(path, _INIT)):
        if isinstance(node, ast.If) and "cudagraph_mode is None" in ast.unparse(node.test):
            return ast.unparse(node).split("= CUDAGraphMode.")[1].split("\n")[0], _INIT
    raise source.unread(f"{path}: {_INIT}", "it sets no mode of CUDA graphs")


def overlap(source: EngineSource) -> list[Line]:
    """By default, with pipeline stages, and the methods of speculation that leave it on."""
    where = f"{_SETTINGS}: SchedulerConfig.async_scheduling"
    given = source.constant(*where.split(": "))
    plain, pipelined, drafted = False, False, []
    if given is None:
        where = f"{CONFIG}: {_INIT}"
        plain, pipelined = _overlaps(source), _overlaps(source, stages=2)
        drafted = [method for method in _METHODS if _overlaps(source, method)]
    elif given is not False:
        raise source.unread(where, f"its default is {given!r}")
    return [
        default("async_scheduling", word(plain), where),
        default("async_scheduling_pipelined", word(pipelined), where),
        default("async_scheduling_drafted", " ".join(drafted) or "none", where),
    ]


def _overlaps(source: EngineSource, method: str = "", stages: int = 1) -> bool:
    world = world_of(source, get_args=typing.get_args)
    speculative = _drafting(
        method=method, num_speculative_tokens=3, parallel_drafting=False,
        disable_padded_drafter_batch=False, use_dflash=lambda: False, use_dspark=lambda: False,
    )  # fmt: skip
    config = Given(
        scheduler_config=Given(async_scheduling=None),
        parallel_config=Given(
            pipeline_parallel_size=stages, distributed_executor_backend="mp",
            all2all_backend="", data_parallel_size=1, tensor_parallel_size=1,
            prefill_context_parallel_size=1, decode_context_parallel_size=1,
        ),
        speculative_config=speculative if method else None,
        model_config=Given(runner_type="generate", logits_processors=None, logprobs_mode=""),
        compilation_config=Given(mode=None, pass_config=Given(), cudagraph_mode=None),
        cache_config=Given(mamba_cache_mode="none", kv_sharing_fast_prefill=False),
        lora_config=None, ec_transfer_config=None, reasoning_config=None,
    )  # fmt: skip
    config.use_v2_model_runner = _is_v2_for_all(source) and not _unsupported(world, config)
    compiled(_chain(source), world.space(CONFIG))(config, "mp", True, False)
    return bool(config.scheduler_config.async_scheduling)


def _chain(source: EngineSource) -> ast.FunctionDef:
    """The part of ``__post_init__`` that decides, as a function of its own."""
    body = source.node(CONFIG, _INIT).body
    for i, node in enumerate(body):
        if (
            isinstance(node, ast.If)
            and ast.unparse(node.test) == "self.scheduler_config.async_scheduling"
        ):
            made = ast.parse(
                "def overlaps(self, executor_backend, executor_supports_async_sched, "
                "uses_rocm_deepep_ht_dbo): pass"
            ).body[0]
            before = [each for each in body[:i] if "v1_async_sched_incompat" in ast.unparse(each)]
            made.body = [*before, node]
            return made
    raise source.unread(f"{CONFIG}: {_INIT}", "async_scheduling is decided elsewhere")


def _is_v2_for_all(source: EngineSource) -> bool:
    """Whether the second model runner serves every model unless a feature is missing there."""
    one_by_one = source.has(CONFIG, "VllmConfig._is_default_v2_model_runner_model")
    return source.has(CONFIG, "VllmConfig.use_v2_model_runner") and not one_by_one


def _unsupported(world: World, config: Given) -> bool:
    world.space(CONFIG)["entry_points"] = lambda **_: []
    name = "VllmConfig._get_v2_model_runner_unsupported_features"
    return bool(world.ask(CONFIG, name, config))


def word(given: bool) -> str:
    """As the table has it."""
    return "yes" if given else "no"
