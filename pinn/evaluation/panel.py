"""The panel: what a checkpoint says of its measurements, its score, and which of two it prefers.

A group is one source and one model: measured deployments of vLLM, of other engines, of another
campaign (dense 16-bit models, TPOT alone), serving runs, serving runs that nothing is ever fitted
to (judges), and whole engine steps, of which decodes alone count as TPOT and those with prompts as
TTFT. Deployments are judged by the networks in ``left_out`` beside the checkpoint, serving runs by
the predictions that its training kept. Whole steps have no such network: they judge a checkpoint
that learned from none, and no other.

A row's error is the absolute log of predicted over measured. Rows are averaged over a
configuration, configurations over a group, groups over the panel; TPOT counts two thirds and TTFT,
two to three times as uncertain, one third, or all where a group has nothing else. These weights
were set before any checkpoint was scored. How much a score depends on the configurations at hand
says a bootstrap over them; how much on the network's random start, the same recipe trained with
other seeds.
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.common.files import file_sha256
from pinn.common.tables import write_frame
from pinn.errors import PinnError
from pinn.evaluation.engines import networks, score_engines
from pinn.evaluation.measured import json_sha256
from pinn.evaluation.metrics import CHECKPOINT_COLUMN
from pinn.evaluation.serving_runs import OVERLOADED, network_latencies, score_runs
from pinn.physics.costs import step_costs
from pinn.simulator.metric_features import WHOLE_RUN
from pinn.specs.gpu import load_gpu
from pinn.surrogate.inference import TrainedNetwork, load_checkpoint
from pinn.surrogate.step_features import step_features
from pinn.surrogate.surrogate import predict_coefficients
from pinn.surrogate.uncertainty.intervals import read_calibration, served_gpus
from pinn.training.data.engine_deployments import (
    APART,
    read_dense_campaign,
    read_engines,
    read_other_attention,
)
from pinn.training.data.measured_runs import read_measured_runs
from pinn.training.data.silicon import read_silicon
from pinn.training.data.whole_steps import MeasuredSteps, read_whole_steps

#: Metric -> what it counts in a configuration's score.
WEIGHTS = {"tpot": 2 / 3, "ttft": 1 / 3}
#: Of the bootstrap.
DRAWS = 2000
#: A group with fewer configurations has the deviations of its source's groups for its own, of all
#: groups where that has few, too.
LEAST = 4
#: Sources of one kind of measurement.
_ALIKE = {"judges": "serving runs"}
#: Columns of a summed up panel: ``error`` and ``bias`` are mean logs in percent, ``error``'s of its
#: absolute values; ``inside`` is the share of rows in their interval, in percent.
COLUMNS = ("group", "configuration", "metric", "rows", "error", "bias", "inside")
#: Beside the shipped checkpoint: ``training_noise`` of its recipe, columns ``group`` and ``score``.
NOISE_FILE = "training_noise.csv"
#: Columns of the ledger before those of groups.
LEDGER = ("date", "checkpoint", "what", "panel")

BETTER = "better, and no group is worse beyond its noise"
NOT_BETTER = "not better"


def sum_up(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of :func:`panel_rows` by configuration and metric: ``COLUMNS``.

    Raises:
        PinnError: If a row has no prediction.
    """
    log = 100 * (rows["predicted_s"] / rows["measured_s"]).map(np.log)
    if not np.isfinite(log).all():
        named = ", ".join(sorted(rows.loc[~np.isfinite(log), "group"].unique()))
        raise PinnError(f"no finite prediction for every row of {named}: mend or leave them out")
    keys = ["group", "configuration", "metric"]
    inside = 100.0 * (log.abs() <= 100 * rows["half"])
    table = rows.assign(error=log.abs(), bias=log, inside=inside.where(rows["half"].notna()))
    means = table.groupby(keys, sort=True)[["error", "bias", "inside"]].mean()
    return means.assign(rows=table.groupby(keys).size()).reset_index()[list(COLUMNS)]


def configuration_scores(panel: pd.DataFrame) -> pd.Series:
    """Score of every (group, configuration)."""
    weight = panel["metric"].map(WEIGHTS)
    key = [panel["group"], panel["configuration"]]
    return (panel["error"] * weight).groupby(key).sum() / weight.groupby(key).sum()


