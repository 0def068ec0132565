"""Measured deployments teach, serving runs test: quantized models to dense ones in bf16."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from pinn.coefficients.coefficient_network import CoefficientNetwork
from pinn.coefficients.surrogate import predict_coefficients
from pinn.data.measured_runs import WHOLE_RUN, MeasuredRun, csv_of, read_measured_runs
from pinn.data.table import replace_atomically
from pinn.evaluation.configured import kernel_fits, serving_learner
from pinn.evaluation.serving_runs import score_runs
from pinn.kernels.exclusion import Exclusion
from pinn.physics.request import REQUEST_FEATURES
from pinn.physics.step import STEP_FEATURES
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.files.read_report import file_sha256
from pinn.training.serving_rows import ServingRows

SPLIT = "deployments to serving runs"

#: Simulated figure -> metric of the suite.
_METRICS = {
    "itl_mean_s": "tpot", "ttft_mean_s": "ttft", "e2e_mean_s": "e2e", "e2e_p99_s": "e2e_p99",
}  # fmt: skip

Latencies = Sequence[LinearLatency]


def run_cell(
    config: DictConfig, rows: ServingRows, fingerprint: str, skipped: dict[str, str]
) -> pd.DataFrame | None:
    """Predictions of serving runs by what measured deployments taught.

    Kernels of the run models stay, as for a model whose kernels somebody measured; none of its
    serving data is there. The whole runs are rows, each model's runs a group.

    Args:
        config: Of the suite; ``runs.path`` names the CSV of serving runs.
        rows: All measured deployments.
        fingerprint: Of what is learned.
        skipped: Gets the reason where nothing is made.
    """
    path = config.runs.path
    if not path or not Path(path).exists():
        skipped[SPLIT] = "no serving runs: set runs.path or PINN_SERVING_RUNS to their CSV"
        return None
    folder = Path(config.output_dir)
    key = f"{fingerprint} {file_sha256(csv_of(Path(path)))}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    cell = folder / "cells" / f"runs-{digest}.parquet"
    if cell.is_file():
        return pd.read_parquet(cell)
    if config.fast:
        skipped[SPLIT] = "its fits are not made yet: pinn evaluate makes them"
        return None
    configs = config.runs.model_configs
    runs, _ = read_measured_runs(Path(path), Path(configs) if configs else None)
    methods = _methods(config, rows, runs, folder / "logs" / digest)
    table = pd.concat(
        [
            run_predictions(score_runs(runs, of_runs, name), SPLIT)
            for name, of_runs in methods.items()
        ],
        ignore_index=True,
    )
    cell.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(cell, lambda target: table.to_parquet(target, index=False))
    return table


def _methods(
    config: DictConfig, rows: ServingRows, runs: Sequence[MeasuredRun], logs: Path
) -> Mapping[str, Latencies]:
    """Coefficients of each run by every method that has any."""
    floor = np.array([f.lower_bound for f in STEP_FEATURES.values()])
    alone = serving_learner(config)
    deployments = [run.deployment for run in runs]
    found: dict[str, Latencies] = {
        "roofline": [LinearLatency(d, floor, np.zeros(len(REQUEST_FEATURES))) for d in deployments]
    }
    for name, learner in (
        ("global vector", alone.without_correction()),
        ("network, no kernels", alone),
    ):
        found[name] = _of_network(learner.learn(rows, logs / name.replace(" ", "-")), deployments)
    if config.kernels.enabled:
        learned = kernel_fits(config, (), Path(config.output_dir)).learn(rows, Exclusion())
        of_network = _of_network(learned.network, deployments)
        distinct = list(dict.fromkeys(deployments))
        betas = dict(zip(distinct, learned.teacher.betas(distinct), strict=True))
        found["teacher"] = [
            LinearLatency(one.deployment, betas[one.deployment], one.alpha) for one in of_network
        ]
        found["network"] = of_network
    return found


def _of_network(network: CoefficientNetwork, deployments: Sequence[Any]) -> list[LinearLatency]:
    """A network's coefficients of each run."""
    of_all = predict_coefficients(network, list(deployments))
    return [
        LinearLatency(deployment, beta, alpha)
        for deployment, beta, alpha in zip(deployments, of_all.beta, of_all.alpha, strict=True)
    ]


def run_predictions(scores: pd.DataFrame, split: str) -> pd.DataFrame:
    """Whole runs in the schema of the other splits; a model's runs are one group.

    Args:
        scores: As ``pinn.evaluation.serving_runs.score_runs`` returns them.
        split: Name of their split.
    """
    whole = scores[(scores["stage"] == WHOLE_RUN) & scores["figure"].isin(list(_METRICS))]
    wide = whole.pivot(
        index=["method", "run", "model"], columns="figure", values=["predicted_s", "measured_s"]
    )
    table = wide.index.to_frame(index=False).rename(columns={"run": "row_id"})
    table = table.assign(split=split, held_out=table["model"], group=table["model"])
    for figure, metric in _METRICS.items():
        if ("predicted_s", figure) in wide:
            table[f"{metric}_s"] = wide["predicted_s", figure].to_numpy()
            table[f"{metric}_measured_s"] = wide["measured_s", figure].to_numpy()
    return table.drop(columns="model")
