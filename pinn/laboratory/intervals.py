"""Intervals from the errors of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from pinn.coefficients.interval_fit import METRICS, calibrate
from pinn.coefficients.intervals import StatedIntervals
from pinn.coefficients.kernel_distance import (
    FoldNetwork,
    coefficient_changes,
    described_steps,
    shape_of,
)
from pinn.common.files import file_sha256
from pinn.kernels.surrogates import KernelSurrogates
from pinn.laboratory.crossvalidation import held_out_errors, mean_steps
from pinn.laboratory.methods import Measured, kernel_fits, kernel_settings
from pinn.laboratory.serving_runs import network_latencies, run_folds
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Figures, Job, gains
from pinn.simulator.metric_features import WHOLE_RUN, figure_seconds
from pinn.simulator.run import Run
from pinn.training.data.measured_runs import MeasuredRun
from pinn.training.kernel_learner import fitted_surrogates, learn_fold

# Errors of left-out serving runs beside everything known of them: rows as deployments have.

#: Kind of split of serving runs whose model was left out.
RUNS_LEFT_OUT = "serving-runs-leave-one-model-out"

#: Metric -> the figure that clients report; TPOT is a run's ITL.
FIGURES = {"tpot": "itl_mean_s", "ttft": "ttft_mean_s", "e2e": "e2e_mean_s"}


def run_error_rows(
    runs: Sequence[MeasuredRun], latencies: Sequence[LinearLatency], kernels: KernelSurrogates
) -> pd.DataFrame:
    """Errors, gains and descriptions of one fold's runs; each is simulated three times.

    Args:
        runs: Left out of what gave ``latencies`` and ``kernels``; their model's shape is.
        latencies: Coefficients of each.
        kernels: What the fold knows of kernels.

    Returns:
        One row per run, columns as ``pinn.laboratory.crossvalidation.COLUMNS``.
    """
    rows = pd.DataFrame(list(map(_row, runs, latencies)))
    steps = mean_steps([latency.deployment for latency in latencies], rows)
    return pd.concat([rows, described_steps(kernels, steps)], axis=1)


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


# Intervals of a checkpoint from the leave-one-out experiments of the same training.


def calibrate_folds(
    config: DictConfig, measured: Measured, networks: Sequence[FoldNetwork], checkpoint: Path
) -> StatedIntervals:
    """Calibrate a checkpoint on what the folds of its own experiment left out.

    Args:
        config: Of the experiment.
        measured: What it learned from.
        networks: What its folds learned.
        checkpoint: In the experiment's folder, fitted on everything.

    Raises:
        PinnError: If the experiment is not finished.
    """
    folder = checkpoint.parent
    errors = held_out_errors(folder, partial(fitted_surrogates, kernel_settings(config)))
    source = {
        "experiment": folder.name,
        "splits": sorted(errors["split"].unique().tolist()),
        "rows": len(errors),
        "predictions_sha256": file_sha256(folder / "predictions.csv"),
    }
    fits = kernel_fits(config, measured.runs, folder)
    of_runs = []
    for fold, test in run_folds(measured.rows, measured.runs):
        learned = learn_fold(fits.learner, fold, fits.root)
        latencies = network_latencies(learned.network, test)
        of_runs.append(run_error_rows(test, latencies, learned.teacher.kernels))
    together = pd.concat([errors, *of_runs], ignore_index=True)
    changes = coefficient_changes(checkpoint, networks)
    return calibrate(together, changes, checkpoint, [source])
