"""Measured multi-head latent attention (MLA): whole modules of DeepSeek-V3's shape.

A row times the projections, the attention and everything between them, so absolute times hold
launches that a CUDA graph hides. What the attention of decodes costs shows in the difference to the
same module at the shortest context: ``core_seconds``. Prompts have no such row beside them: there
the projections, which are known multiplications, are taken off when the attention is fitted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from pinn.kernels.tables.sources import LATENT, TableSource
from pinn.kernels.tables.table import FORMATS, Rule, read_table, refuse
from pinn.kernels.tables.work import latent_prefill_work
from pinn.specs.files.read_report import ReadReport
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import LatentAttentionSpec
from pinn.units import MILLISECOND

COLUMNS = (
    "model",
    "kv_cache_dtype",
    "gemm_type",
    "num_heads",
    "batch_size",
    "step",
    "kernel_source",
    "latency",
)
_PROMPT_COLUMNS = tuple("isl" if name == "step" else name for name in COLUMNS)
#: DeepSeek-V3, the one shape that was timed (its config.json); ``num_heads`` of it on a rank.
SHAPE = LatentAttentionSpec(128, 1536, 512, 128, 64, 128)
HIDDEN_SIZE = 7168
KV_LORA_RANK, ROPE_DIM = SHAPE.kv_lora_rank, SHAPE.qk_rope_head_dim
_MODULE = ["kv_precision", "gemm_precision", "heads", "sequences"]
_RULES: tuple[Rule, ...] = (
    ("shape is not DeepSeek-V3's", lambda r: r["model"] != "deepseek-ai/DeepSeek-V3"),
    ("projections not in bf16", lambda r: r["gemm_precision"] != "bf16"),
    ("no time", lambda r: ~(r["seconds"] > 0)),
)
#: What vLLM chooses by itself for prompts, on Hopper and on Blackwell. TRT-LLM's ragged kernel runs
#: only where queries are quantized (``use_prefill_query_quantization``, off by default); rows of
#: the other kernels are prompts so short that vLLM runs them as decodes, over compressed keys.
PROMPT_KERNEL = "FLASH_ATTN"


def read_latent_decode(
    gpu: GpuSpec, source: TableSource, systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """MLA decode rows of one table.

    Returns:
        Columns gpu, kv_precision, gemm_precision, sequences, context_tokens, heads, seconds (of
        the module), core_seconds (above the same module at the shortest context), kernel, source;
        and the report.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(source, "mla", "mla_generation_module_perf", COLUMNS, systems)
    rows = pd.DataFrame(
        {
            "gpu": gpu.name,
            "kv_precision": table["kv_cache_dtype"].map(FORMATS),
            "gemm_precision": table["gemm_type"].map(FORMATS),
            "sequences": table["batch_size"],
            "context_tokens": table["step"],
            "heads": table["num_heads"],
            "seconds": table["latency"] * MILLISECOND,
            "kernel": table["kernel_source"],
            "source": report.source,
            "model": table["model"],
        }
    )
    rows, report = refuse(rows, report, _RULES)
    first = rows.sort_values("context_tokens").groupby(_MODULE)["seconds"].transform("first")
    rows["core_seconds"] = rows["seconds"] - first
    return rows.drop(columns="model"), report


def read_latent_prefill(
    gpu: GpuSpec, source: TableSource, systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """MLA rows of one table: fresh prompts.

    Returns:
        Columns gpu, kv_precision, gemm_precision, sequences, tokens, heads, seconds (of the
        module), kernel, source; and the report.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(source, "mla", "mla_context_module_perf", _PROMPT_COLUMNS, systems)
    rows = pd.DataFrame(
        {
            "gpu": gpu.name,
            "kv_precision": table["kv_cache_dtype"].map(FORMATS),
            "gemm_precision": table["gemm_type"].map(FORMATS),
            "sequences": table["batch_size"],
            "tokens": table["isl"],
            "heads": table["num_heads"],
            "seconds": table["latency"] * MILLISECOND,
            "kernel": table["kernel_source"],
            "source": report.source,
            "model": table["model"],
        }
    )
    rows, report = refuse(
        rows,
        report,
        [
            *_RULES,
            (
                "not the kernel that vLLM chooses for prompts of this length by itself",
                lambda r: r["kernel"] != PROMPT_KERNEL,
            ),
            ("below the floor", lambda r: r["seconds"] < _prefill_floor(r, gpu)),
        ],
    )
    return rows.drop(columns="model"), report


def _prefill_floor(r: pd.DataFrame, gpu: GpuSpec) -> np.ndarray:
    """The attention alone, at the datasheet's rate of bf16."""
    sizes = (r["sequences"], r["tokens"], 0.0, r["heads"], SHAPE.head_dim, SHAPE.v_head_dim)
    return latent_prefill_work(*sizes).flop / gpu.peak_flop_per_s["bf16"]


def read_all_latent(
    gpus: dict[str, GpuSpec], systems: Path | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, list[ReadReport]]:
    """MLA rows of every declared table whose system is in ``gpus``: decode, prefill, reports."""
    sources = [s for s in LATENT if s.system in gpus]
    if not sources:
        return pd.DataFrame(), pd.DataFrame(), []
    decode = [read_latent_decode(gpus[s.system], s, systems) for s in sources]
    prefill = [read_latent_prefill(gpus[s.system], s, systems) for s in sources]
    return (
        pd.concat([p[0] for p in decode], ignore_index=True),
        pd.concat([p[0] for p in prefill], ignore_index=True),
        [p[1] for p in decode + prefill],
    )