def group_scores(panel: pd.DataFrame) -> pd.DataFrame:
    """One row per group and, last, of the whole panel.

    Returns:
        ``group``, ``configurations``, ``rows``, ``tpot`` and ``ttft`` (mean over configurations;
        NaN where a group has none), ``inside`` (percent of rows in their intervals), ``score``,
        ``low`` and ``high`` (95 % by the bootstrap; NaN where a group has too few configurations).
    """
    scores = configuration_scores(panel)
    drawn = _drawn(scores, pooled=False)
    shares = panel["inside"] * panel["rows"]
    of_metric = panel.groupby(["group", "metric"])["error"].mean().unstack()
    table = pd.DataFrame(
        {
            "configurations": scores.groupby(level=0).size(),
            "rows": panel.groupby("group")["rows"].sum(),
            **{metric: of_metric.get(metric) for metric in WEIGHTS},
            "inside": shares.groupby(panel["group"]).sum() / panel.groupby("group")["rows"].sum(),
            "score": scores.groupby(level=0).mean(),
        }
    )
    table["low"], table["high"] = np.quantile(drawn, [0.025, 0.975], axis=0)
    table.loc[table["configurations"] < LEAST, ["low", "high"]] = np.nan
    table = table.rename_axis("group").reset_index()
    whole = {"group": "panel", "configurations": len(scores), "rows": int(table["rows"].sum())}
    ends = dict(zip(("low", "high"), np.quantile(drawn.mean(axis=1), [0.025, 0.975]), strict=True))
    means = {name: float(table[name].mean()) for name in (*WEIGHTS, "inside", "score")}
    return pd.concat([table, pd.DataFrame([whole | means | ends])], ignore_index=True)


def training_noise(lines: pd.DataFrame) -> pd.Series:
    """By how much a group's score moves when the same recipe is trained once more.

    Args:
        lines: Of the ledger, one for each training.

    Returns:
        Standard deviation by group, in the score's percent. Few trainings can agree by chance, so
        it is at least the median of the groups of its source. Groups that a line lacks are left
        out.
    """
    own = lines.drop(columns=list(LEDGER)).dropna(axis=1).std()
    return own.clip(lower=own.groupby(_sources(own.index)).transform("median"))


def compare_panels(a: pd.DataFrame, b: pd.DataFrame, noise: pd.Series) -> tuple[pd.DataFrame, str]:
    """Whether B may take the place of A.

    Args:
        a: Panel of the checkpoint that is shipped, as ``sum_up`` gives it.
        b: Of the candidate.
        noise: ``training_noise`` by group, which both carry; a group it lacks has the median.

    Returns:
        One row per group that both have and, last, of the panel: ``group``, ``configurations``,
        ``a``, ``b``, ``difference`` and its 95 % interval ``low`` to ``high``; and the verdict.

    Raises:
        PinnError: If they have no group in common.
    """
    both = pd.concat([configuration_scores(a), configuration_scores(b)], axis=1, keys=["a", "b"])
    both = both.dropna()
    if both.empty:
        raise PinnError("the two panels have no group in common: score both on the same data")
    difference = both["b"] - both["a"]
    groups = both.groupby(level=0)
    of_both = np.sqrt(2) * noise.reindex(list(groups.groups)).fillna(noise.median()).to_numpy()
    drawn = _drawn(difference)
    drawn = drawn + np.random.default_rng(1).normal(0, of_both, drawn.shape)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    table = groups.mean().assign(
        configurations=groups.size(), difference=difference.groupby(level=0).mean(),
        low=low, high=high,
    ).rename_axis("group").reset_index()  # fmt: skip
    low, high = np.quantile(drawn.mean(axis=1), [0.025, 0.975])
    whole = {"group": "panel", "configurations": len(both), "low": low, "high": high}
    whole |= {name: float(table[name].mean()) for name in ("a", "b", "difference")}
    worse = table.loc[table["low"] > 0, "group"].tolist()
    verdict = BETTER if whole["difference"] < 0 else NOT_BETTER
    if worse:
        verdict = f"{verdict.partition(',')[0]}; worse beyond its noise: {', '.join(worse)}"
    return pd.concat([table, pd.DataFrame([whole])], ignore_index=True), verdict


