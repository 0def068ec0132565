"""The loss: Huber of the log ratio, so that an error counts the same in either direction."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import huber_loss


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
