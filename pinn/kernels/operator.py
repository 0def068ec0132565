"""Kernel types (operators): rooflines, correction networks and monotone interpolation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.optimize import isotonic_regression
from torch import Tensor, nn

from pinn.kernels.hardware import Hardware
from pinn.kernels.tables.work import Work

# Monotone interpolation: a surrogate's time never decreases when work is added.
#
# A network alone could violate this. The network is therefore evaluated on a lattice of sizes, and
# its values are made non-decreasing along every axis. Between the nodes of the lattice, times are
# interpolated linearly in the logarithms. Both operations preserve order, so the result never
# decreases along any axis. A prediction needs only a few look-ups.

Nodes = tuple[Float[np.ndarray, "..."], ...]


def octaves(low: int, high: int, parts: int) -> Float[np.ndarray, " nodes"]:
    """Return sizes from ``low`` to ``high``, with ``parts`` equally spaced sizes per octave.

    >>> octaves(1, 8, 2).tolist()
    [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]
    """
    starts = low * 2.0 ** np.arange(round(np.log2(high / low)))
    return np.append(np.outer(starts, 1 + np.arange(parts) / parts).ravel(), high)


def node_points(axes: Nodes) -> list[Float[np.ndarray, " nodes"]]:
    """Return the coordinates of all nodes of a lattice, as one array ``[nodes]`` per axis.

    The coordinate along the last axis varies fastest.
    """
    return [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]


def monotone(values: Float[np.ndarray, "lattices ..."]) -> Float[np.ndarray, "lattices ..."]:
    """Make values non-decreasing along all axes but the first, one axis after another.

    Isotonic regression yields the non-decreasing series that is closest by least squares. A running
    maximum would propagate every positive error to all larger sizes. Isotonic regression keeps one
    series above another, so that later axes do not undo earlier ones. Final running maxima make the
    order exact in floating point.
    """
    for axis in range(1, values.ndim):
        moved = np.moveaxis(values, axis, -1)
        series = moved.reshape(-1, moved.shape[-1]).copy()
        for i in np.flatnonzero((np.diff(series) < 0.0).any(axis=1)):
            series[i] = isotonic_regression(series[i]).x
        values = np.moveaxis(series.reshape(moved.shape), -1, axis)
    for axis in range(1, values.ndim):
        values = np.maximum.accumulate(values, axis=axis)
    return values


def interpolate(
    values: Float[np.ndarray, "lattices ..."],
    axes: Nodes,
    lattice: Int[np.ndarray, " rows"],
    points: Sequence[Float[np.ndarray, " rows"]],
) -> Float[np.ndarray, " rows"]:
    """Return values interpolated between nodes, linearly in log sizes; positions are clamped.

    Args:
        values: Values at the nodes of each lattice.
        axes: Node positions per axis, positive and increasing.
        lattice: Index of each row's lattice.
        points: Position (a size) of each row, one array per axis.
    """
    result = np.zeros(len(lattice))
    flat, stride = values.reshape(len(values), -1), values[0].size if len(values) else 1
    offset = np.zeros(len(lattice), dtype=np.int64)
    corners = [(offset, np.ones(len(lattice)))]
    for nodes, point in zip(axes, points, strict=True):
        stride //= len(nodes)
        clamped = np.clip(point, nodes[0], nodes[-1])
        left = np.clip(np.searchsorted(nodes, clamped, side="right") - 1, 0, len(nodes) - 2)
        share = np.log(clamped / nodes[left]) / np.log(nodes[left + 1] / nodes[left])
        corners = [
            (base + (left + step) * stride, weight * (share if step else 1.0 - share))
            for base, weight in corners
            for step in (0, 1)
        ]
    for index, weight in corners:
        result += weight * flat[lattice, index]
    return result


# Correction network of a kernel surrogate: a small MLP with clamped inputs and bounded output.

#: Number of rows for which the network is evaluated at once. Activations between layers then fit in
#: a core's cache, which halves the time for 32,480 rows.
_ROWS_IN_CACHE = 4096


class KernelCorrection(nn.Module):
    """Network that predicts the log ratio of a kernel's time to its roofline.

    Inputs are standardized and clamped to the range of the training data, or to ``clamp`` standard
    deviations if that is narrower. Beyond this range, only the roofline changes with the size. The
    output is ``bound * tanh(x / bound)``, where x is the output of the last layer.

    Args:
        inputs: Number of inputs.
        width: Number of units per hidden layer.
        depth: Number of hidden layers.
        bound: Maximum absolute correction, as a natural logarithm of time.
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
        for name, value in (("mean", 0.0), ("scale", 1.0), ("low", 0.0), ("high", 1.0)):
            self.register_buffer(name, torch.full((inputs,), value, dtype=torch.float64))

    def set_range(self, inputs: Float[Tensor, "rows inputs"], clamp: float | None = None) -> None:
        """Set mean, scale and range of the network's inputs from the training rows."""
        self.mean.copy_(inputs.mean(0))
        self.scale.copy_(inputs.std(0).clamp_min(1e-6))
        standard = (inputs - self.mean) / self.scale
        limit = float("inf") if clamp is None else clamp
        self.low.copy_(standard.amin(0).clamp_min(-limit))
        self.high.copy_(standard.amax(0).clamp_max(limit))

    def standardize(self, inputs: Float[Tensor, "rows inputs"]) -> Float[Tensor, "rows inputs"]:
        """Return the inputs as standard deviations from the mean, clamped to the training range."""
        return ((inputs - self.mean) / self.scale).clamp(self.low, self.high)

    def forward(self, standard: Float[Tensor, "rows inputs"]) -> Float[Tensor, " rows"]:
        """Return the log of the correction factor of each row from its standardized inputs."""
        return self.bound * torch.tanh(self.layers(standard).squeeze(-1) / self.bound)

    @torch.no_grad()
    def predict(
        self, inputs: Float[np.ndarray, "rows inputs"], rows_at_once: int = 1 << 16
    ) -> Float[np.ndarray, " rows"]:
        """Return the log of the correction factor of each row from raw inputs, in float64."""
        parts = [
            self(self.standardize(rows))
            for block in torch.from_numpy(inputs).split(rows_at_once)
            for rows in block.split(_ROWS_IN_CACHE)
        ]
        return torch.cat(parts).numpy() if parts else np.zeros(0)


