"""Errors of left-out serving runs beside everything known of them: rows as deployments have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pinn.data.measured_runs import MeasuredRun
from pinn.kernels.surrogates import KernelSurrogates
from pinn.simulator.latency_metrics import WHOLE_RUN, figure_seconds
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job
from pinn.simulator.run import Run
from pinn.trust.described import Step, decode_step, described_steps, shape_of
from pinn.trust.half_widths import METRICS
from pinn.trust.simulated import Figures, gains

#: Kind of split of serving runs whose model was left out.
RUNS_LEFT_OUT = "serving-runs-leave-one-model-out"

#: Metric -> the figure that clients report; TPOT is a run's ITL.
FIGURES = {"tpot": "itl_mean_s", "ttft": "ttft_mean_s", "e2e": "e2e_mean_s"}


def run_error_rows(
    runs: Sequence[MeasuredRun],
    latencies: Sequence[LinearLatency],
    kernels: KernelSurrogates,
) -> pd.DataFrame:
    """Errors, gains and descriptions of one fold's runs; each is simulated three times.

    Args:
        runs: Left out of what gave ``latencies`` and ``kernels``; their model's shape is.
        latencies: Coefficients of each.
        kernels: What the fold knows of kernels.

    Returns:
        One row per run, columns as ``pinn.evaluation.held_out.COLUMNS``.
    """
    rows, steps = [], []
    for run, latency in zip(runs, latencies, strict=True):
        found = _row(run, latency)
        rows.append(found)
        names = ("concurrency", "prompt_tokens", "output_tokens")
        load = [float(str(found[name])) for name in names]
        steps.append(Step(latency.deployment, decode_step(*load)))
    return pd.concat([pd.DataFrame(rows), described_steps(kernels, steps)], axis=1)


def mean_figures(run: Run) -> Figures:
    """What clients report of a whole run, in seconds, by metric."""
    return {metric: figure_seconds(run, WHOLE_RUN, name) for metric, name in FIGURES.items()}


def _row(run: MeasuredRun, latency: LinearLatency) -> dict[str, object]:
    job = Job(latency.deployment, run.workload, latency)
    simulated = job.run()
    value = mean_figures(simulated)
    magnified = gains(job, latency, mean_figures, value)
    measured = run.measured[WHOLE_RUN]
    errors = {m: float(np.log(measured[FIGURES[m]] / value[m])) for m in METRICS}
    model, gpu = latency.deployment.model, latency.deployment.gpu.name
    requests = simulated.requests
    return {
        "split": RUNS_LEFT_OUT,
        "row_id": run.name,
        "model": model.name,
        "shape": shape_of(model),
        "gpu": gpu,
        "group": f"{model.name} on {gpu}",
        "concurrency": float(np.mean(simulated.steps["requests"])),
        "prompt_tokens": float(np.mean(requests.prompt_tokens)),
        "output_tokens": float(np.mean(requests.output_tokens)),
        "ttft_share": value["ttft"] / value["e2e"],
        **{f"{m}_gain": magnified[m] for m in METRICS},
        **errors,
    }