def _drawn(values: pd.Series, pooled: bool = True) -> Float[np.ndarray, "draws groups"]:
    """Means of every group's configurations, drawn with replacement.

    Args:
        values: Of every (group, configuration).
        pooled: Whether groups with few configurations borrow the deviations of others.
    """
    draw = np.random.default_rng(0)
    deviations = values - values.groupby(level=0).transform("mean")
    kinds = _sources(deviations.index.get_level_values(0))
    found = []
    for group, of_group in values.groupby(level=0):
        own = of_group.to_numpy()
        if pooled and len(own) < LEAST:
            mine = deviations[kinds == _sources(pd.Index([group]))[0]]
            own = own.mean() + (mine if len(mine) >= LEAST else deviations).to_numpy()
        found.append(draw.choice(own, (DRAWS, len(of_group))).mean(axis=1))
    return np.stack(found, axis=1)


def _sources(groups: pd.Index) -> np.ndarray:
    """What kind of measurement each group is of."""
    return groups.to_series().str.partition(":")[0].replace(_ALIKE).to_numpy()


def ledger_line(checkpoint: Path, scores: pd.DataFrame, what: str) -> pd.DataFrame:
    """One line: when, which checkpoint, what it is, its panel and every group's score.

    Args:
        checkpoint: The candidate.
        scores: As ``group_scores`` gives them.
        what: In words.
    """
    about = (datetime.now(UTC).date().isoformat(), file_sha256(checkpoint), what)
    of_group = scores.set_index("group")["score"].round(3).to_dict()
    return pd.DataFrame([dict(zip(LEDGER, about, strict=False)) | of_group])


def add_to_ledger(path: Path, line: pd.DataFrame) -> None:
    """Append a line; groups that no line had before get a column."""
    before = [pd.read_csv(path)] if path.is_file() else []
    table = pd.concat([*before, line], ignore_index=True)
    groups = sorted(set(table.columns) - set(LEDGER))
    write_frame(table[[*LEDGER, *groups]], path)


# The rows of the panel: measured and predicted times.

#: Of a deployment's loads, in order, one of so many is simulated: the panel is to be quick.
EVERY = 3
#: What whole steps ran on and the largest captured step, which their table does not say.
STEPS_GPU, STEPS_GRAPH_TOKENS = "B300-SXM", 512

#: What the serving runs that teach ran on, which their table of scores does not say.
RUNS_GPU = "H100-SXM"

ROW_COLUMNS = ("group", "configuration", "metric", "gpu", "measured_s", "predicted_s")
DEPLOYMENTS, RUNS, JUDGES, STEPS = "deployments", "serving runs", "judges", "whole steps"
CAMPAIGN = "other campaign"

_DEPLOYMENT = ("engine_version", "gpu", "precision", "tensor_parallel_size", "data_parallel_size",
               "enable_expert_parallel")  # fmt: skip
_FIGURES = {"itl_mean_s": "tpot", "ttft_mean_s": "ttft"}


def panel_rows(
    checkpoint: Path, judges: Path | None = None, steps: Path | None = None
) -> pd.DataFrame:
    """Measured and predicted times of every group; simulations of a minute or two.

    Args:
        checkpoint: The network; ``left_out`` and the table of its serving runs lie beside it.
        judges: CSV of serving runs that nothing was fitted to; None for none.
        steps: CSV of whole steps, ``runs.csv`` beside it; None for none.

    Returns:
        Table with ``ROW_COLUMNS``, times in seconds, and ``half``, the log half-width of the
        interval below saturation (NaN where the checkpoint has none).

    Raises:
        PinnError: If a file cannot be used or belongs to another checkpoint.
    """
    network, left_out = networks(checkpoint)
    parts = [_deployments(network, left_out), _runs(checkpoint)]
    if judges is not None:
        parts.append(_judges(network, judges))
    if steps is not None and not learned_steps(checkpoint, steps):
        parts.append(_steps(network, steps))
    found = pd.concat(parts, ignore_index=True)[list(ROW_COLUMNS)]
    return found.assign(half=_half_widths(checkpoint, found))


def _half_widths(checkpoint: Path, rows: pd.DataFrame) -> pd.Series:
    try:
        calibration = read_calibration(checkpoint)
    except PinnError:
        return pd.Series(np.nan, rows.index)
    known = {name: load_gpu(name).name in served_gpus(checkpoint) for name in set(rows["gpu"])}
    pairs = zip(rows["metric"], rows["gpu"], strict=True)
    return pd.Series([calibration.half_width(m, known[g]) for m, g in pairs], rows.index)


