"""How the benchmark's launch scripts started vLLM where the rows of the file do not say it.

The history of the public benchmark (InferenceX, folder ``benchmarks``) holds the scripts. A row
tells its model, GPU, number format and day, which name the script that ran. Flags that no script
of that day passes are vLLM's defaults.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pandas as pd

from pinn.specs.expert_kernels import CUTLASS, MARLIN, TRITON, as_in_tables
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.recipe import EffectiveRecipe
from pinn.specs.recipe_rules import effective_recipe
from pinn.specs.serving import ServingSpec

#: Expert parallelism of a script: always, never, or as the row's own label says.
ALWAYS, NEVER, AS_LABELLED = "always", "never", "as labelled"

#: ``--max-num-batched-tokens`` of scripts that pass twice the nominal prompt length.
PROMPTS_PER_STEP = 2

#: ``--max-model-len`` beyond prompt and output, as the benchmark's workflow adds it up.
MODEL_LEN_MARGIN = 200

_MINIMAX, _KIMI = "MiniMaxAI/MiniMax-M2.5", "moonshotai/Kimi-K2.5"
_LLAMA, _GPT_OSS = "meta-llama/Llama-3.3-70B-Instruct", "openai/gpt-oss-120b"
_BLACKWELL = ("b200_sxm", "b300_sxm")


@dataclass(frozen=True)
class LaunchScript:
    """What one script passes.

    Attributes:
        model: Name in the model catalogue.
        gpus: Systems that it serves on.
        precision: Scheme of the weights; empty for all.
        since: First day, ISO 8601; empty where there was no other before.
        until: Day from which another holds; empty where none does.
        source: The script and what it is known from.
        kv_cache_dtype: ``--kv-cache-dtype``.
        expert_parallel: ``ALWAYS``, ``NEVER`` or ``AS_LABELLED``.
        two_prompts_per_step: Whether the token budget is twice the nominal prompt length.
        graph_tokens: ``--max-cudagraph-capture-size``; None where it is not passed.
        precision_served: Scheme that really ran, where an environment variable chooses it.
        expert_kernels: Kernels of the experts that the script's environment variables or its
            release pick; empty for those of the kernel tables.
    """

    model: str
    gpus: tuple[str, ...]
    source: str
    precision: str = ""
    since: str = ""
    until: str = ""
    kv_cache_dtype: str = "auto"
    expert_parallel: str = AS_LABELLED
    two_prompts_per_step: bool = False
    graph_tokens: int | None = None
    precision_served: str = ""
    expert_kernels: str = ""

    def runs(self, model: str, gpu: str, precision: str, date: str) -> bool:
        """Whether it is the script of a row."""
        return (
            (model, gpu in self.gpus, self.precision in ("", precision)) == (self.model, True, True)
            and self.since <= date
            and (not self.until or date < self.until)
        )


#: B300's scripts are those of B200 by another name; with 16-bit keys and values, what they held at
#: once would not have fitted.
SCRIPTS: tuple[LaunchScript, ...] = (
    LaunchScript(
        _LLAMA, ("b200_sxm", "h200_sxm"), "llama70b scripts of 2025-10", kv_cache_dtype="fp8"
    ),
    LaunchScript(
        _GPT_OSS, ("b200_sxm",), "gptoss_fp4_b200: VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1",
        kv_cache_dtype="fp8", precision_served="mxfp4_mxfp8", graph_tokens=2048,
    ),
    LaunchScript(
        _GPT_OSS, ("h100_sxm", "h200_sxm"), "gptoss_fp4_h100, gptoss_fp4_h200: "
        "VLLM_MXFP4_USE_MARLIN=1", expert_kernels=MARLIN, graph_tokens=2048,
    ),
    LaunchScript(
        _MINIMAX, _BLACKWELL, "minimaxm2.5_fp8_b200.sh before bddbf4031: EP_SIZE >= 1, "
        "VLLM_USE_FLASHINFER_MOE_FP8=0, VLLM_MOE_USE_DEEP_GEMM=0, which leave Triton",
        precision="fp8_block", until="2026-04-03", expert_parallel=ALWAYS, expert_kernels=TRITON,
    ),
    LaunchScript(
        _MINIMAX, _BLACKWELL, "minimaxm2.5_fp8_b200.sh from bddbf4031", precision="fp8_block",
        since="2026-04-03", kv_cache_dtype="fp8", two_prompts_per_step=True, graph_tokens=2048,
    ),
    LaunchScript(
        _MINIMAX, _BLACKWELL, "minimaxm2.5_fp4_b200.sh of 2026-04", precision="nvfp4",
        kv_cache_dtype="fp8", two_prompts_per_step=True, graph_tokens=2048,
    ),
    LaunchScript(
        _MINIMAX, ("h200_sxm",), "minimaxm2.5_fp8_h200.sh before 5e2c705d3, on vLLM 0.16.0, whose "
        "fp8 experts are FlashInfer CUTLASS's (vllm-project/vllm#33490)", until="2026-03-13",
        expert_parallel=NEVER, expert_kernels=CUTLASS,
    ),
    LaunchScript(
        _MINIMAX, ("h200_sxm",), "minimaxm2.5_fp8_h200.sh from 5e2c705d3", since="2026-03-13",
        expert_parallel=ALWAYS,
    ),
    LaunchScript(
        _KIMI, _BLACKWELL, "kimik2.5_fp4_b200.sh of 2026-04 (vLLM 0.19.0)", precision="nvfp4",
        since="2026-04-17", kv_cache_dtype="fp8", two_prompts_per_step=True, graph_tokens=2048,
    ),
)  # fmt: skip


def script_of(model: str, gpu: str, precision: str, date: str) -> LaunchScript:
    """The script that a row ran; one that passes nothing where none is known."""
    for script in SCRIPTS:
        if script.runs(model, gpu, precision, date):
            return script
    return LaunchScript(model, (gpu,), "no script known: vLLM's defaults")


def with_launch_flags(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with what their scripts passed.

    Args:
        rows: Columns ``model``, ``gpu``, ``precision``, ``date``, ``prompt_tokens``,
            ``tensor_parallel_size`` and ``enable_expert_parallel`` (the label).

    Returns:
        The rows with ``precision``, ``kv_cache_dtype``, ``enable_expert_parallel`` (never with one
        GPU), ``max_num_batched_tokens``, ``max_cudagraph_capture_size`` and ``moe_backend`` as
        they ran.
    """
    named = zip(rows["model"], rows["gpu"], rows["precision"], rows["date"], strict=True)
    scripts = [script_of(model, gpu, precision, date) for model, gpu, precision, date in named]
    label = rows["enable_expert_parallel"].tolist()
    expert_parallel = [
        {ALWAYS: True, NEVER: False}.get(script.expert_parallel, labelled)
        for script, labelled in zip(scripts, label, strict=True)
    ]
    several = rows["tensor_parallel_size"] > 1
    return rows.assign(
        precision=[
            script.precision_served or stated
            for script, stated in zip(scripts, rows["precision"], strict=True)
        ],
        kv_cache_dtype=[s.kv_cache_dtype for s in scripts],
        enable_expert_parallel=several & pd.Series(expert_parallel, index=rows.index),
        max_num_batched_tokens=[
            PROMPTS_PER_STEP * int(prompt)
            if script.two_prompts_per_step
            else _defaults(gpu).token_budget
            for script, prompt, gpu in zip(scripts, rows["prompt_tokens"], rows["gpu"], strict=True)
        ],
        max_cudagraph_capture_size=[
            script.graph_tokens or _defaults(gpu).graph_tokens
            for script, gpu in zip(scripts, rows["gpu"], strict=True)
        ],
        moe_backend=[
            script.expert_kernels or as_in_tables(load_gpu(gpu))
            for script, gpu in zip(scripts, rows["gpu"], strict=True)
        ],
    )


@cache
def _defaults(gpu: str) -> EffectiveRecipe:
    """What vLLM runs without flags."""
    return effective_recipe(ServingSpec(), load_gpu(gpu))
