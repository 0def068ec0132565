"""The correction network of a kernel surrogate: a small MLP on clamped inputs, bounded output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn


class CorrectionNetwork(nn.Module):
    """Log of the ratio between a kernel's time and its roofline.

    Inputs are standardized and clamped to the range that training saw (or to ``clamp`` standard
    deviations, where that is less), so that nothing is extrapolated but the roofline itself; the
    output is ``bound * tanh(. / bound)``.

    Args:
        inputs: Number of inputs.
        width: Units per hidden layer.
        depth: Hidden layers.
        bound: Largest correction in log units.
    """

    mean: Float[Tensor, " inputs"]
    scale: Float[Tensor, " inputs"]
    low: Float[Tensor, " inputs"]
    high: Float[Tensor, " inputs"]

    def __init__(self, inputs: int, width: int, depth: int, bound: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        size = inputs
        for _ in range(depth):
            layers += [nn.Linear(size, width), nn.SiLU()]
            size = width
        self.layers = nn.Sequential(*layers, nn.Linear(size, 1))
        self.bound = bound
        for name in ("mean", "low"):
            self.register_buffer(name, torch.zeros(inputs, dtype=torch.float64))
        for name in ("scale", "high"):
            self.register_buffer(name, torch.ones(inputs, dtype=torch.float64))

    def set_range(self, inputs: Float[Tensor, "rows inputs"], clamp: float | None = None) -> None:
        """Take mean, scale and range of the inputs from training rows."""
        self.mean.copy_(inputs.mean(0))
        self.scale.copy_(inputs.std(0).clamp_min(1e-6))
        standard = (inputs - self.mean) / self.scale
        limit = float("inf") if clamp is None else clamp
        self.low.copy_(standard.amin(0).clamp_min(-limit))
        self.high.copy_(standard.amax(0).clamp_max(limit))

    def standardize(self, inputs: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows inputs"]:
        """Clamped standard scores."""
        return ((inputs - self.mean) / self.scale).clamp(self.low, self.high)

    def forward(self, standard: Float[Tensor, "rows inputs"]) -> Float[Tensor, " rows"]:
        """Correction from standardized inputs."""
        return self.bound * torch.tanh(self.layers(standard).squeeze(-1) / self.bound)

    @torch.no_grad()
    def predict(
        self, inputs: Float[np.ndarray, "rows inputs"], rows_at_once: int = 1 << 16
    ) -> Float[np.ndarray, " rows"]:
        """Correction from raw inputs, float64 in and out."""
        parts = [
            self(self.standardize(torch.from_numpy(inputs[i : i + rows_at_once])))
            for i in range(0, len(inputs), rows_at_once)
        ]
        return torch.cat(parts).numpy() if parts else np.zeros(0)


@dataclass(frozen=True)
class TrainingPlan:
    """How a correction network is trained.

    Attributes:
        rows: Training rows are thinned to at most so many.
        epochs: Passes over them.
        batch: Rows per gradient step.
        learning_rate: Peak of the one-cycle schedule.
        width: Units per hidden layer.
        depth: Hidden layers.
        bound: Largest correction in log units.
        clamp: Range of the inputs in standard deviations; None for all that training saw.
        huber: Where the loss turns from squared to absolute, in log units.
        weight_decay: Of AdamW.
    """

    rows: int = 300_000
    epochs: int = 40
    batch: int = 4096
    learning_rate: float = 3e-3
    width: int = 64
    depth: int = 3
    bound: float = 3.0
    clamp: float | None = None
    huber: float = 0.1
    weight_decay: float = 1e-4


def train(
    inputs: Float[np.ndarray, "rows inputs"],
    target: Float[np.ndarray, " rows"],
    plan: TrainingPlan,
    seed: int,
    weights: Float[np.ndarray, " rows"] | None = None,
) -> CorrectionNetwork:
    """Fit a network to log ratios; the same rows and seed give the same weights.

    Args:
        inputs: Of each row.
        target: Log of measured over roofline time.
        plan: Sizes and schedule.
        seed: Of the initial weights, the thinning and the order of rows.
        weights: Per row; None for equal ones.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = CorrectionNetwork(inputs.shape[1], plan.width, plan.depth, plan.bound)
    network.set_range(torch.from_numpy(inputs), plan.clamp)
    keep = torch.randperm(len(inputs), generator=generator)[: plan.rows]
    x = network.standardize(torch.from_numpy(inputs)[keep]).float()
    y = torch.from_numpy(target)[keep].float()
    w = torch.ones_like(y) if weights is None else torch.from_numpy(weights)[keep].float()
    steps = plan.epochs * -(-len(x) // plan.batch)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, plan.learning_rate, total_steps=steps, pct_start=0.1
    )
    for _ in range(plan.epochs):
        order = torch.randperm(len(x), generator=generator)
        for rows in order.split(plan.batch):
            optimizer.zero_grad()
            loss = nn.functional.huber_loss(
                network(x[rows]), y[rows], delta=plan.huber, reduction="none"
            )
            (loss * w[rows]).mean().backward()
            optimizer.step()
            schedule.step()
    return network.double().eval()
