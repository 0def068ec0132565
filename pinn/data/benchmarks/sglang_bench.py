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
from pinn.specs.flags import Flag, flags_of
from pinn.specs.serving import SGLANG, ServingSpec

TOOL = "sglang.bench_serving"
_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"}

#: Share of its own value that SGLang leaves of ``schedule_conservativeness`` under attention data
#: parallelism, which divides the chunk among its ranks, too (0.5.9 server_args.py:
#: _handle_data_parallelism). Both are undone here, since flags are what the user gave.
_CONSERVATIVE = 0.3

#: Flags that are read otherwise, or whose resolved values are names of SGLang's own.
_UNREAD = {"engine", "engine_version", "kv_cache_dtype", "moe_backend", "sampling_backend",
           "speculative_config", "disaggregation_mode"}  # fmt: skip
#: Formats by SGLang's name -> by that of ``--quantization``.
_FORMATS = {"modelopt_fp4": "nvfp4", "modelopt_fp8": "fp8_static", "fp8": "fp8",
            "w8a8_fp8": "fp8", "w8a8_int8": "int8", "awq": "int4", "gptq": "int4",
            "mxfp4": "mxfp4"}  # fmt: skip

#: A mean within this share of the asked distribution's says that it was the one drawn from.
_AGREES = 0.1


class _File(ClientFile):
    backend: str = "sglang"
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
    assumed: list[str] = []
    sent = file.num_prompts or given.num_prompts or file.completed
    load = _random_lengths(file, client_load(file, sent, name, given, assumed), assumed)
    server = StatedServer(engine=file.backend)
    if file.server_info:
        server = sglang_server(file.server_info)
    server = replace(server, speculative=server.speculative or (file.accept_length or 1) > 1)
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


def sglang_server(info: Mapping[str, Any]) -> StatedServer:
    """The server of a ``server_info``, which holds resolved flags by SGLang's names.

    Raises:
        NotUsable: If prefill and decode ran apart.
    """
    if str(info.get("disaggregation_mode") or "null") != "null":
        raise NotUsable("prefill and decode on servers of their own")
    flags = {f.name: f.read(value) for f in flags_of(ServingSpec)
             if f.name not in _UNREAD and (value := _resolved(f, info)) is not None}  # fmt: skip
    replicas = flags.get("data_parallel_size", 1)
    if flags.get("enable_dp_attention") and replicas > 1:
        for name, factor in (("max_num_batched_tokens", replicas),
                             ("schedule_conservativeness", 1 / _CONSERVATIVE)):  # fmt: skip
            if name in flags:
                flags[name] *= factor
    if str(info.get("kv_cache_dtype", "")).startswith("fp8"):
        flags["kv_cache_dtype"] = "fp8"
    if (info.get("chunked_prefill_size") or 1) < 0:
        flags["enable_chunked_prefill"] = False
    if info.get("quantization") in _FORMATS:
        flags["precision"] = _FORMATS[info["quantization"]]
    states = info.get("internal_states") or [{}]
    tokens = (states[0].get("memory_usage") or {}).get("token_capacity")
    engine = f"sglang {info.get('version') or ''}".strip()
    speculative = bool(info.get("speculative_algorithm"))
    return StatedServer(str(info.get("model_path", "")), "", flags, tokens, engine, speculative)


def _resolved(flag: Flag, info: Mapping[str, Any]) -> Any:
    """A flag's value; None where the server names none, or writes -1 for it."""
    spelled = flag.spelled.get(SGLANG, flag.name)
    value = info.get(spelled.removeprefix("no_"))
    if value is None or (flag.kind in ("int", "float") and value <= 0):
        return None
    return not value if spelled.startswith("no_") else value
