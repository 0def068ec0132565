"""Benchmark runs in which the server was overloaded, which calibration excludes.

Latencies in such a run reflect its queue, or a load other than the requested one.
"""

from collections.abc import Sequence

from pinn.common.run_names import short_names
from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun

#: First word of a note on a benchmark run that is excluded from the fit.
EXCLUDED = "excluded"


def without_overloaded(
    runs: Sequence[BenchmarkRun], force: bool = False
) -> tuple[list[BenchmarkRun], list[str]]:
    """Drop runs with an overloaded server; return the others, and a note about each dropped one.

    Args:
        runs: Benchmark runs of one server.
        force: Whether to fit to all runs, including those with an overloaded server.
    """
    reasons = overload_reasons(runs)
    if force:
        told = "the server was overloaded, and the run is included because of --force"
        return list(runs), [f"WARNING: {each}: {told}" for each in reasons]
    told = "the server was overloaded (--force includes the run)"
    kept = [run for run in runs if not run.overload]
    return kept, [f"{EXCLUDED}: {each}: {told}" for each in reasons]


def overload_reasons(runs: Sequence[BenchmarkRun]) -> list[str]:
    """Return the short name and the evidence of overload for each run with an overloaded server."""
    short = short_names([run.name for run in runs])
    return [f"{short[run.name]}: {run.overload}" for run in runs if run.overload]


def check_some_left(runs: Sequence[BenchmarkRun], force: bool = False) -> None:
    """Check that the server was not overloaded in at least one run.

    Raises:
        PinnError: If the server was overloaded in all runs, and ``force`` is false.
    """
    if not force and all(run.overload for run in runs):
        reasons = "; ".join(overload_reasons(runs))
        raise PinnError(
            f"the server was overloaded in every run ({reasons}), so no run is left to fit: "
            "measure a lighter load, or include these runs with --force"
        )
