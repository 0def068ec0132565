"""Non-negative linear roofline of MoE kernels, one fit per chip and kernel family.

On shapes never seen it rivals the network, and the geometric mean of the two beats both. It is
linear in times that grow with work, so it is monotone in tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import nnls

from pinn.kernels.hardware import Hardware
from pinn.kernels.moe import FAMILIES, Moe
from pinn.kernels.operator import Rows, Sizes

#: A unit that makes the fitted weight of order one, as the 10 us of a launch; it decides nothing.
_EXPERT_SECONDS = 1e-6


def terms(hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows terms"]:
    """Seconds at the datasheet's rates.

    A launch of 10 us; reading the hit experts; computing; the slower of the two; gathering and
    scattering; 1 us per hit expert and SM; compute of tokens beyond 256, about the ridge of an
    H100 in bf16 (989 TFLOP/s over 3.35 TB/s: 295 FLOP per byte).
    """
    read, activations, compute = Moe().times(hw, sizes)
    late = np.maximum(1.0 - 256.0 / np.maximum(sizes["tokens"], 1.0), 0.0)
    return np.stack(
        [
            np.full(len(read), 10e-6),
            read,
            compute,
            np.maximum(read, compute),
            activations,
            sizes["hit"] / hw.sms * _EXPERT_SECONDS,
            compute * late,
        ],
        axis=1,
    )


def fit_terms(
    values: Float[np.ndarray, "rows terms"], seconds: Rows, known: Rows | float = 0.0
) -> Float[np.ndarray, " terms"]:
    """Non-negative weights that minimize the squared relative error, large errors capped.

    Two rounds of reweighting (Huber, 20 %) keep a few odd kernels from steering the fit. ``known``
    is a part of ``seconds`` that the terms do not have to explain.
    """
    rest = 1.0 - known / seconds
    scaled = values / seconds[:, None]
    weight = np.ones(len(seconds))
    solution = np.zeros(values.shape[1])
    for _ in range(3):
        solution, _ = nnls(scaled * weight[:, None], rest * weight)
        error = np.abs(scaled @ solution - rest)
        weight = np.sqrt(np.minimum(1.0, 0.2 / np.maximum(error, 1e-9)))
    return solution


@dataclass(frozen=True)
class RooflineFit:
    """Weights of :func:`terms` by chip and family, with fall-backs for what was never timed.

    Attributes:
        weights: ``(chip, family) -> weights``. Chip ``*`` pools every chip of that family; ``("*",
            "*")`` pools everything. Terms are seconds at the datasheet's rates, so pooling is over
            efficiencies.
    """

    weights: dict[tuple[str, str], Float[np.ndarray, " terms"]] = field(default_factory=dict)

    @staticmethod
    def fit(
        gpu_names: Sequence[str],
        gpu_ids: Int[np.ndarray, " rows"],
        hw: Hardware,
        sizes: Sizes,
        seconds: Rows,
    ) -> RooflineFit:
        """Fit every (chip, family) that has rows, and the pools."""
        values = terms(hw, sizes)
        codes = sizes["family"].astype(np.int64)
        groups: dict[tuple[str, str], np.ndarray] = {("*", "*"): np.ones(len(seconds), bool)}
        for code in np.unique(codes):
            groups["*", FAMILIES[code]] = codes == code
            for chip in np.unique(gpu_ids[codes == code]):
                groups[gpu_names[chip], FAMILIES[code]] = (codes == code) & (gpu_ids == chip)
        return RooflineFit({k: fit_terms(values[m], seconds[m]) for k, m in groups.items()})

    def lookup(self, chip: str, name: str) -> Float[np.ndarray, " terms"]:
        """Weights for a chip and family, or the nearest pool."""
        for key in ((chip, name), ("*", name), ("*", "*")):
            if key in self.weights:
                return self.weights[key]
        raise KeyError("a roofline fit without the pool of all rows")

    def seconds(
        self,
        gpu_names: Sequence[str],
        gpu_ids: Int[np.ndarray, " rows"],
        hw: Hardware,
        sizes: Sizes,
    ) -> Rows:
        """Predicted time per row."""
        table = np.array([[self.lookup(g, f) for f in FAMILIES] for g in gpu_names])
        weights = table[gpu_ids, sizes["family"].astype(np.int64)]
        return (terms(hw, sizes) * weights).sum(axis=1)
