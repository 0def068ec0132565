"""Measured kernels of recurrent and sparse mixers, and roofline fits of them.

One declarative table: which file holds an operator, which of its kernels, what makes a shape, and
the times at datasheet rates that its own time is a non-negative sum of. There is no network: the
kernels stream states or keys, and sums of such times miss left-out shapes by a few percent. Each
term grows, or stays, with requests, tokens and context, and so does the fit.

Mamba-1's scan and Mamba-2's are in no table (Mamba-2's holds its convolutions alone): composed
steps take them at datasheet rates (``pinn.kernels.datasheet_mixers``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.files.read_report import ReadReport
from pinn.kernels.roofline_fit import fit_terms
from pinn.kernels.tables.sources import TableSource
from pinn.kernels.tables.table import read_table, refuse, systems_folder
from pinn.specs.gpu import GpuSpec
from pinn.specs.mixers import CHUNK_TOKENS, GATED_DELTA, IndexerSpec
from pinn.specs.precision import ACTIVATION_BYTES
from pinn.units import MILLISECOND

Columns = dict[str, Float[np.ndarray, " rows"]]
Terms = Float[np.ndarray, "rows terms"]

#: Unit of counts of launches, waves and chunks: a fitted weight is then of order one.
_LAUNCH_SECONDS = 1e-5
#: GLM-5's indexer, the one that was timed (its config.json).
_INDEXER = IndexerSpec(top_k=2048, heads=32)
#: Its latent attention: heads as timed; key and value widths of DeepSeek-V2's latent space; bytes
#: of a cached key in SGLang's fp8 layout (512 + 64 x 2 + 4 x 4 of scales).
_HEADS, _PAIR_WIDTH, _KEY_BYTES = 64, 576 + 512, 656.0


@dataclass(frozen=True)
class MixerOperator:
    """One operator of the tables.

    Attributes:
        name: What it is called in errors.
        kind: Folder of the tables.
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
    terms: Callable[[Columns, Columns], list[Float[np.ndarray, " rows"]]]


def _recurrence(c: Columns, gpu: Columns) -> list[Float[np.ndarray, " rows"]]:
    """A decode's states in fp32, read and written; beyond the cache, and four times it; waves."""
    heads = c["batch_size"] * c["num_v_heads"]
    moved = heads * c["head_k_dim"] * c["head_v_dim"] * 8.0
    return [*_beyond_cache(moved, gpu), *_waves(heads, gpu)]


def _convolution(c: Columns, gpu: Columns) -> list[Float[np.ndarray, " rows"]]:
    """Channels in and out, the tails of the requests, and the blocks of threads."""
    channels = 2 * c["num_k_heads"] * c["head_k_dim"] + c["num_v_heads"] * c["head_v_dim"]
    moved = 2 * ACTIVATION_BYTES * c["batch_size"] * c["seq_len"] * channels
    tails = c["batch_size"] * channels * 3 * 2 * ACTIVATION_BYTES
    blocks = c["batch_size"] * np.ceil(c["seq_len"] / 8) * channels / 256
    large = c["batch_size"] * np.ceil(c["seq_len"] / 1024) * channels / 64
    return [
        *_beyond_cache(moved, gpu),
        np.minimum(moved, gpu["l2"]) / gpu["l2"] * _LAUNCH_SECONDS,
        tails / gpu["bandwidth"],
        *_waves(blocks, gpu),
        *_waves(large, gpu),
        c["batch_size"] / gpu["sms"] * _LAUNCH_SECONDS,
        np.ceil(c["seq_len"] / 128) / 16 * _LAUNCH_SECONDS,
    ]


def _scan(c: Columns, gpu: Columns) -> list[Float[np.ndarray, " rows"]]:
    """Arithmetic of chunks, keys and values, states, and chunks one after the other."""
    k, v, chunk = c["head_k_dim"], c["head_v_dim"], CHUNK_TOKENS[GATED_DELTA]
    heads, tokens = c["num_v_heads"], c["batch_size"] * c["seq_len"]
    rows, chunks = c["batch_size"] * heads, np.ceil(c["seq_len"] / chunk)
    flop = tokens * heads * (6 * k * v + 2 * chunk * (3 * k + 2 * v))
    moved = tokens * ACTIVATION_BYTES * (2 * c["num_k_heads"] * k + 2 * heads * v)
    states = rows * k * v
    return [
        flop / gpu["peak"],
        moved / gpu["bandwidth"],
        states * 8.0 / gpu["bandwidth"],
        states * chunks * 2 * ACTIVATION_BYTES / gpu["bandwidth"],
        chunks * _LAUNCH_SECONDS,
        chunks * np.ceil(rows / gpu["sms"]) * _LAUNCH_SECONDS,
        chunks * rows / gpu["sms"] * _LAUNCH_SECONDS,
        *_waves(rows, gpu),
    ]


