"""Tables in an evaluation's folder, and the figures and tables on its page."""

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pinn.common.plots import png, short
from pinn.common.screen import Grid
from pinn.errors import PinnError
from pinn.evaluation.tables import decision_grid, frame_grid
from pinn.measurements.deployments.observations import read_observations

# Tables in an evaluation's folder, from which a report is made.

#: Prediction method that the report compares with all other methods.
METHOD = "network"

#: Names of an evaluation's optional tables; predictions and results always exist.
_OTHERS = ("ranking", "coverage", "stated", "decisions")

#: Empty table that replaces a missing table of an evaluation.
_EMPTY = pd.DataFrame(columns=["split", "metric", "part", "level", "coverage", "n"])

_LOAD = ["row_id", "model", "gpu", "concurrency", "prompt_tokens", "output_tokens"]


@dataclass(frozen=True)
class Tables:
    """Tables of an evaluation, from which its page is generated; a table without a file is empty.

    Attributes:
        predictions: Predictions as ``pinn.evaluation.crossvalidation.read_cells`` returns them,
            with the columns ``model``, ``gpu``, ``concurrency``, ``prompt_tokens`` and
            ``output_tokens``.
        results: Errors as ``pinn.evaluation.metrics.summarize`` returns them.
        ranking: Ranking as ``pinn.evaluation.comparison.rank`` returns it.
        coverage: Coverage as ``pinn.surrogate.uncertainty.interval_fit.calibration_curve`` returns
            it.
        stated: Coverage of the intervals of the checkpoint that produced the shown predictions, as
            ``pinn.surrogate.uncertainty.interval_fit.coverage_table`` returns it; empty without
            such a checkpoint.
        decisions: Losses as ``pinn.evaluation.decisions.decision_table`` returns them.
    """

    predictions: pd.DataFrame
    results: pd.DataFrame
    ranking: pd.DataFrame
    coverage: pd.DataFrame
    stated: pd.DataFrame
    decisions: pd.DataFrame

    def of_split(self, name: str) -> pd.DataFrame:
        """Return all predictions of measured deployments for one split method."""
        rows = self.predictions
        return rows[(rows["split"] == name) & rows["model"].notna()]

    def of_network(self, name: str) -> pd.DataFrame:
        """Return the network's predictions of measured deployments for one split method."""
        rows = self.of_split(name)
        return rows[rows["method"] == METHOD]

    def left_out_coverage(self) -> pd.DataFrame:
        """Return interval coverage over each split, and over each held-out model or GPU."""
        rows = self.coverage
        by = np.where(rows["split"].str.contains("gpu"), "gpu", "model")
        return rows[(rows["part"] == "all") | (rows["part"] == by)]


def read_tables(folder: Path) -> Tables:
    """Read the tables that ``python train.py +experiment=suite`` wrote.

    Raises:
        PinnError: If the folder has no results.
    """
    results = folder / "results.csv"
    if not results.is_file():
        raise PinnError(f"the results {results} do not exist: run 'pinn evaluate' first")
    observations = read_observations(folder / "observations" / "silicon.parquet")
    predictions = pd.read_parquet(folder / "predictions.parquet")
    paths = {name: folder / f"{name}.csv" for name in _OTHERS}
    others = {n: pd.read_csv(p) if p.is_file() else _EMPTY for n, p in paths.items()}
    joined = predictions.merge(observations[_LOAD], on="row_id", how="left")
    return Tables(joined, pd.read_csv(results), **others)


# Pictures on an evaluation's page.


@dataclass(frozen=True)
class Picture:
    """Figure on an evaluation's page.

    Attributes:
        name: Name of the PNG file, without its suffix.
        caption: Caption, with the number of measurements, the data and the split.
        content: Bytes of the PNG.
    """

    name: str
    caption: str
    content: bytes

    @property
    def png(self) -> str:
        """Return the PNG as base64 text, for embedding in the page."""
        return base64.b64encode(self.content).decode()


def picture(name: str, figure: Figure | None, caption: str) -> list[Picture]:
    """Return a figure as a list of one :class:`Picture`, or [] if there is no figure."""
    return [] if figure is None else [Picture(name, caption, png(figure))]


# Tables on an evaluation's page.


