"""The tables of an evaluation folder, and what a page is made of."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pinn.common.plots import png
from pinn.common.screen import Grid
from pinn.errors import PinnError
from pinn.training.data.table import read_observations

# The tables of an evaluation folder that a report is drawn from.

#: What predictions are shown of beside the split's other methods.
METHOD = "network"

#: Tables that an evaluation may have beside its predictions and results.
_OTHERS = ("ranking", "coverage", "stated", "decisions")

#: In place of one of them.
_EMPTY = pd.DataFrame(columns=["split", "metric"])

_LOAD = ["row_id", "model", "gpu", "concurrency", "prompt_tokens", "output_tokens"]


@dataclass(frozen=True)
class Tables:
    """Everything that a report shows; a table that was not made is empty.

    Attributes:
        predictions: As ``pinn.laboratory.crossvalidation.cross_validate`` returns them, with the
            columns ``model``, ``gpu``, ``concurrency``, ``prompt_tokens`` and ``output_tokens``.
        results: As ``pinn.laboratory.metrics.summarize`` does.
        ranking: As ``pinn.laboratory.comparison.rank`` does.
        coverage: As ``pinn.coefficients.interval_fit.calibration_curve`` does.
        stated: What the intervals of the checkpoint whose predictions are shown cover, as
            ``pinn.coefficients.interval_fit.coverage_table`` has it; empty where none are.
        decisions: As ``pinn.laboratory.decisions.decision_table`` does.
    """

    predictions: pd.DataFrame
    results: pd.DataFrame
    ranking: pd.DataFrame
    coverage: pd.DataFrame
    stated: pd.DataFrame
    decisions: pd.DataFrame

    def split(self, name: str, method: str = METHOD) -> pd.DataFrame:
        """A method's predictions of measured deployments in one kind of split."""
        rows = self.predictions
        return rows[(rows["split"] == name) & (rows["method"] == method) & rows["model"].notna()]

    def left_out_coverage(self) -> pd.DataFrame:
        """Coverage of all rows of each split, and of each model or GPU that it leaves out."""
        rows = self.coverage
        if rows.empty:
            return rows
        by = np.where(rows["split"].str.contains("gpu"), "gpu", "model")
        return rows[(rows["part"] == "all") | (rows["part"] == by)]


def read_tables(folder: Path) -> Tables:
    """Read what ``python train.py +experiment=suite`` wrote.

    Raises:
        PinnError: If the folder holds no results.
    """
    results = folder / "results.csv"
    if not results.is_file():
        raise PinnError(f"no {results}: evaluate first, with 'pinn evaluate'")
    observations = read_observations(folder / "observations" / "silicon.parquet")
    predictions = pd.read_parquet(folder / "predictions.parquet")
    paths = {name: folder / f"{name}.csv" for name in _OTHERS}
    others = {n: pd.read_csv(p) if p.is_file() else _EMPTY for n, p in paths.items()}
    joined = predictions.merge(observations[_LOAD], on="row_id", how="left")
    return Tables(joined, pd.read_csv(results), **others)


# What a page is made of: sections of figures and tables, each with its caption.


@dataclass(frozen=True)
class Picture:
    """A figure.

    Attributes:
        name: Of the PNG file, without its suffix.
        caption: Says what is shown, n, data and split.
        content: The PNG's bytes.
    """

    name: str
    caption: str
    content: bytes

    @property
    def png(self) -> str:
        """The picture as text, for a page that needs no other file."""
        return base64.b64encode(self.content).decode()


@dataclass(frozen=True)
class Section:
    """Part of a page.

    Attributes:
        title: Heading.
        text: Below it.
        items: Figures and tables.
        missing: Why there are none, where there are none.
    """

    title: str
    text: str
    items: Sequence[Picture | Grid] = field(default_factory=tuple)
    missing: str = "it was not evaluated."

    @property
    def anchor(self) -> str:
        """Where links point."""
        return self.title.lower().replace(" ", "-")


def picture(name: str, figure: Figure | None, caption: str) -> list[Picture]:
    """A figure as a list of one, or of none."""
    return [] if figure is None else [Picture(name, caption, png(figure))]
