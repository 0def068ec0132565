"""Errors on serving runs, those of left-out models too, and how they are printed."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common.screen import WIDEST, Column, Grid, page
from pinn.errors import PinnError
from pinn.evaluation.metrics import RESULT_COLUMNS, error_summary, inversions
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import WHOLE_RUN, failed_share, figure_seconds
from pinn.simulator.simulate import Job, figure_ends, scaled, simulate_many
from pinn.specs.model import ModelSpec
from pinn.surrogate import surrogate
from pinn.surrogate.inference import TrainedNetwork
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.uncertainty.intervals import Ends, gpu_is_known, read_calibration
from pinn.training.data import measured_runs
from pinn.training.data.measured_runs import FIGURES, MeasuredRun
from pinn.training.folds import Fold, fold_of, learn_fold, without_model
from pinn.training.kernel_learner import KernelLearner, Learned
from pinn.training.run_rounds import run_latencies, run_parts
from pinn.training.serving_rows import ServingRows


def read_runs(
    path: Path, gpu: str | None, model_configs: Path | None, seed: int
) -> Sequence[MeasuredRun]:
    """Runs of a CSV, or of one or more folders of inference-perf, whose GPU has to be named."""
    folders = [path] if measured_runs.is_load_report(path) else []
    if path.is_dir() and not folders:
        folders = sorted(filter(measured_runs.is_load_report, path.iterdir()))
    if not folders:
        return measured_runs.read_measured_runs(path, model_configs, seed)[0]
    if gpu is None:
        raise PinnError(f"{folders[0]} does not say which GPU served it: name it with --gpu")
    return [measured_runs.read_load_report(folder, gpu, model_configs, seed) for folder in folders]


# Simulated against measured serving runs, figure by figure.

#: Share of failed requests from which a run counts as overloaded and is summed up apart.
OVERLOADED = 0.05


def score_runs(
    runs: Sequence[MeasuredRun], latencies: Sequence[LinearLatency], method: str
) -> pd.DataFrame:
    """Simulate runs and compare what their clients see.

    Args:
        runs: What was measured.
        latencies: Coefficients of each.
        method: Where the coefficients come from, for the table.

    Returns:
        One row per run, stage (``all`` is the whole run) and figure: ``method``, ``run``,
        ``model``, ``load``, ``stage``, ``rate_per_s``, ``figure``, ``measured_s``,
        ``predicted_s``, ``error_percent``, ``failed_measured`` and ``failed_predicted`` (shares of
        the stage's requests).
    """
    jobs = [
        Job(latency.deployment, run.workload, latency)
        for run, latency in zip(runs, latencies, strict=True)
    ]
    rows = []
    for run, simulated in zip(runs, simulate_many(jobs), strict=True):
        for stage, measured in run.measured.items():
            failed = failed_share(simulated, stage)
            for figure in FIGURES:
                if figure not in measured:
                    continue
                predicted = figure_seconds(simulated, stage, figure)
                rows.append(
                    {
                        "method": method,
                        "run": run.name,
                        "model": run.deployment.model.name,
                        "load": run.load_name,
                        "stage": stage,
                        "rate_per_s": stage_rate(run, stage),
                        "figure": figure,
                        "measured_s": measured[figure],
                        "predicted_s": predicted,
                        "error_percent": 100 * (predicted / measured[figure] - 1),
                        "failed_measured": run.failed_share[stage],
                        "failed_predicted": failed,
                    }
                )
    return pd.DataFrame(rows)


def stage_rate(run: MeasuredRun, stage: str) -> float:
    """Requests per second of a stage; NaN for a whole run of several."""
    if stage != WHOLE_RUN:
        return run.rates_per_s[int(stage)]
    return run.rates_per_s[0] if len(run.rates_per_s) == 1 else float("nan")


def summarize_runs(scores: pd.DataFrame) -> pd.DataFrame:
    """Absolute percentage errors per method, figure and part of the runs.

    Parts: ``all`` runs, each model's, and ``stages`` (every stage by itself). Overloaded runs are
    in none of them but in ``overloaded``, since near saturation the wait is the step's error many
    times over.
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
    """Pairs of runs (the slower one first) whose p99 E2E simulation puts in the other order.

    Args:
        scores: Of one method.
    """
    rows = scores[(scores["stage"] == WHOLE_RUN) & (scores["figure"] == "e2e_p99_s")]
    measured, predicted = rows["measured_s"].to_numpy(), rows["predicted_s"].to_numpy()
    names = rows["run"].tolist()
    return [(names[i], names[j]) for i, j in np.argwhere(inversions(predicted, measured)).tolist()]


# Tables of scored serving runs for the terminal; all of them are functions of saved tables.

_HEADINGS = {figure: figure.removesuffix("_s").replace("_", " ") for figure in FIGURES}


def print_scores(scores: pd.DataFrame) -> None:
    """One row per run and stage: every figure's error; files have what was measured too."""
    for method, of_method in scores.groupby("method", sort=False):
        run, stage = Column("run", True, most=24), Column("stage", True)
        columns = [run, stage, *map(Column, ("req/s", *_HEADINGS.values(), "failed"))]
        table = Grid(columns, f"{method}: error in %", gap=1)
        for (name, number), rows in of_method.groupby(["run", "stage"], sort=False):
            table.add(str(name), str(number), *_cells(rows))
        page(WIDEST).print(table)


def _cells(rows: pd.DataFrame) -> list[str]:
    by_figure = {row["figure"]: row for row in rows.to_dict("records")}
    first = next(iter(by_figure.values()))
    cells = ["" if pd.isna(first["rate_per_s"]) else f"{first['rate_per_s']:g}"]
    for figure in FIGURES:
        known = figure in by_figure
        cells.append(f"{by_figure[figure]['error_percent']:+.1f}" if known else "-")
    measured, predicted = first["failed_measured"], first["failed_predicted"]
    shown = measured > 0 or predicted > 0
    cells.append(f"{100 * predicted:.1f}, was {100 * measured:.1f}" if shown else "")
    return cells


def print_summary(
    summary: pd.DataFrame, inversions: Mapping[str, Sequence[tuple[str, str]]]
) -> None:
    """Median, mean and largest error of every figure; per method the pairs ranked wrongly."""
    console = page(WIDEST)
    shown = summary[summary["part"].isin(["all", "stages", "overloaded"])]
    headings = ("method", "part", "figure", "n", "median", "mean", "largest")
    table = Grid.of(*headings, caption="absolute error in %", text=3)
    for row in shown.to_dict("records"):
        sizes = (f"{row[name]:.1f}" for name in ("median", "mean", "max"))
        about = (str(row["method"]), str(row["part"]), _HEADINGS[row["figure"]])
        table.add(*about, str(row["n"]), *sizes)
    console.print(table)
    for method, pairs in inversions.items():
        console.print(
            f"{method}: {len(pairs)} pairs of runs whose p99 E2E differs by more than 20 % are "
            "ranked wrongly"
        )
        for slower, faster in pairs:
            console.print(f"  {slower} is slower than {faster}")


# Serving runs of each model, predicted by what never saw that model.

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
    learner: KernelLearner, folds: Sequence[tuple[Fold, list[MeasuredRun]]], root: Path
) -> pd.DataFrame:
    """Score each model's runs with what the others taught, network and teacher.

    Returns:
        As ``pinn.evaluation.serving_runs.score_runs``; methods end in ``LEFT_OUT``.
    """
    tables = [
        score_learned(learn_fold(learner, fold, root), test, LEFT_OUT) for fold, test in folds
    ]
    return pd.concat(tables, ignore_index=True)


