"""What the evaluation suite shows of the network and of serving runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from pinn.coefficients.configurations import canonical, make_deployment
from pinn.coefficients.surrogate import Surrogate, batch_work
from pinn.common.files import file_sha256, find_kernels
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.laboratory.crossvalidation import kept_cell
from pinn.laboratory.folds import CHECKPOINT_COLUMN
from pinn.laboratory.methods import kernel_fits, serving_learner
from pinn.laboratory.serving_runs import LEFT_OUT, RUNS_LEFT_OUT, network_latencies, score_runs
from pinn.physics.request import REQUEST_FEATURES
from pinn.physics.step import STEP_FEATURES, step_features
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.batch import parse_batch
from pinn.training.breakdown import breakdown, saved_scalars
from pinn.training.data.measured_runs import WHOLE_RUN, MeasuredRun, csv_of, read_measured_runs
from pinn.training.serving_rows import ServingRows
from pinn.training.teacher import Teacher, prior_scalars

# A checkpoint on well-known deployments: coefficients beside their priors, breakdowns.

#: Model, GPU and tensor-parallel size of the deployments that are shown.
SHOWN = (
    ("meta-llama/Llama-3.1-8B", "A100", 1),
    ("meta-llama/Llama-3.1-8B", "H100", 1),
    ("meta-llama/Llama-3.1-8B", "B200", 1),
    ("meta-llama/Llama-3.1-70B", "A100", 4),
    ("meta-llama/Llama-3.1-70B", "H100", 4),
    ("meta-llama/Llama-3.1-70B", "B200", 4),
    ("Qwen/Qwen3-30B-A3B", "A100", 2),
    ("Qwen/Qwen3-30B-A3B", "H100", 2),
    ("Qwen/Qwen3-30B-A3B", "B200", 2),
    ("openai/gpt-oss-120b", "H100", 2),
    ("openai/gpt-oss-120b", "B200", 2),
    ("deepseek-ai/DeepSeek-V3", "H200", 8),
    ("deepseek-ai/DeepSeek-V3", "B200", 8),
)

#: Steps that are accounted for.
BATCHES = ("64 decode @ 1000", "1 prefill 2048 @ 0", "1 prefill 512 @ 0 + 64 decode @ 1000")


def shown_deployments() -> dict[str, Deployment]:
    """Label -> deployment of everything that is shown."""
    found = {}
    for model, gpu, size in SHOWN:
        given = canonical({"model": model, "gpu": gpu, "tensor_parallel_size": size})
        found[f"{model.split('/')[-1]}, {size} x {gpu}"] = make_deployment(given)
    return found


def coefficient_rows(checkpoint: Path) -> pd.DataFrame:
    """Coefficients and priors of the deployments that are shown.

    Returns:
        Columns ``deployment``, ``part`` (beta or alpha), ``name``, ``unit``, ``value``, ``prior``
        and ``used``, whether one of ``BATCHES`` takes longer for it; SI units.
    """
    shown = shown_deployments()
    found = Surrogate.load(checkpoint).coefficients(list(shown.values()))
    batches = [parse_batch(text) for text in BATCHES]
    rows: list[tuple[Any, ...]] = []
    for label, deployment, beta, alpha in zip(
        shown, shown.values(), found.beta, found.alpha, strict=True
    ):
        used = (step_features(*batch_work(deployment, batches)) > 0).max(axis=0).tolist()
        rows += [
            (label, "beta", f.name, f.unit, float(value), f.prior, some)
            for f, value, some in zip(STEP_FEATURES.values(), beta, used, strict=True)
        ]
        rows += [
            (label, "alpha", f.name, f.unit, float(value), f.prior, True)
            for f, value in zip(REQUEST_FEATURES.values(), alpha, strict=True)
        ]
    columns = ["deployment", "part", "name", "unit", "value", "prior", "used"]
    return pd.DataFrame(rows, columns=columns)


def anatomy_rows(checkpoint: Path) -> pd.DataFrame:
    """Where the time of well-known steps goes.

    Returns:
        Columns ``deployment``, ``batch``, ``part``, ``network_s``, ``composed_s`` (NaN without
        kernel surrogates) and ``floor_s`` of the whole step.
    """
    surrogate, kernels = Surrogate.load(checkpoint), find_kernels(None, checkpoint)
    saved = surrogate.checkpoint.metadata.get("scalars")
    scalars = saved_scalars(saved) if saved else prior_scalars()
    teacher = None if kernels is None else Teacher(KernelSurrogates.load(kernels), scalars)
    rows = []
    for label, deployment in shown_deployments().items():
        beta = surrogate.coefficients([deployment]).beta[0]
        for batch in BATCHES:
            found = breakdown(deployment, batch, beta, teacher)
            for part, seconds in found.network.items():
                composed = float("nan") if found.composed is None else found.composed[part]
                rows.append((label, batch, part, seconds, composed, found.floor))
    columns = ["deployment", "batch", "part", "network_s", "composed_s", "floor_s"]
    return pd.DataFrame(rows, columns=columns)


# Measured deployments teach, serving runs test: quantized models to dense ones in bf16.

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

    def make(logs: Path) -> pd.DataFrame:
        configs = config.runs.model_configs
        runs, _ = read_measured_runs(Path(path), Path(configs) if configs else None)
        methods = _methods(config, rows, runs, logs)
        scores = [score_runs(runs, of_runs, name) for name, of_runs in methods.items()]
        return pd.concat([run_predictions(each, SPLIT) for each in scores], ignore_index=True)

    key = [fingerprint, file_sha256(csv_of(Path(path)))]
    return kept_cell(config, "runs", key, make, partial(skipped.__setitem__, SPLIT))


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
        found[name] = network_latencies(learner.learn(rows, logs / name.replace(" ", "-")), runs)
    if config.kernels.enabled:
        learned = kernel_fits(config, (), Path(config.output_dir)).learn(rows, Exclusion())
        of_network = network_latencies(learned.network, runs)
        distinct = list(dict.fromkeys(deployments))
        betas = dict(zip(distinct, learned.teacher.betas(distinct), strict=True))
        found["teacher"] = [
            LinearLatency(one.deployment, betas[one.deployment], one.alpha) for one in of_network
        ]
        found["network"] = of_network
    return found


def run_predictions(scores: pd.DataFrame, split: str) -> pd.DataFrame:
    """Whole runs in the schema of the other splits; a model's runs are one group.

    Args:
        scores: As ``pinn.laboratory.serving_runs.score_runs`` returns them.
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


