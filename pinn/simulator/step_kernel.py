"""The step features in compiled code: one batch, plain numbers.

``pinn.physics.step`` is what defines them, and what ``step_formulas`` is written from. A test
compares the two for random batches and models, and ``step_coefficients`` refuses a registry with a
name that is missing there.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
from jaxtyping import Float

from pinn.errors import PinnError
from pinn.physics.costs import COST_NAMES, StepCosts
from pinn.physics.step import STEP_FEATURES
from pinn.simulator.jit import inner
from pinn.simulator.state import REREAD
from pinn.simulator.step_formulas import StepValues, step_formulas

#: One deployment's ``StepCosts`` as numbers, same names and order.
Costs: Any = namedtuple("Costs", COST_NAMES)  # type: ignore[misc]


def step_coefficients(beta: Float[np.ndarray, " features"]) -> Float[np.ndarray, " values"]:
    """Beta in the order of ``StepValues``.

    Raises:
        PinnError: If the registry has a feature that compiled code does not know.
    """
    unknown = [name for name in STEP_FEATURES if name not in StepValues._fields]
    if unknown:
        raise PinnError(
            f"step features {', '.join(unknown)} have no compiled form: write it with "
            "'make formulas'"
        )
    by_name = dict(zip(STEP_FEATURES, beta, strict=True))
    return np.array([by_name.get(name, 0.0) for name in StepValues._fields], dtype=np.float64)


def cost_numbers(costs: StepCosts) -> Any:
    """Costs of one deployment, of shape ``[1]``, as numbers."""
    return Costs(*(float(getattr(costs, name)[0]) for name in COST_NAMES))


@inner
def step_values(c, sums):
    """Features of one batch.

    Args:
        c: ``Costs``.
        sums: Float64 array: the fields of ``BatchSums`` in their order, and what
            ``pinn.simulator.state`` adds.
    """
    context, near_context = sums[3], sums[6]
    if sums[REREAD] > 0:
        context -= sums[REREAD]
        near_context *= context / sums[3]
    return step_formulas(
        c, sums[0], sums[1], sums[2], context, sums[4], sums[5], near_context, sums[7], sums[8]
    )
