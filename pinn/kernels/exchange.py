"""Exchange of tokens among expert-parallel ranks that each hold other tokens (data parallel).

Without data parallelism every rank has all tokens already, and the all-reduce after the layer is
the whole communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.errors import PinnError
from pinn.kernels.surrogate import fit_terms
from pinn.specs.gpu import GpuSpec

#: Launch unit, so that both fitted weights are of order one; it decides nothing.
_LAUNCH_SECONDS = 10e-6
#: Tokens travel in bf16.
_BYTES = 2.0


def _terms(tokens, hidden, top_k, ranks, link_bytes_per_s) -> np.ndarray:
    """A launch, and the time that one copy per destination rank takes on the link."""
    copies = np.minimum(top_k, ranks - 1.0)
    link = _BYTES * tokens * hidden * copies / link_bytes_per_s
    return np.stack([np.full(np.shape(link), _LAUNCH_SECONDS), link], axis=-1)


@dataclass(frozen=True)
class Exchange:
    """Weights of a launch and of link time, by (chip, library, phase); chip ``*`` pools all.

    ``deepep_ll`` was timed up to 256 tokens per rank, ``deepep_ht`` from 16 up, both on 8 ranks.
    """

    weights: dict[tuple[str, str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(rows: pd.DataFrame, gpus: Mapping[str, GpuSpec]) -> Exchange:
        """Fit every (chip, library, phase) that has rows, and the pools over chips."""
        if len(rows) == 0:
            return Exchange()
        links = {name: gpu.link_bandwidth_bytes_per_s for name, gpu in gpus.items()}
        numbers = [
            rows[c].to_numpy(dtype=np.float64)
            for c in ("tokens", "hidden", "top_k", "expert_parallel")
        ]
        link = rows["gpu"].map(links).to_numpy(dtype=np.float64)
        values = _terms(numbers[0], numbers[1], numbers[2], numbers[3], link)
        seconds = rows["seconds"].to_numpy(dtype=np.float64)
        found: dict[tuple[str, str, str], np.ndarray] = {}
        kinds = rows["library"] + "|" + rows["phase"]
        for kind in kinds.unique():
            library, phase = kind.split("|")
            of_kind = (kinds == kind).to_numpy()
            found["*", library, phase] = fit_terms(values[of_kind], seconds[of_kind])
            for chip in rows.loc[of_kind, "gpu"].unique():
                mine = of_kind & (rows["gpu"] == chip).to_numpy()
                found[chip, library, phase] = fit_terms(values[mine], seconds[mine])
        return Exchange(found)

    def seconds(
        self, gpu: GpuSpec, tokens, hidden, top_k, ranks, library: str
    ) -> Float[np.ndarray, "..."]:
        """Time of one dispatch and one combine; nothing for one rank. Arguments broadcast.

        Args:
            gpu: The chip.
            tokens: Tokens that each rank sends.
            hidden: Width of a token.
            top_k: Experts per token.
            ranks: Expert-parallel ranks.
            library: ``deepep_ht`` or ``deepep_ll``.

        Raises:
            PinnError: If the library was not timed.
        """
        tokens, hidden, top_k, ranks = (
            np.asarray(x, dtype=np.float64) for x in (tokens, hidden, top_k, ranks)
        )
        values = _terms(tokens, hidden, top_k, ranks, gpu.link_bandwidth_bytes_per_s)
        total = np.zeros(values.shape[:-1])
        for phase in ("dispatch", "combine"):
            weights = self.weights.get((gpu.name, library, phase))
            if weights is None:
                weights = self.weights.get(("*", library, phase))
            if weights is None:
                known = sorted({name for _, name, _ in self.weights})
                raise PinnError(f"no exchange kernels of {library!r}: known ones are {known}")
            total = total + values @ weights
        return np.where((ranks > 1) & (tokens > 0), total, 0.0)
