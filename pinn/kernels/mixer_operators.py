"""Measured kernels of recurrent and sparse mixers, and roofline fits of them.

One declarative table: which file holds an operator, which of its kernels, what makes a shape, and
the times at datasheet rates that its own time is a non-negative sum of. There is no network: the
kernels stream states or keys, and sums of such times miss left-out shapes by a few percent. Each
term grows, or stays, with requests, tokens and context, and so does the fit.

Mamba-2's convolutions are TensorRT-LLM's; its scan and update are vLLM 0.15.1's, timed on an H100
SXM with PyTorch 2.11 and Triton 3.6 (``scripts/time_mamba.py``). Mamba-1's and Lightning
Attention's are in no table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.kernels.mixer_terms import (
    LAUNCH_SECONDS,
    TIMED_SIZES,
    Columns,
    Seconds,
    convolution,
    index_choice,
    index_scores,
    recurrence,
    scan,
    sparse_attention,
    state_scan,
    state_update,
)
from pinn.kernels.roofline_fit import fit_terms
from pinn.kernels.tables.sources import TableSource
from pinn.kernels.tables.table import read_table, refuse, systems_folder
from pinn.specs.data_folder import data_folder
from pinn.specs.files.read_report import ReadReport, file_sha256
from pinn.specs.gpu import GpuSpec
from pinn.units import MILLISECOND

Terms = Float[np.ndarray, "rows terms"]


@dataclass(frozen=True)
class MixerOperator:
    """One operator of the tables.

    Attributes:
        name: What it is called in errors.
        kind: Folder of the tables; ``timed`` is the project's own.
        backend: Engine whose kernels were timed.
        version: Of that engine.
        file: Table without suffix.
        kernel: Start of the kernels' names.
        where: A column and the value that counts; empty for all rows.
        columns: Sizes that are read, in the table's words.
        group: Columns that make a shape; errors leave whole shapes out.
        terms: Times in seconds of (sizes, GPU).
    """

    name: str
    kind: str
    backend: str
    version: str
    file: str
    kernel: str
    where: tuple[str, ...]
    columns: tuple[str, ...]
    group: tuple[str, ...]
    terms: Callable[[Columns, Columns], list[Seconds]]


_HEADED = ("batch_size", "seq_len", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
_MAMBA = ("batch_size", "seq_len", "n_groups", "d_state", "nheads", "head_dim")
_PROMPTS, _DECODES = ("phase", "context"), ("phase", "generation")
_FLAT, _RISING = ("score_mode", "flat"), ("score_mode", "top_last")
_INDEXED = ("batch_size", "isl", "step")
_GDN = ("linear_attention", "vllm", "0.24.0", "gdn_perf")
_KDA = ("kda", "vllm", "0.1.dev19262", "kda_perf")
_MAMBA2 = ("linear_attention", "trtllm", "1.3.0rc20", "mamba2_perf")
_TIMED = ("timed", "vllm", "0.15.1", "mamba2_h100_sxm")
_DSA = ("sparse_attention", "sglang", "0.5.14")
_BY_HEADS, _BY_STATE = ("num_k_heads", "num_v_heads"), ("num_v_heads", "head_k_dim")
_BY_WIDTHS = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim", "chunk_size")
_BY_LENGTH = ("isl", "step")

#: The operators, by name.
MIXER_OPERATORS: dict[str, MixerOperator] = {
    operator.name: operator
    for operator in (
        MixerOperator("gated delta decode", *_GDN, "fused_recurrent", _DECODES, _HEADED,
                      _BY_HEADS, recurrence),
        MixerOperator("gated delta scan", *_GDN, "chunk_gated_delta_rule_flashinfer", _PROMPTS,
                      _HEADED, _BY_HEADS, scan),
        MixerOperator("gated delta convolution", *_GDN, "causal_conv1d", (), _HEADED, _BY_HEADS,
                      convolution),
        MixerOperator("KDA decode", *_KDA, "fused_kda_decode", _DECODES, _HEADED, _BY_HEADS,
                      recurrence),
        MixerOperator("KDA scan", *_KDA, "flashkda_fwd", _PROMPTS, _HEADED, _BY_HEADS, scan),
        MixerOperator("KDA convolution", *_KDA, "causal_conv1d_fn", _PROMPTS, _HEADED, _BY_HEADS,
                      convolution),
        MixerOperator("Mamba-2 convolution", *_MAMBA2, "causal_conv1d_fn", _PROMPTS, _MAMBA,
                      _BY_STATE, convolution),
        MixerOperator("Mamba-2 convolution, decode", *_MAMBA2, "causal_conv1d_update",
                      _DECODES, _MAMBA, _BY_STATE, convolution),
        MixerOperator("Mamba-2 scan", *_TIMED, "", ("operator", "scan"),
                      (*_MAMBA, "chunk_size", "state"), _BY_WIDTHS, state_scan),
        MixerOperator("Mamba-2 update", *_TIMED, "", ("operator", "update"),
                      (*_MAMBA, "chunk_size", "state"), _BY_WIDTHS, state_update),
        MixerOperator("indexer scores", *_DSA, "glm5_mqa_logits_module_perf", "", (), _INDEXED,
                      _BY_LENGTH, index_scores),
        MixerOperator("indexer choice, equal scores", *_DSA, "glm5_topk_module_perf", "", _FLAT,
                      _INDEXED, _BY_LENGTH, index_choice),
        MixerOperator("indexer choice, best last", *_DSA, "glm5_topk_module_perf", "", _RISING,
                      _INDEXED, _BY_LENGTH, index_choice),
        MixerOperator("sparse attention", *_DSA, "glm5_dsa_attn_module_perf", "", (), _INDEXED,
                      _BY_LENGTH, sparse_attention),
    )
}  # fmt: skip
#: Mamba-2's words for what the others call heads.
_NAMES = dict(zip(_MAMBA[2:], _HEADED[2:], strict=True))


def read_mixer_kernels(
    operator: MixerOperator, gpus: Mapping[str, GpuSpec], systems: Path | None = None
) -> tuple[pd.DataFrame, tuple[ReadReport, ...]]:
    """Rows of an operator on every GPU whose system has its table.

    Args:
        operator: Of ``MIXER_OPERATORS``.
        gpus: Datasheets by system name.
        systems: The ``systems`` folder of aiconfigurator-core; None for the installed package's.

    Returns:
        Columns gpu, seconds and the sizes, whole shapes of heads under the names of linear
        attention; and the reports.

    Raises:
        PinnError: If a column is missing.
    """
    if operator.kind == "timed":
        return _read_timed(operator, gpus)
    found, reports = [], []
    column, value = operator.where or ("", "")
    for system, gpu in gpus.items():
        source = TableSource(system, operator.backend, operator.version)
        if not _path(operator, source, systems).exists():
            continue
        read = ("kernel_source", "latency", *operator.columns, *operator.where[:1])
        table, report = read_table(source, operator.kind, operator.file, read, systems)
        rows = table.rename(columns=_NAMES).assign(
            gpu=gpu.name, seconds=table["latency"] * MILLISECOND
        )
        rules = [
            ("another kernel", lambda r: ~r["kernel_source"].str.startswith(operator.kernel)),
            ("no time", lambda r: ~(r["seconds"] > 0)),
        ]
        if operator.where:
            rules.insert(0, (f"another {column}", lambda r: r[column] != value))
        kept, report = refuse(rows, report, rules)
        found.append(kept)
        reports.append(report)
    rows = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    return rows, tuple(reports)


def read_all_mixers(
    gpus: Mapping[str, GpuSpec], systems: Path | None = None
) -> tuple[dict[str, pd.DataFrame], tuple[ReadReport, ...]]:
    """Rows of every operator that was timed on one of the GPUs; arguments as above."""
    found = {o.name: read_mixer_kernels(o, gpus, systems) for o in MIXER_OPERATORS.values()}
    tables = {name: rows for name, (rows, _) in found.items() if len(rows)}
    return tables, tuple(report for _, reports in found.values() for report in reports)


def _read_timed(
    operator: MixerOperator, gpus: Mapping[str, GpuSpec]
) -> tuple[pd.DataFrame, tuple[ReadReport, ...]]:
    """Rows of the project's own table, named for its system."""
    path = data_folder("kernels") / f"{operator.file}.csv"
    system = operator.file.removeprefix("mamba2_")
    table = pd.read_csv(path).rename(columns=_NAMES)
    rows = table.assign(gpu=gpus[system].name if system in gpus else "")
    column, value = operator.where
    report = ReadReport(path.name, operator.version, file_sha256(path), len(rows), len(rows))
    kept, report = refuse(
        rows,
        report,
        [
            ("another GPU", lambda r: r["gpu"] == ""),
            (f"another {column}", lambda r: r[column] != value),
        ],
    )
    return kept, (report,)


