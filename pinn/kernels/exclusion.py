"""Exclusion of kernels of held-out models and their near copies from the training data."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd
from jaxtyping import Bool

from pinn.kernels.tables.tables import KernelTables
from pinn.physics.layer_work import dense_matmuls
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import Attention, DenseFfnSpec, LatentAttentionSpec, ModelSpec, MoeFfnSpec

# Near copies: models so similar that both must be held out together.

#: Models' widths, or sizes of an expert layer, count as equal up to this relative difference (an
#: assumption). A larger tolerance would also exclude shapes that many models share.
TOLERANCE = 0.05


def is_near_copy(model: ModelSpec, other: ModelSpec) -> bool:
    """Return whether two models have nearly equal layers, at any depth and in any number format.

    Dense models are near copies if hidden size and feed-forward width differ by at most 5 %. For
    models with experts, the experts' widths are compared instead, and the numbers of experts and
    the top-k must be the same.
    """
    same_kind = (model.moe is None) == (other.moe is None)
    if not (same_kind and _close_sizes(model.hidden_size, other.hidden_size)):
        return False
    if model.moe is None or other.moe is None:
        return _close_sizes(_dense_width(model), _dense_width(other))
    same_experts = (model.moe.experts, model.moe.top_k) == (other.moe.experts, other.moe.top_k)
    return same_experts and _close_sizes(model.moe.width, other.moe.width)


def _close_sizes(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * b


def _dense_width(model: ModelSpec) -> int:
    """Return the maximum width of the dense feed-forward layers; 0 for a model without them."""
    dense = (g.ffn.width for g in model.layer_groups if isinstance(g.ffn, DenseFfnSpec))
    return max(dense, default=0)


# Kernels that are removed from the training data if a model or GPU is held out.
#
# A held-out model's kernels at any tensor-parallel size, and near copies of them, must not be in
# the training data. Otherwise a held-out error would measure recall of known kernels instead of
# interpolation between other shapes.

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)
#: Both widths (n, k) of matrix products count as equal up to this relative difference, an
#: assumption like ``TOLERANCE``.
GEMM_TOLERANCE = 0.03
#: Hidden size and inner width of experts count as equal up to this relative difference (an
#: assumption), if the number of experts and top-k are equal.
WIDTH_TOLERANCE = 0.25
#: Columns of a kernel table that define the shape of a recurrent layer.
STATE_WIDTHS = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
#: Latent rank and rotary width of the only measured latent attention (MLA): DeepSeek-V3's, with 128
#: heads.
_LATENT_SHAPE = (512, 64)


@dataclass(frozen=True)
class Exclusion:
    """Held-out models and GPUs, whose kernels must not be used to train surrogates.

    Attributes:
        models: Held-out models; their kernel shapes and near copies are excluded on every GPU.
        gpus: Names of held-out GPUs (``GpuSpec.name``); all of their measured kernels are excluded.
    """

    models: tuple[ModelSpec, ...] = ()
    gpus: tuple[str, ...] = ()

    def apply(self, tables: KernelTables) -> KernelTables:
        """Return the tables of measured kernels without the excluded rows."""
        excluded = {
            "gemm": self.gemm_rows, "decode_attention": self.attention_rows,
            "prefill_attention": self.attention_rows, "moe": self.moe_rows,
            "other_experts": self.moe_rows, "all_reduce": self.gpu_rows, "exchange": self.gpu_rows,
            "fused_all_reduce": self.gpu_rows,
            "latent_decode": self.latent_rows, "latent_prefill": self.latent_rows,
        }  # fmt: skip
        kept = {name: (rows := getattr(tables, name))[~of(rows)] for name, of in excluded.items()}
        mixers = {name: rows[~self.mixer_rows(rows)] for name, rows in tables.mixers.items()}
        return replace(tables, mixers=mixers, **kept)

    def gpu_rows(self, rows: pd.DataFrame) -> Bool[np.ndarray, " rows"]:
        """Return a mask of the rows in a kernel table whose GPU is held out, ``[rows]``."""
        return rows["gpu"].isin(self.gpus).to_numpy(dtype=bool, copy=True)

    def gemm_rows(self, rows: pd.DataFrame) -> Bool[np.ndarray, " rows"]:
        """Return a mask of matrix products to exclude, ``[rows]``.

        Excluded are rows of a held-out GPU, and rows whose n and k are both close to those of a
        held-out model's matrix product.
        """
        excluded = self.gpu_rows(rows)
        n, k = rows["n"].to_numpy(dtype=float), rows["k"].to_numpy(dtype=float)
        for wide, deep in sorted({s for model in self.models for s in gemm_shapes(model)}):
            excluded |= _close(n, wide, GEMM_TOLERANCE) & _close(k, deep, GEMM_TOLERANCE)
        return excluded

    def attention_rows(self, rows: pd.DataFrame) -> Bool[np.ndarray, " rows"]:
        """Return a mask of attention kernels to exclude, ``[rows]``.

        Excluded are rows of a held-out GPU, and rows with the attention shape of a held-out model.
        """
        excluded = self.gpu_rows(rows)
        names = ("heads", "kv_heads", "head_dim", "window")
        table = rows[list(names)].to_numpy(dtype=float)
        for shape in sorted({s for model in self.models for s in attention_shapes(model)}):
            excluded |= (table == np.array(shape, dtype=float)).all(axis=1)
        return excluded

    def moe_rows(self, rows: pd.DataFrame) -> Bool[np.ndarray, " rows"]:
        """Return a mask of expert kernels to exclude, ``[rows]``.

        Excluded are rows of a held-out GPU, and rows whose experts are similar to a held-out
        model's.
        """
        excluded = self.gpu_rows(rows)
        value = {c: rows[c].to_numpy(dtype=float) for c in ("hidden", "width", "experts", "top_k")}
        for model in self.models:
            if model.moe is not None:
                excluded |= _like_experts(value, model.hidden_size, model.moe)
        return excluded

    def latent_rows(self, rows: pd.DataFrame) -> Bool[np.ndarray, " rows"]:
        """Return a mask of MLA kernels to exclude, ``[rows]``.

        All MLA kernels were measured with one shape. If a held-out model has this shape, all rows
        are excluded, otherwise only rows of a held-out GPU.
        """
        if len(rows) == 0:
            return np.zeros(0, dtype=bool)
        latent = (m for m in self._mixers() if isinstance(m, LatentAttentionSpec))
        if any((m.kv_lora_rank, m.qk_rope_head_dim) == _LATENT_SHAPE for m in latent):
            return np.ones(len(rows), dtype=bool)
        return self.gpu_rows(rows)

    def mixer_rows(self, rows: pd.DataFrame) -> Bool[np.ndarray, " rows"]:
        """Return a mask of recurrent and sparse attention kernels to exclude, ``[rows]``.

        Excluded are rows of a held-out GPU, and rows with the recurrent layer of a held-out model.
        Indexers of sparse attention were measured with GLM-5's shape only, so any held-out model
        with an indexer excludes all indexer rows.
        """
        mixers, excluded = self._mixers(), self.gpu_rows(rows)
        if not set(STATE_WIDTHS) <= set(rows):
            indexed = (m.indexer for m in mixers if isinstance(m, LatentAttentionSpec))
            return excluded | any(indexer is not None for indexer in indexed)
        table = rows[list(STATE_WIDTHS)].to_numpy(dtype=float)
        for mixer, tp in product(mixers, TENSOR_PARALLEL_SIZES):
            if isinstance(mixer, LinearMixerSpec):
                excluded |= (table == np.array(mixer.local_widths(tp), dtype=float)).all(axis=1)
        return excluded

    def _mixers(self) -> list[object]:
        """Return the attention or recurrent layer of each layer group of each held-out model."""
        return [g.attention for model in self.models for g in model.layer_groups]

    def slug(self) -> str:
        """Return a file name: ``all``, or ``without-`` and the held-out models and GPUs."""
        names = [model.name.split("/")[-1] for model in self.models] + list(self.gpus)
        return "-".join(["without", *names]).lower() if names else "all"

    def describe(self) -> dict[str, list[str]]:
        """Return the names of held-out models and GPUs, for the metadata of a checkpoint."""
        return {"models": [m.name for m in self.models], "gpus": list(self.gpus)}


def _close(values: np.ndarray, size: float, tolerance: float) -> np.ndarray:
    return np.abs(values / size - 1.0) <= tolerance


def _like_experts(value: dict[str, np.ndarray], hidden: int, moe: MoeFfnSpec) -> np.ndarray:
    near = (
        _close(value["hidden"], hidden, TOLERANCE)
        & _close(value["width"], moe.width, TOLERANCE)
        & _close(value["experts"], moe.experts, TOLERANCE)
    )
    alike = (
        (value["experts"] == moe.experts)
        & (value["top_k"] == moe.top_k)
        & _close(value["hidden"], hidden, WIDTH_TOLERANCE)
        & _close(value["width"], moe.width, WIDTH_TOLERANCE)
    )
    return near | alike


def _parallel_sizes(model: ModelSpec) -> Iterator[int]:
    """Yield the tensor-parallel sizes that divide the model's attention heads."""
    heads = [g.attention.heads for g in model.layer_groups if g.attention is not None]
    yield from (tp for tp in TENSOR_PARALLEL_SIZES if all(h % tp == 0 for h in heads))


def gemm_shapes(model: ModelSpec) -> set[tuple[int, int]]:
    """Return weight shapes (n, k) of a model's matrix products, at all tensor-parallel sizes."""
    return {(m.n, m.k) for tp in _parallel_sizes(model) for m in dense_matmuls(model, tp)}


def attention_shapes(model: ModelSpec) -> set[tuple[int, int, int, int]]:
    """Return (heads, kv_heads, head_dim, window) per rank, at all tensor-parallel sizes.

    A window of 0 means full attention. During prefill, latent attention (MLA) has as many KV heads
    as query heads.
    """
    found = set()
    for tp in _parallel_sizes(model):
        for group in model.layer_groups:
            attention = group.attention
            if isinstance(attention, Attention):
                heads, kv_heads = attention.heads // tp, attention.heads // tp
                if not isinstance(attention, LatentAttentionSpec):
                    kv_heads = max(attention.kv_heads // tp, 1)
                found.add((heads, kv_heads, attention.head_dim, attention.window_tokens or 0))
    return found
