"""An experiment from configuration to results folder: what ``train.py`` runs.

One recipe learns from measured kernels, measured deployments and, where they are given, serving
runs. Each fold leaves models or GPUs out of all three; the checkpoint leaves nothing out. So what
is printed of the folds is what to expect of the checkpoint on models and GPUs that it never saw.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from pinn.embedding.descriptors import embed
from pinn.evaluation.crossvalidation import cross_validate, held_out_kernels
from pinn.evaluation.groups import group_masks
from pinn.evaluation.methods import (
    KernelFits,
    KernelNetwork,
    KernelTeacher,
    LearnedNetwork,
    Method,
    Peer,
    Roofline,
)
from pinn.evaluation.metrics import summarize
from pinn.evaluation.peers.aiconfigurator import released_predictions
from pinn.evaluation.printing import print_results
from pinn.evaluation.serving_runs import ranking_inversions, summarize_runs
from pinn.evaluation.serving_runs_print import print_scores, print_summary
from pinn.experiments.left_out_runs import (
    run_folds,
    run_results,
    score_learned,
    score_left_out,
)
from pinn.experiments.publish import publish
from pinn.kernels.exclusion import Exclusion
from pinn.network.checkpoint import Checkpoint, save_checkpoint
from pinn.network.coefficient_network import CoefficientNetwork
from pinn.observations.splits import Split, named_splits
from pinn.observations.table import Manifest, read_manifest, read_observations
from pinn.sources.report import ReadReport
from pinn.specs.deployment import Deployment
from pinn.training.folds import Fold, fold_of, learn_all, learn_fold
from pinn.training.kernel_learner import KernelLearner, KernelSettings
from pinn.training.learner import ServingLearner
from pinn.training.provenance import code_sha256, json_sha256
from pinn.training.serving_rows import ServingRows, serving_rows
from pinn.workloads.measured_runs import MeasuredRun, read_measured_runs

#: Parts of the configuration that decide what is learned.
LEARNED_FROM = ("network", "kernels", "fit", "run_fit", "seed")

#: Where folds are remembered, below the output folder.
FOLDS = "folds"


@dataclass(frozen=True)
class Measured:
    """Everything that was measured, and where it comes from.

    Attributes:
        observations: Measured deployments as a table.
        rows: The same, ready to learn from.
        runs: Serving runs; none where none are given.
        manifest: Of the deployments.
        report: Of the runs.
    """

    observations: pd.DataFrame
    rows: ServingRows
    runs: tuple[MeasuredRun, ...]
    manifest: Manifest
    report: ReadReport | None

    @property
    def data_sha256(self) -> str:
        """Of all data."""
        of_runs = None if self.report is None else self.report.sha256
        return json_sha256(self.manifest.table_sha256, of_runs)


def run_experiment(config: DictConfig) -> dict[str, Any]:
    """Run one experiment.

    Args:
        config: As ``conf/train.yaml`` composes it.

    Returns:
        Where things were saved and the overall errors, ready for JSON.

    Raises:
        PinnError: If data or configuration cannot be used.
    """
    make_repeatable(config)
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    measured = read_measured(config)
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
        if config.publish:
            summary["published"] = str(publish(path, Path(config.publish)))
    return summary


def read_measured(config: DictConfig) -> Measured:
    """Measured deployments, and serving runs where the configuration names them."""
    instantiate(config.data)
    manifest = read_manifest(Path(config.data.target))
    observations = read_observations(Path(config.data.target))
    print(manifest.report.table(), file=sys.stderr)
    runs, report = measured_runs(config)
    return Measured(observations, serving_rows(observations), runs, manifest, report)


def measured_runs(config: DictConfig) -> tuple[tuple[MeasuredRun, ...], ReadReport | None]:
    """Serving runs where the configuration names them, else none."""
    if not config.runs.path:
        print(
            "no serving runs: learning from kernels and measured deployments alone (runs.path=FILE "
            "or PINN_SERVING_RUNS names them)",
            file=sys.stderr,
        )
        return (), None
    configs = config.runs.model_configs
    return read_measured_runs(Path(config.runs.path), Path(configs) if configs else None)


def recipe_sha256(config: DictConfig) -> str:
    """Of the settings that decide what is learned."""
    settings: Any = OmegaConf.to_container(config, resolve=True)
    return json_sha256({part: settings[part] for part in LEARNED_FROM})


def _evaluate(
    config: DictConfig, measured: Measured, folder: Path
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Score every method on every split; tables go to disk first and are printed from there.

    Returns:
        Errors of all splits, and the scores of left-out serving runs.
    """
    splits = named_splits(config.evaluation.splits, measured.observations, folder / "splits")
    tables = []
    scores = pd.DataFrame()
    methods = baselines(config)
    if config.kernels.enabled:
        fits = kernel_fits(config, measured.runs, folder)
        runs_out = run_folds(measured.rows, measured.runs)
        learn_all(
            fits.learner,
            [*split_folds(splits, measured), *(fold for fold, _ in runs_out)],
            fits.root,
            instantiate(config.workers),
        )
        methods += [KernelTeacher(fits), KernelNetwork(fits)]
        if runs_out:
            scores = score_left_out(fits.learner, runs_out, fits.root)
    methods.append(Peer("aiconfigurator", released_predictions()))
    mark = json_sha256(recipe_sha256(config), measured.data_sha256, code_sha256())
    predictions = cross_validate(measured.rows, splits, methods, folder, mark)
    predictions.to_csv(folder / "predictions.csv", index=False)
    groups = group_masks(config.evaluation.groups, measured.rows, predictions)
    tables.append(summarize(predictions, groups))
    if len(scores):
        tables.append(run_results(scores))
    pd.concat(tables, ignore_index=True).to_csv(folder / "results.csv", index=False)
    results = pd.read_csv(folder / "results.csv")
    print_results(results)
    return results, scores


