"""Size and bounds of the network."""

from __future__ import annotations

from dataclasses import dataclass

from pinn.errors import PinnError
from pinn.specs.limits import MOST_DEPTH, MOST_HIDDEN, check_size, is_finite, written

#: Largest bound of a |log| correction: a factor of 5e21 either way.
_MOST_BOUND = 50.0


@dataclass(frozen=True)
class NetworkSettings:
    """Size and bounds of the network.

    On deployments left out, half the parameters cost 0.1 points and half the bound of beta as much
    (LOG.md). The bound of alpha is an assumption: a factor of 1.65.

    Attributes:
        hidden: Width of each hidden layer.
        depth: Hidden layers.
        beta_bound: Largest |log| correction of a beta's part above its lower bound.
        alpha_bound: Largest |log| correction of an alpha.
        corrected: Whether the configuration correction is on; off leaves one global vector.
    """

    hidden: int = 128
    depth: int = 2
    beta_bound: float = 4.0
    alpha_bound: float = 0.5
    corrected: bool = True

    def __post_init__(self) -> None:
        for name in ("hidden", "depth"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise PinnError(f"network {name} must be a whole number, got {written(value)}")
        for name in ("beta_bound", "alpha_bound"):
            value = getattr(self, name)
            if not is_finite(value) or not 0 <= value <= _MOST_BOUND:
                raise PinnError(
                    f"network {name} must lie between 0 and {_MOST_BOUND}, got {written(value)}"
                )
        check_size(self.hidden, MOST_HIDDEN, "units of a hidden layer", "train a smaller network")
        check_size(self.depth, MOST_DEPTH, "hidden layers", "train a smaller network")
