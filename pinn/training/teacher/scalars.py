"""The few global scalars that serving data set: kernel multipliers and overheads.

A handful of measured models cannot teach how coefficients depend on a configuration, but they can
set about a dozen numbers that every configuration shares: by how much kernels in an engine differ
from kernels measured alone, by how much sampling exceeds the bytes that it moves, and what the
parts cost that nobody measured (norms, rotary embedding, host). Each has a log-normal prior.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pinn.kernels.composition import COMPOSED_PARTS
from pinn.physics.step import STEP_FEATURES
from pinn.physics.step_feature import Overhead

#: Step feature -> cost of one unit of it that no kernel holds, as the registry has it.
OVERHEADS: dict[str, Overhead] = {
    name: feature.overhead for name, feature in STEP_FEATURES.items() if feature.overhead
}

#: Kernels were measured on the same engine, so their multipliers stay near 1. Chosen, as the
#: spreads of the overheads, by leaving one model out of the training models of every outer fold
#: (LOG.md).
MULTIPLIER_SPREAD = 0.05
#: An assumption. Sampling was timed on one GPU, with PyTorch's operators outside an engine.
SAMPLING_SPREAD = 0.15
#: Standard deviation of each multiplier's logarithm, in the order of ``COMPOSED_PARTS``.
MULTIPLIER_SPREADS = tuple(
    SAMPLING_SPREAD if name == "sampling" else MULTIPLIER_SPREAD for name in COMPOSED_PARTS
)


@dataclass(frozen=True)
class Scalars:
    """What turns composed kernels into a step.

    Attributes:
        multipliers: Of each operator, in the order of ``COMPOSED_PARTS``.
        overheads: Of each step feature, in the order of ``STEP_FEATURES``; 0 where none.
    """

    multipliers: Float[np.ndarray, " operators"]
    overheads: Float[np.ndarray, " features"]

    def step_seconds(
        self, parts: Float[np.ndarray, "*n operators"], features: Float[np.ndarray, "*n features"]
    ) -> Float[np.ndarray, "*n"]:
        """Steps composed of kernels and overheads."""
        return parts @ self.multipliers + features @ self.overheads

    def betas(
        self, projected: Float[np.ndarray, "... operators features"]
    ) -> Float[np.ndarray, "... features"]:
        """Betas of deployments from the projection of each part; never below their lower bounds."""
        betas = np.einsum("o,...of->...f", self.multipliers, projected) + self.overheads
        bounds = np.array([f.lower_bound for f in STEP_FEATURES.values()])
        return np.maximum(betas, bounds)

    def to_json(self) -> dict[str, dict[str, float]]:
        """By name."""
        names = [name for name, value in zip(STEP_FEATURES, self.overheads, strict=True) if value]
        return {
            "multipliers": dict(zip(COMPOSED_PARTS, self.multipliers.tolist(), strict=True)),
            "overheads": {n: float(self.overheads[list(STEP_FEATURES).index(n)]) for n in names},
        }


def prior_scalars() -> Scalars:
    """The priors alone: what kernels say without any serving data."""
    overheads = [OVERHEADS[n].prior if n in OVERHEADS else 0.0 for n in STEP_FEATURES]
    return Scalars(np.ones(len(COMPOSED_PARTS)), np.array(overheads))
