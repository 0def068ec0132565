"""An entry of the registry of step features, and how its prior is worded."""

from collections.abc import Callable
from dataclasses import dataclass

from pinn.physics.batch_sums import BatchSums
from pinn.physics.costs import StepCosts
from pinn.physics.step_values import Values

# What an entry of the registry of step features says, and the words for its prior.


@dataclass(frozen=True)
class Overhead:
    """What a unit costs beyond the kernels that were measured: host work and small kernels.

    Where a step is composed of measured kernels, this is all that the feature adds to them, and
    serving data fit it. All medians and spreads were set after looking at the 825 measured
    deployments, the spreads by leaving one model out of the training models of each outer fold
    (LOG.md), so left-out errors are a little kinder than those of models never looked at.

    Attributes:
        prior: Its median, in the unit of the feature's beta.
        spread: Standard deviation of its logarithm.
    """

    prior: float
    spread: float


@dataclass(frozen=True)
class StepFeature:
    """One entry of the registry.

    Attributes:
        name: Its name everywhere: checkpoint, table, ONNX, Go.
        unit: Of its beta: ``1`` for a multiplier of datasheet time, else seconds per count.
        lower_bound: Smallest beta; 1 where the feature is part of the floor.
        kernel_prior: What measured kernels are expected to add to beta, before any data.
        overhead: What adds to it that no measured kernel holds; None where nothing does.
        resource: Which datasheet rate the feature shrinks with: ``bandwidth``, ``peak``,
            ``roofline`` (the larger of both times), ``link``, ``pcie``, or ``host``, whose
            time, or a part of it, shrinks with none.
        part: The part of a step's breakdown that it belongs to; ``gemm`` is split in two there.
        explains: Parts of a composed step that it may explain
            (``pinn.training.teacher``).
        meaning: What it measures and what it leaves out.
        rests_on: What the prior rests on, beside the overhead.
        value: Feature of (costs, sums), broadcast together: a formula that compiled code and Go are
            written from.
    """

    name: str
    unit: str
    lower_bound: float
    kernel_prior: float
    overhead: Overhead | None
    resource: str
    part: str
    explains: tuple[str, ...]
    meaning: str
    rests_on: str
    value: Callable[[StepCosts, BatchSums], Values]

    @property
    def prior(self) -> float:
        """Beta expected before any data: the whole cost, kernels and overhead."""
        return self.kernel_prior + (self.overhead.prior if self.overhead else 0.0)

    @property
    def source(self) -> str:
        """What the prior rests on, in words."""
        if self.overhead is None:
            return self.rests_on
        return (
            f"{self.rests_on}; the overhead, {self.overhead.prior:g} with a spread of "
            f"{self.overhead.spread:g}, was set after looking at the 825 measured deployments"
        )


def assumed(spread: float, because: str = "") -> str:
    """Words for a guess."""
    return f"assumption, spread {spread:g}" + (f": {because}" if because else "")
