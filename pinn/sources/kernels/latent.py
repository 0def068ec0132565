"""Measured multi-head latent attention (MLA): whole modules of DeepSeek-V3's shape, decoding.

A row times the projections, the attention and everything between them, so absolute times hold
launches that a CUDA graph hides. What the attention itself costs shows in the difference to the
same module at the shortest context: ``core_seconds``.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pinn.sources.kernels.sources import LATENT, TableSource
from pinn.sources.kernels.table import FORMATS, read_table, refuse
from pinn.sources.report import ReadReport
from pinn.specs.gpu import GpuSpec
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
KV_LORA_RANK, ROPE_DIM = 512, 64
_MODULE = ["kv_precision", "gemm_precision", "heads", "sequences"]


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
    rows, report = refuse(
        rows,
        report,
        [
            ("shape is not DeepSeek-V3's", lambda r: r["model"] != "deepseek-ai/DeepSeek-V3"),
            ("projections not in bf16", lambda r: r["gemm_precision"] != "bf16"),
            ("no time", lambda r: ~(r["seconds"] > 0)),
        ],
    )
    first = rows.sort_values("context_tokens").groupby(_MODULE)["seconds"].transform("first")
    rows["core_seconds"] = rows["seconds"] - first
    return rows.drop(columns="model"), report


def read_all_latent(
    gpus: dict[str, GpuSpec], systems: Path | None = None
) -> tuple[pd.DataFrame, list[ReadReport]]:
    """MLA decode rows of every declared table whose system is in ``gpus``."""
    parts = [read_latent_decode(gpus[s.system], s, systems) for s in LATENT if s.system in gpus]
    if not parts:
        return pd.DataFrame(), []
    return pd.concat([p[0] for p in parts], ignore_index=True), [p[1] for p in parts]
