"""Coefficients (alpha and beta) of deployments by name, in the order of the lists of features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pinn.errors import PinnError
from pinn.surrogate.request_features import REQUEST_FEATURES, RequestFeature
from pinn.surrogate.step_features import STEP_FEATURES, StepFeature

# Named coefficients of deployments: the network's output, and the input of all later stages.

#: Features of the step coefficients (beta) and of the request coefficients (alpha), in order.
REGISTRIES: dict[str, Mapping[str, StepFeature | RequestFeature]] = {
    "beta": STEP_FEATURES,
    "alpha": REQUEST_FEATURES,
}

#: Names of all coefficients, such as ``beta.gemm``: first betas, then alphas. Vectors of all
#: coefficients are in this order.
NAMES: tuple[str, ...] = tuple(
    f"{part}.{name}" for part, registry in REGISTRIES.items() for name in registry
)


@dataclass(frozen=True)
class Coefficients:
    """Request (alpha) and step (beta) coefficients of ``n`` deployments, in feature order.

    Raises:
        PinnError: If an array has the wrong number of columns, or a value is negative, NaN or
            infinite.
    """

    beta: Float[np.ndarray, "n step_features"]
    alpha: Float[np.ndarray, "n request_features"]

    def __post_init__(self) -> None:
        for name, registry in REGISTRIES.items():
            values = getattr(self, name)
            if values.ndim != 2 or values.shape[1] != len(registry):
                raise PinnError(
                    f"{name} must be an array [deployments, {len(registry)}], got the shape "
                    f"{list(values.shape)}"
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
        """Return each deployment's coefficients, step then request, in the order of ``NAMES``."""
        return np.concatenate([self.beta, self.alpha], axis=1)

    def take(self, index: int | slice | Int[np.ndarray, " rows"]) -> Coefficients:
        """Select the coefficients of the deployments at ``index``; one index gives one row."""
        rows = slice(index, index + 1) if isinstance(index, int) else index
        return Coefficients(self.beta[rows], self.alpha[rows])
