"""Kernels of recurrent layers and sparse attention: time terms, measurements and linear fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.common.files import ReadReport, data_folder, file_sha256, read_rows
from pinn.kernels.hardware import Gpus
from pinn.kernels.stored import MeasuredShapes
from pinn.kernels.surrogate import Products, fit_terms, multiplied_seconds
from pinn.kernels.tables.table import NO_TIME, Layout, Read, Rules, TableSource, refuse
from pinn.physics.layer_work import MatMul, dense_matmuls
from pinn.specs.catalog import load_model
from pinn.specs.gpu import GpuSpec
from pinn.specs.mixers import CHUNK_TOKENS, GATED_DELTA, IndexerSpec
from pinn.specs.model import CompressedAttentionSpec, LayerGroup
from pinn.specs.precision import ACTIVATION_BYTES

# Terms of the kernel times of recurrent layers and sparse attention, at the GPU's memory bandwidth
# and peak FLOP/s.
#
# Each function takes the sizes of measured kernels and their GPUs' rates, all of shape ``[rows]``,
# and returns its terms in seconds. No term decreases when requests, tokens or context grow, so
# neither does a sum with non-negative weights.

Seconds = Float[np.ndarray, " rows"]
Columns = dict[str, Float[np.ndarray, " rows"]]

#: Unit of the terms for launches, waves and chunks, chosen so that fitted weights are of order one.
LAUNCH_SECONDS = 1e-5
#: Maximum number of terms of a kernel type, including the launch.
MOST_TERMS = 16
#: GLM-5's indexer, the only one in the tables (sizes from its config.json), and the number of
#: attention heads measured with it. The tables do not state these sizes.
_INDEXER = IndexerSpec(top_k=2048, heads=32)
TIMED_SIZES = {"index_heads": _INDEXER.heads, "top_k": _INDEXER.top_k, "heads": 64}
#: ``_PAIR_WIDTH``: sum of key and value width in MLA's latent space (DeepSeek-V2). ``_KEY_BYTES``:
#: bytes of a cached key in SGLang's fp8 layout (512 + 64 x 2 + 4 x 4 of scales).
_PAIR_WIDTH, _KEY_BYTES = 576 + 512, 656.0
#: Sizes of DeepSeek-V4. ``_WINDOW``: attention window in tokens. ``_V4_WIDTH`` and ``_V4_BYTES``:
#: elements and bytes of one cached key in vLLM.
_WINDOW, _V4_WIDTH, _V4_BYTES = 128, 512, 584.0
#: ``_STREAMS``: residual streams per token (column ``hc_mult``). ``_BOTH_BYTES``: bytes moved per
#: element by both halves of a layer, which were measured together (column ``num_sites``).
_STREAMS, _BOTH_BYTES = 4, 2 * ACTIVATION_BYTES


def recurrence(c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of the time to update fp32 recurrent states in decodes, in seconds.

    There are terms for all bytes, for bytes beyond the L2 cache, and for waves of thread blocks.
    """
    heads = c["batch_size"] * c["num_v_heads"]
    moved = heads * c["head_k_dim"] * c["head_v_dim"] * 8.0
    return [*_beyond_cache(moved, gpu), *_waves(heads, gpu)]


