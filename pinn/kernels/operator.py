"""What every operator surrogate is made of: sizes, a roofline, network inputs and a lattice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.kernels.hardware import Hardware
from pinn.kernels.lattice import Nodes
from pinn.kernels.network import TrainingPlan

Rows = Float[np.ndarray, " rows"]
Sizes = Mapping[str, Rows]


def logarithm(seconds: Rows, launch_seconds: float) -> Rows:
    """Log of a time in microseconds that levels off below a launch: a network input."""
    return np.log((seconds + launch_seconds) * 1e6)


def ceiling_share(amount: Rows) -> Rows:
    """Log of how much rounding up to whole tiles or waves adds."""
    return np.log(np.ceil(amount) / amount)


class Operator(ABC):
    """Physics of one kind of kernel: what its time is measured against and what bends it.

    Attributes:
        name: Key in checkpoints and tables.
        axes: Sizes in which the time must not fall, in the order of ``nodes``.
        nodes: Lattice positions per axis.
        shape: The other sizes.
        format_column: Column of the number format in the measured rows.
        group: Columns that make one shape; held-out errors leave whole shapes out.
        plan: How the correction network is trained.
        blanks_unknown_chips: Whether chips never trained on run like their generation, rather than
            as their bandwidth, ridge and cache would have it.
        measured_unlike_served: Whether the tables' conditions differ from those of a prediction.
    """

    name: ClassVar[str]
    axes: ClassVar[tuple[str, ...]]
    nodes: ClassVar[Nodes]
    shape: ClassVar[tuple[str, ...]]
    format_column: ClassVar[str]
    group: ClassVar[tuple[str, ...]]
    plan: ClassVar[TrainingPlan]
    measured_unlike_served: ClassVar[bool] = False
    blanks_unknown_chips: ClassVar[bool] = False

    def measured(self, rows: pd.DataFrame, hw: Hardware) -> dict[str, Rows]:
        """Sizes of measured rows, those that follow from others included."""
        del hw
        return {c: rows[c].to_numpy(dtype=np.float64) for c in (*self.axes, *self.shape)}

    def queried(self, sizes: Sizes, hw: Hardware) -> dict[str, Rows]:
        """Sizes of a prediction, completed as the serving engine would run it."""
        del hw
        return dict(sizes)

    @abstractmethod
    def inputs(self, hw: Hardware, sizes: Sizes) -> Float[np.ndarray, "rows inputs"]:
        """Inputs of the correction network, dimensionless or logarithms of sizes."""

    @abstractmethod
    def roofline(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Time that the correction multiplies: the slower of memory and compute, and a launch."""

    @abstractmethod
    def floor(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Time that no kernel can beat on the datasheet's chip."""

    @abstractmethod
    def work_seconds(self, hw: Hardware, sizes: Sizes) -> Rows:
        """Memory plus compute time: sums of products of sizes, so its increments only grow."""
