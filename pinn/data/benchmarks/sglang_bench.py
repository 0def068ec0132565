"""``python -m sglang.bench_serving --output-file``: one JSON object appended a run.

Layout read in the sources of SGLang 0.4.1 to 0.5.23. From 0.5.8 on ``server_info`` holds the
server's resolved flags. Random lengths are uniform in [r L, L] with r = 0 by default, so that their
mean is half of what was asked for; the stored totals tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pinn.data.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, StatedServer
from pinn.data.benchmarks.documents import Document
from pinn.data.benchmarks.figures import checked
from pinn.data.benchmarks.given_load import GivenLoad, NotUsable
from pinn.data.benchmarks.vllm_bench import ClientFile, client_figures, client_load

TOOL = "sglang.bench_serving"
_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}

#: Resolved flag of SGLang -> field of ``ServingSpec`` that has its part in the simulation.
_FLAGS = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "chunked_prefill_size": "max_num_batched_tokens",
    "max_running_requests": "max_num_seqs",
    "context_length": "max_model_len",
}
#: Formats by SGLang's name -> by that of ``--quantization``.
_FORMATS = {"modelopt_fp4": "nvfp4", "modelopt_fp8": "fp8", "fp8": "fp8", "w8a8_fp8": "fp8",
            "w8a8_int8": "int8", "awq": "int4", "gptq": "int4", "mxfp4": "mxfp4"}  # fmt: skip

#: A mean within this share of the asked distribution's says that it was the one drawn from.
_AGREES = 0.1


class _File(ClientFile):
    dataset_name: str = ""
    random_input_len: int | None = None
    random_output_len: int | None = None
    random_range_ratio: float | None = None
    accept_length: float | None = None
    server_info: dict[str, Any] | None = None


def is_sglang_bench(document: Document) -> bool:
    """Whether SGLang's client wrote it."""
    first = document.first
    return "mean_e2e_latency_ms" in first and "dataset_name" in first and "completed" in first


def read_sglang_bench(values: Any, name: str, given: GivenLoad) -> BenchmarkRun:
    """One run.

    Raises:
        NotUsable: If nothing was served or a number is missing.
        PinnError: If the user has to say more.
    """
    file = checked(_File, values)
    if "shared-prefix" in file.dataset_name:
        given.needed("prompt_groups", None, name)
    assumed = ["SGLang's prefill steps, which decodes wait for, are simulated as vLLM's mixed ones"]
    sent = file.num_prompts or given.num_prompts or file.completed
    load = _random_lengths(file, client_load(file, sent, name, given, assumed), assumed)
    info = file.server_info or {}
    speculative = bool(info.get("speculative_algorithm")) or (file.accept_length or 1) > 1
    server = sglang_server(info, speculative)
    return BenchmarkRun(
        name, TOOL, load, client_figures(file, values, _NAMES), file.completed,
        sent - file.completed, server, tuple(assumed),
    )  # fmt: skip


def _random_lengths(file: _File, load: Load, assumed: list[str]) -> Load:
    """Uniform lengths where the totals agree with what was asked for."""
    if not file.dataset_name.startswith("random") or load.prompt.each:
        return load
    share = file.random_range_ratio or 0.0
    for side, asked in (("prompt", file.random_input_len), ("output", file.random_output_len)):
        mean = getattr(load, side).mean
        if asked and abs(asked * (1 + share) / 2 / mean - 1) <= _AGREES:
            uniform = Lengths(mean, max(share * asked, 1), 2 * mean - max(share * asked, 1))
            load = replace(load, **dict[str, Any]({side: uniform}))
    if load.prompt.low is not None and load.output.low is not None:
        assumed[:] = [text for text in assumed if "--length-range" not in text]
    return load


def sglang_server(info: Mapping[str, Any], speculative: bool = False) -> StatedServer:
    """The server of a ``server_info``; empty where there is none.

    Raises:
        NotUsable: If attention runs data-parallel, which the flags here do not say.
    """
    if info.get("enable_dp_attention") and int(info.get("dp_size") or 1) > 1:
        raise NotUsable("data-parallel attention of SGLang is not simulated")
    flags = {ours: info[theirs] for theirs, ours in _FLAGS.items() if (info.get(theirs) or 0) > 0}
    if int(info.get("dp_size") or 1) > 1:
        flags["data_parallel_size"] = info["dp_size"]
    if int(info.get("ep_size") or 1) > 1:
        flags["enable_expert_parallel"] = True
    if "disable_radix_cache" in info:
        flags["enable_prefix_caching"] = not info["disable_radix_cache"]
    if str(info.get("kv_cache_dtype", "")).startswith("fp8"):
        flags["kv_cache_dtype"] = "fp8"
    if info.get("disable_cuda_graph"):
        flags["enforce_eager"] = True
    if info.get("quantization") in _FORMATS:
        flags["precision"] = _FORMATS[info["quantization"]]
    states = info.get("internal_states") or [{}]
    tokens = (states[0].get("memory_usage") or {}).get("token_capacity")
    engine = f"sglang {info['version']}" if info.get("version") else "sglang"
    return StatedServer(str(info.get("model_path", "")), "", flags, tokens, engine, speculative)