def convolution(c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of a recurrent layer's convolution time, in seconds.

    There are terms for inputs and outputs, cached states, thread blocks, requests and tokens.
    """
    channels = 2 * c["num_k_heads"] * c["head_k_dim"] + c["num_v_heads"] * c["head_v_dim"]
    moved = 2 * ACTIVATION_BYTES * c["batch_size"] * c["seq_len"] * channels
    tails = c["batch_size"] * channels * 3 * 2 * ACTIVATION_BYTES
    blocks = c["batch_size"] * np.ceil(c["seq_len"] / 8) * channels / 256
    large = c["batch_size"] * np.ceil(c["seq_len"] / 1024) * channels / 64
    return [
        *_beyond_cache(moved, gpu),
        np.minimum(moved, gpu["l2"]) / gpu["l2"] * LAUNCH_SECONDS,
        tails / gpu["bandwidth"],
        *_waves(blocks, gpu),
        *_waves(large, gpu),
        c["batch_size"] / gpu["sms"] * LAUNCH_SECONDS,
        np.ceil(c["seq_len"] / 128) / 16 * LAUNCH_SECONDS,
    ]


def scan(c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of the gated delta net's scan time, in seconds.

    There are terms for FLOP, keys and values, states, chunks, and waves of thread blocks.
    """
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
        chunks * LAUNCH_SECONDS,
        chunks * np.ceil(rows / gpu["sms"]) * LAUNCH_SECONDS,
        chunks * rows / gpu["sms"] * LAUNCH_SECONDS,
        *_waves(rows, gpu),
    ]


