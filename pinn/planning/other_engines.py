"""How SGLang and TensorRT-LLM are started with flags that were given.

Names are those that the flags declare (``pinn.specs.serving``); what an engine's command cannot
say stands in a comment behind it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from pinn.simulator.engine_spec import EngineSpec
from pinn.specs.flags import Flag, flags_of
from pinn.specs.serving import SGLANG, TRTLLM, ServingSpec

_FLAGS = (*flags_of(ServingSpec), *flags_of(EngineSpec))
#: Fields that are no flag of either engine.
_ABOUT = frozenset(
    {"engine", "engine_version", "speculative_acceptance", "replicas", "data_parallel_routing"}
)
#: vLLM's flags that SGLang's ``server_args.py`` has no counterpart of.
_NOT_SGLANGS = frozenset(
    {"enable_expert_parallel", "generation_config", "override_generation_config",
     *(flag.name for flag in flags_of(EngineSpec) if SGLANG not in flag.spelled)}
)  # fmt: skip
#: Formats that SGLang makes of a 16-bit checkpoint by itself.
_SGLANG_FORMATS = {"fp8": ["--quantization", "fp8"], "bf16": ["--dtype", "bfloat16"],
                   "fp16": ["--dtype", "float16"]}  # fmt: skip
#: Options of ``tensorrt_llm/commands/serve.py``.
_TRTLLM_OPTIONS = {
    "tensor_parallel_size": "--tp_size",
    "pipeline_parallel_size": "--pp_size",
    "ep_size": "--ep_size",
    "max_num_batched_tokens": "--max_num_tokens",
    "max_num_seqs": "--max_batch_size",
    "max_model_len": "--max_seq_len",
    "gpu_memory_utilization": "--kv_cache_free_gpu_memory_fraction",
}
#: Keys of ``tensorrt_llm/llmapi/llm_args.py`` for its ``--extra_llm_api_options`` file.
_TRTLLM_KEYS = {
    "enable_prefix_caching": "kv_cache_config.enable_block_reuse",
    "block_size": "kv_cache_config.tokens_per_block",
    "kv_cache_dtype": "kv_cache_config.dtype",
    "max_cudagraph_capture_size": "cuda_graph_config.max_batch_size",
    "cudagraph_padding": "cuda_graph_config.enable_padding",
    "moe_backend": "moe_config.backend",
    "enable_chunked_prefill": "enable_chunked_prefill",
    "enable_dp_attention": "enable_attention_dp",
    "async_scheduling": "disable_overlap_scheduler",
    "speculative_config": "speculative_config",
}


def sglang_command(given: Mapping[str, Any]) -> str:
    """``python -m sglang.launch_server ...``."""
    form = str(given.get("precision", ""))
    words = ["python", "-m", "sglang.launch_server", "--model-path", str(given["model"])]
    words += _SGLANG_FORMATS.get(form, [])
    unsaid = []
    for flag, value in _set(given):
        said = _sglang_words(flag, value)
        words += said or []
        unsaid += [] if said else [flag.option]
    return shlex.join(words) + _note("" if form in _SGLANG_FORMATS else form, unsaid)


def _sglang_words(flag: Flag, value: Any) -> list[str] | None:
    """None where SGLang cannot be told."""
    if flag.name == "enable_chunked_prefill":
        return None if value else ["--chunked-prefill-size", "-1"]
    if flag.name in _NOT_SGLANGS:
        return None
    name = flag.spelled_for(SGLANG)
    if flag.kind != "bool":
        return [name, str(value)]
    # Its switches have no opposite.
    return [name] if value != _is_reverse(flag, SGLANG) else None


def _is_reverse(flag: Flag, engine: str) -> bool:
    return flag.spelled.get(engine, "").startswith("no_")


def trtllm_command(given: Mapping[str, Any]) -> str:
    """``trtllm-serve ...``; for bash, which hands it the file of options as a pipe."""
    words = ["trtllm-serve", str(given["model"]), "--backend", "pytorch"]
    extra: dict[str, Any] = {}
    unsaid = []
    for flag, value in _set(given):
        if flag.name in _TRTLLM_OPTIONS:
            words += [_TRTLLM_OPTIONS[flag.name], str(value)]
        elif flag.name in _TRTLLM_KEYS:
            section, _, key = _TRTLLM_KEYS[flag.name].rpartition(".")
            place = extra.setdefault(section, {}) if section else extra
            place[key] = value != _is_reverse(flag, TRTLLM) if flag.kind == "bool" else value
            if flag.name == "speculative_config":
                place[key] = json.loads(value)
        elif flag.name == "enforce_eager":
            extra["cuda_graph_config"] = None
        elif flag.name != "data_parallel_size":  # all ranks, under enable_attention_dp
            unsaid.append(flag.option)
    line = shlex.join(words)
    if extra:
        line += f" --extra_llm_api_options <(echo {shlex.quote(json.dumps(extra))})"
    return line + _note(str(given.get("precision", "")), unsaid)


def _set(given: Mapping[str, Any]) -> list[tuple[Flag, Any]]:
    """Flags that differ from their defaults."""
    return [
        (flag, given[flag.name])
        for flag in _FLAGS
        if flag.name not in _ABOUT
        and given.get(flag.name) is not None
        and given[flag.name] != flag.default
    ]


def _note(form: str, unsaid: list[str]) -> str:
    notes = [f"with a checkpoint in {form}"] if form else []
    notes += [f"it has no {', '.join(unsaid)}"] if unsaid else []
    return f"  # {'; '.join(notes)}" if notes else ""
