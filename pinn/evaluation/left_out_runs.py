"""Serving runs of each model, predicted by what never saw that model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pinn.coefficients.coefficient_network import CoefficientNetwork
from pinn.coefficients.surrogate import predict_coefficients
from pinn.data.measured_runs import WHOLE_RUN, MeasuredRun
from pinn.evaluation.metrics import RESULT_COLUMNS, error_summary
from pinn.evaluation.serving_runs import score_runs
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.near_copy import is_near_copy
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.model import ModelSpec
from pinn.training.folds import Fold, fold_of, learn_fold, without_model
from pinn.training.kernel_learner import KernelLearner, Learned
from pinn.training.run_learner import run_latencies, run_parts
from pinn.training.serving_rows import ServingRows

#: Name of this split in tables.
RUNS_LEFT_OUT = "serving runs, leave-one-model-out"

#: Names of the predictions in tables.
TEACHER, NETWORK = "teacher", "network"
LEFT_OUT = ", model left out"


def left_out_models(rows: ServingRows, runs: Sequence[MeasuredRun]) -> list[ModelSpec]:
    """One model for each shape that ran, in order of name.

    A measured deployment's model stands for runs of the same shape: Llama-3.3-70B's rows and
    Llama-3.1-70B's runs are left out together.
    """
    of_rows = {d.model.name: d.model for d in rows.deployments}
    of_runs = {run.deployment.model.name: run.deployment.model for run in runs}
    found: list[ModelSpec] = []
    for _, model in sorted(of_runs.items()):
        twins = [other for _, other in sorted(of_rows.items()) if is_near_copy(model, other)]
        chosen = twins[0] if twins else model
        if not any(is_near_copy(chosen, other) for other in found):
            found.append(chosen)
    return found


def run_folds(
    rows: ServingRows, runs: Sequence[MeasuredRun]
) -> list[tuple[Fold, list[MeasuredRun]]]:
    """What each left-out model leaves to learn from, and the runs that it is tested on."""
    found = []
    for model in left_out_models(rows, runs):
        fold = fold_of(without_model(rows, model), runs, Exclusion(models=(model,)))
        test = [run for run in runs if is_near_copy(run.deployment.model, model)]
        found.append((fold, test))
    return found


def score_left_out(
    learner: KernelLearner,
    folds: Sequence[tuple[Fold, list[MeasuredRun]]],
    root: Path,
) -> pd.DataFrame:
    """Score each model's runs with what the others taught, network and teacher.

    Returns:
        As ``pinn.evaluation.serving_runs.score_runs``; methods end in ``LEFT_OUT``.
    """
    tables = []
    for fold, test in folds:
        learned = learn_fold(learner, fold, root)
        tables += [score_learned(learned, test, LEFT_OUT)]
    return pd.concat(tables, ignore_index=True)


def score_learned(learned: Learned, runs: Sequence[MeasuredRun], suffix: str = "") -> pd.DataFrame:
    """Score runs with the network and the teacher of one training."""
    parts = run_parts(learned.teacher.kernels, runs)
    of_teacher = run_latencies(learned.fit, runs, parts)
    return pd.concat(
        [
            score_runs(runs, of_teacher, TEACHER + suffix),
            score_runs(runs, network_latencies(learned.network, runs), NETWORK + suffix),
        ],
        ignore_index=True,
    )


def network_latencies(
    network: CoefficientNetwork, runs: Sequence[MeasuredRun]
) -> list[LinearLatency]:
    """The coefficients that a network gives each run's deployment."""
    found = predict_coefficients(network, [run.deployment for run in runs])
    return [
        LinearLatency(run.deployment, beta, alpha)
        for run, beta, alpha in zip(runs, found.beta, found.alpha, strict=True)
    ]


def run_results(scores: pd.DataFrame) -> pd.DataFrame:
    """Errors over whole runs whose model was left out, in the columns of a results table."""
    left_out = scores["method"].str.endswith(LEFT_OUT)
    whole = scores[left_out & (scores["stage"] == WHOLE_RUN)]
    rows = [
        {
            "split": RUNS_LEFT_OUT,
            "held_out": str(held_out),
            "method": str(method).removesuffix(LEFT_OUT),
            "metric": str(figure).removesuffix("_s"),
        }
        | error_summary(of_figure["predicted_s"].to_numpy(), of_figure["measured_s"].to_numpy())
        for held_out, part in [("all", whole), *whole.groupby("model", sort=True)]
        for (method, figure), of_figure in part.groupby(["method", "figure"], sort=False)
    ]
    return pd.DataFrame(rows, columns=list(RESULT_COLUMNS))
