"""Any coefficients on any ingested run: steps of traces, or loads of benchmarks simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from pinn.coefficients.coefficients import Coefficients
from pinn.data.benchmarks.benchmark_run import BenchmarkRun
from pinn.data.benchmarks.loads import benchmark_workload
from pinn.data.benchmarks.simulated_figures import benchmark_figures
from pinn.data.traces.benchmark_tables import BENCHMARKS, read_benchmark_table
from pinn.data.traces.trace_tables import TraceTables
from pinn.errors import PinnError
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, map_runs
from pinn.specs.deployment import Deployment
from pinn.training.calibration.calibrate import error_table
from pinn.training.calibration.intervals import read_intervals


def score_steps(
    traces: TraceTables, deployment: Deployment, coefficients: Mapping[str, Coefficients]
) -> pd.DataFrame:
    """Errors of mean step times, of :func:`pinn.training.calibration.calibrate.error_table`.

    Args:
        traces: Canonical tables with steps.
        deployment: What was traced.
        coefficients: Name -> those of the deployment.

    Raises:
        PinnError: If the tables hold no step that can be judged.
    """
    betas = {name: found.beta[0] for name, found in coefficients.items()}
    return error_table(read_intervals(traces, deployment), betas)


def score_benchmarks(
    runs: Sequence[BenchmarkRun],
    deployment: Deployment,
    coefficients: Mapping[str, Coefficients],
    workers: int | None = None,
    engine: EngineSpec | None = None,
) -> pd.DataFrame:
    """Simulate each load and compare what its clients saw.

    Returns:
        One row per run, figure and coefficients: ``coefficients``, ``run``, ``load``,
        ``failed_share``, ``figure``,
        ``measured``, ``predicted`` (seconds or per second) and ``error_percent``.
    """
    rows = []
    for name, found in coefficients.items():
        latency = LinearLatency(deployment, found.beta[0], found.alpha[0])
        jobs = [Job(deployment, benchmark_workload(run), latency, engine) for run in runs]
        simulated = map_runs(lambda _, run: benchmark_figures(run), jobs, workers)
        for run, figures in zip(runs, simulated, strict=True):
            rows += [
                {
                    "coefficients": name,
                    "run": run.name,
                    "load": run.load.text,
                    "failed_share": run.failed_share,
                    "figure": figure,
                    "measured": measured,
                    "predicted": figures[figure],
                    "error_percent": 100 * (figures[figure] / measured - 1),
                }
                for figure, measured in run.figures.items()
            ]
    return pd.DataFrame(rows)


def benchmark_runs(traces: TraceTables) -> list[BenchmarkRun]:
    """The benchmark runs of an ingested folder.

    Raises:
        PinnError: If it holds neither those nor steps.
    """
    if BENCHMARKS not in traces.manifest["tables"]:
        held = ", ".join(f"{e['rows']} {name}" for name, e in traces.manifest["tables"].items())
        raise PinnError(
            f"{traces.folder} holds neither steps nor benchmark runs ({held}): ingest traces with "
            "step summaries, or files of a benchmark with 'pinn ingest benchmarks'"
        )
    return read_benchmark_table(traces)
