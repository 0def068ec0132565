"""Errors of predicted client latencies on serving runs, including runs of held-out models."""

import math
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.errors import PinnError
from pinn.evaluation.metrics import RESULT_COLUMNS, error_summary, inversions
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.measurements.runs import measured_runs
from pinn.measurements.runs.measured_runs import FIGURES, MeasuredRun
from pinn.simulator.intervals import figure_ends, scaled
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import WHOLE_RUN, failed_share, figure_seconds
from pinn.simulator.simulate import measured_job, simulate_many
from pinn.specs.model import ModelSpec
from pinn.surrogate import surrogate
from pinn.surrogate.architecture import NetworkWeights
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.uncertainty.distance import gpu_is_known
from pinn.surrogate.uncertainty.intervals import read_calibration
from pinn.training.folds import Fold, fold_of, learn_fold, without_model
from pinn.training.kernel_learner import KernelLearner, Learned, run_parts
from pinn.training.run_scalars import run_latencies
from pinn.training.serving_rows import ServingRows


def read_runs(
    path: Path, gpu: str | None, model_configs: Path | None, seed: int
) -> Sequence[MeasuredRun]:
    """Read serving runs from a CSV file or, with ``gpu`` given, from folders of inference-perf."""
    folders = [path] if measured_runs.is_load_report(path) else []
    if path.is_dir() and not folders:
        folders = sorted(filter(measured_runs.is_load_report, path.iterdir()))
    if not folders:
        return measured_runs.read_measured_runs(path, model_configs, seed)[0]
    if gpu is None:
        raise PinnError(f"{folders[0]} does not name the GPU: give the name of the GPU with --gpu")
    return [measured_runs.read_load_report(folder, gpu, model_configs, seed) for folder in folders]


#: Runs with at least this share of failed requests count as overloaded and are summarized
#: separately.
OVERLOADED = 0.05


def score_checkpoint(
    runs: Sequence[MeasuredRun], checkpoint: Path, intervals: bool = False
) -> tuple[pd.DataFrame, str]:
    """Compare measured latencies of serving runs with the predictions of a checkpoint's network.

    Intervals need two more simulations per run.

    Returns:
        The table of :func:`score_runs`, and the reason for missing intervals. The table has
        ``low_s`` and ``high_s`` if intervals are requested and the checkpoint has them.
    """
    latencies = network_latencies(load_checkpoint(checkpoint).network, runs)
    scores = score_runs(runs, latencies, NETWORK)
    if not intervals:
        return scores, ""
    try:
        return with_intervals(scores, runs, latencies, checkpoint), ""
    except PinnError as error:
        return scores, str(error)


def score_runs(
    runs: Sequence[MeasuredRun], latencies: Sequence[LinearLatency], method: str
) -> pd.DataFrame:
    """Simulate runs and compare the resulting client metrics with the measured ones.

    Args:
        runs: Measured serving runs.
        latencies: Coefficients of each run's deployment.
        method: Name of the prediction method, for the column ``method``.

    Returns:
        One row per run, stage (``all`` is the whole run) and metric (``figure``): ``method``,
        ``run``, ``model``, ``load``, ``stage``, ``rate_per_s``, ``figure``, ``measured_s``,
        ``predicted_s``, ``error_percent``, ``failed_measured`` and ``failed_predicted`` (shares of
        the stage's requests).
    """
    each = zip(runs, latencies, strict=True)
    jobs = [measured_job(latency.deployment, run.workload, latency) for run, latency in each]
    rows = [
        {
            "method": method,
            "run": run.name,
            "model": run.deployment.model.name,
            "load": run.load_name,
            "stage": stage,
            "rate_per_s": stage_rate(run, stage),
            "figure": figure,
            "measured_s": measured[figure],
            "predicted_s": figure_seconds(simulated, stage, figure),
            "error_percent": math.nan,
            "failed_measured": run.failed_share[stage],
            "failed_predicted": failed_share(simulated, stage),
        }
        for run, simulated in zip(runs, simulate_many(jobs), strict=True)
        for stage, measured in run.measured.items()
        for figure in FIGURES
        if figure in measured
    ]
    scores = pd.DataFrame(rows)
    scores["error_percent"] = 100 * (scores["predicted_s"] / scores["measured_s"] - 1)
    return scores


