"""Layers and forward pass of the network, with one implementation for both NumPy and torch.

:class:`pinn.surrogate.network.CoefficientNetwork` is the network that is trained and exported; its
docstring has the formula. :class:`NetworkWeights` has the same weights as NumPy arrays, so that
prediction does not load torch. Both call :func:`forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from jaxtyping import Float, Shaped

from pinn.common import documents
from pinn.surrogate.featurizer import DESCRIPTORS, RATES, InputScale
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

if TYPE_CHECKING:
    import torch

#: Array type, numpy's or torch's. All arrays in a call of :func:`forward` have the same type.
A = TypeVar("A", np.ndarray, "torch.Tensor")

#: Maximum of the setting ``beta_bound``: a correction by a factor of 5e21.
_MOST_BOUND = 50.0

#: Names of the network's arrays that contain statistics of the training inputs.
INPUT_SCALE = ("mean", "scale", "low", "high", "rate_low", "rate_high")


@dataclass(frozen=True)
class NetworkSettings:
    """Size and bounds of the network.

    With half of the parameters, the TPOT error on held-out deployments is 0.1 percentage points
    higher; with half of ``beta_bound``, it increases by the same amount (LOG.md).

    Attributes:
        hidden: Number of units per hidden layer.
        depth: Number of hidden layers.
        beta_bound: Maximum absolute log correction of the part of a step coefficient (beta) above
            its lower bound, and of a request coefficient (alpha).
        corrected: Whether corrections depend on the configuration; if False, all deployments have
            the same coefficients.

    Raises:
        PinnError: If a size is not a whole number, or a value is out of range.
    """

    hidden: int = 128
    depth: int = 2
    beta_bound: float = 4.0
    corrected: bool = True

    def __post_init__(self) -> None:
        for name, most, what in (
            ("hidden", documents.MOST_HIDDEN, "the number of units of a hidden layer"),
            ("depth", documents.MOST_DEPTH, "the number of hidden layers"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise documents.misfit(f"{name} of the network must be a whole number", value)
            documents.check_size(value, most, what, "train a smaller network")
        if not documents.is_finite(self.beta_bound) or not 0 <= self.beta_bound <= _MOST_BOUND:
            rule = f"beta_bound of the network must be a number from 0 to {_MOST_BOUND}"
            raise documents.misfit(rule, self.beta_bound)


def trunk_layers(settings: NetworkSettings) -> list[str]:
    """Return the names of the hidden layers; an activation follows each of them."""
    return [f"trunk.{2 * i}" for i in range(settings.depth)]


def array_shapes(settings: NetworkSettings) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array of a network, by its name in a checkpoint.

    >>> array_shapes(NetworkSettings())["trunk.0.weight"]
    (128, 45)
    """
    beta, alpha, d, r = len(STEP_FEATURES), len(REQUEST_FEATURES), len(DESCRIPTORS), len(RATES)
    shapes: dict[str, tuple[int, ...]] = {
        name: (r,) if name.startswith("rate_") else (d,) for name in INPUT_SCALE
    }
    shapes |= dict.fromkeys(("beta_floor", "beta_excess", "beta_base"), (beta,))
    shapes |= dict.fromkeys(("alpha_prior", "alpha_base"), (alpha,))
    shapes |= {"alpha_head": (alpha, d)}
    shapes |= dict.fromkeys(("elasticity_lower", "elasticity_upper"), (beta, r))
    widths = [d, *[settings.hidden] * settings.depth]
    layers = {
        name: (settings.hidden, width)
        for name, width in zip(trunk_layers(settings), widths, strict=False)
    }
    layers |= {"beta_head": (beta, settings.hidden)}
    layers |= {"elasticity_head": (beta * r, settings.hidden)}
    for name, shape in layers.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


@dataclass(frozen=True)
class Operations(Generic[A]):
    """Array operations that :func:`forward` needs, implemented with numpy or torch.

    Attributes:
        exp: Exponential.
        tanh: Hyperbolic tangent.
        log: Natural logarithm.
        log1p: Logarithm of 1 + x.
        sigmoid: Logistic function.
        silu: x times the logistic function of x.
        clip: Function that limits x to a lower and an upper bound.
        linear: Function that multiplies rows by weights ``[outputs, inputs]`` and adds biases.
        as_type: Function that converts an array to the data type of another array.
        rows: Function that repeats a vector as a given number of rows.
    """

    exp: Callable[[A], A]
    tanh: Callable[[A], A]
    log: Callable[[A], A]
    log1p: Callable[[A], A]
    sigmoid: Callable[[A], A]
    silu: Callable[[A], A]
    clip: Callable[[A, A | float, A | float], A]
    linear: Callable[[A, A, A], A]
    as_type: Callable[[A, A], A]
    rows: Callable[[A, int], A]


