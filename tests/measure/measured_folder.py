"""A folder of steps that a simulated engine took."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from simulated_engine import SimulatedEngine

from pinn.calibration.measuring import deployment_limits
from pinn.engines.deployment import Deployment
from pinn.measurements.program.batches import Wanted
from pinn.measurements.program.session import Outcome, Session, measure_all
from pinn.measurements.program.table import Table


def measured(
    folder: Path,
    deployment: Deployment,
    beta: np.ndarray,
    batches: Iterable[Wanted],
    seconds: float = 60.0,
    noise: float = 0.01,
    wrap: Callable[[SimulatedEngine], object] = lambda engine: engine,
) -> Outcome:
    """Measure batches into a folder.

    Args:
        folder: To write.
        deployment: What runs.
        beta: Coefficients of its steps.
        batches: In order.
        seconds: That there are, simulated.
        noise: Relative noise of a step.
        wrap: Changes the engine before it is measured.
    """
    limits = deployment_limits(deployment)
    engine = wrap(SimulatedEngine(deployment, beta, limits, noise))
    facts = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "flags": ["--load-format", "dummy"],
             "limits": limits._asdict()}  # fmt: skip
    table = Table(str(folder), facts)
    found = measure_all(Session(engine, seconds), batches, table, lambda _: None)
    table.close()
    return found