def stage_rate(run: MeasuredRun, stage: str) -> float:
    """Return a stage's arrival rate in requests/s; NaN for a whole run of several stages."""
    if stage != WHOLE_RUN:
        return run.rates_per_s[int(stage)]
    return run.rates_per_s[0] if len(run.rates_per_s) == 1 else float("nan")


def summarize_runs(scores: pd.DataFrame) -> pd.DataFrame:
    """Return median, mean and maximum absolute error per method, metric and subset of the runs.

    The subsets are ``all`` runs, the runs of each model, and ``stages`` (every stage of a run
    separately). Overloaded runs are only in the subset ``overloaded``, because queue time near
    saturation magnifies errors of step times.
    """
    overloaded = scores["failed_measured"] >= OVERLOADED
    whole = scores["stage"] == WHOLE_RUN
    parts = {"all": whole & ~overloaded, "stages": ~whole & ~overloaded}
    if (whole & overloaded).any():
        parts["overloaded"] = whole & overloaded
    for model in sorted(scores.loc[whole, "model"].unique()):
        parts[model] = whole & ~overloaded & (scores["model"] == model)
    rows = []
    for part, mask in parts.items():
        for (method, figure), of_figure in scores[mask].groupby(["method", "figure"], sort=False):
            size = of_figure["error_percent"].abs()
            about = {"method": method, "part": part, "figure": figure, "n": len(size)}
            rows.append(about | size.agg(["median", "mean", "max"]).to_dict())
    return pd.DataFrame(rows)


def ranking_inversions(scores: pd.DataFrame) -> list[tuple[str, str]]:
    """Return pairs of runs whose p99 E2E latencies are predicted in the wrong order.

    The run that was slower in measurements is the first of its pair.

    Args:
        scores: Scores of one method, as :func:`score_runs` returns them.
    """
    rows = scores[(scores["stage"] == WHOLE_RUN) & (scores["figure"] == "e2e_p99_s")]
    measured, predicted = rows["measured_s"].to_numpy(), rows["predicted_s"].to_numpy()
    names = rows["run"].tolist()
    return [(names[i], names[j]) for i, j in np.argwhere(inversions(predicted, measured)).tolist()]


# Serving runs of each model, predicted by fits that hold out the model.

#: Name of the split of held-out serving runs in tables.
RUNS_HELD_OUT = "serving runs, leave-one-model-out"

#: Names, in tables, of the methods that predict serving runs. ``HELD_OUT`` is appended if the run's
#: model was held out from the fit.
TEACHER, NETWORK = "teacher", "network"
HELD_OUT = ", model held out"


def left_out_models(rows: ServingRows, runs: Sequence[MeasuredRun]) -> list[ModelSpec]:
    """Return one model for each model shape with serving runs, sorted by name.

    If the model of a measured deployment has the same shape as a run's model, it represents both:
    Llama-3.3-70B's rows and Llama-3.1-70B's runs are held out together.
    """
    of_rows = {d.model.name: d.model for d in rows.deployments}
    of_runs = {run.deployment.model.name: run.deployment.model for run in runs}
    measured = [of_rows[name] for name in sorted(of_rows)]
    found: list[ModelSpec] = []
    for _, model in sorted(of_runs.items()):
        chosen = next((other for other in measured if is_near_copy(model, other)), model)
        if not any(is_near_copy(chosen, other) for other in found):
            found.append(chosen)
    return found


def run_folds(
    rows: ServingRows, runs: Sequence[MeasuredRun]
) -> list[tuple[Fold, list[MeasuredRun]]]:
    """Return a cross-validation fold for each held-out model, with the runs on which to test it."""
    return [
        (
            fold_of(without_model(rows, model), runs, Exclusion(models=(model,))),
            [run for run in runs if is_near_copy(run.deployment.model, model)],
        )
        for model in left_out_models(rows, runs)
    ]


def score_left_out(
    learner: KernelLearner, folds: Sequence[tuple[Fold, list[MeasuredRun]]], root: Path
) -> pd.DataFrame:
    """Score each fold's network and teacher (summed kernel times) on runs of the held-out model.

    Returns:
        Table as :func:`score_runs` returns it; method names end in ``HELD_OUT``.
    """
    each = (score_learned(learn_fold(learner, fold, root), test, HELD_OUT) for fold, test in folds)
    return pd.concat(each, ignore_index=True)


