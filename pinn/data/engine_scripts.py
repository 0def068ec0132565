"""How the benchmark's launch scripts started SGLang and TensorRT-LLM, where rows do not say it.

The history of the public benchmark (InferenceX, folder ``benchmarks``) holds the scripts; here are
the flags that decide what a step holds. Flags that no line names are the engine's defaults.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pandas as pd

_DEEPSEEK = "deepseek-ai/DeepSeek-R1"
_LLAMA, _GPT_OSS = "meta-llama/Llama-3.3-70B-Instruct", "openai/gpt-oss-120b"

#: ``--chunked-prefill-size`` by default on GPUs of 60 to 160 GB (sglang ``server_args.py``), and
#: ``max_num_tokens`` (TensorRT-LLM ``llm_args.py``).
DEFAULT_TOKENS = {"sglang": 8192, "trtllm": 8192}
#: What ``max_num_tokens`` is rounded up to, and has to spare.
SPARE_TOKENS = 64
#: Largest batch of decodes in a CUDA graph: SGLang's default from TP 4 on, and below.
SGLANG_GRAPH_REQUESTS, SGLANG_GRAPH_REQUESTS_SMALL = 512, 256
#: ``batch_wait_timeout_iters`` of Llama's script, for prompts and outputs of so many tokens on
#: fewer than so many GPUs, and the share of the budget that ends a wait; as the script is
#: remembered. Equal prompts with other outputs, and on 8 GPUs, show no wait (docs/engines.md).
WAIT_STEPS, WAIT_TOKENS, WAIT_BELOW_GPUS, WAIT_SHARE = 20, 1024, 8, 0.9
#: ``attention_dp_config: timeout_iters`` of DeepSeek's script, and the engine's default
#: (``llm_args.py``: ``AttentionDpConfig``) that gpt-oss's leaves, both as remembered.
BALANCE_STEPS, DEFAULT_BALANCE_STEPS = 60, 50
#: From so many requests on SGLang's B200 scripts poll once in 30 steps, below once in 10.
POLLED_RARELY_FROM, RARE_POLL_STEPS, POLL_STEPS = 16, 30, 10


@dataclass(frozen=True)
class EngineScript:
    """What the scripts of one model on one engine pass.

    Attributes:
        engine: ``sglang`` or ``trtllm``.
        source: The scripts.
        model: Name in the model catalogue; empty for all.
        gpus: Systems; empty for all.
        precision: Scheme of the weights; empty for all.
        kv_cache_dtype: Format of the KV cache.
        step_tokens: Most tokens of a step or chunk; 0 for the default.
        one_prompt: Whether a step has room for one prompt beside the decodes of all clients.
        polls_rarely: Whether ``--scheduler-recv-interval`` is passed.
        gathers_prompts: Whether ``batch_wait_timeout_iters`` is passed for short loads.
        balance_steps: ``timeout_iters`` of attention data parallelism with ``enable_balance``; 0
            without it.
        precision_served: Scheme that really ran, where the file's label hides it.
    """

    engine: str
    source: str
    model: str = ""
    gpus: tuple[str, ...] = ()
    precision: str = ""
    kv_cache_dtype: str = "auto"
    step_tokens: int = 0
    one_prompt: bool = False
    polls_rarely: bool = False
    gathers_prompts: bool = False
    balance_steps: int = 0
    precision_served: str = ""

    def runs(self, engine: str, model: str, gpu: str, precision: str) -> bool:
        """Whether it is the script of a row."""
        return (
            engine == self.engine
            and self.model in ("", model)
            and (not self.gpus or gpu in self.gpus)
            and self.precision in ("", precision)
        )


SCRIPTS: tuple[EngineScript, ...] = (
    EngineScript(
        "sglang", "dsr1_fp4_b200.sh: --chunked-prefill-size 16384, --scheduler-recv-interval",
        _DEEPSEEK, ("b200_sxm", "b300_sxm"), "nvfp4", "fp8", 16384, polls_rarely=True,
    ),
    EngineScript(
        "sglang", "dsr1_fp8_b200.sh: --chunked-prefill-size 32768, --scheduler-recv-interval",
        _DEEPSEEK, ("b200_sxm", "b300_sxm"), "fp8_block", "fp8", 32768, polls_rarely=True,
    ),
    EngineScript(
        "sglang", "dsr1_fp8_h200.sh: --chunked-prefill-size 32768, KV cache as the model has it",
        _DEEPSEEK, ("h200_sxm",), "fp8_block", "auto", 32768,
    ),
    EngineScript(
        "trtllm", "gptoss_fp4_b200_trt.sh: kv_cache_config dtype fp8, max_num_tokens 20000, "
        "TRTLLM experts", _GPT_OSS, ("b200_sxm",), "mxfp4", "fp8", 20000,
        precision_served="mxfp4_mxfp8", balance_steps=DEFAULT_BALANCE_STEPS,
    ),
    EngineScript(
        "trtllm", "gptoss_fp4_h200_trt.sh: kv_cache_config dtype fp8, max_num_tokens 20000",
        _GPT_OSS, ("h200_sxm",), "mxfp4", "fp8", 20000,
    ),
    EngineScript(
        "trtllm", "dsr1_*_trt.sh: kv_cache_config dtype fp8; max_num_tokens from CONC + ISL + 64, "
        "as the scripts are remembered: not read again", _DEEPSEEK, kv_cache_dtype="fp8",
        one_prompt=True, balance_steps=BALANCE_STEPS,
    ),
    EngineScript("trtllm", "llama70b_*_trt.sh: kv_cache_config dtype fp8; "
        "batch_wait_timeout_iters, as remembered", _LLAMA, kv_cache_dtype="fp8",
        gathers_prompts=True),
)  # fmt: skip


def script_of(engine: str, model: str, gpu: str, precision: str) -> EngineScript:
    """The script that a row ran; one that passes nothing where none is known."""
    for script in SCRIPTS:
        if script.runs(engine, model, gpu, precision):
            return script
    return EngineScript(engine, "no script known: the engine's defaults")


def with_engine_flags(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with what their scripts passed.

    Args:
        rows: Columns ``engine``, ``model``, ``gpu``, ``precision``, ``concurrency``,
            ``prompt_tokens``, ``output_tokens``, ``tensor_parallel_size`` and
            ``data_parallel_size``.

    Returns:
        The rows with ``precision``, ``kv_cache_dtype``, ``max_num_batched_tokens`` and
        ``max_cudagraph_capture_size`` as they ran, and ``poll_interval``, after how many decode
        steps the engine looks for new requests, and ``prompt_wait_steps``, how many new prompts
        wait for others. TensorRT-LLM's scripts capture graphs up to the
        concurrency, with padding.
    """
    named = zip(rows["engine"], rows["model"], rows["gpu"], rows["precision"], strict=True)
    scripts = [script_of(*names) for names in named]
    at = list(zip(scripts, rows["concurrency"], rows["tensor_parallel_size"], strict=True))
    return rows.assign(
        precision=[
            s.precision_served or stated
            for s, stated in zip(scripts, rows["precision"], strict=True)
        ],
        kv_cache_dtype=[s.kv_cache_dtype for s in scripts],
        max_num_batched_tokens=[
            _step_tokens(s, clients, prompt)
            for (s, clients, _), prompt in zip(at, rows["prompt_tokens"], strict=True)
        ],
        max_cudagraph_capture_size=[_graphs(s, clients, tp) for s, clients, tp in at],
        poll_interval=[_poll_steps(s, clients) for s, clients, _ in at],
        prompt_wait_steps=[
            _wait_steps(s, row) for s, row in zip(scripts, rows.to_dict("records"), strict=True)
        ],
        moe_backend="",
    )


