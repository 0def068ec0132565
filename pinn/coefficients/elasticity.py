"""How far each coefficient may bend with each datasheet rate without losing monotonicity.

A feature that shrinks as 1 / bandwidth may have a beta that grows with bandwidth, at most in
proportion: efficiency falls on a faster memory, but the time does not rise. Any other beta may
only shrink; those of arithmetic too, since each number format has a peak of its own and the
``peak_compute`` that the network sees is that of bf16 alone. The elasticity
d log(beta) / d log(rate) is kept within these bounds by construction.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from pinn.physics.descriptors import RATES
from pinn.physics.step import STEP_FEATURES

#: Which rate a feature's resource is proportional to; the others have none of their own.
_OWN_RATE = {"bandwidth": "memory_bandwidth", "link": "link_bandwidth"}

#: Steepest fall of a coefficient with a rate. An assumption: physics gives none, this keeps
#: extrapolation tame.
_STEEPEST = -0.5


def elasticity_bounds() -> tuple[Float[Tensor, "beta rates"], Float[Tensor, "beta rates"]]:
    """Lower and upper bounds of each beta with each rate."""
    lower = torch.full((len(STEP_FEATURES), len(RATES)), _STEEPEST, dtype=torch.float64)
    upper = torch.zeros_like(lower)
    for row, feature in enumerate(STEP_FEATURES.values()):
        own = _OWN_RATE.get(feature.resource)
        if own is not None:
            upper[row, RATES.index(own)] = 1.0
    return lower, upper
