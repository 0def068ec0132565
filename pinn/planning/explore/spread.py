"""Half-widths of a server's intervals at a few loads, between which the browser goes straight."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.errors import PinnError
from pinn.kernels.search import find_kernels
from pinn.specs.deployment import Deployment
from pinn.trust.calibration import Calibration, read_calibration
from pinn.trust.known import gpu_is_known
from pinn.trust.spread_parts import spread_parts

if TYPE_CHECKING:
    from pinn.kernels.surrogates import KernelSurrogates

#: Requests and contexts of decodes, and prompts, whose half-widths are worked out.
REQUESTS = (1, 16, 256)
CONTEXTS = (256, 8192, 65536)
PROMPTS = (256, 2048, 16384)


@dataclass(frozen=True)
class Spreads:
    """What tells how sure a checkpoint is.

    Attributes:
        checkpoint: Its file.
        calibration: Beside it.
        kernels: That it learned from.
    """

    checkpoint: Path
    calibration: Calibration
    kernels: KernelSurrogates

    @classmethod
    def of(cls, checkpoint: Path) -> Spreads | None:
        """What lies beside a checkpoint; None where its intervals or kernels are missing."""
        from pinn.kernels.surrogates import KernelSurrogates  # imports torch

        folder = find_kernels(None, checkpoint)
        try:
            calibration = read_calibration(checkpoint)
        except PinnError:
            return None
        if folder is None:
            return None
        return cls(checkpoint, calibration, KernelSurrogates.load(folder))

    def around(self, deployment: Deployment) -> dict[str, Any]:
        """Log half-widths of decode steps (``tpot``) and of prompts (``ttft``), ready for JSON."""

        def half(metric: str, batch: str) -> float:
            from pinn.trust.described import Step, situation

            step = Step(deployment, batch, gpu_is_known(self.checkpoint, deployment))
            parts = spread_parts(situation(self.kernels, step))
            return self.calibration.half_width(metric, parts)

        return {
            "requests": REQUESTS,
            "contexts": CONTEXTS,
            "tpot": [[half("tpot", f"{n} decode @ {c}") for n in REQUESTS] for c in CONTEXTS],
            "prompts": PROMPTS,
            "ttft": [half("ttft", f"1 prefill {tokens} @ 0") for tokens in PROMPTS],
        }
