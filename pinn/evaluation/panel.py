"""Scorecard of a checkpoint's TPOT and TTFT errors, and the choice between two checkpoints.

Files and options call the scorecard a panel. A group is one source and one model. Sources are:

- measured deployments of vLLM, and of other engines;
- a second measurement campaign (dense 16-bit models, TPOT only);
- serving runs, and held-out serving runs, which are in no training data;
- complete engine steps: steps with only decodes count as TPOT, steps with prompts as TTFT;
- public measurements of third-party servers.

Models with deployments in the training data are predicted by the networks in ``left_out`` next to
the checkpoint, each trained without one model. Serving runs of the training data are predicted by
the folds that held out their models. In groups marked "half held out", half of the batch sizes are
in the training data.

A row's error is |log(predicted / measured)|, at most log 3. Errors are averaged over a
configuration's rows, then over a group's configurations. Groups from the same model family and
source share one weight. TPOT has a weight of two thirds. TTFT, whose errors are two to three times
as uncertain, has one third. If a group has only one metric, its error is that metric's error. TTFT
counts only for loads below saturation.

A candidate replaces the shipped checkpoint if it meets two conditions. First, the overall error
decreases with a probability of at least 90 %. Second, no group's error increases both by more than
1 % and significantly, at a level that Holm's method corrects for the number of groups. A mechanism
that affects only one group follows another rule: if it halves that group's error, it is adopted
unless the overall error increases significantly. The noise of an error has two parts: sampling of
configurations, estimated by a bootstrap, and random initialization of the network, measured by
training with the same settings and different seeds.
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.common import old_names
from pinn.common.files import file_sha256, find_checkpoint
from pinn.common.screen import Grid
from pinn.common.tables import read_frame, write_frame
from pinn.errors import PinnError
from pinn.evaluation.tables import frame_grid

#: Weights of a configuration's errors in its score, by metric.
WEIGHTS = {"tpot": 2 / 3, "ttft": 1 / 3}
#: Maximum absolute log error of a row; larger errors are clipped to this value.
LARGEST_ERROR = np.log(3)
#: Number of bootstrap resamples, enough to resolve the smallest significance level in Holm's
#: method, ``LEVEL`` / number of groups.
DRAWS = 10_000
#: A candidate checkpoint is released only if the probability that its overall error is lower than
#: the shipped checkpoint's is at least this.
SURE = 0.9
#: A group counts as worse if its error rises by more than ``WORSE`` percent and the rise is
#: significant at ``LEVEL``.
WORSE, LEVEL = 1.0, 0.05
#: A group with at least this many configurations is bootstrapped from its own deviations from the
#: group's mean. Smaller groups also resample deviations of all groups of their source or, if the
#: source has few configurations, of all groups.
LEAST = 4
#: Similar source, by source of measurements. The bootstrap pools the deviations of a source with
#: those of its similar source.
_ALIKE = {"held-out serving runs": "serving runs"}
#: Columns of a scorecard summary. ``error`` and ``bias`` are means of |log(predicted / measured)|
#: and of its signed value, in percent. ``inside`` is the percentage of rows inside their intervals.
COLUMNS = ("group", "configuration", "metric", "rows", "error", "bias", "inside")
#: Name of the file of :func:`training_noise` next to the shipped checkpoint, with the columns
#: ``group`` and ``score``.
NOISE_FILE = "training_noise.csv"
#: First columns of the ledger, a table with one row of scores per checkpoint. ``panel`` is the
#: overall score. One column per group follows.
LEDGER = ("date", "checkpoint", "what", "panel")

BETTER = "better, and no group is worse by more than its training noise"
NOT_BETTER = "not better"
ADOPTED = (
    "adopted: the error of the group that the mechanism affects is halved, and the scorecard is "
    "not worse"
)
NOT_ADOPTED = "not adopted"


def sum_up(rows: pd.DataFrame) -> pd.DataFrame:
    """Average errors of scorecard rows by group, configuration and metric.

    Rows are those of ``pinn.evaluation.panel_rows.panel_rows``. The result has ``COLUMNS``.

    Raises:
        PinnError: If a row has no prediction.
    """
    log = 100 * (rows["predicted_s"] / rows["measured_s"]).map(np.log)
    if not np.isfinite(log).all():
        named = ", ".join(sorted(rows.loc[~np.isfinite(log), "group"].unique()))
        raise PinnError(
            f"some predictions of the group {named} are not finite: correct or remove their rows"
        )
    keys = ["group", "configuration", "metric"]
    inside = 100.0 * (log.abs() <= 100 * rows["half"])
    table = rows.assign(
        error=log.abs().clip(upper=100 * LARGEST_ERROR),
        bias=log,
        inside=inside.where(rows["half"].notna()),
    )
    means = table.groupby(keys, sort=True)[["error", "bias", "inside"]].mean()
    return means.assign(rows=table.groupby(keys).size()).reset_index()[list(COLUMNS)]


def configuration_scores(panel: pd.DataFrame) -> pd.Series:
    """Return the error of each configuration in each group, in percent.

    It is a weighted mean of the errors of the metrics.
    """
    weight = panel["metric"].map(WEIGHTS)
    key = [panel["group"], panel["configuration"]]
    return (panel["error"] * weight).groupby(key).sum() / weight.groupby(key).sum()


def group_scores(panel: pd.DataFrame) -> pd.DataFrame:
    """Return scores of each group and, in the last row, of the whole scorecard.

    Returns:
        ``group``, ``configurations``, ``rows``, ``tpot`` and ``ttft`` (mean error over
        configurations in percent; NaN if a group has none), ``inside`` (percent of rows inside
        their intervals), ``score``, and ``low`` to ``high``, its 95 % interval by the bootstrap
        (NaN if a group has too few configurations).
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
    weights = group_weights(table["group"])
    ends = dict(zip(("low", "high"), np.quantile(drawn @ weights, [0.025, 0.975]), strict=True))
    names = (*WEIGHTS, "inside", "score")
    means = {name: _mean(table[name].to_numpy(), weights) for name in names}
    return pd.concat([table, pd.DataFrame([whole | means | ends])], ignore_index=True)


