"""The release: learn from kernels, measured deployments and serving runs; score; save."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from pinn.embedding.descriptors import embed
from pinn.errors import PinnError
from pinn.evaluation.metrics import RESULT_COLUMNS, error_summary
from pinn.evaluation.serving_runs import ranking_inversions, score_runs, summarize_runs
from pinn.evaluation.serving_runs_print import print_scores, print_summary
from pinn.experiments.experiment import kernel_learner, make_repeatable, simulation_digest
from pinn.experiments.release_folds import LEFT_OUT, leave_models_out
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.latency.surrogate import predict_coefficients
from pinn.network.checkpoint import Checkpoint, save_checkpoint
from pinn.network.coefficient_network import CoefficientNetwork
from pinn.observations.table import read_manifest, read_observations
from pinn.simulator.linear_latency import LinearLatency
from pinn.sources.report import ReadReport
from pinn.training.kernel_learner import KernelLearner, composed_steps, fitted_surrogates
from pinn.training.provenance import fingerprint
from pinn.training.run_learner import learn_from_runs, run_latencies, run_parts
from pinn.training.run_network import distil_release
from pinn.training.run_scalars import RunFit
from pinn.training.serving_rows import ServingRows, serving_rows
from pinn.uncertainty.calibration import calibration_path, move_calibration
from pinn.workloads.measured_runs import WHOLE_RUN, MeasuredRun, read_measured_runs

TEACHER, NETWORK = "teacher", "network"
RUNS_LEFT_OUT = "serving runs, leave-one-model-out"

#: Parts of the configuration that decide what is learned.
_LEARNED_FROM = ("network", "kernels", "fit", "run_fit", "runs", "seed")


def run_release(config: DictConfig) -> dict[str, Any]:
    """Train the released surrogate.

    Args:
        config: As ``conf/experiment/release.yaml`` composes it.

    Returns:
        Where things were saved and the errors over whole runs, ready for JSON.

    Raises:
        PinnError: If data or configuration cannot be used.
    """
    make_repeatable(config)
    folder = Path(config.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    runs, report = _read_runs(config)
    instantiate(config.data)
    manifest = read_manifest(Path(config.data.target))
    serving = serving_rows(read_observations(Path(config.data.target)))
    settings: Any = OmegaConf.to_container(config, resolve=True)
    learned_from = {part: settings[part] for part in _LEARNED_FROM}
    mark = fingerprint(manifest.table_sha256, report.sha256, learned_from, simulation_digest())
    learner = kernel_learner(config)
    scores = []
    if config.leave_models_out:
        run_fit = instantiate(config.run_fit)
        places = (folder / "folds", mark)
        scores.append(leave_models_out(learner.kernels, run_fit, runs, serving, *places))
    surrogates = fitted_surrogates(learner.kernels, Exclusion())
    logs = folder / "logs" / mark[:16]
    fit, network, latencies = _learn(config, learner, surrogates, runs, serving, logs)
    scores.append(score_runs(runs, latencies, TEACHER))
    scores.append(score_runs(runs, network_latencies(network, runs), NETWORK))
    pd.concat(scores, ignore_index=True).to_csv(
        folder / "serving_runs.csv", index=False, float_format="%.6g"
    )
    table = pd.read_csv(folder / "serving_runs.csv", dtype={"stage": str})
    _print(table)
    results = held_out_results(config, table)
    results.to_csv(folder / "results.csv", index=False)
    of_runs = {"schema": "serving runs", "table_sha256": report.sha256, "report": report.to_json()}
    metadata = {
        "experiment": config.experiment_name,
        "command": "python train.py " + " ".join(sys.argv[1:]),
        "date": datetime.now(UTC).date().isoformat(),
        "fingerprint": mark,
        "parameters": network.parameter_count,
        "kernels": {"digest": surrogates.digest(), **surrogates.metadata},
        "scalars": fit.to_json(),
        "sources": [manifest.to_json(), of_runs],
        "held_out_results": results.to_dict("records"),
    }
    _save(config, network, metadata, serving, runs)
    summary = summarize_runs(table)
    return {
        "experiment": config.experiment_name,
        "folder": str(folder),
        "checkpoint": str(folder / "checkpoint.safetensors"),
        "published": config.publish,
        "errors": summary[summary.part == "all"].to_dict("records"),
    }


def _read_runs(config: DictConfig) -> tuple[tuple[MeasuredRun, ...], ReadReport]:
    if not config.runs.path:
        raise PinnError(
            "the release learns from serving runs: give their CSV as runs.path=FILE or in "
            "PINN_SERVING_RUNS"
        )
    configs = config.runs.model_configs
    return read_measured_runs(Path(config.runs.path), Path(configs) if configs else None)


def _learn(
    config: DictConfig,
    learner: KernelLearner,
    surrogates: KernelSurrogates,
    runs: Sequence[MeasuredRun],
    serving: ServingRows,
    logs: Path,
) -> tuple[RunFit, CoefficientNetwork, list[LinearLatency]]:
    """Scalars from everything, then the network; and what the scalars say of each run."""
    fit = learn_from_runs(surrogates, runs, serving, instantiate(config.run_fit))
    latencies = run_latencies(fit, runs, run_parts(surrogates, runs))
    steps = composed_steps(learner.kernels, surrogates, Exclusion())
    known = {latency.deployment: latency.beta for latency in latencies}
    betas = np.array(list(known.values()))
    return fit, distil_release(learner, steps, fit, list(known), betas, logs), latencies


def network_latencies(
    network: CoefficientNetwork, runs: Sequence[MeasuredRun]
) -> list[LinearLatency]:
    """The coefficients that a network gives each run's deployment."""
    found = predict_coefficients(network, [run.deployment for run in runs])
    return [
        LinearLatency(run.deployment, beta, alpha)
        for run, beta, alpha in zip(runs, found.beta, found.alpha, strict=True)
    ]


