"""An experiment from configuration to results folder: what ``train.py`` runs.

One recipe learns from measured kernels, measured deployments and, where they are given, serving
runs. Each fold leaves models or GPUs out of all three; the checkpoint leaves nothing out. So what
is printed of the folds is what to expect of the checkpoint on models and GPUs that it never saw.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra.utils import instantiate
from omegaconf import DictConfig

from pinn.common.tables import write_frame
from pinn.evaluation import crossvalidation, folds, methods, metrics, serving_runs
from pinn.evaluation.tables import print_results, print_scores, print_summary
from pinn.kernels.exclusion import Exclusion
from pinn.surrogate.checkpoint import Checkpoint, save_checkpoint
from pinn.surrogate.featurizer import featurize
from pinn.surrogate.network import CoefficientNetwork
from pinn.surrogate.uncertainty.intervals import calibration_path, write_calibration
from pinn.training.data.splits import named_splits
from pinn.training.kernel_learner import Fold, learn_all, learn_fold


def run_experiment(config: DictConfig) -> dict[str, Any]:
    """Run one experiment.

    Args:
        config: As ``conf/train.yaml`` composes it.

    Returns:
        Where things were saved and the overall errors, ready for JSON.

    Raises:
        PinnError: If data or configuration cannot be used.
    """
    methods.make_repeatable(config)
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    measured = methods.read_measured(config)
    summary: dict[str, Any] = {"experiment": config.experiment_name, "folder": str(folder)}
    summary["serving_runs"] = len(measured.runs)
    results, scores = pd.DataFrame(), pd.DataFrame()
    if config.evaluation.splits:
        results, scores = _evaluate(config, measured, folder)
        shown = results[(results.held_out == "all") & (results.method == "network")]
        summary["errors"] = shown.drop(columns=["held_out"]).to_dict("records")
    if config.final_fit:
        path = _fit_all(config, measured, results, scores, folder)
        summary["checkpoint"] = str(path)
        if config.evaluation.splits and config.kernels.enabled:
            # Intervals from everything that the folds left out, their networks beside them.
            networks = folds.fold_networks(config, measured, folder)
            folds.keep_networks(networks, folder)
            found = folds.calibrate_folds(config, measured, networks, path)
            write_calibration(found, calibration_path(path))
        if config.publish:
            summary["published"] = str(folds.publish(path, Path(config.publish)))
    return summary


def _evaluate(
    config: DictConfig, measured: methods.Measured, folder: Path
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score every method on every split; tables go to disk first and are printed from there.

    Returns:
        Errors of all splits, and the scores of left-out serving runs.
    """
    splits = named_splits(config.evaluation.splits, measured.observations, folder / "splits")
    scores = pd.DataFrame()
    workers = instantiate(config.workers)
    compared = [methods.roofline(), *methods.without_kernels(config)]
    if config.kernels.enabled:
        fits = methods.kernel_fits(config, measured.runs, folder)
        runs_out = serving_runs.run_folds(measured.rows, measured.runs)
        learn_all(
            fits.learner,
            [*folds.split_folds(splits, measured), *(fold for fold, _ in runs_out)],
            fits.root,
            workers,
        )
        compared += methods.kernel_methods(fits)
        if runs_out:
            scores = serving_runs.score_left_out(fits.learner, runs_out, fits.root)
    compared += methods.peers()
    mark = methods.mark(config, measured)
    predictions = crossvalidation.cross_validate(
        measured.rows, splits, compared, folder, mark, workers
    )
    write_frame(predictions, folder / "predictions.csv")
    groups = metrics.group_masks(config.evaluation.groups, measured.rows, predictions)
    tables = [
        metrics.summarize(predictions, groups),
        *([serving_runs.run_results(scores)] if len(scores) else []),
    ]
    write_frame(pd.concat(tables, ignore_index=True), folder / "results.csv")
    results = pd.read_csv(folder / "results.csv")
    print_results(results)
    return results, scores


def _fit_all(
    config: DictConfig,
    measured: methods.Measured,
    results: pd.DataFrame,
    scores: pd.DataFrame,
    folder: Path,
) -> Path:
    """Fit on everything and save the checkpoint with the held-out results beside it."""
    kernels: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    if config.kernels.enabled:
        fits = methods.kernel_fits(config, measured.runs, folder)
        whole = Fold(measured.rows, measured.runs, Exclusion())
        learned = learn_fold(fits.learner, whole, fits.root)
        network, surrogates = learned.network, learned.teacher.kernels
        kernels = {"digest": surrogates.digest(), **surrogates.metadata}
        scalars = learned.fit.to_json()
        if measured.runs:
            trained_on = serving_runs.score_learned(learned, measured.runs)
            scores = pd.concat([scores, trained_on], ignore_index=True)
    else:
        network = methods.serving_learner(config).learn(measured.rows, folder / "logs" / "all")
    if len(scores):
        write_frame(scores, folder / "serving_runs.csv", float_format="%.6g")
        table = pd.read_csv(folder / "serving_runs.csv", dtype={"stage": str})
        print_scores(table)
        for method, part in table.groupby("method", sort=False):
            print_summary(
                serving_runs.summarize_runs(part),
                {str(method): serving_runs.ranking_inversions(part)},
            )
    metadata = _metadata(config, measured, network) | {
        "kernels": kernels,
        "scalars": scalars,
        "held_out_results": results.to_dict("records"),
    }
    runs = (run.deployment for run in measured.runs)
    deployments = tuple(dict.fromkeys([*measured.rows.deployments, *runs]))
    names = tuple(f"{d.model.name} on {d.gpu.name}" for d in deployments)
    anchors = np.concatenate(featurize(deployments), axis=1)
    path = folder / "checkpoint.safetensors"
    save_checkpoint(Checkpoint(network.weights(), metadata, anchors, names), path)
    return path


def _metadata(
    config: DictConfig, measured: methods.Measured, network: CoefficientNetwork
) -> dict[str, Any]:
    sources = [measured.manifest.to_json()]
    if measured.report is not None:
        of_runs = {"schema": "serving runs", "table_sha256": measured.report.sha256}
        sources.append(of_runs | {"report": measured.report.to_json()})
    return {
        "experiment": config.experiment_name,
        "command": "python train.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).date().isoformat(),
        "recipe_sha256": methods.recipe_sha256(config),
        "data_sha256": measured.data_sha256,
        "code_sha256": methods.code_sha256(),
        "parameters": network.parameter_count,
        "sources": sources,
    }