def _index_scores(c: Columns, gpu: Columns) -> list[Float[np.ndarray, " rows"]]:
    """Scores' arithmetic in fp8, keys read, scores written, and tiles of 64 x 256."""
    queries, length = c["batch_size"] * c["isl"], _mean_keys(c)
    pairs, square = queries * length, queries * (c["step"] + c["isl"])
    keys = c["batch_size"] * (c["step"] + c["isl"]) * _INDEXER.key_bytes
    tiles = c["batch_size"] * np.ceil(c["isl"] / 64) * np.ceil((c["step"] + c["isl"]) / 256)
    deep = np.ceil(length / 256) / 64
    return [
        pairs * _INDEXER.score_flop / gpu["fp8"],
        square * _INDEXER.score_flop / gpu["fp8"],
        keys / gpu["bandwidth"],
        np.maximum(keys - gpu["l2"], 0) / gpu["bandwidth"],
        pairs * 4.0 / gpu["bandwidth"],
        square * 4.0 / gpu["bandwidth"],
        np.maximum(pairs * 4.0 - gpu["l2"], 0) / gpu["bandwidth"],
        deep * _LAUNCH_SECONDS,
        deep * np.ceil(queries / 64 / gpu["sms"]) * _LAUNCH_SECONDS,
        queries / gpu["sms"] * _LAUNCH_SECONDS,
        *_waves(tiles, gpu),
    ]


def _index_choice(c: Columns, gpu: Columns) -> list[Float[np.ndarray, " rows"]]:
    """Scores read and choices written; a block for each query, longer beyond the top-k.

    Two blocks share an SM; scores beyond the cache, and rows longer than 16,384, take longer.
    """
    queries, length = c["batch_size"] * c["isl"], _mean_keys(c)
    waves, pairs = np.ceil(queries / gpu["sms"]), np.ceil(queries / gpu["sms"] / 2)
    beyond, far = np.maximum(length - _INDEXER.top_k, 0), np.maximum(length - 16384, 0)
    scores = queries * length * 4.0
    return [
        length / 16384 * _LAUNCH_SECONDS,
        waves * length / 16384 * _LAUNCH_SECONDS,
        scores / gpu["bandwidth"],
        np.maximum(scores - gpu["l2"], 0) / gpu["bandwidth"],
        queries * _INDEXER.top_k * 4.0 / gpu["bandwidth"],
        waves * _LAUNCH_SECONDS,
        queries / gpu["sms"] * _LAUNCH_SECONDS,
        beyond / 16384 * _LAUNCH_SECONDS,
        waves * beyond / 16384 * _LAUNCH_SECONDS,
        (beyond > 0) * _LAUNCH_SECONDS,
        (beyond > 0) * waves * _LAUNCH_SECONDS,
        pairs * _LAUNCH_SECONDS,
        pairs * length / 16384 * _LAUNCH_SECONDS,
        far / 16384 * _LAUNCH_SECONDS,
        waves * far / 16384 * _LAUNCH_SECONDS,
    ]


def _sparse_attention(c: Columns, gpu: Columns) -> list[Float[np.ndarray, " rows"]]:
    """Chosen pairs: arithmetic, keys gathered; queries in and outputs out; all top-k as if full."""
    queries = c["batch_size"] * c["isl"]
    pairs = c["batch_size"] * (_reached(c["step"] + c["isl"]) - _reached(c["step"]))
    flop_per_pair = 2.0 * _HEADS * _PAIR_WIDTH
    return [
        pairs * flop_per_pair / gpu["peak"],
        queries * _INDEXER.top_k * flop_per_pair / gpu["peak"],
        pairs * _KEY_BYTES / gpu["bandwidth"],
        np.maximum(pairs * _KEY_BYTES - gpu["l2"], 0) / gpu["bandwidth"],
        queries * _HEADS * _PAIR_WIDTH * ACTIVATION_BYTES / gpu["bandwidth"],
        *_waves(queries, gpu),
    ]


def _beyond_cache(moved: np.ndarray, gpu: Columns) -> list[Float[np.ndarray, " rows"]]:
    """Bytes, those that the cache does not hold, and those that four of it do not."""
    left = (np.maximum(moved - times * gpu["l2"], 0.0) for times in (0, 1, 4))
    return [each / gpu["bandwidth"] for each in left]


