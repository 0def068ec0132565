"""The tiny network as it is trained, and its loss."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from pinn.surrogate.featurizer import DESCRIPTORS, RATES
from pinn.surrogate.inference import EmbeddingScale, NetworkSettings, TrainedNetwork
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

# How far each coefficient may bend with each datasheet rate without losing monotonicity.
#
# A feature that shrinks as 1 / bandwidth may have a beta that grows with bandwidth, at most in
# proportion: efficiency falls on a faster memory, but the time does not rise. Any other beta may
# only shrink; those of arithmetic too, since each number format has a peak of its own and the
# ``peak_compute`` that the network sees is that of bf16 alone. The elasticity d log(beta) / d
# log(rate) is kept within these bounds by construction.

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


# The loss: Huber of the log ratio, so that an error counts the same in either direction.


def log_huber(
    predicted: Float[Tensor, "*rows"],
    measured: Float[Tensor, "*rows"],
    weight: Float[Tensor, "..."],
    delta: float,
) -> Float[Tensor, ""]:
    """Weighted mean of Huber(log predicted - log measured) / delta: absolute error beyond delta.

    Read as a likelihood, its noise has a standard deviation of sqrt(delta).
    """
    error = torch.log(predicted) - torch.log(measured)
    each = huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta) / delta
    return (each * weight).sum() / weight.sum()


# The tiny network: embedding -> named, non-negative alpha and beta.


class CoefficientNetwork(nn.Module):
    """Physical prior x shared base x bounded configuration correction.

    For every coefficient with lower bound b and prior p

        coefficient = b + (p - b) exp(base + bound tanh(head(x)) + elasticity(x) . rates)

    where x are the free descriptors, clamped to the training range: beyond it, as at 32 expert
    ranks or 4 MB of L2, coefficients are those of the nearest configuration within, and features
    alone go on. (Falling back on prior times base there made layers of 32 ranks half as long as
    those of 8, and a better card slower.) ``rates`` are the log datasheet rates, clamped likewise;
    their elasticities are bounded such that no faster GPU gets a larger time (see ``elasticity``).
    Heads start at zero: before training the network is the prior. Every deployment has the same
    alpha, prior x exp(base).

    This form is for training and for ONNX; :meth:`trained` gives the one that predicts.
    """

    mean: Float[Tensor, " descriptors"]
    scale: Float[Tensor, " descriptors"]
    low: Float[Tensor, " descriptors"]
    high: Float[Tensor, " descriptors"]
    rate_low: Float[Tensor, " rates"]
    rate_high: Float[Tensor, " rates"]
    beta_floor: Float[Tensor, " beta"]
    beta_excess: Float[Tensor, " beta"]
    alpha_prior: Float[Tensor, " alpha"]
    elasticity_lower: Float[Tensor, "beta rates"]
    elasticity_upper: Float[Tensor, "beta rates"]

    def __init__(self, settings: NetworkSettings, scale: EmbeddingScale) -> None:
        super().__init__()
        self.settings = settings
        n_beta, n_alpha = len(STEP_FEATURES), len(REQUEST_FEATURES)
        for name in ("mean", "scale", "low", "high", "rate_low", "rate_high"):
            # A copy: buffers that share memory would be overwritten by each other on loading.
            self.register_buffer(name, torch.tensor(getattr(scale, name), dtype=torch.float64))
        floor = torch.tensor([f.lower_bound for f in STEP_FEATURES.values()], dtype=torch.float64)
        beta, alpha = (
            torch.tensor([feature.prior for feature in features.values()], dtype=torch.float64)
            for features in (STEP_FEATURES, REQUEST_FEATURES)
        )
        lower, upper = elasticity_bounds()
        known = {"beta_floor": floor, "beta_excess": beta - floor, "alpha_prior": alpha}
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
    def from_trained(cls, trained: TrainedNetwork) -> CoefficientNetwork:
        """The network to train further or to export, in float64."""
        network = cls(trained.settings, trained.embedding).double()
        network.load_state_dict({k: torch.tensor(v) for k, v in trained.arrays().items()})
        return network.eval()

    def trained(self) -> TrainedNetwork:
        """A copy of what was learned so far, in the form that predicts."""
        state = {k: v.numpy(force=True) for k, v in self.state_dict().items()}
        copies = {name: np.array(array, np.float64) for name, array in state.items()}
        return TrainedNetwork.from_arrays(self.settings, copies)

    def coefficients(
        self, free: Float[np.ndarray, "n descriptors"], rates: Float[np.ndarray, "n rates"]
    ) -> tuple[Float[np.ndarray, "n beta"], Float[np.ndarray, "n alpha"]]:
        """Beta and alpha as the trained network predicts them."""
        return self.trained().coefficients(free, rates)

    def forward(
        self, free: Float[Tensor, "n descriptors"], rates: Float[Tensor, "n rates"]
    ) -> tuple[Float[Tensor, "n beta"], Float[Tensor, "n alpha"]]:
        """Coefficients of ``n`` embedded deployments, in the order of the registries."""
        beta_log: Tensor = self.beta_base.expand(free.shape[0], -1)
        if self.settings.corrected:
            beta_log = beta_log + self.corrections(free, rates)
        beta = self.beta_floor + self.beta_excess * torch.exp(beta_log)
        alpha = self.alpha_prior * torch.exp(self.alpha_base)
        return beta, alpha.expand(free.shape[0], -1)

    def corrections(
        self, free: Float[Tensor, "n descriptors"], rates: Float[Tensor, "n rates"]
    ) -> Float[Tensor, "n beta"]:
        """Log corrections of beta: what is added to the base's logarithm."""
        standard = (free - self.mean) / self.scale
        hidden = self.trunk(torch.clamp(standard, self.low, self.high).to(self.dtype))
        span = self.elasticity_upper - self.elasticity_lower
        # Zero weights mean no elasticity, or nearly none where that is an end of the range.
        zero = _logit(-self.elasticity_lower / span)
        raw = self.elasticity_head(hidden).unflatten(-1, span.shape) + zero
        elasticity = self.elasticity_lower + span * torch.sigmoid(raw)
        bend = (elasticity * torch.clamp(rates, self.rate_low, self.rate_high)[:, None, :]).sum(-1)
        return self.settings.beta_bound * torch.tanh(self.beta_head(hidden)) + bend

    def set_alpha(self, alpha: Float[Tensor, " alpha"]) -> None:
        """Say this alpha, in seconds, of every deployment."""
        with torch.no_grad():
            self.alpha_base.copy_(torch.log(alpha / self.alpha_prior))

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the learned weights: float32 or 64 in training, float64 in use."""
        return self.beta_base.dtype

    @property
    def parameter_count(self) -> int:
        """Number of learned parameters."""
        return sum(p.numel() for p in self.parameters())


def _zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _logit(share: Tensor) -> Tensor:
    """Inverse sigmoid, kept where the sigmoid still has a slope to learn from."""
    share = torch.clamp(share, 0.1, 0.9)
    return torch.log(share) - torch.log1p(-share)
