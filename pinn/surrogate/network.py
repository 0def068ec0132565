"""Network that predicts alpha and beta, as it is trained and exported."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from pinn.surrogate import architecture
from pinn.surrogate.architecture import INPUT_SCALE, NetworkSettings, NetworkWeights
from pinn.surrogate.featurizer import DESCRIPTORS, RATES, InputScale
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

# Bounds of each coefficient's elasticity with each datasheet rate that keep times monotone.
#
# A feature that shrinks as 1 / bandwidth may have a beta that grows with bandwidth, at most in
# proportion. Efficiency then falls on a faster memory, but the time does not rise. Any other beta
# may only shrink. That includes betas of arithmetic: each number format has a peak of its own, and
# the ``peak_compute`` that the network sees is that of bf16 alone. The elasticity
# d log(beta) / d log(rate) is kept within these bounds by construction.

#: Resource of a feature -> rate that it is proportional to; other resources have no such rate.
_OWN_RATE = {"bandwidth": "memory_bandwidth", "link": "link_bandwidth"}

#: Steepest decrease of a coefficient with a rate. An assumption that limits extrapolation;
#: physics gives no bound.
_STEEPEST = -0.5


def elasticity_bounds() -> tuple[Float[Tensor, "beta rates"], Float[Tensor, "beta rates"]]:
    """Return the lower and upper bound of each beta's elasticity with each rate."""
    lower = torch.full((len(STEP_FEATURES), len(RATES)), _STEEPEST, dtype=torch.float64)
    upper = torch.zeros_like(lower)
    for row, feature in enumerate(STEP_FEATURES.values()):
        own = _OWN_RATE.get(feature.resource)
        if own is not None:
            upper[row, RATES.index(own)] = 1.0
    return lower, upper


