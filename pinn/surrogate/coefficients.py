"""Named coefficients of deployments, in the order of the registries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pinn.errors import PinnError
from pinn.surrogate.request_features import REQUEST_FEATURES, RequestFeature
from pinn.surrogate.step_features import STEP_FEATURES, StepFeature

# Named coefficient vectors of deployments: the network's output, and every later stage's input.

#: Part of the coefficients -> its registry.
REGISTRIES: dict[str, Mapping[str, StepFeature | RequestFeature]] = {
    "beta": STEP_FEATURES,
    "alpha": REQUEST_FEATURES,
}

#: Names of all coefficients with their part, beta first: the order of vectors of both.
NAMES: tuple[str, ...] = tuple(
    f"{part}.{name}" for part, registry in REGISTRIES.items() for name in registry
)


@dataclass(frozen=True)
class Coefficients:
    """Alpha and beta of ``n`` deployments in float64, in the order of the registries.

    Raises:
        PinnError: If a vector has another length than its registry, or a value is negative, NaN
            or infinite.
    """

    beta: Float[np.ndarray, "n step_features"]
    alpha: Float[np.ndarray, "n request_features"]

    def __post_init__(self) -> None:
        for name, registry in REGISTRIES.items():
            values = getattr(self, name)
            if values.ndim != 2 or values.shape[1] != len(registry):
                raise PinnError(
                    f"{name} needs shape [deployments, {len(registry)}], got {list(values.shape)}"
                )
            bad = ~(np.isfinite(values) & (values >= 0))
            if bad.any():
                row, column = np.argwhere(bad)[0]
                raise PinnError(
                    f"{name} {list(registry)[column]!r} of deployment {row} must be finite and "
                    f"not negative, got {values[row, column]}"
                )

    def __len__(self) -> int:
        return len(self.beta)

    @property
    def values(self) -> Float[np.ndarray, "n coefficients"]:
        """Return beta, then alpha, in the order of ``NAMES``."""
        return np.concatenate([self.beta, self.alpha], axis=1)

    def take(self, index: int | slice | Int[np.ndarray, " rows"]) -> Coefficients:
        """Return the coefficients of some deployments; a whole number keeps one row."""
        rows = slice(index, index + 1) if isinstance(index, int) else index
        return Coefficients(self.beta[rows], self.alpha[rows])