def _waves(blocks: np.ndarray, gpu: Columns) -> list[Float[np.ndarray, " rows"]]:
    """Blocks of threads per SM, and rounded up to whole waves."""
    per_sm = blocks / gpu["sms"]
    return [per_sm * _LAUNCH_SECONDS, np.ceil(per_sm) * _LAUNCH_SECONDS]


def _mean_keys(c: Columns) -> np.ndarray:
    """Keys that a query of a causal prompt sees in the mean."""
    return c["step"] + (c["isl"] + 1) / 2


def _reached(tokens: np.ndarray) -> np.ndarray:
    """Pairs of the first tokens of a sequence, each with the top-k of those before it."""
    near = np.minimum(tokens, _INDEXER.top_k)
    return near * (near + 1) / 2 + np.maximum(tokens - near, 0) * _INDEXER.top_k


_HEADED = ("batch_size", "seq_len", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
_MAMBA = ("batch_size", "seq_len", "n_groups", "d_state", "nheads", "head_dim")
_PROMPTS, _DECODES = ("phase", "context"), ("phase", "generation")
_FLAT, _RISING = ("score_mode", "flat"), ("score_mode", "top_last")
_INDEXED = ("batch_size", "isl", "step")
_GDN = ("linear_attention", "vllm", "0.24.0", "gdn_perf")
_KDA = ("kda", "vllm", "0.1.dev19262", "kda_perf")
_MAMBA2 = ("linear_attention", "trtllm", "1.3.0rc20", "mamba2_perf")
_DSA = ("sparse_attention", "sglang", "0.5.14")
_BY_HEADS, _BY_STATE = ("num_k_heads", "num_v_heads"), ("num_v_heads", "head_k_dim")
_BY_LENGTH = ("isl", "step")

#: The operators, by name.
MIXER_OPERATORS: dict[str, MixerOperator] = {
    operator.name: operator
    for operator in (
        MixerOperator("gated delta decode", *_GDN, "fused_recurrent", _DECODES, _HEADED,
                      _BY_HEADS, _recurrence),
        MixerOperator("gated delta scan", *_GDN, "chunk_gated_delta_rule_flashinfer", _PROMPTS,
                      _HEADED, _BY_HEADS, _scan),
        MixerOperator("gated delta convolution", *_GDN, "causal_conv1d", (), _HEADED, _BY_HEADS,
                      _convolution),
        MixerOperator("KDA decode", *_KDA, "fused_kda_decode", _DECODES, _HEADED, _BY_HEADS,
                      _recurrence),
        MixerOperator("KDA scan", *_KDA, "flashkda_fwd", _PROMPTS, _HEADED, _BY_HEADS, _scan),
        MixerOperator("KDA convolution", *_KDA, "causal_conv1d_fn", _PROMPTS, _HEADED, _BY_HEADS,
                      _convolution),
        MixerOperator("Mamba-2 convolution", *_MAMBA2, "causal_conv1d_fn", _PROMPTS, _MAMBA,
                      _BY_STATE, _convolution),
        MixerOperator("Mamba-2 convolution, decode", *_MAMBA2, "causal_conv1d_update",
                      _DECODES, _MAMBA, _BY_STATE, _convolution),
        MixerOperator("indexer scores", *_DSA, "glm5_mqa_logits_module_perf", "", (), _INDEXED,
                      _BY_LENGTH, _index_scores),
        MixerOperator("indexer choice, equal scores", *_DSA, "glm5_topk_module_perf", "", _FLAT,
                      _INDEXED, _BY_LENGTH, _index_choice),
        MixerOperator("indexer choice, best last", *_DSA, "glm5_topk_module_perf", "", _RISING,
                      _INDEXED, _BY_LENGTH, _index_choice),
        MixerOperator("sparse attention", *_DSA, "glm5_dsa_attn_module_perf", "", (), _INDEXED,
                      _BY_LENGTH, _sparse_attention),
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
    return pd.concat(found, ignore_index=True), tuple(reports)


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
        rows: As :func:`read_mixer_kernels` gives them.
        gpus: Datasheets by the name in the ``gpu`` column.
    """
    names = [_NAMES.get(name, name) for name in operator.columns]
    sizes = {name: rows[name].to_numpy(dtype=np.float64) for name in names}
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
    launch = np.full(len(rows), _LAUNCH_SECONDS)
    return np.stack([launch, *operator.terms(sizes, gpu)], axis=1)


def fit_operator(terms: Terms, seconds: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " terms"]:
    """Non-negative weights of the terms."""
    return fit_terms(terms, seconds)