#: Absolute log-time error at which the loss changes from squared to absolute (Huber).
_HUBER = 0.1


@dataclass(frozen=True)
class TrainingPlan:
    """Settings of a network that corrects a kernel's roofline, and settings of its training.

    Attributes:
        rows: Maximum number of training rows; larger tables are subsampled.
        epochs: Number of passes over the rows.
        batch: Rows per gradient step.
        learning_rate: Peak of the one-cycle schedule.
        width: Number of units per hidden layer.
        depth: Number of hidden layers.
        bound: Maximum absolute correction, as a natural logarithm of time.
        clamp: Range of the inputs in standard deviations; None for the range of the training data.
        weight_decay: Weight decay of AdamW.
    """

    rows: int = 300_000
    epochs: int = 40
    batch: int = 4096
    learning_rate: float = 3e-3
    width: int = 64
    depth: int = 3
    bound: float = 3.0
    clamp: float | None = None
    weight_decay: float = 1e-4


def train(
    inputs: Float[np.ndarray, "rows inputs"],
    target: Float[np.ndarray, " rows"],
    plan: TrainingPlan,
    seed: int,
) -> KernelCorrection:
    """Train a correction network on log ratios; the same rows and seed yield the same weights.

    Args:
        inputs: Network inputs of each row.
        target: Log of the ratio of measured to roofline time, per row.
        plan: Sizes of the network, and the training schedule.
        seed: Random seed for the initial weights, the subsampling and the order of rows.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = KernelCorrection(inputs.shape[1], plan.width, plan.depth, plan.bound)
    network.set_range(torch.from_numpy(inputs), plan.clamp)
    keep = torch.randperm(len(inputs), generator=generator)[: plan.rows]
    x = network.standardize(torch.from_numpy(inputs)[keep]).float()
    y = torch.from_numpy(target)[keep].float()
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
                network(x[rows]), y[rows], delta=_HUBER, reduction="none"
            )
            loss.mean().backward()
            optimizer.step()
            schedule.step()
    return network.double().eval()


# Base class of all kernel types: sizes, roofline, network inputs and lattice.

Rows = Float[np.ndarray, " rows"]
Sizes = Mapping[str, Rows]


def logarithm(seconds: Rows, launch_seconds: float) -> Rows:
    """Return a time as network input: log microseconds, levelling off below ``launch_seconds``."""
    return np.log((seconds + launch_seconds) * 1e6)


def ceiling_share(amount: Rows) -> Rows:
    """Return the log of the factor by which rounding up to whole tiles or waves increases work."""
    return np.log(np.ceil(amount) / amount)


class Operator(ABC):
    """Physics of one kernel type: its sizes, roofline, and inputs of its correction network.

    Attributes:
        name: Name of the kernel type in checkpoints and tables.
        axes: Names of the sizes along which the predicted time must not decrease, in the order of
            ``nodes``.
        nodes: Values of each axis at which the network is evaluated; times between these sizes are
            interpolated.
        shape: Names of all sizes other than ``axes``.
        format_column: Column of measured rows that has the number format.
        group: Columns that define a shape; held-out errors hold out whole shapes.
        plan: Settings of the correction network and its training.
        launch_seconds: Time of the shortest kernel, in seconds.
        blanks_unknown_chips: Whether GPUs without training data are treated like the average of
            their generation, without effects of their bandwidth, ridge point (FLOP per byte) and
            cache.
        measured_unlike_served: Whether the conditions of measurements (such as expert routing)
            differ from those of predictions.
    """

    name: ClassVar[str]
    axes: ClassVar[tuple[str, ...]]
    nodes: ClassVar[Nodes]
    shape: ClassVar[tuple[str, ...]]
    format_column: ClassVar[str]
    group: ClassVar[tuple[str, ...]]
    plan: ClassVar[TrainingPlan]
    launch_seconds: ClassVar[float]
    measured_unlike_served: ClassVar[bool] = False
    blanks_unknown_chips: ClassVar[bool] = False

    @classmethod
    def sizes(cls) -> tuple[str, ...]:
        """Return the names of all sizes, in the order of a surrogate's arguments."""
        return (*cls.axes, *cls.shape)

    def measured(self, rows: pd.DataFrame, _hw: Hardware) -> dict[str, Rows]:
        """Return the sizes of measured rows, including sizes derived from other columns."""
        return {c: rows[c].to_numpy(dtype=np.float64) for c in self.sizes()}

    def queried(self, sizes: Sizes, _hw: Hardware) -> dict[str, Rows]:
        """Return the sizes of a prediction, including those that the serving engine determines."""
        return dict(sizes)

    @abstractmethod
    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Return the inputs of the correction network: dimensionless, or logarithms of sizes."""

    @abstractmethod
    def work(self, hw: Hardware, sizes: Sizes) -> Work:
        """Return the bytes that the kernel moves and the FLOP that it computes."""

    @abstractmethod
    def rate(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Return the peak FLOP/s of the tensor cores or other units that the kernel uses."""

    def times(self, hw: Hardware, sizes: Sizes) -> tuple[Rows, Rows, Rows]:
        """Return the times to read weights or keys, move activations, and compute, in seconds."""
        work = self.work(hw, sizes)
        return (
            work.read_bytes / hw.bandwidth,
            work.activation_bytes / hw.bandwidth,
            work.flop / self.rate(hw, sizes),
        )

    def roofline(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Return the time that the network corrects, max(memory, compute) + launch, in seconds."""
        read, activations, compute = self.times(hw, sizes)
        return np.maximum(read + activations, compute) + self.launch_seconds

    @abstractmethod
    def floor(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Return the roofline lower bound of the kernel, in seconds."""

    def work_seconds(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Return memory plus compute time in seconds, which never decreases with size."""
        read, activations, compute = self.times(hw, sizes)
        return read + activations + compute