def score_learned(learned: Learned, runs: Sequence[MeasuredRun], suffix: str = "") -> pd.DataFrame:
    """Return latency errors on serving runs for a trained network and its teacher."""
    latencies = {
        TEACHER: run_latencies(learned.fit, runs, run_parts(learned.teacher.kernels, runs)),
        NETWORK: network_latencies(learned.network, runs),
    }
    scores = [score_runs(runs, each, name + suffix) for name, each in latencies.items()]
    return pd.concat(scores, ignore_index=True)


def network_latencies(
    network: CoefficientNetwork | NetworkWeights, runs: Sequence[MeasuredRun]
) -> list[LinearLatency]:
    """Return the latency model that a network predicts for each run's deployment."""
    deployments = [run.deployment for run in runs]
    found = surrogate.predict_coefficients(network, deployments)
    return list(map(LinearLatency, deployments, found.beta, found.alpha))


def run_results(scores: pd.DataFrame) -> pd.DataFrame:
    """Summarize the errors on serving runs of held-out models as rows with ``RESULT_COLUMNS``."""
    left_out = scores["method"].str.endswith(HELD_OUT)
    whole = scores[left_out & (scores["stage"] == WHOLE_RUN)]
    rows = []
    for held_out, part in [("all", whole), *whole.groupby("model", sort=True)]:
        for (method, figure), errors in part.groupby(["method", "figure"], sort=False):
            name, metric = str(method).removesuffix(HELD_OUT), str(figure).removesuffix("_s")
            times = (errors[column].to_numpy() for column in ("predicted_s", "measured_s"))
            key = (RUNS_HELD_OUT, str(held_out), name, metric)
            rows.append((*key, *astuple(error_summary(*times))))
    return pd.DataFrame(rows, columns=list(RESULT_COLUMNS))


# Intervals of serving runs' latencies: each run is simulated twice more, with all times at the
# lower and at the upper ends of their intervals.


def with_intervals(
    scores: pd.DataFrame,
    runs: Sequence[MeasuredRun],
    latencies: Sequence[LinearLatency],
    checkpoint: Path,
) -> pd.DataFrame:
    """Return scores with the ends of each metric's prediction interval.

    The ends need two more simulations per run.

    Args:
        scores: Table of ``score_runs`` for these runs and coefficients.
        runs: Measured serving runs.
        latencies: Coefficients of each run's deployment.
        checkpoint: Checkpoint with its intervals in the same folder.

    Returns:
        ``scores`` with ``low_s`` and ``high_s``, seconds. ``high_s`` is infinite if no request
        completes at the slow end.

    Raises:
        PinnError: If the checkpoint has no intervals.
    """
    calibration = read_calibration(checkpoint)
    served = [(of.deployment, gpu_is_known(checkpoint, of.deployment)) for of in latencies]
    step, ttft = ([calibration.half_width(m, *one) for one in served] for m in ("tpot", "ttft"))
    each = list(zip(latencies, step, ttft, strict=True))
    fast, slow = (
        score_runs(runs, [scaled(of, way * s, way * t) for of, s, t in each], "")["predicted_s"]
        for way in (-1, 1)
    )
    half = dict(zip((run.name for run in runs), ttft, strict=True))
    table = scores.reset_index(drop=True).assign(fast_s=fast, slow_s=slow, low_s=0.0, high_s=0.0)
    # A metric's name is e2e, ttft or itl, followed by a mean or a percentile over requests.
    kind, tail = (table["figure"].str.split("_").str[i] for i in (0, 1))
    for (run, _, _), part in table.groupby(["run", "stage", tail], sort=False):
        names = kind[part.index].tolist()
        value, least, most = (
            dict(zip(names, part[column], strict=True))
            for column in ("predicted_s", "fast_s", "slow_s")
        )
        if part["predicted_s"].isna().any():  # The simulation served no request.
            ends = dict.fromkeys(names, (math.nan, math.nan))
        else:
            ends = figure_ends(value, least, most, half[str(run)])
        table.loc[part.index, ["low_s", "high_s"]] = [ends[name] for name in names]
    return table.drop(columns=["fast_s", "slow_s"])