def _deployments(network: TrainedNetwork, left_out: dict[str, TrainedNetwork]) -> pd.DataFrame:
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
    rows = rows.sort_values(["group", "configuration", "concurrency", "row_id"])
    nth = rows.groupby(["group", "configuration"]).cumcount()
    scored = score_engines(rows[nth % EVERY == 0], network, left_out)
    found = [
        scored.rename(columns={f"{metric}_s": "measured_s", f"network_{metric}_s": "predicted_s"})
        .assign(metric=metric)
        .loc[:, list(ROW_COLUMNS)]
        for metric in _FIGURES.values()
    ]
    table = pd.concat(found, ignore_index=True)
    # What that campaign's client waited for before a first token nobody knows.
    return table[~(table["group"].str.startswith(CAMPAIGN) & (table["metric"] == "ttft"))]


def _runs(checkpoint: Path) -> pd.DataFrame:
    """Runs that the checkpoint's own folds left out, from the table beside it."""
    kept = checkpoint.with_suffix(".serving_runs.csv")
    path = kept if kept.is_file() else checkpoint.with_name("serving_runs.csv")
    if not path.is_file():
        return pd.DataFrame(columns=list(ROW_COLUMNS))
    scores = pd.read_csv(path, dtype={"stage": str})
    if CHECKPOINT_COLUMN in scores and set(scores[CHECKPOINT_COLUMN]) != {file_sha256(checkpoint)}:
        raise PinnError(f"{path} belongs to another checkpoint than {checkpoint}: train it anew")
    left_out = scores[scores["method"] == "network, model left out"]
    return of_scores(left_out.assign(gpu=RUNS_GPU), RUNS)


def _judges(network: TrainedNetwork, path: Path) -> pd.DataFrame:
    runs, _ = read_measured_runs(path)
    gpus = {run.name: run.deployment.gpu.name for run in runs}
    scores = score_runs(runs, network_latencies(network, runs), "network")
    return of_scores(scores.assign(gpu=scores["run"].map(gpus)), JUDGES)


def of_scores(scores: pd.DataFrame, source: str) -> pd.DataFrame:
    """Rows of ``score_runs``, with a column ``gpu``, as those of a panel's source."""
    whole = scores[(scores["stage"] == WHOLE_RUN) & (scores["failed_measured"] < OVERLOADED)]
    found = whole.assign(
        group=f"{source}: " + whole["model"],
        configuration=whole["run"],
        metric=whole["figure"].map(_FIGURES),
    )
    return found.dropna(subset="metric")


def learned_steps(checkpoint: Path, steps: Path) -> bool:
    """Whether a checkpoint learned from this table of whole steps.

    Its data's hash is of the measured deployments' table, the serving runs' and the steps', in this
    order; the first two hashes stand beside it.
    """
    metadata = load_checkpoint(checkpoint).metadata
    of_rows, *others = metadata["sources"]
    runs = [one["table_sha256"] for one in others if one["schema"] == "serving runs"]
    tables = (of_rows["table_sha256"], runs[0] if runs else None, file_sha256(steps))
    return metadata["data_sha256"] == json_sha256(*tables)


def _steps(network: TrainedNetwork, path: Path) -> pd.DataFrame:
    measured = read_panel_steps(path)
    found = predict_coefficients(network, [one.deployment for one in measured])
    tables = [step_rows(one, beta) for one, beta in zip(measured, found.beta, strict=True)]
    return pd.concat(tables, ignore_index=True)


def read_panel_steps(path: Path) -> list[MeasuredSteps]:
    """The panel's whole steps."""
    return read_whole_steps(path, STEPS_GPU, STEPS_GRAPH_TOKENS)[0]


def step_rows(one: MeasuredSteps, beta: Float[np.ndarray, " features"]) -> pd.DataFrame:
    """What coefficients say of the steps of one deployment: ``ROW_COLUMNS``."""
    sums = one.batches.sums(one.deployment.model.window_tokens)
    features = step_features(step_costs([one.deployment]), sums)
    return pd.DataFrame(
        {
            "group": f"{STEPS}: {one.deployment.model.name}",
            "configuration": one.run,
            "gpu": STEPS_GPU,
            "metric": np.where(one.batches.prefill_requests > 0, "ttft", "tpot"),
            "measured_s": one.seconds,
            "predicted_s": features @ beta,
        }
    )