def result_grids(tables: Tables) -> list[Grid]:
    """Return tables of every method's TPOT and TTFT errors over all rows, one table per split."""
    columns = {"metric": "metric", "method": "method", "rows": "n"}
    columns |= {f"{name} %": f"{name}:.1f" for name in ("median", "mean", "p90", "bias")}
    columns |= {"Pearson r": "pearson_r:.3f", "p99 inversions": "inversions:.0f"}
    whole = tables.results[tables.results["held_out"] == "all"]
    grids = []
    for split, part in whole.groupby("split", sort=False):
        caption = (
            f"{split}: absolute percentage errors over all rows. The part of the data that "
            f"contains a row is held out of the fit that predicts the row. Bias is the median "
            f"signed error."
        )
        ordered = part.sort_values(["metric", "median"], ascending=[False, True], kind="stable")
        shown = ordered.assign(metric=ordered["metric"].str.upper())
        grids.append(frame_grid(shown, columns, caption, 2, shown["method"] == METHOD))
    return grids


def held_out_grid(tables: Tables, split: str, metric: str) -> list[Grid]:
    """Return a table of median errors, one row per method and one column per held-out model or GPU.

    The list is empty if the split has no results.
    """
    rows = tables.results
    rows = rows[(rows["split"] == split) & (rows["metric"] == metric)]
    parts = tables.predictions.loc[tables.predictions["split"] == split, "held_out"].unique()
    rows = rows[rows["held_out"].isin(["all", *parts])]
    if rows.empty:
        return []
    medians = rows.pivot_table(index="method", columns="held_out", values="median")
    medians = medians.sort_values("all").reset_index()
    counts = rows.groupby("held_out")["n"].max()
    names = ["all", *(name for name in counts.index if name != "all")]
    columns = {"method": "method"}
    columns |= {f"{short(name)} (n {counts[name]})": f"{name}:.1f" for name in names}
    caption = (
        f"{split}: median absolute percentage error of {metric.upper()}, by the part of the "
        f"data held out of the fit."
    )
    return [frame_grid(medians, columns, caption, strong=medians["method"] == METHOD)]


def ranking_grids(tables: Tables) -> list[Grid]:
    """Return tables of methods ranked by median error, with bootstrap intervals for the error."""
    columns = {"method": "method", "median %": "median:.1f", "low": "low:.1f", "high": "high:.1f"}
    columns |= {"behind, low": "behind_low:+.1f", "behind, high": "behind_high:+.1f"}
    columns |= {"verdict": "verdict"}
    grids = []
    for (split, metric), part in tables.ranking.groupby(["split", "metric"], sort=False):
        first = part.iloc[0]
        caption = (
            f"{split}, {str(metric).upper()}: median error over the {first['n']} rows that every "
            f"method predicts, with 95 % bootstrap intervals ({first['groups']} groups of rows); "
            f"behind: difference from the first method, in percentage points, on the same "
            f"resamples."
        )
        leading = part["verdict"].str.endswith("first")
        grids.append(frame_grid(part, columns, caption, strong=leading))
    return grids


def decision_grids(tables: Tables) -> list[Grid]:
    """Return tables, one per split, of throughput lost by picking deployments from predictions."""
    grids = []
    for split, part in tables.decisions.groupby("split", sort=False):
        caption = (
            f"{split}: loss of throughput per GPU from choosing deployments by predictions, in "
            f"percent of the best measured throughput, over {part['decisions'].max()} decisions. "
            f"A choice whose measured TPOT exceeds the limit by over 5 % counts as missed, with a "
            f"loss of 100 %."
        )
        best_first = part.sort_values("loss", kind="stable")
        grids.append(decision_grid(best_first, ("mean loss %", "missed %"), caption))
    return grids


def coverage_grid(tables: Tables) -> list[Grid]:
    """Return coverage and width of 90 % prediction intervals for every held-out model or GPU."""
    coverage = tables.left_out_coverage()
    if coverage.empty:
        return []
    caption = (
        "90 % intervals. Each part of the data is evaluated with intervals calibrated without it. "
        "Width is the median of (upper bound - lower bound) / prediction."
    )
    rows = coverage[np.isclose(coverage["level"], 0.9)]
    percent = {name: 100 * rows[name] for name in ("coverage", "width")}
    shown = rows.assign(metric=rows["metric"].str.upper(), **percent)
    columns = {"split": "split", "held out": "name", "metric": "metric", "rows": "n"}
    columns |= {"covered %": "coverage:.1f", "width %": "width:.0f"}
    return [frame_grid(shown, columns, caption, 2, shown["part"] == "all")]