def split_folds(splits: Mapping[str, list[Split]], measured: Measured) -> list[Fold]:
    """The folds behind splits of measured deployments, each once."""
    found: dict[tuple[tuple[str, ...], str], Fold] = {}
    for kind, of_kind in splits.items():
        for split in of_kind:
            train, test = (
                measured.rows.take(np.isin(measured.rows.row_id, ids))
                for ids in (split.train_ids, split.test_ids)
            )
            exclude = held_out_kernels(kind, test)
            fold = fold_of(train, measured.runs, exclude)
            found.setdefault((train.row_id, exclude.slug()), fold)
    return list(found.values())


def baselines(config: DictConfig) -> list[Method]:
    """What the recipe is compared with: the floor, and learning without kernels."""
    alone = serving_learner(config)
    return [
        Roofline(),
        LearnedNetwork("global vector", alone.without_correction()),
        LearnedNetwork("network, no kernels", alone),
    ]


def _fit_all(
    config: DictConfig,
    measured: Measured,
    results: pd.DataFrame,
    scores: pd.DataFrame,
    folder: Path,
) -> Path:
    """Fit on everything and save the checkpoint with the held-out results beside it."""
    kernels: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    if config.kernels.enabled:
        fits = kernel_fits(config, measured.runs, folder)
        whole = Fold(measured.rows, measured.runs, Exclusion())
        learned = learn_fold(fits.learner, whole, fits.root)
        network, surrogates = learned.network, learned.teacher.kernels
        kernels = {"digest": surrogates.digest(), **surrogates.metadata}
        scalars = learned.fit.to_json()
        if measured.runs:
            trained_on = score_learned(learned, measured.runs)
            scores = pd.concat([scores, trained_on], ignore_index=True)
    else:
        network = serving_learner(config).learn(measured.rows, folder / "logs" / "all")
    if len(scores):
        scores.to_csv(folder / "serving_runs.csv", index=False, float_format="%.6g")
        _print_runs(pd.read_csv(folder / "serving_runs.csv", dtype={"stage": str}))
    metadata = _metadata(config, measured, network) | {
        "kernels": kernels,
        "scalars": scalars,
        "held_out_results": results.to_dict("records"),
    }
    deployments = [*measured.rows.deployments, *(run.deployment for run in measured.runs)]
    return _save(network, metadata, tuple(dict.fromkeys(deployments)), folder)


def _metadata(
    config: DictConfig, measured: Measured, network: CoefficientNetwork
) -> dict[str, Any]:
    sources = [measured.manifest.to_json()]
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


def _save(
    network: CoefficientNetwork,
    metadata: dict[str, Any],
    deployments: tuple[Deployment, ...],
    folder: Path,
) -> Path:
    names = tuple(f"{d.model.name} on {d.gpu.name}" for d in deployments)
    anchors = np.concatenate(embed(deployments), axis=1)
    path = folder / "checkpoint.safetensors"
    save_checkpoint(Checkpoint(network, metadata, anchors, names), path)
    return path


def _print_runs(table: pd.DataFrame) -> None:
    print_scores(table)
    for method, scores in table.groupby("method", sort=False):
        print_summary(summarize_runs(scores), {str(method): ranking_inversions(scores)})


def serving_learner(config: DictConfig) -> ServingLearner:
    """Learns from measured deployments alone, as the configuration says."""
    return ServingLearner(
        instantiate(config.network),
        instantiate(config.fit),
        instantiate(config.trainer),
        config.seed,
    )


def make_repeatable(config: DictConfig) -> None:
    """Seed everything; the same configuration then gives the same bits."""
    lightning.seed_everything(config.seed, verbose=False)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(config.threads)


def kernel_settings(config: DictConfig) -> KernelSettings:
    """Where kernels come from; Hydra makes a list of the GPUs, which no cache takes as a key."""
    values: Any = OmegaConf.to_container(config.kernels.settings, resolve=True)
    del values["_target_"]
    return KernelSettings(**values | {"gpus": tuple(values["gpus"])})


def kernel_learner(config: DictConfig) -> KernelLearner:
    """The recipe, as the configuration says."""
    return KernelLearner(
        kernel_settings(config),
        instantiate(config.network),
        instantiate(config.kernels.distillation),
        instantiate(config.run_fit),
        instantiate(config.trainer),
        config.seed,
    )


def kernel_fits(config: DictConfig, runs: tuple[MeasuredRun, ...], folder: Path) -> KernelFits:
    """Trainings of the recipe; experiments share those that they have in common."""
    root = Path(config.folds) if config.folds else folder / FOLDS
    return KernelFits(kernel_learner(config), runs, root)
