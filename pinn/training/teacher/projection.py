"""From composed steps to betas: the non-negative combination of step features that fits best."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.linalg import block_diag
from scipy.optimize import nnls

from pinn.errors import PinnError
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.physics.step import STEP_FEATURES

#: The features that may explain each part of a step; they are non-negative and grow as it does.
EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    operator: tuple(name for name, f in STEP_FEATURES.items() if operator in f.explains)
    for operator in COMPOSED_PARTS
}

#: Weight of the whole step's error beside those of its parts: parts then make up for each other,
#: which took the error of steps at batches not fitted from 1.8 to 1.4 % (LOG.md).
WHOLE_WEIGHT = 2.0

_NAMES = list(STEP_FEATURES)
_BOUNDS = np.array([f.lower_bound for f in STEP_FEATURES.values()])


def project(
    features: Float[np.ndarray, "n features"], parts: Float[np.ndarray, "n parts"]
) -> Float[np.ndarray, "parts features"]:
    """Explain each part of a deployment's steps by its features.

    Betas do not go below their lower bounds, which keep every step above its physical floor.
    Errors are weighed by the whole step's time, so a part that hardly matters is not fitted at the
    expense of one that does; all parts are solved for at once, with the error of their sum.

    Args:
        features: Step features of ``n`` steps.
        parts: Seconds of each part of them.

    Returns:
        One vector of betas per part; their sum gives the step.
    """
    if len(features) != len(parts):
        raise PinnError(f"{len(features)} steps of features, {len(parts)} steps of parts")
    scale = 1 / parts.sum(-1)
    columns = {
        row: _columns(operator, features)
        for row, operator in enumerate(COMPOSED_PARTS)
        if parts[:, row].any()
    }
    bases = {row: features[:, mine] * scale[:, None] for row, mine in columns.items()}
    above_least = {row: parts[:, row] * scale - bases[row] @ _BOUNDS[columns[row]] for row in bases}
    matrix = np.concatenate(
        [block_diag(*bases.values()), WHOLE_WEIGHT * np.concatenate([*bases.values()], axis=1)]
    )
    target = np.concatenate([*above_least.values(), WHOLE_WEIGHT * sum(above_least.values())])
    size = np.maximum(matrix.max(0), 1e-30)
    solution, _ = nnls(matrix / size, target)
    ends = np.cumsum([len(mine) for mine in columns.values()])
    betas = np.zeros((len(COMPOSED_PARTS), len(_NAMES)))
    for (row, mine), found in zip(
        columns.items(), np.split(solution / size, ends[:-1]), strict=True
    ):
        betas[row, mine] = _BOUNDS[mine] + found
    return betas


def _columns(operator: str, features: Float[np.ndarray, "n features"]) -> list[int]:
    """Features that may explain a part and occur at all."""
    columns = [_NAMES.index(name) for name in EXPLAINED_BY[operator]]
    return [c for c in columns if features[:, c].any()]
