"""The spread of a prediction: the log half-width of its interval, a sum of sizes times parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pinn.trust.spread_parts import SPREAD_PARTS


@dataclass(frozen=True)
class Spread:
    """Half of an interval in log units.

    Attributes:
        sizes: Of every part, none negative.
        strength: Of the prior that held them; see ``pinn.trust.spread_fit``.
    """

    sizes: Mapping[str, float]
    strength: float

    def half_width(self, parts: Mapping[str, float]) -> float:
        """In log units, where the parts of a situation are these."""
        return float(sum(self.sizes[name] * parts[name] for name in SPREAD_PARTS))
