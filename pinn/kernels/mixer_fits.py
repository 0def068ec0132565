"""Fits to the kernels of recurrent mixers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.kernels.mixer_operators import MIXER_OPERATORS, MOST_TERMS, TIMED_SIZES, operator_terms
from pinn.kernels.stored import MeasuredShapes
from pinn.kernels.surrogate import fit_terms
from pinn.specs.gpu import GpuSpec

# Fitted times of recurrent and sparse mixers, by operator and chip.

#: Sizes of a recurrent mixer's kernels, and of an indexer's, in the words of the tables.
RECURRENT_SIZES = (
    "batch_size", "seq_len", "num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim",
    "chunk_size", "state",
)  # fmt: skip
INDEXED_SIZES = ("batch_size", "isl", "step", "index_heads", "heads", "top_k")
#: Names of their measured shapes.
RECURRENT, SPARSE = "recurrent", "sparse"


@dataclass(frozen=True)
class MixerFits:
    """Weights of the terms of ``MIXER_OPERATORS``.

    Attributes:
        weights: ``(operator, chip) -> weights``, with zeros up to ``MOST_TERMS``. Chip ``*`` pools
            every chip: terms are seconds at datasheet rates.
    """

    weights: Mapping[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(tables: Mapping[str, pd.DataFrame], gpus: Mapping[str, GpuSpec]) -> MixerFits:
        """Fit every operator that has rows, on each chip and on all.

        Args:
            tables: Rows by operator, as ``read_mixer_kernels`` gives them.
            gpus: Datasheets by the names in the rows.
        """
        found = {}
        for name, rows in tables.items():
            terms = operator_terms(MIXER_OPERATORS[name], rows, gpus)
            seconds, chips = rows["seconds"].to_numpy(), rows["gpu"].to_numpy()
            for chip in ("*", *np.unique(chips)) if len(rows) else ():
                mine = np.ones(len(rows), bool) if chip == "*" else chips == chip
                fitted = fit_terms(terms[mine], seconds[mine])
                found[name, str(chip)] = np.pad(fitted, (0, MOST_TERMS - len(fitted)))
        return MixerFits(found)

    def seconds(
        self, operator: str, gpu: GpuSpec, sizes: Mapping[str, Float[np.ndarray, " n"]]
    ) -> Float[np.ndarray, " n"] | None:
        """Of one operator on one chip; None where it was fitted nowhere.

        Args:
            operator: A name of ``MIXER_OPERATORS``, or of what was never measured.
            gpu: The chip.
            sizes: Each ``[n]``; no requests take no time.
        """
        weights = self.weights.get((operator, gpu.name), self.weights.get((operator, "*")))
        if weights is None:
            return None
        rows = pd.DataFrame(sizes).assign(gpu=gpu.name)
        terms = operator_terms(MIXER_OPERATORS[operator], rows, {gpu.name: gpu})
        return np.where(sizes["batch_size"] > 0, terms @ weights[: terms.shape[1]], 0.0)


def mixer_shapes(tables: Mapping[str, pd.DataFrame]) -> dict[str, MeasuredShapes]:
    """Measured shapes of recurrent mixers and of indexers, whose formats are their operators.

    Args:
        tables: Rows by operator; kinds without any are left out.
    """
    named = [rows.assign(operator=name) for name, rows in tables.items() if len(rows)]
    recurrent = [rows for rows in named if "seq_len" in rows]
    sparse = [rows.assign(**TIMED_SIZES) for rows in named if "isl" in rows]
    kinds = {
        RECURRENT: (recurrent, RECURRENT_SIZES[2:6], RECURRENT_SIZES[:2]),
        SPARSE: (sparse, INDEXED_SIZES[3:], INDEXED_SIZES[:3]),
    }
    return {
        kind: MeasuredShapes.of(pd.concat(rows), names, axes, "operator")
        for kind, (rows, names, axes) in kinds.items()
        if rows
    }
