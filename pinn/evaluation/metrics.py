"""Errors and how they are printed, group by group."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.common.files import file_sha256
from pinn.common.screen import WIDEST, Column, Grid, page
from pinn.common.tables import read_frame
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.benchmarks.inferencex import LENGTH_RANGE
from pinn.training.serving_rows import ServingRows

# Error measures of predicted times, and the table they are kept in.

#: What methods predict, where the rows have it: mean time per output token, to the first token and
#: of a whole request (mean and 99th percentile).
METRICS = ("tpot", "ttft", "e2e", "e2e_p99")

RESULT_COLUMNS = ("split", "held_out", "method", "metric", "n", "median", "mean", "p90", "bias")


def error_summary(
    predicted: Float[np.ndarray, " n"], measured: Float[np.ndarray, " n"]
) -> dict[str, float]:
    """Absolute percentage error (median, mean, 90th percentile) and bias.

    Bias is the median of the signed percentage error. Percentages of the measured value punish
    predictions that are too long more than those that are too short; bias shows which it is.

    >>> error_summary(np.array([1.1, 0.8]), np.array([1.0, 1.0]))["mean"]
    15.0
    """
    percent = 100 * (predicted / measured - 1)
    size = np.abs(percent)
    return {
        "n": len(size),
        "median": round(float(np.median(size)), 6),
        "mean": round(float(size.mean()), 6),
        "p90": round(float(np.quantile(size, 0.9)), 6),
        "bias": round(float(np.median(percent)), 6),
    }


def percent_errors(rows: pd.DataFrame, metric: str) -> pd.Series:
    """Signed percentage errors of a metric of predictions; NaN where it was not predicted."""
    return 100 * (rows[f"{metric}_s"] / rows[f"{metric}_measured_s"] - 1)


def with_e2e(rows: pd.DataFrame) -> pd.DataFrame:
    """Predictions with the mean E2E: TTFT and all later tokens of a mean answer."""
    later = rows["output_tokens"] * sum(LENGTH_RANGE) / 2 - 1
    return rows.assign(
        e2e_s=rows["ttft_s"] + later * rows["tpot_s"],
        e2e_measured_s=rows["ttft_measured_s"] + later * rows["tpot_measured_s"],
    )


def error_text(figures: Mapping[str, float]) -> str:
    """``median / mean (bias)`` of :func:`error_summary`, in percent."""
    return f"{figures['median']:.1f} / {figures['mean']:.1f} ({figures['bias']:+.1f})"


def summarize(predictions: pd.DataFrame, groups: dict[str, pd.Series]) -> pd.DataFrame:
    """Score every method on every metric, overall and in each group.

    Args:
        predictions: One row per (split, row_id, method) with the columns ``held_out`` and, for
            some of ``METRICS``, ``METRIC_s`` predicted and ``METRIC_measured_s``. A method that
            cannot predict a row has NaN there and is scored on the others.
        groups: Name -> mask over the rows of ``predictions``, such as mixture-of-experts models.

    Returns:
        Table with ``RESULT_COLUMNS``; ``held_out`` is ``all``, a group's name or the held-out one.
    """
    rows = []
    for (split, method), of_method in predictions.groupby(["split", "method"], sort=False):
        parts = [("all", of_method)]
        parts += [(str(name), part) for name, part in of_method.groupby("held_out", sort=True)]
        for name, mask in groups.items():
            members = of_method[mask.loc[of_method.index]]
            parts.append((name, members))
            whole = of_method["held_out"].value_counts()
            for held_out, part in members.groupby("held_out", sort=True):
                if len(part) < whole[held_out]:
                    parts.append((f"{name}: {held_out}", part))
        for held_out, part in parts:
            for metric, predicted, measured in _scored(part):
                key = {"split": split, "held_out": held_out, "method": method, "metric": metric}
                rows.append(key | error_summary(predicted, measured))
    return pd.DataFrame(rows, columns=list(RESULT_COLUMNS))


def _scored(part: pd.DataFrame) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Each metric that was predicted, with predicted and measured times."""
    for metric in METRICS:
        if f"{metric}_s" in part:
            scored = part[part[f"{metric}_s"].notna()]
            if len(scored):
                times = scored[[f"{metric}_s", f"{metric}_measured_s"]].to_numpy(np.float64)
                yield metric, times[:, 0], times[:, 1]


def read_results(path: Path) -> pd.DataFrame:
    """The table of results of an experiment.

    Raises:
        PinnError: If it cannot be read or lacks a column.
    """
    table = read_frame(path, "run an experiment first")
    missing = [name for name in RESULT_COLUMNS if name not in table]
    if missing:
        raise PinnError(f"{path} is no results table: it lacks {', '.join(missing)}")
    return table


#: Ending of a checkpoint's own table.
KEPT = ".results.csv"
#: Its column of the checkpoint that it belongs to, by the SHA-256 of its file.
CHECKPOINT_COLUMN = "checkpoint_sha256"


