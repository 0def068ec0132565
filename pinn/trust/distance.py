"""A distance from the measured kernels, as commands pass it on; computing it is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

#: Step by which a deployment as a whole is located.
REFERENCE_BATCH = "32 decode @ 2000"


@dataclass(frozen=True)
class KernelDistance:
    """How far one step lies from the measured kernels.

    Attributes:
        total: Mean distance of its kernels in log units, weighted by their time; 0 where each was
            measured itself, 0.69 where a size of each is twice or half of a measured one.
        by_operator: The same, split by operator; the parts add up to ``total``.
        elsewhere: Share of the time in kernels whose nearest measurement is of another GPU.
        gap: The part of ``total`` that is the difference of those GPUs' datasheets.
        shares: Operator -> share of the kernels' time; they add up to 1.
    """

    total: float
    by_operator: Mapping[str, float]
    elsewhere: float
    gap: float
    shares: Mapping[str, float]

    @property
    def stretch(self) -> float:
        """What the kernels' sizes alone differ by, in log units."""
        return self.total - self.gap

    @property
    def factor(self) -> float:
        """The whole distance as a ratio of sizes."""
        return float(np.exp(self.total))
