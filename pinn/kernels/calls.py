"""What a composed step is made of: kernels, and the calls of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from pinn.physics.uniform_batches import UniformBatches
from pinn.specs.deployment import Deployment


@dataclass(frozen=True)
class Call:
    """One kernel in the steps of one deployment.

    Attributes:
        deployment: Index of the deployment.
        form: Number format; of recurrent and sparse mixers the operator.
        count: How often a step runs it, a number or one per batch.
        sizes: Arguments of the surrogate, each a number or one per batch.
    """

    deployment: int
    form: str
    count: float | Float[np.ndarray, " n"]
    sizes: tuple[Any, ...]


@dataclass(frozen=True)
class Kernels:
    """Kernels of one kind in a part of a step.

    Attributes:
        calls: Those of a deployment's steps, from its index, itself and its batches.
        seconds: What they take, from surrogates, chips, formats and a call's sizes.
        sizes: What the first sizes of a call are called; none where nothing timed is behind them.
        operator: The operator that was fitted to measured ones; empty where there is none.
    """

    calls: Callable[[int, Deployment, UniformBatches], Iterator[Call]]
    seconds: Callable[..., Float[np.ndarray, "..."]]
    sizes: tuple[str, ...] = ()
    operator: str = ""
