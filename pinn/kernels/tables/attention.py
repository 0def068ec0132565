"""Tables of attention kernels, latent ones too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common.files import ReadReport
from pinn.kernels.tables.table import (
    DECODE_ATTENTION,
    FORMATS,
    LATENT,
    PRIMARY,
    Rule,
    TableSource,
    bytes_per_element,
    read_table,
    refuse,
)
from pinn.kernels.tables.work import Work, decode_work, latent_prefill_work, prefill_work
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import LatentAttentionSpec
from pinn.units import MILLISECOND

# Measured attention over ordinary key and value heads, of decodes and of fresh prompts.

COLUMNS = (
    "batch_size",
    "isl",
    "step",
    "num_heads",
    "num_key_value_heads",
    "head_dim",
    "kv_cache_dtype",
    "kernel_source",
    "latency",
)
#: Above this share of the time, keys and values that came from the cache spoil a row (assumption).
WARM_SHARE = 0.2
#: Part of a working set slightly larger than the cache still comes from there (assumption: 10 %).
CACHE_MARGIN = 1.1


def _columns(source: TableSource) -> tuple[str, ...]:
    """The A100's tables, older than the others, know no attention windows."""
    return COLUMNS if source.system == "a100_sxm" else (*COLUMNS, "window_size")


def _rows(table: pd.DataFrame, gpu: GpuSpec, report: ReadReport) -> pd.DataFrame:
    window = table.get("window_size", 0)
    return pd.DataFrame(
        {
            "gpu": gpu.name,
            "kv_precision": table["kv_cache_dtype"].map(FORMATS),
            "sequences": table["batch_size"],
            "heads": table["num_heads"],
            "kv_heads": table["num_key_value_heads"],
            "head_dim": table["head_dim"],
            "window": window,
            "seconds": table["latency"] * MILLISECOND,
            "kernel": table["kernel_source"],
            "source": report.source,
        }
    )


def _decode_work(r: pd.DataFrame) -> Work:
    return decode_work(
        r["sequences"].to_numpy(),
        r["context_tokens"].to_numpy(),
        r["heads"].to_numpy(),
        r["kv_heads"].to_numpy(),
        r["head_dim"].to_numpy(),
        r["window"].to_numpy(),
        bytes_per_element(r["kv_precision"]),
    )


def _prefill_work(r: pd.DataFrame) -> Work:
    names = ("sequences", "tokens", "heads", "kv_heads", "head_dim", "window")
    return prefill_work(*(r[name].to_numpy() for name in names))


def _below_floor(r: pd.DataFrame, work: Work, gpu: GpuSpec) -> np.ndarray:
    memory = work.read_bytes / gpu.memory_bandwidth_bytes_per_s
    compute = work.flop / max(gpu.peak_flop_per_s["bf16"], gpu.peak_flop_per_s.get("fp8", 0.0))
    return r["seconds"].to_numpy() < np.maximum(memory, compute)


def _warm(r: pd.DataFrame, work: Work, gpu: GpuSpec) -> np.ndarray:
    memory = work.read_bytes / gpu.memory_bandwidth_bytes_per_s
    return (work.read_bytes <= CACHE_MARGIN * gpu.l2_bytes) & (
        memory > WARM_SHARE * r["seconds"].to_numpy()
    )


def _shared_heads(source: TableSource) -> list[tuple[str, Callable[[pd.DataFrame], pd.Series]]]:
    """What a table is not read for that stands in where heads share no keys and values."""
    above = source.ungrouped_heads_above
    if above is None:
        return []
    return [
        (
            "heads that vLLM's table has",
            lambda r: (r["kv_heads"] < r["heads"]) | (r["heads"] <= above),
        )
    ]


def read_decode_attention(
    gpu: GpuSpec, source: TableSource, systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """Decode attention rows of one table; ``context_tokens`` counts the new token too.

    The tables repeat each kernel on one cache, so keys and values that fit the last-level cache
    come from there; in a server every other layer lies between two reads of the same keys. Such
    rows are refused where the difference would matter.

    Returns:
        Columns gpu, kv_precision, sequences, context_tokens, heads, kv_heads, head_dim, window (0
        for none), seconds, kernel, source; and the report.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(
        source, "attention", "generation_attention_perf", _columns(source), systems
    )
    rows = _rows(table, gpu, report).assign(context_tokens=table["step"] + table["isl"])
    return refuse(
        rows,
        report,
        [
            ("format not used", lambda r: r["kv_precision"].isna()),
            ("no time", lambda r: ~(r["seconds"] > 0)),
            *_shared_heads(source),
            ("keys and values from a warm cache", lambda r: _warm(r, _decode_work(r), gpu)),
            ("below the floor", lambda r: _below_floor(r, _decode_work(r), gpu)),
        ],
    )


def read_prefill_attention(
    gpu: GpuSpec, source: TableSource, systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """Prefill attention rows of one table: ``sequences`` fresh prompts of ``tokens`` each.

    Returns:
        Columns as of decode attention, with tokens for context_tokens; and the report.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(
        source, "attention", "context_attention_perf", _columns(source), systems
    )
    rows = _rows(table, gpu, report).assign(tokens=table["isl"], cached_tokens=table["step"])
    rows, report = refuse(
        rows,
        report,
        [
            ("format not used", lambda r: r["kv_precision"].isna()),
            ("no time", lambda r: ~(r["seconds"] > 0)),
            ("after cached tokens", lambda r: r["cached_tokens"] != 0),
            ("below the floor", lambda r: _below_floor(r, _prefill_work(r), gpu)),
        ],
    )
    return rows.drop(columns="cached_tokens"), report


def read_all_attention(
    gpus: dict[str, GpuSpec], systems: Path | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, list[ReadReport]]:
    """Decode and prefill attention rows of every declared table whose system is in ``gpus``."""
    sources = [s for s in PRIMARY if s.system in gpus]
    decode = [
        read_decode_attention(gpus[s.system], s, systems)
        for s in DECODE_ATTENTION
        if s.system in gpus
    ]
    prefill = [read_prefill_attention(gpus[s.system], s, systems) for s in sources]
    return (
        pd.concat([p[0] for p in decode], ignore_index=True),
        pd.concat([p[0] for p in prefill], ignore_index=True),
        [p[1] for p in (*decode, *prefill)],
    )


# Measured multi-head latent attention (MLA): whole modules of DeepSeek-V3's shape.
#
# A row times the projections, the attention and everything between them, so absolute times hold
# launches that a CUDA graph hides. What the attention of decodes costs shows in the difference
# to the same module at the shortest context: ``core_seconds``. Prompts have no such row beside
# them: there the projections, which are known multiplications, are taken off when the attention
# is fitted.

LATENT_COLUMNS = (
    "model",
    "kv_cache_dtype",
    "gemm_type",
    "num_heads",
    "batch_size",
    "step",
    "kernel_source",
    "latency",
)
_PROMPT_COLUMNS = tuple("isl" if name == "step" else name for name in LATENT_COLUMNS)
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
    table, report = read_table(source, "mla", "mla_generation_module_perf", LATENT_COLUMNS, systems)
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
