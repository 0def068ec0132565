"""Rows of the scorecard: measured times with a checkpoint's predictions."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common import old_names
from pinn.common.files import file_sha256
from pinn.engines.configurations import canonical, make_deployment
from pinn.errors import PinnError
from pinn.evaluation.engines import HeldOut, networks, score_engines
from pinn.evaluation.measured import json_sha256
from pinn.evaluation.metrics import CHECKPOINT_COLUMN
from pinn.evaluation.serving_runs import HELD_OUT, NETWORK, OVERLOADED, score_runs
from pinn.measurements.deployments.measured import measured_deployments
from pinn.measurements.runs.measured_runs import MeasuredRun, read_measured_runs
from pinn.measurements.runs.public import PublicSteps, read_public_runs, read_public_steps
from pinn.measurements.runs.whole_steps import MeasuredSteps, read_whole_steps
from pinn.simulator.metric_features import WHOLE_RUN
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.deployment_features import padded_features
from pinn.surrogate.step_features import step_time
from pinn.training.data.engine_deployments import (
    APART,
    read_dense_campaign,
    read_engines,
    read_other_attention,
)
from pinn.training.data.silicon import read_silicon
from pinn.training.serving_rows import SATURATED

#: Only every ``EVERY``-th load of a measured deployment, sorted by concurrency, is simulated to
#: save time.
EVERY = 3
#: GPU on which whole engine steps were measured, and maximum size, in tokens, of a batch with a
#: captured CUDA graph. The table of measured steps states neither.
STEPS_GPU, STEPS_GRAPH_TOKENS = "B300-SXM", 512

#: GPU on which the serving runs in the training data were measured. The table of their scores
#: states neither the GPU nor the engine flags. The flags are not needed, because no flag widens a
#: prediction interval.
RUNS_GPU = "H100-SXM"

ROW_COLUMNS = ("group", "configuration", "metric", "deployment", "measured_s", "predicted_s")
DEPLOYMENTS, RUNS, STEPS = "deployments", "serving runs", "whole steps"
HELD_OUT_RUNS = "held-out serving runs"
CAMPAIGN = "other campaign"

_DEPLOYMENT = ("engine_version", "gpu", "precision", "tensor_parallel_size", "data_parallel_size",
               "enable_expert_parallel")  # fmt: skip
_FIGURES = {"itl_mean_s": "tpot", "ttft_mean_s": "ttft"}


def panel_rows(
    checkpoint: Path,
    held_out_runs: Sequence[Path] = (),
    steps: Path | None = None,
    public: Sequence[Path] = (),
) -> pd.DataFrame:
    """Return measured and predicted TPOT and TTFT for every group; this takes about 30 seconds.

    Args:
        checkpoint: Checkpoint, with ``left_out`` and the table of its serving runs in the same
            folder.
        held_out_runs: CSVs of serving runs that are in no training data.
        steps: CSV of complete engine steps, with ``runs.csv`` in the same folder; None for no
            steps.
        public: Folders of public measurements of third-party servers.

    Returns:
        Table with ``ROW_COLUMNS``, times in seconds. TTFT is included only below saturation.

    Raises:
        PinnError: If a file is invalid or belongs to another checkpoint.
    """
    if steps is not None and learned_steps(checkpoint, steps):
        steps = None
    others = held_out_rows(networks(checkpoint), held_out_runs, steps, public)
    return pd.concat([others, _runs(checkpoint)], ignore_index=True)[list(ROW_COLUMNS)]


def held_out_rows(
    of: HeldOut, held_out_runs: Sequence[Path], steps: Path | None, public: Sequence[Path]
) -> pd.DataFrame:
    """Return the rows of :func:`panel_rows` without the serving runs of the training data."""
    runs = {HELD_OUT_RUNS: [run for path in held_out_runs for run in read_measured_runs(path)[0]]}
    for one in read_public_runs(public)[0]:
        runs.setdefault(one.set_name, []).append(one.run)
    whole = [] if steps is None else [PublicSteps(STEPS, one) for one in read_panel_steps(steps)]
    whole += (one for one in read_public_steps(public)[0] if one.is_held_out)
    parts = [
        _deployments(of),
        *(run_rows(of_set, of, name) for name, of_set in runs.items() if of_set),
        *(step_rows(one, of) for one in whole),
    ]
    return pd.concat(parts, ignore_index=True)[list(ROW_COLUMNS)]


def panel_deployments() -> pd.DataFrame:
    """Return the measured deployments to score, with columns ``group`` and ``configuration``.

    Every ``EVERY``-th load is kept. The column ``saturated`` is true if a row's TTFT is mostly
    queue time.
    """
    engines = pd.concat([read_engines()[0], read_other_attention()[0]], ignore_index=True)
    rows = pd.concat(
        [
            read_silicon()[0].assign(source=DEPLOYMENTS),
            engines[engines["apart"] != APART].assign(source=engines["engine"]),
            read_dense_campaign()[0].assign(source=CAMPAIGN),
        ],
        ignore_index=True,
    )
    rows = rows.assign(
        group=rows["source"] + ": " + rows["model"],
        configuration=rows[list(_DEPLOYMENT)].astype(str).agg(" ".join, axis=1),
    )
    key = ["group", "configuration"]
    rows = rows.sort_values([*key, "concurrency", "row_id"])
    rows["saturated"] = is_saturated(rows, [*key, "prompt_tokens", "output_tokens"], "ttft_s")
    return rows[rows.groupby(key).cumcount() % EVERY == 0]


def _deployments(of: HeldOut) -> pd.DataFrame:
    rows = panel_deployments()
    scored = score_engines(rows, of)
    scored["deployment"] = pd.Series(
        [one.deployment for one in measured_deployments(rows)], scored.index, object
    )
    found = [
        scored.rename(
            columns={f"{metric}_s": "measured_s", f"network_{metric}_s": "predicted_s"}
        ).assign(metric=metric)
        for metric in _FIGURES.values()
    ]
    table = pd.concat(found, ignore_index=True)
    # Drop the TTFT of the second measurement campaign, because its client's definition of TTFT is
    # unknown.
    unknown = table["saturated"] | table["group"].str.startswith(CAMPAIGN)
    return table.loc[~unknown | (table["metric"] == "tpot"), list(ROW_COLUMNS)]


def is_saturated(rows: pd.DataFrame, series: Sequence[str], seconds: str) -> pd.Series:
    """Return whether each row is saturated: at least ``SATURATED`` x its time at the lowest load.

    The lowest load is the first row of the same series, such as a deployment with fixed prompt and
    output lengths.

    Args:
        rows: Measurements in order of load.
        series: Names of the columns whose values are the same within a series.
        seconds: Name of the column of times, in seconds.
    """
    return rows[seconds] >= SATURATED * rows.groupby(list(series))[seconds].transform("first")


def _runs(checkpoint: Path) -> pd.DataFrame:
    """Return scorecard rows of the serving runs in a checkpoint's training data.

    The network that predicts a run was trained in a fold that held out the run's model.
    """
    kept = checkpoint.with_suffix(".serving_runs.csv")
    path = kept if kept.is_file() else checkpoint.with_name("serving_runs.csv")
    if not path.is_file():
        return pd.DataFrame(columns=list(ROW_COLUMNS))
    scores = pd.read_csv(path, dtype={"stage": str})
    if CHECKPOINT_COLUMN in scores and set(scores[CHECKPOINT_COLUMN]) != {file_sha256(checkpoint)}:
        raise PinnError(
            f"{path} belongs to a checkpoint other than {checkpoint}: train the checkpoint again"
        )
    methods = old_names.current_texts(scores["method"], old_names.METHODS, str(path))
    held_out = scores[methods == NETWORK + HELD_OUT]
    served = {
        model: make_deployment(
            canonical({"model": model, "gpu": RUNS_GPU, "tensor_parallel_size": 4})
        )
        for model in held_out["model"].unique()
    }
    return _of_scores(held_out.assign(deployment=held_out["model"].map(served)), RUNS)


def run_rows(runs: Sequence[MeasuredRun], of: HeldOut, source: str) -> pd.DataFrame:
    """Return measured and predicted latencies of serving runs from one source as scorecard rows."""
    deployments = {run.name: run.deployment for run in runs}
    scores = score_runs(runs, of.latencies([run.deployment for run in runs]), "held out")
    return _of_scores(scores.assign(deployment=scores["run"].map(deployments)), source)


def _of_scores(scores: pd.DataFrame, source: str) -> pd.DataFrame:
    """Convert a table of :func:`score_runs` with a column ``deployment`` to scorecard rows.

    Only metrics of whole runs are kept; overloaded runs and saturated TTFT are dropped.
    """
    # ``is_saturated`` expects the lowest load of a run first. Sorting by request rate puts the row
    # of the whole run, whose rate is NaN, after the rows of its stages.
    scores = scores.sort_values("rate_per_s", kind="stable")
    queued = is_saturated(scores, ["run", "figure"], "measured_s")
    kept = ~queued | (scores["figure"] != "ttft_mean_s")
    whole = scores[kept & (scores["stage"] == WHOLE_RUN) & (scores["failed_measured"] < OVERLOADED)]
    found = whole.assign(
        group=f"{source}: " + whole["model"],
        configuration=whole["run"],
        metric=whole["figure"].map(_FIGURES),
    )
    return found.dropna(subset="metric")


def learned_steps(checkpoint: Path, steps: Path) -> bool:
    """Return whether a table of complete engine steps was in a checkpoint's training data.

    The hash of the data covers the tables of measured deployments, serving runs and whole steps, in
    this order. The hashes of the first two tables are also in the checkpoint's metadata.
    """
    metadata = load_checkpoint(checkpoint).metadata
    of_rows, *others = metadata["sources"]
    runs = [one["table_sha256"] for one in others if one["schema"] == "serving runs"]
    tables = (of_rows["table_sha256"], runs[0] if runs else None, file_sha256(steps))
    return metadata["data_sha256"] == json_sha256(*tables)


def read_panel_steps(path: Path) -> list[MeasuredSteps]:
    """Read the measured times of the complete engine steps that the scorecard includes."""
    return read_whole_steps(path, STEPS_GPU, STEPS_GRAPH_TOKENS)[0]


def step_rows(steps: PublicSteps, of: HeldOut) -> pd.DataFrame:
    """Return measured and predicted times of one deployment's steps, as scorecard rows."""
    one = steps.measured
    sums = one.batches.sums(one.deployment.model.window_tokens)
    features = padded_features(one.deployment, sums)
    return pd.DataFrame(
        {
            "group": f"{steps.source()}: {one.deployment.model.name}",
            "configuration": one.run,
            "deployment": [one.deployment] * len(one.seconds),
            "metric": np.where(one.batches.prefill_requests > 0, "ttft", "tpot"),
            "measured_s": one.seconds,
            "predicted_s": step_time(features, of.latencies([one.deployment])[0].beta),
        }
    )