def score_learned(learned: Learned, runs: Sequence[MeasuredRun], suffix: str = "") -> pd.DataFrame:
    """Score runs with the network and the teacher of one training."""
    latencies = {
        TEACHER: run_latencies(learned.fit, runs, run_parts(learned.teacher.kernels, runs)),
        NETWORK: network_latencies(learned.network, runs),
    }
    scores = [score_runs(runs, each, name + suffix) for name, each in latencies.items()]
    return pd.concat(scores, ignore_index=True)


def network_latencies(
    network: CoefficientNetwork | TrainedNetwork, runs: Sequence[MeasuredRun]
) -> list[LinearLatency]:
    """The coefficients that a network gives each run's deployment."""
    deployments = [run.deployment for run in runs]
    found = surrogate.predict_coefficients(network, deployments)
    each = zip(deployments, found.beta, found.alpha, strict=True)
    return [LinearLatency(*one) for one in each]


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


# Intervals of scored serving runs: every run again with all times at either end of theirs.


def with_intervals(
    scores: pd.DataFrame,
    runs: Sequence[MeasuredRun],
    latencies: Sequence[LinearLatency],
    checkpoint: Path,
) -> pd.DataFrame:
    """Scores with the ends of each figure's interval; two more simulations a run.

    Args:
        scores: What ``score_runs`` made of these runs and coefficients.
        runs: What was measured.
        latencies: The checkpoint's coefficients of each.
        checkpoint: The network, with its intervals beside it.

    Returns:
        ``scores`` with ``low_s`` and ``high_s``, infinite where the slow end serves nothing.

    Raises:
        PinnError: If the checkpoint has no intervals.
    """
    calibration = read_calibration(checkpoint)
    known = [gpu_is_known(checkpoint, latency.deployment) for latency in latencies]
    step, ttft = ([calibration.half_width(m, k) for k in known] for m in ("tpot", "ttft"))
    fast, slow = (
        score_runs(
            runs,
            [scaled(of, way * s, way * t) for of, s, t in zip(latencies, step, ttft, strict=True)],
            "",
        )["predicted_s"]
        for way in (-1, 1)
    )
    half = dict(zip((run.name for run in runs), ttft, strict=True))
    table = scores.reset_index(drop=True).assign(fast_s=fast, slow_s=slow)
    # A figure is e2e, ttft or itl, and a mean or a percentile of the same requests.
    tail = table["figure"].str.split("_").str[1]
    found: dict[object, Ends] = {}
    for (run, _, _), part in table.groupby(["run", "stage", tail], sort=False):
        names = part["figure"].str.partition("_")[0].tolist()
        columns = (part[column].tolist() for column in ("predicted_s", "fast_s", "slow_s"))
        value, least, most = (dict(zip(names, column, strict=True)) for column in columns)
        if any(map(math.isnan, value.values())):  # nothing was served
            ends = dict.fromkeys(names, (math.nan, math.nan))
        else:
            ends = figure_ends(value, least, most, half[str(run)])
        found |= dict(zip(part.index, (ends[name] for name in names), strict=True))
    low, high = zip(*(found[i] for i in table.index), strict=True)
    return table.drop(columns=["fast_s", "slow_s"]).assign(low_s=low, high_s=high)