# What the folds of a published checkpoint predicted, where the suite's own fits are not made.

_PAIR = ["split", "method"]

#: Measured values are kept with eight digits.
_ROUNDING = 1e-6


def shipped_predictions(
    checkpoint: Path, splits: Sequence[str], made: pd.DataFrame, observations: pd.DataFrame
) -> pd.DataFrame:
    """Predictions of pairs of split and method that are not made, by the checkpoint's own folds.

    Each was made by a fit that left its row's model, or GPU and kernels, out.

    Args:
        checkpoint: Beside which ``publish`` put its predictions.
        splits: Kinds of split to take.
        made: Predictions that there are; their pairs are not taken.
        observations: What was measured; the predictions have to be of the same.

    Returns:
        As ``pinn.laboratory.crossvalidation.cross_validate`` returns them, with the checkpoint's
        SHA-256 in the column ``CHECKPOINT_COLUMN``.

    Raises:
        PinnError: If there are none, or they are of another checkpoint or of other measurements.
    """
    path = checkpoint.with_suffix(".predictions.csv")
    kept = _published(path, checkpoint)
    kept = kept[kept["split"].isin(list(splits))]
    measured = observations.set_index("row_id")[["tpot_s", "ttft_s"]].reindex(kept["row_id"])
    own = kept[["tpot_measured_s", "ttft_measured_s"]].to_numpy()
    if not np.allclose(measured.to_numpy(), own, rtol=_ROUNDING, atol=0):
        raise PinnError(f"{path} predicts other measurements than those at hand")
    there = pd.MultiIndex.from_frame(made[_PAIR])
    return kept[~pd.MultiIndex.from_frame(kept[_PAIR]).isin(there)]


def shipped_runs(checkpoint: Path) -> pd.DataFrame:
    """Serving runs as the checkpoint's own folds predicted them, each without the run's model.

    Args:
        checkpoint: Beside which ``publish`` put their scores.

    Returns:
        As :func:`shipped_predictions`, and the column ``group``.

    Raises:
        PinnError: If there are none, or they are of another checkpoint.
    """
    scores = _published(checkpoint.with_suffix(".serving_runs.csv"), checkpoint)
    scores = scores[scores["method"].str.endswith(LEFT_OUT)]
    unseen = scores.assign(method=scores["method"].str.removesuffix(LEFT_OUT))
    return run_predictions(unseen, RUNS_LEFT_OUT)


def _published(path: Path, checkpoint: Path) -> pd.DataFrame:
    """A table that was published with a checkpoint."""
    if not path.is_file():
        raise PinnError(f"no {path}: the checkpoint was published without it")
    table = pd.read_csv(path, dtype={"stage": str})
    if set(table[CHECKPOINT_COLUMN]) != {file_sha256(checkpoint)}:
        raise PinnError(f"{path} belongs to another checkpoint than {checkpoint}: publish both")
    return table
