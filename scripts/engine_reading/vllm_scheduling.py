"""Whether vLLM plans a step while the one before runs, by release."""

from __future__ import annotations

import ast
import typing

from engine_reading.sandbox import Given, World
from engine_reading.table import Line
from engine_reading.vllm_stand_ins import stand_ins
from engine_reading.wheel import EngineSource, compiled

#: What drafts, as ``pinn.specs.speculation`` and vLLM both name it.
_METHODS = ("ngram", "eagle", "eagle3", "mtp", "draft_model")
_SETTINGS = "vllm/config/scheduler.py"


def overlap(source: EngineSource) -> list[Line]:
    """By default, with pipeline stages, and the methods of speculation that leave it on."""
    flag, name = "async_scheduling", "SchedulerConfig.async_scheduling"
    default = source.constant(_SETTINGS, name)
    if default is False:
        found = [("", "no"), ("_pipelined", "no"), ("_drafted", "")]
        return [
            Line(f"{flag}{end}", value=value or "none", source=f"{_SETTINGS}: {name}")
            for end, value in found
        ]
    if default is not None:
        raise source.unread(f"{_SETTINGS}: {name}", f"its default is {default!r}")
    path, symbol = "vllm/config/vllm.py", "VllmConfig.__post_init__"
    where = f"{path}: {symbol}"
    drafted = [m for m in _METHODS if _overlaps(source, m)]
    return [
        Line(flag, value=_word(_overlaps(source)), source=where),
        Line(f"{flag}_pipelined", value=_word(_overlaps(source, stages=2)), source=where),
        Line(f"{flag}_drafted", value=" ".join(drafted) or "none", source=where),
    ]


def _overlaps(source: EngineSource, method: str = "", stages: int = 1) -> bool:
    path = "vllm/config/vllm.py"
    world = World(source, {**stand_ins(source, 9.0), "get_args": typing.get_args})
    speculative = Given(
        method=method, num_speculative_tokens=3, uses_dynamic_speculative_decoding=lambda: False,
        parallel_drafting=False, disable_padded_drafter_batch=False,
        use_dflash=lambda: False, use_dspark=lambda: False,
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
    config.use_v2_model_runner = _is_v2_for_all(source) and not _unsupported(world, path, config)
    found = compiled(_chain(source, path), world.space(path))
    found(config, "mp", True, False)
    return bool(config.scheduler_config.async_scheduling)


def _chain(source: EngineSource, path: str) -> ast.FunctionDef:
    """The part of ``__post_init__`` that decides, as a function of its own."""
    init = source.function(path, "VllmConfig.__post_init__")
    for i, node in enumerate(init.body):
        if isinstance(node, ast.If) and ast.unparse(node.test) == (
            "self.scheduler_config.async_scheduling"
        ):
            before = [
                each for each in init.body[:i] if "v1_async_sched_incompat" in ast.unparse(each)
            ]
            arguments = (
                "self, executor_backend, executor_supports_async_sched, uses_rocm_deepep_ht_dbo"
            )
            body = "\n".join(
                f"    {line}" for each in (*before, node) for line in ast.unparse(each).splitlines()
            )
            made = ast.parse(f"def overlaps({arguments}):\n{body}").body[0]
            assert isinstance(made, ast.FunctionDef)
            return made
    raise source.unread(
        f"{path}: VllmConfig.__post_init__", "async_scheduling is decided elsewhere"
    )


def _is_v2_for_all(source: EngineSource) -> bool:
    """Whether the second model runner serves every model unless a feature is missing there."""
    path = "vllm/config/vllm.py"
    return source.has(path, "VllmConfig.use_v2_model_runner") and not source.has(
        path, "VllmConfig._is_default_v2_model_runner_model"
    )


def _unsupported(world: World, path: str, config: Given) -> bool:
    name = "VllmConfig._get_v2_model_runner_unsupported_features"
    world.space(path)["entry_points"] = lambda **_: []
    return bool(compiled(world.source.function(path, name), world.space(path))(config))


def _word(given: bool) -> str:
    return "yes" if given else "no"
