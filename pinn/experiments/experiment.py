"""An experiment from configuration to results folder: what ``train.py`` runs."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from pinn.evaluation.crossvalidation import cross_validate
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
from pinn.kernels.exclusion import Exclusion
from pinn.network.checkpoint import Checkpoint, save_checkpoint
from pinn.observations.splits import Split, named_splits
from pinn.observations.table import read_manifest, read_observations
from pinn.training.kernel_learner import KernelLearner, KernelSettings
from pinn.training.learner import ServingLearner
from pinn.training.provenance import fingerprint, source_digest
from pinn.training.serving_rows import ServingRows, serving_rows


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
    settings: Any = OmegaConf.to_container(config, resolve=True)
    instantiate(config.data)
    observations = read_observations(Path(config.data.target))
    manifest = read_manifest(Path(config.data.target))
    print(manifest.report.table(), file=sys.stderr)
    rows = serving_rows(observations)
    learned_from = {part: settings[part] for part in ("network", "fit", "kernels", "seed")}
    mark = fingerprint(manifest.table_sha256, learned_from)
    summary: dict[str, Any] = {"experiment": config.experiment_name, "folder": str(folder)}
    results = pd.DataFrame()
    if config.evaluation.splits:
        splits = named_splits(config.evaluation.splits, observations, folder / "splits")
        results = _evaluate(config, rows, splits, mark, folder)
        overall = results[
            (results.held_out == "all") & results.method.isin(["network", "network, no kernels"])
        ]
        summary["errors"] = overall.drop(columns=["held_out"]).to_dict("records")
    if config.final_fit:
        summary["checkpoint"] = str(_fit_all(config, rows, mark, results, folder))
    return summary


def _evaluate(
    config: DictConfig,
    rows: ServingRows,
    splits: dict[str, list[Split]],
    mark: str,
    folder: Path,
) -> pd.DataFrame:
    """Score every method on every split; the table goes to disk first and is printed from there."""
    alone = serving_learner(config)
    methods: list[Method] = [
        Roofline(),
        LearnedNetwork("global vector", alone.without_correction()),
        LearnedNetwork("network, no kernels", alone),
    ]
    if config.kernels.enabled:
        fits = KernelFits(kernel_learner(config))
        methods += [KernelTeacher(fits), KernelNetwork(fits)]
    methods.append(Peer("aiconfigurator", released_predictions()))
    predictions = cross_validate(rows, splits, methods, folder, mark)
    predictions.to_csv(folder / "predictions.csv", index=False)
    groups = group_masks(config.evaluation.groups, rows, predictions)
    summarize(predictions, groups).to_csv(folder / "results.csv", index=False)
    results = pd.read_csv(folder / "results.csv")
    print_results(results)
    return results


def _fit_all(
    config: DictConfig,
    rows: ServingRows,
    mark: str,
    results: pd.DataFrame,
    folder: Path,
) -> Path:
    """Fit on all rows and save the checkpoint with the held-out results beside it."""
    logs = folder / "logs" / f"all-{mark[:16]}"
    kernels: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    if config.kernels.enabled:
        learned = kernel_learner(config).learn(rows, Exclusion(), logs)
        network, teacher = learned.network, learned.teacher
        kernels = {"digest": teacher.kernels.digest(), **teacher.kernels.metadata}
        scalars = teacher.scalars.to_json()
    else:
        network = serving_learner(config).learn(rows, logs)
    manifest = read_manifest(Path(config.data.target))
    metadata = {
        "experiment": config.experiment_name,
        "command": "python train.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).date().isoformat(),
        "fingerprint": mark,
        "parameters": network.parameter_count,
        "kernels": kernels,
        "scalars": scalars,
        "sources": [manifest.to_json()],
        "held_out_results": results.to_dict("records"),
    }
    free, rates = rows.embedding()
    names = tuple(f"{d.model.name} on {d.gpu.name}" for d in rows.deployments)
    checkpoint = Checkpoint(network, metadata, np.concatenate([free, rates], axis=1), names)
    path = folder / "checkpoint.safetensors"
    save_checkpoint(checkpoint, path)
    return path


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


def simulation_digest() -> str:
    """Of the code that runs are simulated by: no fit to runs outlives a change of it."""
    return source_digest(("workloads", "simulator"))


def kernel_settings(config: DictConfig) -> KernelSettings:
    """Where kernels come from; Hydra makes a list of the GPUs, which no cache takes as a key."""
    values: Any = OmegaConf.to_container(config.kernels.settings, resolve=True)
    del values["_target_"]
    return KernelSettings(**values | {"gpus": tuple(values["gpus"])})


def kernel_learner(config: DictConfig) -> KernelLearner:
    """Learns from kernels and measured deployments, as the configuration says."""
    return KernelLearner(
        kernel_settings(config),
        instantiate(config.network),
        instantiate(config.kernels.distillation),
        instantiate(config.fit),
        instantiate(config.trainer),
        config.seed,
    )