def check_checkpoint(table: pd.DataFrame, path: Path) -> None:
    """Refuse a table beside a checkpoint that is not that checkpoint's.

    Raises:
        PinnError: With both hashes.
    """
    checkpoint = path.with_name(path.name.removesuffix(KEPT) + ".safetensors")
    if not path.name.endswith(KEPT) or not checkpoint.is_file():
        return
    named = table[CHECKPOINT_COLUMN].unique() if CHECKPOINT_COLUMN in table else ()
    got = ", ".join(f"{str(mark)[:12]}..." for mark in named) or "no checkpoint"
    expected = file_sha256(checkpoint)
    if list(named) != [expected]:
        raise PinnError(
            f"{path} belongs to another checkpoint: it names {got}, expected "
            f"{expected[:12]}..., the SHA-256 of {checkpoint.name}: run 'python train.py "
            "+experiment=release', which writes both"
        )


def with_correlation(results: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Results with Pearson r of predicted and measured times and p99 ranking inversions.

    Both are known for ``all`` and for each held-out part. An inversion is a pair of rows whose
    measured 99th percentiles differ by more than 20 % and whose predicted ones lie the other way
    round; it is counted for the metric ``e2e_p99`` alone.

    Args:
        results: Of :func:`summarize`.
        predictions: What they were summed up from.
    """
    found = [
        (split, held_out, method, metric, *_agreement(metric, predicted, measured))
        for (split, method), of_method in predictions.groupby(["split", "method"], sort=False)
        for held_out, part in [("all", of_method), *of_method.groupby("held_out")]
        for metric, predicted, measured in _scored(part)
    ]
    key = ["split", "held_out", "method", "metric"]
    agreement = pd.DataFrame(found, columns=[*key, "pearson_r", "inversions"])
    return results.merge(agreement, on=key, how="left")


def _agreement(metric: str, predicted: np.ndarray, measured: np.ndarray) -> tuple[float, float]:
    """Pearson r, and the inversions where they are counted."""
    known = ~np.isnan(measured)
    predicted, measured = predicted[known], measured[known]
    varies = len(measured) > 1 and np.ptp(predicted) > 0 and np.ptp(measured) > 0
    r = float(np.corrcoef(predicted, measured)[0, 1]) if varies else np.nan
    return r, float(inversions(predicted, measured).sum()) if metric == "e2e_p99" else np.nan


#: Measured times that differ by less than this factor may come out in either order.
RANKING_MARGIN = 1.2


def inversions(
    predicted: Float[np.ndarray, " n"], measured: Float[np.ndarray, " n"]
) -> Bool[np.ndarray, "n n"]:
    """Whether the first of a pair takes clearly longer and is predicted to take less."""
    slower = measured[:, None] > RANKING_MARGIN * measured[None, :]
    return slower & (predicted[:, None] < predicted[None, :])


# Named parts of the rows that a results table shows apart.

#: Concurrency up to which a benchmark counts as lightly loaded: a choice of what is shown apart.
LOW_CONCURRENCY = 16

#: Part -> whether a row, given its deployment and its concurrency, belongs to it.
GROUPS: dict[str, Callable[[Deployment, int], bool]] = {
    "mixture-of-experts": lambda deployment, _: deployment.model.moe is not None,
    "dense": lambda deployment, _: deployment.model.moe is None,
    "expert-parallel": lambda deployment, _: deployment.recipe.expert_parallel_size > 1,
    "low-concurrency": lambda _, concurrency: concurrency <= LOW_CONCURRENCY,
}


def group_masks(
    names: Sequence[str], rows: ServingRows, predictions: pd.DataFrame
) -> dict[str, pd.Series]:
    """Which predictions belong to each named part.

    Raises:
        PinnError: If a name is not a key of ``GROUPS``.
    """
    unknown = set(names) - set(GROUPS)
    if unknown:
        raise PinnError(f"unknown groups {sorted(unknown)}: known ones are {', '.join(GROUPS)}")
    masks = {}
    for name in names:
        of_rows = zip(rows.row_id, rows.deployment, rows.concurrency, strict=True)
        member = {row_id: GROUPS[name](rows.deployments[i], c) for row_id, i, c in of_rows}
        masks[name] = predictions["row_id"].map(member).eq(True)
    return masks


# Results tables as text; everything printed is read from the saved table.

#: Unit of every error in the table.
CAPTION = "absolute percentage error; bias is the median signed error; n rows"

#: What decisions are and what their columns say.
DECISIONS_CAPTION = (
    "picks of the deployment with the best predicted throughput per GPU within a TPOT limit; "
    "throughput lost by measurement, percent, a pick that misses the limit by over 5 % losing all; "
    "share of such misses; loss for each model"
)

#: Methods of the overview, and their headings.
_KNOWN = {
    "network": "pinn", "aisimulate": "AIS", "aiconfigurator": "AIC", "roofline": "roofline",
}  # fmt: skip

#: Parts whose rows are printed by held-out model too; the saved table has this for every part.
DETAILED = ("expert-parallel",)


def print_overview(results: pd.DataFrame, ranking: pd.DataFrame) -> None:
    """Print what came out: the median error of the methods that people know, which are first.

    Args:
        results: Table with ``pinn.evaluation.metrics.RESULT_COLUMNS``.
        ranking: As ``pinn.evaluation.comparison.rank`` returns it.
    """
    table = Grid.of("median error, %", "of", "rows", *_KNOWN.values(), text=2)
    leading = ranking[ranking["verdict"].isin(["first", "tied first"])]
    whole, last = results[results["held_out"] == "all"], ""
    for (split, metric), part in whole.groupby(["split", "metric"], sort=False):
        medians = part.set_index("method")["median"]
        first = set(leading[(leading["split"] == split) & (leading["metric"] == metric)]["method"])
        marks = {name: "*" if name in first else " " for name in _KNOWN}
        cells = (f"{medians[n]:.1f}{marks[n]}" if n in medians else "- " for n in _KNOWN)
        table.add("" if split == last else str(split), str(metric), str(part["n"].max()), *cells)
        last = str(split)
    page().print(table)
    print("* first, or tied with the first; AIS is AISimulate 0.13, AIC AIConfigurator 0.12")


def print_results(results: pd.DataFrame, evidence: str = "") -> None:
    """Print one table per kind of split and metric: a row per held-out part and method.

    Args:
        results: Table with ``pinn.evaluation.metrics.RESULT_COLUMNS``.
        evidence: What every table rests on, said below each.
    """
    caption = f"{CAPTION}; rests on {evidence}" if evidence else CAPTION
    console = page(WIDEST)
    for (split, metric), part in results.groupby(["split", "metric"], sort=False):
        headings = ("held out", "method", "n", "median", "mean", "p90", "bias")
        table = Grid.of(*headings, caption=f"{split}: {str(metric).upper()}", text=2)
        previous = None
        kept = part[part["held_out"].map(is_shown)]
        ordered = kept.sort_values("held_out", key=_all_last, kind="stable")
        for row in ordered.to_dict("records"):
            held_out = str(row["held_out"])
            numbers = (f"{row[name]:.1f}" for name in ("median", "mean", "p90", "bias"))
            shown = held_out if held_out != previous else ""
            table.add(shown, str(row["method"]), str(row["n"]), *numbers)
            previous = held_out
        console.print(table)
        console.print(f"{caption}\n")


def screen_grid(part: pd.DataFrame) -> Grid:
    """Held-out models or GPUs and all of them, by three methods that people know: 80 columns."""
    known = [method for method in _KNOWN if method in set(part["method"])]
    methods = (known or list(dict.fromkeys(part["method"])))[:3]
    return error_grid("left out", part, methods, models_only=True)


def error_grid(heading: str, part: pd.DataFrame, methods: list[str], models_only: bool) -> Grid:
    """Median / mean errors: a line per held-out part, named groups of rows after the others."""
    named, counts = tuple(GROUPS), part.groupby("held_out")["n"].max()
    cells = {
        (row["held_out"], row["method"]): f"{row['median']:.1f} / {row['mean']:.1f}"
        for row in part.to_dict("records")
    }
    table = Grid.of(heading, "rows", *methods)
    for name in sorted(counts.index, key=lambda n: (n == "all", n.startswith(named), n)):
        if is_shown(name) and not (models_only and name.startswith(named)):
            table.add(name, str(counts[name]), *(cells.get((name, m), "-") for m in methods))
    return table


def print_decisions(table: pd.DataFrame) -> None:
    """Print one table per kind of split: a row per method, the mean loss for each model too.

    Args:
        table: As ``pinn.evaluation.decisions.decision_table`` returns it.
    """
    console = page(WIDEST)
    for split, part in table.groupby("split", sort=False):
        console.print(decision_grid(part, ("mean loss", "missed"), f"{split}: decisions"))
        console.print(f"{DECISIONS_CAPTION}\n")


def decision_grid(part: pd.DataFrame, means: Sequence[str], caption: str) -> Grid:
    """Decisions of a split: a line per method, the mean loss and missed limits, and each model's.

    Args:
        part: Rows of one split.
        means: Headings of the mean loss and of the share of missed limits.
        caption: Of the grid.
    """
    losses = part.pivot(index="method", columns="held_out", values="loss")
    models = [name for name in losses.columns if name != "all"]
    headings = ("decisions", *means, *(model.split("/")[-1] for model in models))
    grid = Grid.of(Column("method", True, folds=False), *headings, caption=caption)
    for row in part[part["held_out"] == "all"].to_dict("records"):
        values = (row["loss"], row["missed"], *losses.loc[row["method"], models])
        numbers = ("-" if pd.isna(value) else f"{value:.1f}" for value in values)
        name = str(row["method"])
        grid.add(name, str(row["decisions"]), *numbers, strong=name.startswith("network"))
    return grid


def is_shown(held_out: str) -> bool:
    """Whether a held-out part is printed: within a named part only those of ``DETAILED``."""
    part, nested, _ = held_out.partition(": ")
    return not nested or part in DETAILED


def _all_last(names: pd.Series) -> pd.Series:
    """Held-out models or GPUs first, then the named parts, then all."""
    parts = tuple(GROUPS)
    rank = names.map(lambda name: 2 if name == "all" else int(name.startswith(parts)))
    return rank.astype(str) + names
