"""Network that predicts request (alpha) and step (beta) coefficients, for training and export."""

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

# Bounds on elasticities: relative changes of step time coefficients (betas) per relative change of
# a GPU's memory bandwidth, peak FLOP/s or link bandwidth, d log(beta) / d log(rate).
#
# Within these bounds, no step time increases with a rate; the network satisfies them by
# construction. If a feature is proportional to 1 / bandwidth, its beta may grow at most in
# proportion to this bandwidth: efficiency then decreases on faster memory, but the time does not
# increase. Any other beta may only decrease. This includes betas of arithmetic: each number format
# has its own peak FLOP/s, but the network's input ``peak_compute`` is only the bf16 peak.

#: GPU rate to which the time of a resource's features is inversely proportional and with which
#: their betas may grow, by resource.
_OWN_RATE = {"bandwidth": "memory_bandwidth", "link": "link_bandwidth"}

#: Minimum d log(beta) / d log(rate) of each beta and GPU rate. It is an assumption that limits
#: extrapolation, not a law of physics.
_STEEPEST = -0.5


def elasticity_bounds() -> tuple[Float[Tensor, "beta rates"], Float[Tensor, "beta rates"]]:
    """Return (lower, upper) bounds of d log(beta) / d log(rate) per coefficient and GPU rate."""
    lower = torch.full((len(STEP_FEATURES), len(RATES)), _STEEPEST, dtype=torch.float64)
    upper = torch.zeros_like(lower)
    for row, feature in enumerate(STEP_FEATURES.values()):
        own = _OWN_RATE.get(feature.resource)
        if own is not None:
            upper[row, RATES.index(own)] = 1.0
    return lower, upper


class CoefficientNetwork(nn.Module):
    """Neural network that maps features of a deployment to its non-negative coefficients.

    **Inputs** (:func:`pinn.surrogate.featurizer.featurize`). 45 features of model, GPU and engine
    configuration, standardized and clamped to the training range. Logarithms of 3 rates (memory
    bandwidth, peak FLOP/s, link bandwidth) relative to an H100, clamped to the training range.
    Names of models and GPUs are not inputs.

    **Layers.** A trunk of ``depth`` linear layers of ``hidden`` units, each followed by a SiLU. Two
    linear heads follow: one with a unit per beta, and one with a unit per pair of beta and rate. A
    third linear head, with a unit per alpha, reads the features directly. The released network has
    2 x 128 hidden units and 40,300 parameters.

    **Outputs.** 34 step coefficients (betas), one per step feature, and 7 request coefficients
    (alphas), one per request feature. For a beta with lower bound b and prior p, and a deployment
    with inputs x ::

        beta = b + (p - b) exp(base + bound tanh(head(x)) + elasticity(x) . rates)

    where ``head`` and ``elasticity`` are the two heads, ``base`` is a trained constant, ``bound``
    is ``beta_bound``, and ``rates`` are the log rates. Alpha is prior x exp(base + alpha_head(x)),
    where the head's output is clipped to ``bound``. The few measured servers determine this head
    poorly, so its weights are kept close to 0.

    **Bounds.** A beta never falls below its lower bound, which is 1 for the roofline features, so
    that no step beats the roofline. tanh keeps a beta's correction within a factor
    exp(``beta_bound``). Outside the training range, corrections are those of the nearest
    configuration inside it, and only the step features extrapolate.

    **Monotone.** Elasticities are d log(beta) / d log(rate). Each stays between bounds
    (:func:`elasticity_bounds`) such that no time grows with faster memory, arithmetic or links.
    Features grow with each request, token and context token, and betas are not negative, so step
    times also grow.

    **Start.** Heads start at zero, so before training the network predicts the prior.

    :func:`pinn.surrogate.architecture.forward` is the forward pass. :meth:`weights` returns numpy
    weights that predict without torch.

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
        # Copy the arrays, because buffers with shared memory would overwrite each other when
        # weights are loaded.
        known = {
            name: torch.tensor(getattr(scale, name), dtype=torch.float64) for name in INPUT_SCALE
        }
        known |= {"beta_floor": floor, "beta_excess": beta - floor, "alpha_prior": alpha}
        known |= {"elasticity_lower": lower, "elasticity_upper": upper}
        for name, values in known.items():
            self.register_buffer(name, values)
        self.beta_base = nn.Parameter(torch.zeros(n_beta))
        self.alpha_base = nn.Parameter(torch.zeros(n_alpha))
        self.alpha_head = nn.Parameter(torch.zeros(n_alpha, len(DESCRIPTORS)))
        widths = [len(DESCRIPTORS)] + [settings.hidden] * settings.depth
        layers = [(nn.Linear(a, b), nn.SiLU()) for a, b in itertools.pairwise(widths)]
        self.trunk = nn.Sequential(*itertools.chain.from_iterable(layers))
        self.beta_head = _zero(nn.Linear(settings.hidden, n_beta))
        self.elasticity_head = _zero(nn.Linear(settings.hidden, n_beta * len(RATES)))

    @classmethod
    def from_weights(cls, weights: NetworkWeights) -> CoefficientNetwork:
        """Return a torch network with the given weights, in float64, for training or export."""
        network = cls(weights.settings, weights.input_scale).double()
        network.load_state_dict({k: torch.tensor(v) for k, v in weights.arrays.items()})
        return network.eval()

    def weights(self) -> NetworkWeights:
        """Return a copy of the current weights as numpy arrays that are ready to predict."""
        arrays = {name: array.numpy(force=True) for name, array in self.state_dict().items()}
        return NetworkWeights(self.settings, arrays)

    def coefficients(
        self, free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
    ) -> tuple[Float[np.ndarray, "n beta"], Float[np.ndarray, "n alpha"]]:
        """Return the beta and alpha that the network predicts, as numpy arrays."""
        return self.weights().coefficients(free, rates)

    def forward(
        self, free: Float[Tensor, "n descriptors"], rates: Float[Tensor, "n rates"]
    ) -> tuple[Float[Tensor, "n beta"], Float[Tensor, "n alpha"]]:
        """Return beta and alpha of ``n`` deployments, in the order of their feature lists."""
        return architecture.forward(_TORCH, self.settings, self._arrays(), free, rates)

    def corrections(
        self, free: Float[Tensor, "n descriptors"], rates: Float[Tensor, "n rates"]
    ) -> Float[Tensor, "n beta"]:
        """Return the log correction of each beta: the exponent in its formula without ``base``."""
        return architecture.corrections(_TORCH, self.settings, self._arrays(), free, rates)

    def _arrays(self) -> dict[str, Tensor]:
        return dict(itertools.chain(self.named_parameters(), self.named_buffers()))

    def set_alpha(self, alpha: Float[Tensor, " alpha"]) -> None:
        """Set the part of the request coefficients (alpha) that all deployments share."""
        with torch.no_grad():
            self.alpha_base.copy_(torch.log(alpha / self.get_buffer("alpha_prior")))

    def set_alpha_head(self, head: Float[Tensor, "alpha descriptors"]) -> None:
        """Set the weights of the head by which alpha differs between deployments."""
        with torch.no_grad():
            self.alpha_head.copy_(head)

    @property
    def dtype(self) -> torch.dtype:
        """Return the data type of the weights: float64, or in training also float32."""
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
    """Return the training loss: the mean of Huber(log predicted - log measured) / delta.

    Beyond delta, the loss grows with the absolute log error instead of its square. Over- and
    underestimates by the same factor count equally. As a negative log likelihood, the loss assumes
    normal log errors with a standard deviation of sqrt(delta).
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
