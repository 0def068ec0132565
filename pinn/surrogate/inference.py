"""The weights of a trained network in numpy: prediction needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from pinn.surrogate.architecture import (
    INPUT_SCALE,
    NetworkSettings,
    Operations,
    array_shapes,
    forward,
)
from pinn.surrogate.featurizer import InputScale

Array = np.ndarray


@dataclass(frozen=True)
class NetworkWeights:
    """Weights of a :class:`~pinn.surrogate.network.CoefficientNetwork`, in float64.

    Attributes:
        settings: Size and bounds of the network.
        arrays: Every array by its name in a checkpoint
            (:func:`~pinn.surrogate.architecture.array_shapes`).

    Raises:
        ValueError: If a name is missing or unknown, or a shape differs from that of the settings.
    """

    settings: NetworkSettings
    arrays: Mapping[str, Shaped[Array, "..."]]

    def __post_init__(self) -> None:
        _check_shapes(self.settings, self.arrays)
        exact = {
            name: np.array(self.arrays[name], np.float64) for name in array_shapes(self.settings)
        }
        object.__setattr__(self, "arrays", exact)

    @property
    def input_scale(self) -> InputScale:
        """Standardization and range of the training inputs."""
        return InputScale(**{name: self.arrays[name] for name in INPUT_SCALE})

    def coefficients(
        self, free: Float[Array, "n descriptors"], rates: Float[Array, "n rates"]
    ) -> tuple[Float[Array, "n beta"], Float[Array, "n alpha"]]:
        """Return beta and alpha of ``n`` featurized deployments, in the order of the registries.

        Args:
            free: Descriptors.
            rates: Logarithms of datasheet rates over an H100's.
        """
        return forward(_NUMPY, self.settings, self.arrays, free, rates)


def _check_shapes(settings: NetworkSettings, arrays: Mapping[str, Shaped[Array, "..."]]) -> None:
    wanted = array_shapes(settings)
    wrong = [f"{name} is missing" for name in wanted if name not in arrays]
    wrong += [f"{name} is unknown" for name in arrays if name not in wanted]
    wrong += [
        f"{name} has shape {list(arrays[name].shape)}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in arrays and arrays[name].shape != shape
    ]
    if wrong:
        raise ValueError("; ".join(wrong))


def _sigmoid(x: Array) -> Array:
    """Exact to rounding at either end, where exp(-x) alone would overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


#: The operations of the forward pass in numpy.
_NUMPY: Operations[Array] = Operations(
    exp=np.exp,
    tanh=np.tanh,
    log=np.log,
    log1p=np.log1p,
    sigmoid=_sigmoid,
    silu=lambda x: x * _sigmoid(x),
    clip=np.clip,
    linear=lambda x, weight, bias: x @ weight.T + bias,
    as_type=lambda x, like: x.astype(like.dtype, copy=False),
    rows=lambda vector, n: np.tile(vector, (n, 1)),
)
