"""A complete experiment, from configuration to results folder, as run by ``train.py``.

Training uses measured kernels, measured deployments and, if given, serving runs. Each
cross-validation fold holds models or GPUs out of all three. The checkpoint is trained on all data.
The printed errors, which are those of the folds, therefore estimate the checkpoint's errors on
unseen models and GPUs.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common.tables import write_frame
from pinn.evaluation import crossvalidation, folds, methods, metrics, serving_runs
from pinn.evaluation.config import ExperimentConfig
from pinn.evaluation.measured import (
    Measured,
    code_sha256,
    make_repeatable,
    mark,
    read_measured,
    recipe_sha256,
)
from pinn.evaluation.tables import print_results, print_scores, print_summary
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.surrogate.checkpoint import Checkpoint, save_checkpoint
from pinn.surrogate.featurizer import featurize
from pinn.surrogate.network import CoefficientNetwork
from pinn.training.data.splits import Split
from pinn.training.folds import Fold, learn_all, learn_fold


def run_experiment(config: ExperimentConfig) -> dict[str, object]:
    """Run one experiment: evaluate its splits, then train and save the checkpoint.

    Args:
        config: Configuration as composed from ``conf/train.yaml``.

    Returns:
        Paths of the saved files, and each method's errors over all rows, as JSON-ready values.

    Raises:
        PinnError: If data or configuration are invalid.
    """
    make_repeatable(config)
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    measured = read_measured(config)
    splits = folds.experiment_splits(config, measured)
    summary: dict[str, object] = {"experiment": config.experiment_name, "folder": str(folder)}
    summary["serving_runs"] = len(measured.runs)
    results = scores = pd.DataFrame()
    if splits:
        results, scores = _test(config, measured, splits)
        shown = results[(results.held_out == "all") & (results.method == "network")]
        summary["errors"] = shown.drop(columns=["held_out"]).to_dict("records")
    if config.final_fit:
        path = _fit_all(config, measured, results, scores)
        summary["checkpoint"] = str(path)
        if splits and config.kernels.enabled and config.evaluation.held_out is None:
            folds.calibrate_folds(config, measured, splits, path)
        if config.publish:
            summary["published"] = str(folds.publish(path, Path(config.publish)))
    return summary


def _test(
    config: ExperimentConfig, measured: Measured, splits: Mapping[str, list[Split]]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Compute every method's errors on every split, write them to tables, and print the tables.

    Returns:
        TPOT and TTFT errors on all splits, and latency errors on held-out serving runs.
    """
    folder, workers = Path(config.output_dir), config.workers.workers()
    scores = pd.DataFrame()
    compared = [methods.roofline(), *methods.without_kernels(config)]
    if config.kernels.enabled:
        fits = methods.kernel_fits(config, measured.runs)
        of_splits = folds.split_folds(splits, measured)
        runs_out = serving_runs.run_folds(measured.rows, measured.runs)
        if config.evaluation.held_out is not None:  # Test only on runs of that model.
            models = [model for fold in of_splits for model in fold.exclude.models]
            runs_out = [
                (fold, test)
                for fold, test in runs_out
                if any(is_near_copy(m, model) for m in fold.exclude.models for model in models)
            ]
        learn_all(fits.learner, [*of_splits, *(f for f, _ in runs_out)], fits.root, workers)
        compared += methods.kernel_methods(fits)
        if runs_out:
            scores = serving_runs.score_left_out(fits.learner, runs_out, fits.root)
    compared += methods.peers()
    cells = crossvalidation.cells(splits, compared, folder, mark(config, measured))
    crossvalidation.compute(measured.rows, cells, workers)
    predictions = crossvalidation.read_cells(cells)
    write_frame(predictions, folder / "predictions.csv")
    groups = metrics.group_masks(config.evaluation.groups, measured.rows, predictions)
    tables = [metrics.summarize(predictions, groups)]
    if len(scores):
        tables.append(serving_runs.run_results(scores))
    write_frame(pd.concat(tables, ignore_index=True), folder / "results.csv")
    results = pd.read_csv(folder / "results.csv")
    print_results(results)
    return results, scores


def _fit_all(
    config: ExperimentConfig, measured: Measured, results: pd.DataFrame, scores: pd.DataFrame
) -> Path:
    """Train on all data and save the checkpoint together with the held-out results."""
    folder = Path(config.output_dir)
    of_kernels: dict[str, object] = {"kernels": {}, "scalars": {}}
    if config.kernels.enabled:
        fits = methods.kernel_fits(config, measured.runs)
        whole = Fold(measured.rows, measured.runs, Exclusion())
        learned = learn_fold(fits.learner, whole, fits.root)
        network, surrogates = learned.network, learned.teacher.kernels
        of_kernels["kernels"] = {"digest": surrogates.digest(), **surrogates.metadata}
        of_kernels["scalars"] = learned.fit.to_json()
        if measured.runs:
            trained_on = serving_runs.score_learned(learned, measured.runs)
            scores = pd.concat([scores, trained_on], ignore_index=True)
    else:
        network = methods.serving_learner(config).learn(measured.rows, folder / "logs" / "all")
    if len(scores):
        _print_scores(scores, folder / "serving_runs.csv")
    metadata = _metadata(config, measured, network) | of_kernels
    metadata["held_out_results"] = results.to_dict("records")
    runs = (run.deployment for run in measured.runs)
    deployments = tuple(dict.fromkeys([*measured.rows.deployments, *runs]))
    names = tuple(f"{d.model.name} on {d.gpu.name}" for d in deployments)
    anchors = np.concatenate(featurize(deployments), axis=1)
    path = folder / "checkpoint.safetensors"
    save_checkpoint(Checkpoint(network.weights(), metadata, anchors, names), path)
    return path


def _print_scores(scores: pd.DataFrame, path: Path) -> None:
    """Write latency errors on serving runs to a file, and print them with their statistics."""
    write_frame(scores, path, float_format="%.6g")
    table = pd.read_csv(path, dtype={"stage": str})
    print_scores(table)
    for method, part in table.groupby("method", sort=False):
        inversions = {str(method): serving_runs.ranking_inversions(part)}
        print_summary(serving_runs.summarize_runs(part), inversions)


def _metadata(
    config: ExperimentConfig, measured: Measured, network: CoefficientNetwork
) -> dict[str, object]:
    sources: list[dict[str, object]] = [asdict(measured.manifest)]
    if measured.report is not None:
        of_runs = {"schema": "serving runs", "table_sha256": measured.report.sha256}
        sources.append(of_runs | {"report": measured.report.to_json()})
    return {
        "experiment": config.experiment_name,
        "command": "python train.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).date().isoformat(),
        "recipe_sha256": recipe_sha256(config),
        "data_sha256": measured.data_sha256,
        "code_sha256": code_sha256(),
        "parameters": network.parameter_count,
        "sources": sources,
    }