def training_noise(lines: pd.DataFrame) -> pd.Series:
    """Return the spread of each group's score between training runs with the same settings.

    Args:
        lines: Rows of the ledger (a table of scores), one per training run.

    Returns:
        Standard deviation of the score by group, in percent. A few training runs can agree by
        chance, so the deviation is at least the median over the groups from the same source. Groups
        that are missing in any row are omitted.
    """
    own = lines.drop(columns=list(LEDGER)).dropna(axis=1).std()
    return own.clip(lower=own.groupby(_sources(own.index)).transform("median"))


def shipped_noise() -> pd.Series:
    """Read each group's :func:`training_noise` from the table next to the shipped checkpoint."""
    path = find_checkpoint().with_name(NOISE_FILE)
    noise = read_panel(path, "write the table with scripts/training_noise.py")
    return noise.set_index("group")["score"]


def read_panel(
    path: Path, remedy: str = "write the table with 'pinn evaluate panel --out'"
) -> pd.DataFrame:
    """Read a table with a column ``group``, and replace group names used by earlier versions.

    Args:
        path: CSV file of ``pinn evaluate panel --out``, or of training noise by group.
        remedy: What the user should do, for the error if the file is missing or is not a table.

    Raises:
        PinnError: If the file cannot be read.
    """
    table = read_frame(path, remedy)
    return table.assign(group=old_names.current_texts(table["group"], old_names.GROUPS, str(path)))


def read_ledger(path: Path) -> pd.DataFrame:
    """Read the ledger (a row of scores per checkpoint), and replace old group names.

    Raises:
        PinnError: If the file cannot be read.
    """
    table = read_frame(path, "write the ledger with 'pinn evaluate panel --ledger'")
    names = old_names.current_texts(table.columns.to_series(), old_names.GROUPS, str(path))
    return table.set_axis(names.tolist(), axis=1)


def group_weights(groups: pd.Series) -> Float[np.ndarray, " groups"]:
    """Return group weights for the score; model families from one source have the same weight."""
    found = groups.str.extract(_GROUP)
    alike = found[0] + found[1].str.lower()
    return (1 / (alike.map(alike.value_counts()) * alike.nunique())).to_numpy()


#: Pattern of a group's name that captures the source and the model family. The family is the first
#: word of the model's name, without its version.
_GROUP = r"([^:]+): (?:.*/)?(?:Meta-)?([A-Za-z]+)"


def _mean(values: Float[np.ndarray, " groups"], weights: Float[np.ndarray, " groups"]) -> float:
    """Return the weighted mean over groups, ignoring NaN; NaN if all are NaN."""
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=weights[known])) if known.any() else np.nan