def _step_tokens(script: EngineScript, concurrency: int, prompt_tokens: int) -> int:
    """TensorRT-LLM does not cut prompts: with no room for one beside all decodes some would starve.

    None did, so scripts that do not say otherwise are taken to pass what that needs.
    """
    least = -(-(concurrency + prompt_tokens + SPARE_TOKENS) // SPARE_TOKENS) * SPARE_TOKENS
    if script.one_prompt:
        return least
    stated = script.step_tokens or DEFAULT_TOKENS[script.engine]
    return max(stated, least) if script.engine == "trtllm" else stated


def _graphs(script: EngineScript, concurrency: int, tensor_parallel_size: int) -> int:
    if script.engine == "trtllm":
        return int(concurrency)
    return SGLANG_GRAPH_REQUESTS if tensor_parallel_size >= 4 else SGLANG_GRAPH_REQUESTS_SMALL


def _wait_steps(script: EngineScript, row: dict[Hashable, Any]) -> int:
    """Steps that new prompts of a row's server wait for others."""
    if row["data_parallel_size"] > 1:
        return script.balance_steps
    short = row["prompt_tokens"] == row["output_tokens"] == WAIT_TOKENS
    few = row["tensor_parallel_size"] < WAIT_BELOW_GPUS
    return WAIT_STEPS if script.gathers_prompts and short and few else 0


def _poll_steps(script: EngineScript, concurrency: int) -> int:
    if not script.polls_rarely:
        return 1
    return RARE_POLL_STEPS if concurrency >= POLLED_RARELY_FROM else POLL_STEPS