def state_update(c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of the time of Mamba-2's state update in decodes, in seconds.

    The terms are for moving the states in their stored format, and for moving them in fp32. Both
    are needed, because vLLM's kernel is hardly faster with two-byte states.
    """
    elements = c["batch_size"] * c["num_v_heads"] * c["head_k_dim"] * c["head_v_dim"]
    return [elements * 2 * c["state"] / gpu["bandwidth"], elements * 8.0 / gpu["bandwidth"]]


def state_scan(c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of the time of Mamba-2's chunked scan, in seconds.

    There are terms for FLOP, inputs and outputs, states, and sequential chunks. Each chunk's state
    is written and read in fp32, then written and read in the engine's format.
    """
    heads, tokens = c["num_v_heads"], c["batch_size"] * c["seq_len"]
    k, v, chunk = c["head_k_dim"], c["head_v_dim"], c["chunk_size"]
    chunks = np.ceil(c["seq_len"] / chunk)
    states = c["batch_size"] * heads * k * v
    scores = 2 * chunk * c["num_k_heads"] * k
    moved = tokens * ACTIVATION_BYTES * 2 * (heads * v + c["num_k_heads"] * k)
    return [
        tokens * heads * (2 * chunk * v + 4 * k * v) / gpu["peak"],
        tokens * scores / gpu["peak"],
        moved / gpu["bandwidth"],
        states * chunks * 2 * (4.0 + c["state"]) / gpu["bandwidth"],
        states * c["state"] / gpu["bandwidth"],
        chunks * LAUNCH_SECONDS,
    ]


def index_scores(c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of an indexer's time to score keys in fp8, in seconds.

    There are terms for FLOP, bytes of keys, bytes of scores, queries, and waves of tiles.
    """
    queries, length = c["batch_size"] * c["isl"], _mean_keys(c)
    pairs, square = queries * length, queries * (c["step"] + c["isl"])
    keys = c["batch_size"] * (c["step"] + c["isl"]) * _INDEXER.key_bytes
    tiles = c["batch_size"] * np.ceil(c["isl"] / 64) * np.ceil((c["step"] + c["isl"]) / 256)
    deep = np.ceil(length / 256) / 64
    score_flop = 2.0 * c["index_heads"] * _INDEXER.head_dim
    return [
        pairs * score_flop / gpu["fp8"],
        square * score_flop / gpu["fp8"],
        keys / gpu["bandwidth"],
        np.maximum(keys - gpu["l2"], 0) / gpu["bandwidth"],
        pairs * 4.0 / gpu["bandwidth"],
        square * 4.0 / gpu["bandwidth"],
        np.maximum(pairs * 4.0 - gpu["l2"], 0) / gpu["bandwidth"],
        deep * LAUNCH_SECONDS,
        deep * np.ceil(queries / 64 / gpu["sms"]) * LAUNCH_SECONDS,
        queries / gpu["sms"] * LAUNCH_SECONDS,
        *_waves(tiles, gpu),
    ]


def index_choice(c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of an indexer's time to select the top-k keys, in seconds.

    There are terms for scores read, indices written, and thread blocks (one per query).

    Two thread blocks share an SM. Scores that exceed the L2 cache, and rows of more than 16,384
    scores, take additional time.
    """
    queries, length = c["batch_size"] * c["isl"], _mean_keys(c)
    waves, pairs = np.ceil(queries / gpu["sms"]), np.ceil(queries / gpu["sms"] / 2)
    beyond, far = np.maximum(length - c["top_k"], 0), np.maximum(length - 16384, 0)
    scores = queries * length * 4.0
    return [
        length / 16384 * LAUNCH_SECONDS,
        waves * length / 16384 * LAUNCH_SECONDS,
        scores / gpu["bandwidth"],
        np.maximum(scores - gpu["l2"], 0) / gpu["bandwidth"],
        queries * c["top_k"] * 4.0 / gpu["bandwidth"],
        waves * LAUNCH_SECONDS,
        queries / gpu["sms"] * LAUNCH_SECONDS,
        beyond / 16384 * LAUNCH_SECONDS,
        waves * beyond / 16384 * LAUNCH_SECONDS,
        (beyond > 0) * LAUNCH_SECONDS,
        (beyond > 0) * waves * LAUNCH_SECONDS,
        pairs * LAUNCH_SECONDS,
        pairs * length / 16384 * LAUNCH_SECONDS,
        far / 16384 * LAUNCH_SECONDS,
        waves * far / 16384 * LAUNCH_SECONDS,
    ]


def sparse_attention(c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of the time for attention to selected keys, in seconds.

    There are terms for FLOP, bytes of keys, bytes of queries, and waves of thread blocks.
    """
    queries = c["batch_size"] * c["isl"]
    pairs = c["batch_size"] * (_reached(c, c["step"] + c["isl"]) - _reached(c, c["step"]))
    flop_per_pair = 2.0 * c["heads"] * _PAIR_WIDTH
    return [
        pairs * flop_per_pair / gpu["peak"],
        queries * c["top_k"] * flop_per_pair / gpu["peak"],
        pairs * _KEY_BYTES / gpu["bandwidth"],
        np.maximum(pairs * _KEY_BYTES - gpu["l2"], 0) / gpu["bandwidth"],
        queries * c["heads"] * _PAIR_WIDTH * ACTIVATION_BYTES / gpu["bandwidth"],
        *_waves(queries, gpu),
    ]


def compressed_attention(ratio: int, c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of DeepSeek-V4's attention time without projections, in seconds.

    There are terms for FLOP, for bytes of keys, and for launches.

    Some launches are constant: for 64 heads, for a context beyond the window, and for prompts.
    Other launches grow with the scores of an indexer (with a separate term between its top-k and
    2,048 keys), with requests, and with queries.
    """
    queries, length = c["batch_size"] * c["isl"], _mean_keys(c)
    keys, picks, blocks = length / ratio, c["index_heads"] > 0, queries / gpu["sms"]
    seen = np.minimum(length, _WINDOW) + np.where(picks, np.minimum(keys, c["top_k"]), keys)
    scored, beyond = picks * blocks / 2048, np.clip(keys - c["top_k"], 0, 1536)
    steady = (c["heads"] / 64, c["step"] + c["isl"] > _WINDOW, c["isl"] > 1)
    growing = (scored * keys, scored * beyond, c["batch_size"] / gpu["sms"], blocks)
    return [
        queries * seen * np.maximum(c["heads"], 64) * 4.0 * _V4_WIDTH / gpu["peak"],
        queries * seen * _V4_BYTES / gpu["bandwidth"],
        *(each * LAUNCH_SECONDS for each in (*steady, *growing)),
    ]


def streams(c: Columns, gpu: Columns) -> list[Seconds]:
    """Return the terms of the time to mix residual streams, in seconds.

    There are terms for all bytes, for bytes beyond the L2 cache, and for waves of thread blocks.
    """
    moved = c["batch_size"] * c["hidden_size"] * _STREAMS * _BOTH_BYTES
    return [*_beyond_cache(moved, gpu), *_waves(c["batch_size"], gpu)]


def _beyond_cache(moved: np.ndarray, gpu: Columns) -> list[Seconds]:
    """Return the times in seconds to move all bytes, and those beyond one and four L2 caches."""
    left = (np.maximum(moved - times * gpu["l2"], 0.0) for times in (0, 1, 4))
    return [each / gpu["bandwidth"] for each in left]


def _waves(blocks: np.ndarray, gpu: Columns) -> list[Seconds]:
    """Return two terms in seconds, for thread blocks per SM and for whole waves of blocks."""
    per_sm = blocks / gpu["sms"]
    return [per_sm * LAUNCH_SECONDS, np.ceil(per_sm) * LAUNCH_SECONDS]


def _mean_keys(c: Columns) -> np.ndarray:
    """Return the mean number of keys that a query of a causal prompt sees."""
    return c["step"] + (c["isl"] + 1) / 2


def _reached(c: Columns, tokens: np.ndarray) -> np.ndarray:
    """Count (query, key) pairs of a sequence's first tokens; a query sees up to top-k keys."""
    near = np.minimum(tokens, c["top_k"])
    return near * (near + 1) / 2 + np.maximum(tokens - near, 0) * c["top_k"]


# Measured kernels of recurrent layers and sparse attention, and linear fits to their times.
#
# ``data/kernels/mixer_operators.csv`` has for each kernel type its file, its kernel, the columns of
# a shape, and the terms of its time. The time is a sum of these terms with non-negative weights. A
# network is not needed: the kernels stream states or keys, and such sums have errors of a few
# percent on held-out shapes. No term decreases when requests, tokens or context grow, so neither
# does the fit.
#
# Mamba-2's convolutions are TensorRT-LLM's kernels. Its scan and update are vLLM 0.15.1's kernels,
# measured on an H100 SXM with PyTorch 2.11 and Triton 3.6 (``scripts/time_mamba.py``). Mamba-1 and
# Lightning Attention were not measured.

Terms = Float[np.ndarray, "rows terms"]
#: Model of the measured DeepSeek-V4 attention modules.
_FLASH = "sgl-project/DeepSeek-V4-Flash-FP8"


@dataclass(frozen=True)
class MixerOperator:
    """One kernel type of recurrent layers or sparse attention, in the tables of measured kernels.

    Attributes:
        name: Name of the kernel type in error tables.
        kind: Folder of its tables; ``timed`` for the measurements of this project.
        backend: Engine whose kernels were measured.
        version: Version of that engine.
        columns: Names of the size columns that are read from the table.
        group: Columns that define a shape; held-out errors hold out whole shapes.
        file: Name of the table without suffix.
        kernel: Prefix of the kernel names whose rows are used.
        where: Column and value that select rows; empty for all rows.
        terms: Function that takes sizes and a GPU's rates and returns the terms of the kernel's
            time, in seconds.
        constants: Sizes that are constant in all rows and therefore not columns of the table.
        included: Function that takes rows, a GPU and the time of matrix products and returns the
            part of the measured seconds that is already counted in other parts of a step; None if
            there is no such part.
    """

    name: str
    kind: str
    backend: str
    version: str
    columns: tuple[str, ...]
    group: tuple[str, ...]
    file: str
    kernel: str
    where: tuple[str, ...]
    terms: Callable[[Columns, Columns], list[Seconds]]
    constants: Mapping[str, int] = field(default_factory=dict)
    included: Callable[[pd.DataFrame, GpuSpec, Products], Seconds] | None = None


def _projections(ratio: int, rows: pd.DataFrame, gpu: GpuSpec, products: Products) -> Seconds:
    """Return the time in seconds of the matrix products that were measured with the attention."""
    model, tokens = load_model(_FLASH), (rows["batch_size"] * rows["isl"]).to_numpy(np.float64)
    mixers = (group.attention for group in model.layer_groups)
    mixer = next(m for m in mixers if isinstance(m, CompressedAttentionSpec) and m.ratio == ratio)
    alone = replace(model, layer_groups=(LayerGroup(1, mixer, None),))

    def without_head(heads: int) -> tuple[MatMul, ...]:
        return dense_matmuls(alone, mixer.heads // heads)[:-1]

    local = rows["heads"].to_numpy()
    return multiplied_seconds(local, tokens, without_head, partial(products, gpu))


def _moved(passes: int, rows: pd.DataFrame, gpu: GpuSpec, _: Products) -> Seconds:
    """Return the time in seconds to move residual streams ``passes`` times.

    A step counts this time with the small kernels.
    """
    elements = (rows["batch_size"] * rows["hidden_size"] * passes).to_numpy()
    return elements * _BOTH_BYTES / gpu.memory_bandwidth_bytes_per_s


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__.strip("_"): function
    for function in (
        recurrence, convolution, scan, state_update, state_scan, index_scores, index_choice,
        sparse_attention, compressed_attention, streams, _projections, _moved,
    )
}  # fmt: skip


def _function(text: str) -> Callable[..., Any]:
    """Return the function that a cell of ``mixer_operators.csv`` names.

    Numbers after the name are bound as the function's first arguments.
    """
    name, *numbers = text.split()
    return partial(_FUNCTIONS[name], *map(int, numbers))


@cache
def timed_operators() -> dict[str, MixerOperator]:
    """Return the kernel types in ``data/kernels/mixer_operators.csv``, by name."""
    found = {}
    for row in read_rows(data_folder("kernels") / "mixer_operators.csv"):
        constants = (text.split("=") for text in row["constants"].split())
        values: dict[str, Any] = {
            **row,
            "columns": tuple(row["columns"].split()),
            "group": tuple(row["group"].split()),
            "where": tuple(row["where"].split("=")) if row["where"] else (),
            "terms": _function(row["terms"]),
            "constants": {name: int(number) for name, number in constants},
            "included": _function(row["included"]) if row["included"] else None,
        }
        found[row["name"]] = MixerOperator(**values)
    return found


#: Names of sizes in this module, by their names in the tables of Mamba-2 and DeepSeek-V4.
_NAMES = {
    "n_groups": "num_k_heads", "d_state": "head_k_dim", "nheads": "num_v_heads",
    "head_dim": "head_v_dim", "num_heads": "heads", "num_tokens": "batch_size",
}  # fmt: skip


def read_mixer_kernels(operator: MixerOperator, gpus: Gpus, systems: Path | None = None) -> Read:
    """Read the measured rows of a kernel type on all GPUs that have its table.

    Args:
        operator: Kernel type of ``timed_operators``.
        gpus: Datasheets by system name.
        systems: Folder of the tables; None for the tables of the installed package.

    Returns:
        Table with columns gpu, seconds and the sizes (Mamba-2's heads are named as in linear
        attention), and reports on the files.

    Raises:
        PinnError: If a column is missing.
    """
    if operator.kind == "timed":
        return _read_timed(operator, gpus)
    sources = [TableSource(name, operator.backend, operator.version) for name in gpus]
    layout = _layout(operator)
    return layout.read_all([s for s in sources if layout.path(s, systems).exists()], gpus, systems)


def _layout(operator: MixerOperator) -> Layout:
    sizes = {_NAMES.get(name, name): name for name in (*operator.columns, *operator.where[:1])}
    columns = {"kernel": "kernel_source", "seconds": "latency", **sizes}
    rules: Rules = {
        **_elsewhere(operator),
        "another kernel": lambda r: ~r["kernel"].str.startswith(operator.kernel),
        **NO_TIME,
    }
    rest = (lambda _, __: rules), (lambda found: found.assign(**operator.constants))
    return Layout(operator.kind, operator.file, columns, *rest)


def _elsewhere(operator: MixerOperator) -> Rules:
    if not operator.where:
        return {}
    column, value = operator.where
    return {f"another {column}": lambda r: r[column] != value}


def read_all_mixers(
    gpus: Gpus, systems: Path | None = None
) -> tuple[dict[str, pd.DataFrame], tuple[ReadReport, ...]]:
    """Read the measured rows of all kernel types on the given GPUs, by name of the type."""
    found = {o.name: read_mixer_kernels(o, gpus, systems) for o in timed_operators().values()}
    tables = {name: rows for name, (rows, _) in found.items() if len(rows)}
    return tables, tuple(report for _, reports in found.values() for report in reports)


def _read_timed(operator: MixerOperator, gpus: Gpus) -> Read:
    """Read one of this project's measured tables, whose file name ends in the GPU's system."""
    path = data_folder("kernels") / f"{operator.file}.csv"
    system = operator.file.removeprefix("mamba2_")
    table = pd.read_csv(path).rename(columns=_NAMES)
    rows = table.assign(gpu=gpus[system].name if system in gpus else "")
    report = ReadReport(path.name, operator.version, file_sha256(path), len(rows), len(rows))
    rules: Rules = {"another GPU": lambda r: r["gpu"] == "", **_elsewhere(operator)}
    kept, report = refuse(rows, report, rules)
    return kept, [report]


def operator_terms(operator: MixerOperator, rows: pd.DataFrame, gpus: Gpus) -> Terms:
    """Return the terms of each row's time in seconds, ``[rows, terms]``; the first is the launch.

    Args:
        operator: Kernel type of ``timed_operators``.
        rows: Rows as :func:`read_mixer_kernels` returns them. Rows of an indexer may have columns
            that replace ``TIMED_SIZES``.
        gpus: Datasheets by the name in the ``gpu`` column.
    """
    names = [_NAMES.get(name, name) for name in operator.columns]
    names += [name for name in TIMED_SIZES if name in rows]
    sizes = {name: rows[name].to_numpy(dtype=np.float64) for name in names}
    gpu = {
        key: rows["gpu"].map({name: rate(g) for name, g in gpus.items()}).to_numpy(np.float64)
        for key, rate in _RATES.items()
    }
    return _terms(operator, sizes, gpu, len(rows))


#: Rates and sizes of a GPU on which the terms depend, by the name in the terms.
_RATES: dict[str, Callable[[GpuSpec], float]] = {
    "bandwidth": lambda g: g.memory_bandwidth_bytes_per_s,
    "peak": lambda g: g.peak_flop_per_s["bf16"],
    "fp8": lambda g: g.peak_flop_per_s.get("fp8", g.peak_flop_per_s["bf16"]),
    "sms": lambda g: g.sm_count,
    "l2": lambda g: g.l2_bytes,
}


def _terms(operator: MixerOperator, sizes: Columns, gpu: Columns, count: int) -> Terms:
    """Return the terms of ``count`` kernels; ``sizes`` replace ``TIMED_SIZES``."""
    timed = {name: np.full(count, float(size)) for name, size in TIMED_SIZES.items()}
    launch = np.full(count, LAUNCH_SECONDS)
    return np.stack([launch, *operator.terms(timed | dict(sizes), gpu)], axis=1)


# Fitted times of recurrent layers and sparse attention, by kernel type and GPU.

#: Names, in the tables, of the sizes of kernels: of recurrent layers, and of sparse attention and
#: its indexers.
RECURRENT_SIZES = (
    "batch_size", "seq_len", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim",
    "chunk_size", "state",
)  # fmt: skip
INDEXED_SIZES = ("batch_size", "isl", "step", "index_heads", "heads", "top_k")
#: Names under which the measured shapes of recurrent layers and of sparse attention are stored.
RECURRENT, SPARSE = "recurrent", "sparse"


@dataclass(frozen=True)
class MixerFits:
    """Fitted weights of the time terms of each kernel type in ``timed_operators``.

    Attributes:
        weights: Weights by ``(kernel type, chip)``, padded with zeros to ``MOST_TERMS``. Chip ``*``
            pools all GPUs, which is possible because the terms include the GPU's rates.
    """

    weights: Mapping[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(tables: Mapping[str, pd.DataFrame], gpus: Gpus, products: Products) -> MixerFits:
        """Fit the weights of every kernel type that has rows, per GPU and over all GPUs.

        Args:
            tables: Rows of each kernel type, as ``read_mixer_kernels`` returns them.
            gpus: Datasheets by the names in the rows.
            products: Function that returns the time in seconds of matrix products, such as
                ``OperatorSurrogate.seconds``.
        """
        found = {}
        for name, rows in tables.items():
            operator, known = timed_operators()[name], np.zeros(len(rows))
            terms = operator_terms(operator, rows, gpus)
            seconds, chips = rows["seconds"].to_numpy(), rows["gpu"].to_numpy()
            for chip in np.unique(chips):
                if operator.included is not None:
                    mine = chips == chip
                    known[mine] = operator.included(rows[mine], gpus[chip], products)
            for chip in ("*", *np.unique(chips)) if len(rows) else ():
                mine = np.ones(len(rows), bool) if chip == "*" else chips == chip
                fitted = fit_terms(terms[mine], seconds[mine], known[mine])
                found[name, str(chip)] = np.pad(fitted, (0, MOST_TERMS - len(fitted)))
        return MixerFits(found)

    def seconds(
        self, operator: str, gpu: GpuSpec, sizes: Mapping[str, Float[np.ndarray, " n"]]
    ) -> Float[np.ndarray, " n"] | None:
        """Return the time in seconds of a kernel type on a GPU, or None if it has no fit.

        Args:
            operator: Name of a kernel type in ``timed_operators``, or of one that was never
                measured.
            gpu: GPU of the kernel.
            sizes: Values of each size, ``[n]``, by name. For 0 requests the time is 0.
        """
        weights = self.weights.get((operator, gpu.name), self.weights.get((operator, "*")))
        if weights is None:
            return None
        # Plain arrays, because a table for each call would take longer than the terms themselves.
        columns = {name: np.asarray(column, np.float64) for name, column in sizes.items()}
        count = len(columns["batch_size"])
        rates = {key: np.full(count, float(rate(gpu))) for key, rate in _RATES.items()}
        terms = _terms(timed_operators()[operator], columns, rates, count)
        return np.where(columns["batch_size"] > 0, terms @ weights[: terms.shape[1]], 0.0)


def mixer_shapes(tables: Mapping[str, pd.DataFrame]) -> dict[str, MeasuredShapes]:
    """Return the measured shapes of recurrent layers and indexers, with kernel types as formats.

    Args:
        tables: Rows of each kernel type. Recurrent layers or indexers without rows are omitted from
            the result.
    """
    named = [rows.assign(operator=name) for name, rows in tables.items() if len(rows)]
    recurrent = [rows for rows in named if "seq_len" in rows]
    sparse = [pd.DataFrame({**TIMED_SIZES, **rows}) for rows in named if "isl" in rows]
    kinds = {
        RECURRENT: (recurrent, RECURRENT_SIZES[2:6], RECURRENT_SIZES[:2]),
        SPARSE: (sparse, INDEXED_SIZES[3:], INDEXED_SIZES[:3]),
    }
    return {
        kind: MeasuredShapes.of(pd.concat(rows), names, axes, "operator")
        for kind, (rows, names, axes) in kinds.items()
        if rows
    }