def held_out_results(config: DictConfig, scores: pd.DataFrame) -> pd.DataFrame:
    """Errors of runs whose model was left out, below the table of another experiment.

    Serving rows are scored by the experiments that leave them out; ``held_out_results`` names the
    table of one, which the checkpoint then carries too.
    """
    tables = []
    if config.held_out_results:
        path = Path(config.held_out_results)
        if not path.is_file():
            raise PinnError(
                f"no results table at {path}: run python train.py +experiment=moe_ep first, or set "
                "held_out_results=null"
            )
        table = pd.read_csv(path)
        # The table of an earlier release has the runs' errors of that one.
        tables.append(table[table["split"] != RUNS_LEFT_OUT])
    whole = scores[(scores["method"] == LEFT_OUT) & (scores["stage"] == WHOLE_RUN)]
    parts = [("all", whole), *whole.groupby("model", sort=True)]
    rows = [
        {
            "split": RUNS_LEFT_OUT,
            "held_out": str(held_out),
            "method": LEFT_OUT,
            "metric": str(figure).removesuffix("_s"),
        }
        | error_summary(of_figure["predicted_s"].to_numpy(), of_figure["measured_s"].to_numpy())
        for held_out, part in parts
        for figure, of_figure in part.groupby("figure", sort=False)
    ]
    tables.append(pd.DataFrame(rows, columns=list(RESULT_COLUMNS)))
    return pd.concat([t for t in tables if len(t)] or tables, ignore_index=True)


def _print(table: pd.DataFrame) -> None:
    print_scores(table)
    for method, scores in table.groupby("method", sort=False):
        print_summary(summarize_runs(scores), {str(method): ranking_inversions(scores)})


def _save(
    config: DictConfig,
    network: CoefficientNetwork,
    metadata: dict[str, Any],
    serving: ServingRows,
    runs: Sequence[MeasuredRun],
) -> None:
    """Into the results folder, and from there to where commands look for it."""
    folder = Path(config.output_dir)
    deployments = tuple(dict.fromkeys([*serving.deployments, *(r.deployment for r in runs)]))
    names = tuple(f"{d.model.name} on {d.gpu.name}" for d in deployments)
    anchors = np.concatenate(embed(deployments), axis=1)
    path = folder / "checkpoint.safetensors"
    save_checkpoint(Checkpoint(network, metadata, anchors, names), path)
    if config.publish:
        target = Path(config.publish)
        target.mkdir(parents=True, exist_ok=True)
        publish(path, target / "pinn.safetensors")


def publish(path: Path, target: Path) -> None:
    """Put a checkpoint and the results beside it where commands look for them.

    The intervals that the checkpoint there had go over to the new one: they tell how well such
    training does on left-out groups.
    """
    try:
        move_calibration(target, path)
        shutil.copyfile(calibration_path(path), calibration_path(target))
    except PinnError as error:
        print(f"the new checkpoint has no intervals: {error}", file=sys.stderr)
    shutil.copyfile(path, target)
    for name in ("results.csv", "serving_runs.csv"):
        shutil.copyfile(path.with_name(name), target.with_suffix(f".{name}"))