def compare_panels(
    a: pd.DataFrame, b: pd.DataFrame, noise: pd.Series, alone: str | None = None
) -> tuple[pd.DataFrame, str]:
    """Decide whether checkpoint B may replace checkpoint A.

    Args:
        a: Summarized scorecard of the shipped checkpoint, as ``sum_up`` returns it.
        b: Summarized scorecard of the candidate, as ``sum_up`` returns it.
        noise: ``training_noise`` by group, which is added to both scores. Groups without a value
            get the median.
        alone: Name of the only group that B's new mechanism affects, to apply the rule for such
            mechanisms; None to apply the general rule.

    Returns:
        A table and the verdict. The table has one row per common group and, last, one for the
        scorecard: ``group``, ``configurations``, ``a``, ``b``, ``difference``, its 95 % interval
        ``low`` to ``high``, and ``worse``, the probability that the difference is above 0.

    Raises:
        PinnError: If the scorecards have no group in common, or lack the group ``alone``.
    """
    both = pd.concat([configuration_scores(a), configuration_scores(b)], axis=1, keys=["a", "b"])
    both = both.dropna()
    if both.empty:
        raise PinnError(
            "the two scorecards have no group in common: score both checkpoints on the same data"
        )
    difference = both["b"] - both["a"]
    groups = both.groupby(level=0)
    of_both = np.sqrt(2) * noise.reindex(list(groups.groups)).fillna(noise.median()).to_numpy()
    drawn = _drawn(difference)
    drawn = drawn + np.random.default_rng(1).normal(0, of_both, drawn.shape)
    table = groups.mean().assign(configurations=groups.size())
    table = table.rename_axis("group").reset_index()
    weights = group_weights(table["group"])
    whole = {"group": "panel", "configurations": len(both)}
    whole |= {name: float(table[name] @ weights) for name in ("a", "b")}
    table = pd.concat([table, pd.DataFrame([whole])], ignore_index=True)
    drawn = np.column_stack([drawn, drawn @ weights])
    table["difference"] = table["b"] - table["a"]
    table["low"], table["high"] = np.quantile(drawn, [0.025, 0.975], axis=0)
    table["worse"] = (drawn > 0).mean(axis=0)
    return table, _verdict(table) if alone is None else _mechanism_verdict(table, alone)


def uncompared_groups(a: pd.DataFrame, b: pd.DataFrame) -> list[str]:
    """Return the groups without any configuration that both scorecards include.

    :func:`compare_panels` omits these groups.
    """
    pairs = [{*zip(one["group"], one["configuration"], strict=True)} for one in (a, b)]
    compared = {group for group, _ in set.intersection(*pairs)}
    return sorted({group for group, _ in set.union(*pairs)} - compared)


def _verdict(table: pd.DataFrame) -> str:
    groups, panel = table.iloc[:-1], table["worse"].to_numpy()[-1]
    verdict = BETTER if panel <= 1 - SURE else NOT_BETTER
    is_worse = _rejected(1 - groups["worse"].to_numpy()) & (groups["difference"] > WORSE)
    if worse := groups.loc[is_worse, "group"].tolist():
        overall = verdict.partition(",")[0]
        return f"{overall}; groups worse by more than their training noise: {', '.join(worse)}"
    return verdict


def _rejected(p: Float[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Return which hypotheses Holm's method rejects at significance level ``LEVEL``."""
    order = np.argsort(p)
    holds = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1) > LEVEL)
    return ~holds[np.argsort(order)]


def _mechanism_verdict(table: pd.DataFrame, alone: str) -> str:
    mine = table[table["group"] == alone]
    if mine.empty:
        known = ", ".join(table["group"][:-1])
        raise PinnError(f"the group {alone!r} is unknown: use one of {known}")
    is_halved = bool((mine["b"] <= mine["a"] / 2).all())
    is_worse = table["worse"].to_numpy()[-1] > 1 - LEVEL
    return ADOPTED if is_halved and not is_worse else NOT_ADOPTED


def _drawn(values: pd.Series, pooled: bool = True) -> Float[np.ndarray, "draws groups"]:
    """Return bootstrap means of each group's values: a row per resample, and a column per group.

    Every resample samples configurations of the group with replacement.

    Args:
        values: Value, such as the error in percent, of every (group, configuration).
        pooled: Whether groups with few configurations also resample the deviations of other groups.
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
    """Return the source of each group's data (type of measurement), as an array of names."""
    return groups.to_series().str.partition(":")[0].replace(_ALIKE).to_numpy()


def ledger_line(checkpoint: Path, scores: pd.DataFrame, what: str) -> pd.DataFrame:
    """Return a checkpoint's row of the ledger: date, hash, description and scores.

    Args:
        checkpoint: Checkpoint of the candidate.
        scores: Table as ``group_scores`` returns it.
        what: Description of the candidate.
    """
    about = (datetime.now(UTC).date().isoformat(), file_sha256(checkpoint), what)
    of_group = scores.set_index("group")["score"].round(3).to_dict()
    return pd.DataFrame([dict(zip(LEDGER, about, strict=False)) | of_group])


def add_to_ledger(path: Path, line: pd.DataFrame) -> None:
    """Append a checkpoint's row to the ledger, adding a column for each new group."""
    before = [read_ledger(path)] if path.is_file() else []
    table = pd.concat([*before, line], ignore_index=True)
    groups = sorted(set(table.columns) - set(LEDGER))
    write_frame(table[[*LEDGER, *groups]], path)


def panel_grid(table: pd.DataFrame) -> Grid:
    """Return a printable table of :func:`group_scores` or :func:`compare_panels`."""
    counts = ("group", "configurations", "rows")
    columns = {name: name if name in counts else f"{name}:.2f" for name in table.columns}
    return frame_grid(table, columns)