class CoefficientNetwork(nn.Module):
    """Neural network that maps features of a deployment to non-negative alpha and beta.

    **Inputs** (:func:`pinn.surrogate.featurizer.featurize`). 38 features of model, GPU and engine
    configuration, standardized and clamped to the training range. Logarithms of 3 datasheet rates
    (memory bandwidth, arithmetic, link bandwidth) over those of an H100, clamped likewise. No model
    or GPU name is an input.

    **Layers.** A trunk of ``depth`` linear layers of ``hidden`` units, each followed by a SiLU.
    Then two linear heads: one with a unit for each beta, one with a unit for each beta and rate.
    The released network has 2 x 128 hidden units and 39,985 parameters.

    **Outputs.** 34 betas, one for each step feature, and 7 alphas, one for each request feature.
    For a beta with lower bound b and prior p ::

        beta = b + (p - b) exp(base + bound tanh(head(x)) + elasticity(x) . rates)

    Alpha is prior x exp(base), the same for every deployment.

    **Bounds.** A beta never falls below its lower bound, which is 1 for the roofline features, so
    that no step beats the roofline. tanh keeps a beta's correction within a factor
    exp(``beta_bound``). Beyond the training range, corrections are those of the nearest
    configuration inside, and only the features extrapolate.

    **Monotone.** Elasticities are d log(beta) / d log(rate). Each stays between bounds
    (:func:`elasticity_bounds`) such that no time grows when the GPU gets faster memory, arithmetic
    or links. Features grow with each request, token and context token, and betas are not negative,
    so a step time does too.

    **Start.** Heads start at zero: before training the network is the prior.

    :func:`pinn.surrogate.architecture.forward` is the forward pass. :meth:`weights` returns the
    form that predicts without torch.

    Args:
        settings: Size and bounds of the network.
        scale: Standardization and range of the inputs, kept as buffers.
    """

    def __init__(self, settings: NetworkSettings, scale: InputScale) -> None:
        super().__init__()
        self.settings = settings
        n_beta, n_alpha = len(STEP_FEATURES), len(REQUEST_FEATURES)
        floor, beta, alpha = (
            torch.tensor(values, dtype=torch.float64)
            for values in (
                [feature.lower_bound for feature in STEP_FEATURES.values()],
                [feature.prior for feature in STEP_FEATURES.values()],
                [feature.prior for feature in REQUEST_FEATURES.values()],
            )
        )
        lower, upper = elasticity_bounds()
        # Copies, since buffers that share memory would overwrite each other on loading.
        known = {
            name: torch.tensor(getattr(scale, name), dtype=torch.float64) for name in INPUT_SCALE
        }
        known |= {"beta_floor": floor, "beta_excess": beta - floor, "alpha_prior": alpha}
        known |= {"elasticity_lower": lower, "elasticity_upper": upper}
        for name, values in known.items():
            self.register_buffer(name, values)
        self.beta_base = nn.Parameter(torch.zeros(n_beta))
        self.alpha_base = nn.Parameter(torch.zeros(n_alpha))
        widths = [len(DESCRIPTORS)] + [settings.hidden] * settings.depth
        layers = [(nn.Linear(a, b), nn.SiLU()) for a, b in itertools.pairwise(widths)]
        self.trunk = nn.Sequential(*itertools.chain.from_iterable(layers))
        self.beta_head = _zero(nn.Linear(settings.hidden, n_beta))
        self.elasticity_head = _zero(nn.Linear(settings.hidden, n_beta * len(RATES)))

    @classmethod
    def from_weights(cls, weights: NetworkWeights) -> CoefficientNetwork:
        """Return the network with these weights, in float64, to train further or to export."""
        network = cls(weights.settings, weights.input_scale).double()
        network.load_state_dict({k: torch.tensor(v) for k, v in weights.arrays.items()})
        return network.eval()

    def weights(self) -> NetworkWeights:
        """Return a copy of the present weights in the form that predicts."""
        arrays = {name: array.numpy(force=True) for name, array in self.state_dict().items()}
        return NetworkWeights(self.settings, arrays)

    def coefficients(
        self, free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
    ) -> tuple[Float[np.ndarray, "n beta"], Float[np.ndarray, "n alpha"]]:
        """Return beta and alpha as the trained network predicts them."""
        return self.weights().coefficients(free, rates)

    def forward(
        self, free: Float[Tensor, "n descriptors"], rates: Float[Tensor, "n rates"]
    ) -> tuple[Float[Tensor, "n beta"], Float[Tensor, "n alpha"]]:
        """Return coefficients of ``n`` featurized deployments, in the order of the registries."""
        return architecture.forward(_TORCH, self.settings, self._arrays(), free, rates)

    def corrections(
        self, free: Float[Tensor, "n descriptors"], rates: Float[Tensor, "n rates"]
    ) -> Float[Tensor, "n beta"]:
        """Return the log corrections of beta, which are added to the logarithm of its base."""
        return architecture.corrections(_TORCH, self.settings, self._arrays(), free, rates)

    def _arrays(self) -> dict[str, Tensor]:
        return dict(itertools.chain(self.named_parameters(), self.named_buffers()))

    def set_alpha(self, alpha: Float[Tensor, " alpha"]) -> None:
        """Set the alpha of every deployment, in the units of the registry."""
        with torch.no_grad():
            self.alpha_base.copy_(torch.log(alpha / self.get_buffer("alpha_prior")))

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision of the weights: float32 or float64 in training, float64 in use."""
        return self.beta_base.dtype

    @property
    def parameter_count(self) -> int:
        """Return the number of trained parameters."""
        return sum(p.numel() for p in self.parameters())


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def log_huber(
    predicted: Float[Tensor, "*rows"],
    measured: Float[Tensor, "*rows"],
    weight: Float[Tensor, "..."],
    delta: float,
) -> Float[Tensor, ""]:
    """Return the training loss: mean of Huber(log predicted - log measured) / delta.

    Beyond delta the loss grows with the absolute error. An error counts the same in either
    direction. Read as a likelihood, the loss has noise with a standard deviation of sqrt(delta).
    """
    error = torch.log(predicted) - torch.log(measured)
    each = (
        functional.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta) / delta
    )
    return (each * weight).sum() / weight.sum()


#: Operations of the forward pass in torch.
_TORCH: architecture.Operations[Tensor] = architecture.Operations(
    exp=torch.exp,
    tanh=torch.tanh,
    log=torch.log,
    log1p=torch.log1p,
    sigmoid=torch.sigmoid,
    silu=functional.silu,
    clip=torch.clamp,
    linear=functional.linear,
    as_type=lambda x, like: x.to(like.dtype),
    rows=lambda vector, n: vector.expand(n, -1),
)
