"""What a simulated figure depends on, for ``pinn simulate --sensitivity``."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from pinn.errors import PinnError
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job
from pinn.simulator.run import Run
from pinn.simulator.sensitivity import coefficient_sensitivities
from pinn.simulator.statistics import run_statistics
from pinn.specs.files.screen import page

#: Smallest share that is printed, in per cent per per cent, and how many; JSON has all.
_PRINTED, _MOST = 0.001, 10


def simulated_sensitivity(
    job: Job, latency: LinearLatency, run: Run, figure: str
) -> dict[str, Any]:
    """Derivatives of a figure with respect to every coefficient, ready for JSON.

    Returns:
        ``figure``, its ``value`` and ``coefficients``: name -> value in SI units, ``derivative``
        (units of the figure per unit of the coefficient) and ``elasticity`` (% per %).

    Raises:
        PinnError: If no figure has this name, or it is 0 or missing in this run.
    """
    known = run_statistics(run)
    if figure not in known:
        raise PinnError(f"--sensitivity {figure}: no such figure; known are {', '.join(known)}")
    try:
        found = coefficient_sensitivities(
            job.workload, latency, lambda run: float(run_statistics(run)[figure]), job.engine
        )
    except PinnError as error:
        raise PinnError(f"--sensitivity {figure}: {error}") from error
    coefficients = {
        s.name: {"value": s.coefficient, "derivative": s.derivative, "elasticity": s.elasticity}
        for s in found
    }
    return {"figure": figure, "value": float(known[figure]), "coefficients": coefficients}


def print_sensitivity(found: dict[str, Any], console: Console | None = None) -> None:
    """The ten coefficients that move the figure most, where by 0.001 % per % at least."""
    table = Table("coefficient", box=None, pad_edge=False)
    table.add_column("+1 % moves it by", justify="right")
    shares = {name: entry["elasticity"] for name, entry in found["coefficients"].items()}
    largest = sorted(shares, key=lambda name: -abs(shares[name]))
    for name in largest[:_MOST]:
        if abs(shares[name]) >= _PRINTED:
            table.add_row(name, f"{shares[name]:+.3f} %")
    console = console or page()
    console.print(f"{found['figure']} {found['value']:,.4g} depends on", highlight=False)
    console.print(table)