def _path(operator: MixerOperator, source: TableSource, systems: Path | None) -> Path:
    folder = systems_folder() if systems is None else systems
    place = f"{source.system}/{operator.kind}/{source.backend}/{source.version}"
    return folder / "data" / place / f"{operator.file}.parquet"


def operator_terms(
    operator: MixerOperator, rows: pd.DataFrame, gpus: Mapping[str, GpuSpec]
) -> Terms:
    """Times of rows at datasheet rates, a launch first.

    Args:
        operator: Of ``MIXER_OPERATORS``.
        rows: As :func:`read_mixer_kernels` gives them; an indexer's may have ``TIMED_SIZES`` of
            their own.
        gpus: Datasheets by the name in the ``gpu`` column.
    """
    names = [_NAMES.get(name, name) for name in operator.columns]
    names += [name for name in TIMED_SIZES if name in rows]
    sizes = {name: np.full(len(rows), float(size)) for name, size in TIMED_SIZES.items()}
    sizes |= {name: rows[name].to_numpy(dtype=np.float64) for name in names}
    rates = {
        "bandwidth": lambda g: g.memory_bandwidth_bytes_per_s,
        "peak": lambda g: g.peak_flop_per_s["bf16"],
        "fp8": lambda g: g.peak_flop_per_s.get("fp8", g.peak_flop_per_s["bf16"]),
        "sms": lambda g: g.sm_count,
        "l2": lambda g: g.l2_bytes,
    }
    gpu = {
        key: rows["gpu"].map({name: rate(g) for name, g in gpus.items()}).to_numpy(np.float64)
        for key, rate in rates.items()
    }
    launch = np.full(len(rows), LAUNCH_SECONDS)
    return np.stack([launch, *operator.terms(sizes, gpu)], axis=1)


def fit_operator(terms: Terms, seconds: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " terms"]:
    """Non-negative weights of the terms."""
    return fit_terms(terms, seconds)
