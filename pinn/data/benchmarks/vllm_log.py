"""vLLM's log with ``--enable-logging-iteration-details``: batches, and the flags at its top.

A line's elapsed time is the wait for the result: with asynchronous scheduling (the default from
0.14 on) it is neither the model's time nor the cycle. The cycle is read off the times before the
lines, which are whole seconds, where the log is long enough.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np

from pinn.data.benchmarks.benchmark_run import BenchmarkRun, Load, StatedServer
from pinn.data.benchmarks.documents import Document
from pinn.data.benchmarks.figures import kept
from pinn.data.benchmarks.given_load import GivenLoad, NotUsable
from pinn.data.traces.readers.iteration_log import read_iteration_log
from pinn.specs.flags import given_flags
from pinn.specs.serving import ServingSpec

TOOL = "vLLM log"

_ITERATION = re.compile(r"\bIteration\s*\(\s*\d+\s*\)")
_ARGS = re.compile(r"non-default args: (\{.*\})")
_CONFIG = re.compile(r"Initializing a V1 LLM engine \(v([^)]+)\) with config: (.*)")
# The device is named: GPU, CPU, XPU (vllm 0.32.0 vllm/v1/core/kv_cache_utils.py).
_KV_TOKENS = re.compile(r"\bKV cache size: ([\d,]+) tokens")

#: Below this span whole seconds say too little of a cycle: an assumption, 5 % at either end.
_MIN_SPAN_S = 20.0


def is_vllm_log(document: Document) -> bool:
    """Whether it is a log with iteration details."""
    return bool(_ITERATION.search(document.text))


def vllm_log_points(document: Document) -> list[Any]:
    """One run a log."""
    return [(document.path, document.text)]


def read_vllm_log(point: Any, name: str, given: GivenLoad) -> BenchmarkRun:
    """The load and the mean gap between tokens of a log.

    Requests are counted by their prompts: a prompt cut into chunks goes on in the step after one
    that was full. The tokens of prompts leave out what the prefix cache held.

    Raises:
        NotUsable: If it holds no prompt or no token.
        PinnError: If the user has to say more.
    """
    path, text = point
    table = read_iteration_log(Path(path))[0].to_pandas()
    server = log_server(text)
    busy = table[(table["prefill_requests"] + table["decode_requests"]) > 0]
    tokens = (busy["prefill_tokens"] + busy["decode_tokens"]).to_numpy()
    budget = server.flags.get("max_num_batched_tokens") or 8192
    prefills = busy["prefill_requests"].to_numpy()
    full = np.concatenate([[False], tokens[:-1] >= budget]) & (prefills > 0)
    requests = int(prefills.sum() - full.sum())
    decoded = int(busy["decode_tokens"].sum())
    if requests < 1 or decoded < 1:
        raise NotUsable("no prompt or no token between its first and last iteration")
    assumed: list[str] = []
    if given.request_rate is None:
        running = int((busy["prefill_requests"] + busy["decode_requests"]).max())
        concurrency: int | None = given.concurrency or running
        if given.concurrency is None:
            assumed.append(f"a closed loop of the {running} requests of its largest batch "
                           "(--concurrency, --request-rate)")  # fmt: skip
    else:
        concurrency = given.concurrency
    prompt = given.or_stated("prompt_tokens", busy["prefill_tokens"].sum() / requests, name)
    output = given.or_stated("output_tokens", 1 + decoded / requests, name)
    load = Load(
        requests,
        given.lengths(float(prompt), assumed),
        given.lengths(float(output), assumed),
        concurrency,
        given.request_rate,
        prefix=given.prefix(assumed),
    )
    figures = {"itl_mean_s": _gap_s(busy, assumed)}
    return BenchmarkRun(name, TOOL, load, kept(figures), requests, 0, server, tuple(assumed))


def _gap_s(busy: Any, assumed: list[str]) -> float:
    """Mean gap between tokens: each decode waits for the cycle of its step."""
    decodes = busy["decode_requests"].to_numpy(float)
    logged = busy["logged_s"].to_numpy(float)
    span = np.nanmax(logged) - np.nanmin(logged) if np.isfinite(logged).any() else 0.0
    if span < _MIN_SPAN_S:
        assumed.append("the elapsed time of an iteration is its cycle: asynchronous scheduling "
                       "makes it shorter")  # fmt: skip
        return float(decodes @ busy["elapsed_s"].to_numpy(float) / decodes.sum())
    # Whole seconds between the first and the last tick; the parts of seconds outside are unknown.
    inner = (logged > np.nanmin(logged)) & (logged < np.nanmax(logged))
    return float((span - 1) / inner.sum())


def log_server(text: str) -> StatedServer:
    """What the top of a log says of the server."""
    flags: dict[str, Any] = {}
    model = engine = ""
    config = _CONFIG.search(text)
    if config:
        engine = f"vllm {config[1]}"
        pairs = dict(re.findall(r"(\w+)='?([^,'()]+)'?", config[2]))
        model = pairs.get("model", "")
        pairs["max_model_len"] = pairs.get("max_seq_len")
        known = {k: v for k, v in pairs.items() if v not in (None, "None")}
        for odd in ("generation_config", "override_generation_config", "kv_cache_dtype"):
            known.pop(odd, None)
        if str(pairs.get("kv_cache_dtype", "")).startswith("fp8"):
            known["kv_cache_dtype"] = "fp8"
        flags = given_flags(ServingSpec, known, "log")
    args = _ARGS.search(text)
    if args:
        try:
            named = ast.literal_eval(args[1])
        except (ValueError, SyntaxError):
            named = {}
        model = str(named.get("model") or named.get("model_tag") or model)
        flags |= given_flags(ServingSpec, named, "log")
    tokens = _KV_TOKENS.search(text)
    held = int(tokens[1].replace(",", "")) if tokens else None
    return StatedServer(model, "", flags, held, engine, "speculative_config" in (args or [""])[0])
