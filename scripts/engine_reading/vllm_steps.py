"""vLLM's rules on which steps run as CUDA graphs, and on asynchronous scheduling."""

import ast
import re
import typing

from engine_reading.sandbox import Given, Symbol
from engine_reading.table import Line, default
from engine_reading.vllm_stand_ins import BLACKWELL, world_of
from engine_reading.wheel import EngineSource, compiled

CONFIG = "vllm/config/vllm.py"
_SETTINGS = "vllm/config/scheduler.py: SchedulerConfig"
_INIT = f"{CONFIG}: VllmConfig.__post_init__"
_MANY = 10**6
#: Draft methods with the same name in ``pinn.specs.speculation`` and vLLM.
_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model")


def graph_sizes(source: EngineSource) -> list[Line]:
    """Return rows with the CUDA graph mode and the largest captured batch in tokens.

    Another row states whether the largest batch grows with the number of draft tokens.
    """
    rule, flag = f"{CONFIG}: VllmConfig._set_cudagraph_sizes", "max_cudagraph_capture_size"
    if not source.has(rule):
        rule = rule.replace(CONFIG, "vllm/config/__init__.py")
    wide, usual, drafted = (
        _largest_graph(source, rule, *about)
        for about in ((10.0, _MANY, 0), (9.0, _MANY, 0), (9.0, 8, 3))
    )
    if drafted not in (16, 64):
        raise source.unread(
            rule, f"graphs of 8 requests with 3 drafts cover {drafted} tokens, expected 16 or 64"
        )
    return [
        default("cudagraph_mode", *_mode(source, rule.partition(": ")[0])),
        *([default(flag, wide, rule, gpu=BLACKWELL)] if wide != usual else []),
        default(flag, usual, rule),
        default("graphs_of_drafts", drafted == 64, rule),
    ]


def _largest_graph(
    source: EngineSource, rule: str, capability: float, max_num_seqs: int, drafts: int
) -> int:
    """Return the size in tokens of the largest CUDA graph of a server.

    It depends on the GPU's compute capability, the maximum number of running requests, and the
    number of draft tokens.
    """
    world = world_of(source, capability, CUDAGraphMode=Symbol("mode"))
    config = _config(max_num_seqs, drafts)
    if "cuda_graph_sizes" in source.words(init := f"{_SETTINGS}.__post_init__"):
        world.ask(init, config.scheduler_config)
    captured: list[int] = []
    config.compilation_config.init_with_cudagraph_sizes = captured.extend
    world.ask(rule, config)
    return max(config.compilation_config.cudagraph_capture_sizes or captured)


def _config(max_num_seqs: int, drafts: int = 0, method: str = "", stages: int = 1) -> Given:
    """Return a configuration before the rules on graphs and scheduling have set values."""
    speculative = Given(
        method=method, num_speculative_tokens=drafts, parallel_drafting=False,
        disable_padded_drafter_batch=False, use_dflash=lambda: False, use_dspark=lambda: False,
        uses_dynamic_speculative_decoding=lambda: False,
    )  # fmt: skip
    return Given(
        scheduler_config=Given(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=_MANY, max_model_len=4096,
            cuda_graph_sizes=[], runner_type="generate", max_num_partial_prefills=1,
            async_scheduling=None,
        ),
        parallel_config=Given(
            pipeline_parallel_size=stages, distributed_executor_backend="mp",
            all2all_backend="", data_parallel_size=1, tensor_parallel_size=1,
            prefill_context_parallel_size=1, decode_context_parallel_size=1,
        ),
        speculative_config=speculative if drafts else None,
        model_config=Given(
            enforce_eager=False, runner_type="generate", logits_processors=None, logprobs_mode="",
        ),
        compilation_config=Given(
            mode=None, level=3, cudagraph_mode=Symbol("mode.FULL"), cudagraph_capture_sizes=None,
            max_cudagraph_capture_size=None, post_init_cudagraph_sizes=lambda: None,
            pass_config=Given(),
        ),
        cache_config=Given(mamba_cache_mode="none", kv_sharing_fast_prefill=False),
        lora_config=None, ec_transfer_config=None, reasoning_config=None,
        num_speculative_tokens=drafts, uniform_decode_query_len=1 + drafts,
        performance_mode="balanced",
    )  # fmt: skip


def _mode(source: EngineSource, path: str) -> tuple[str, str]:
    """Return the release's default CUDA graph mode and the place that sets it."""
    place = source.first(f"{path}: OPTIMIZATION_LEVEL_02", f"{path}: VllmConfig.__post_init__")
    pattern = r"cudagraph_mode(?:': | is None:.*?= )CUDAGraphMode\.(\w+)"
    named = re.search(pattern, source.words(place), re.DOTALL)
    if named is None:
        raise source.unread(place, "the function sets no mode of CUDA graphs")
    return named[1], place


def overlap(source: EngineSource) -> list[Line]:
    """Return rows that state whether asynchronous scheduling is the default.

    The rows are for servers without speculative decoding, with pipeline parallelism, and with each
    draft method.
    """
    place = f"{_SETTINGS}.async_scheduling"
    given = source.constant(place)
    plain, pipelined, drafted = False, False, []
    if given is None:
        place = _INIT
        plain, pipelined = _overlaps(source), _overlaps(source, stages=2)
        drafted = [method for method in _METHODS if _overlaps(source, method)]
    elif given is not False:
        raise source.unread(place, f"the default is {given!r}, expected None or False")
    return [
        default("async_scheduling", plain, place),
        default("async_scheduling_pipelined", pipelined, place),
        default("async_scheduling_drafted", " ".join(drafted) or "none", place),
    ]


def _overlaps(source: EngineSource, method: str = "", stages: int = 1) -> bool:
    world = world_of(source, get_args=typing.get_args, entry_points=lambda **_: [])
    config = _config(256, 3 if method else 0, method, stages)
    own = f"{CONFIG}: VllmConfig"
    # vLLM's second model runner serves every model, unless it lacks a feature or is limited to
    # listed models.
    config.use_v2_model_runner = (
        source.has(f"{own}.use_v2_model_runner")
        and not source.has(f"{own}._is_default_v2_model_runner_model")
        and not world.ask(f"{own}._get_v2_model_runner_unsupported_features", config)
    )
    compiled(_chain(source), world.space(CONFIG))(config, "mp", True, False)
    return bool(config.scheduler_config.async_scheduling)


def _chain(source: EngineSource) -> ast.FunctionDef:
    """Return the part of ``__post_init__`` about asynchronous scheduling as a separate function."""
    body = source.node(_INIT).body
    tests = [ast.unparse(each.test) if isinstance(each, ast.If) else "" for each in body]
    if (decided := "self.scheduler_config.async_scheduling") not in tests:
        raise source.unread(_INIT, "the function does not decide on async_scheduling")
    at = tests.index(decided)
    given = "self, executor_backend, executor_supports_async_sched, uses_rocm_deepep_ht_dbo"
    made = ast.parse(f"def overlaps({given}): pass").body[0]
    made.body = [*(n for n in body[:at] if "v1_async_sched_incompat" in ast.unparse(n)), body[at]]
    return made