def forward(
    xp: Operations[A], settings: NetworkSettings, weights: Mapping[str, A], free: A, rates: A
) -> tuple[A, A]:
    """Return step (beta, ``[n, step features]``) and request coefficients (alpha) of deployments.

    Args:
        xp: Operations on the arrays.
        settings: Size and bounds of the network.
        weights: Arrays by name, with the shapes of :func:`array_shapes`.
        free: Features of deployments without the GPUs' rates, ``[n, descriptors]``.
        rates: Logarithms of the GPUs' rates (``RATES``) relative to an H100's, ``[n, rates]``.
    """
    beta_log = xp.rows(weights["beta_base"], free.shape[0])
    alpha_log = xp.rows(weights["alpha_base"], free.shape[0])
    if settings.corrected:
        beta_log = beta_log + corrections(xp, settings, weights, free, rates)
        change = standardized(xp, weights, free) @ weights["alpha_head"].T
        alpha_log = alpha_log + xp.clip(change, -settings.beta_bound, settings.beta_bound)
    beta = weights["beta_floor"] + weights["beta_excess"] * xp.exp(beta_log)
    return beta, weights["alpha_prior"] * xp.exp(alpha_log)


def standardized(xp: Operations[A], weights: Mapping[str, A], free: A) -> A:
    """Return features of deployments, standardized and clamped to the range of the training data.

    The arguments are those of :func:`forward`; the shape is ``[n, descriptors]``.
    """
    standard = (free - weights["mean"]) / weights["scale"]
    return xp.as_type(xp.clip(standard, weights["low"], weights["high"]), weights["beta_base"])


def corrections(
    xp: Operations[A], settings: NetworkSettings, weights: Mapping[str, A], free: A, rates: A
) -> A:
    """Return log corrections of step coefficients, ``[n, step features]``; see ``forward``."""
    hidden = standardized(xp, weights, free)
    for name in trunk_layers(settings):
        hidden = xp.silu(_linear(xp, weights, name, hidden))
    clamped = xp.clip(rates, weights["rate_low"], weights["rate_high"])
    bend = (_elasticity(xp, weights, hidden) * clamped[:, None, :]).sum(-1)
    return settings.beta_bound * xp.tanh(_linear(xp, weights, "beta_head", hidden)) + bend


def _elasticity(xp: Operations[A], weights: Mapping[str, A], hidden: A) -> A:
    """Return elasticities d log(beta) / d log(rate) within bounds, ``[n, step features, rates]``.

    Before training, the weights of the head are 0. The elasticity is then 0, or close to 0 if 0 is
    an end of its range.
    """
    lower = weights["elasticity_lower"]
    span = weights["elasticity_upper"] - lower
    # Position of an elasticity of 0 within its range, kept away from 0 and 1, where the sigmoid has
    # no gradient.
    zero = xp.clip(-lower / span, 0.1, 0.9)
    raw = _linear(xp, weights, "elasticity_head", hidden).reshape(-1, *span.shape)
    return lower + span * xp.sigmoid(raw + (xp.log(zero) - xp.log1p(-zero)))


def _linear(xp: Operations[A], weights: Mapping[str, A], name: str, x: A) -> A:
    return xp.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


# Weights of a trained network as numpy arrays.


@dataclass(frozen=True)
class NetworkWeights:
    """Weights of a :class:`~pinn.surrogate.network.CoefficientNetwork` as numpy arrays in float64.

    Attributes:
        settings: Size and bounds of the network.
        arrays: All arrays, by their names in a checkpoint (:func:`array_shapes`).

    Raises:
        ValueError: If a name is missing or unknown, or a shape does not match the settings.
    """

    settings: NetworkSettings
    arrays: Mapping[str, Shaped[np.ndarray, "..."]]

    def __post_init__(self) -> None:
        _check_shapes(self.settings, self.arrays)
        exact = {
            name: np.array(self.arrays[name], np.float64) for name in array_shapes(self.settings)
        }
        object.__setattr__(self, "arrays", exact)

    @property
    def input_scale(self) -> InputScale:
        """Mean, scale and range of the network's training inputs."""
        return InputScale(**{name: self.arrays[name] for name in INPUT_SCALE})

    def coefficients(
        self, free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
    ) -> tuple[Float[np.ndarray, "n beta"], Float[np.ndarray, "n alpha"]]:
        """Return beta and alpha of ``n`` deployments, in the order of their feature lists.

        Args:
            free: Features of the deployments, without the rates.
            rates: Logarithms of the GPUs' rates (``RATES``) relative to an H100's.
        """
        return forward(_NUMPY, self.settings, self.arrays, free, rates)

    def standardized(
        self, free: Float[np.ndarray, "n descriptors"]
    ) -> Float[np.ndarray, "n descriptors"]:
        """Return features of deployments as the layers read them: standardized and clamped."""
        return standardized(_NUMPY, self.arrays, free)


def _check_shapes(
    settings: NetworkSettings, arrays: Mapping[str, Shaped[np.ndarray, "..."]]
) -> None:
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


def _sigmoid(x: np.ndarray) -> np.ndarray:
    """Return the logistic function, accurate for very large and very small x.

    For very negative x, exp(-x) would overflow.
    """
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


#: Operations of the forward pass in numpy.
_NUMPY: Operations[np.ndarray] = Operations(
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
