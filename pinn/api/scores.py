"""Tables of prediction errors, and comparisons of two checkpoints, files or evaluations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.api.arguments import read_request, with_arguments
from pinn.api.score_requests import CompareRequest, KernelErrorsRequest, ResultsRequest
from pinn.common.files import find_checkpoint
from pinn.common.progress import note
from pinn.common.screen import WIDEST, Column, Grid, PrintedResult, Row, page, printed, say
from pinn.common.tables import read_frame, records, write_frame
from pinn.errors import PinnError

if TYPE_CHECKING:
    import pandas as pd

    from pinn.common import Json
    from pinn.evaluation.sides import Comparison
    from pinn.surrogate.prediction import Prediction


@dataclass(frozen=True, repr=False, eq=False)
class ScoreTable(PrintedResult):
    """Table of prediction errors.

    Attributes:
        table: One row per prediction, as written by the command's option ``--out``.
        text: Text that the command prints.
        more: Additional tables in the command's JSON document, by name.
        decimals: Number format that :meth:`save` uses; None for all digits.
    """

    table: pd.DataFrame
    text: str
    more: dict[str, Json] = field(default_factory=dict)
    decimals: str | None = None

    def save(self, path: str | Path) -> None:
        """Write the table of errors to a CSV file."""
        write_frame(self.table, Path(path), float_format=self.decimals)

    def to_json(self) -> dict[str, Json]:
        """Return the rows of the table, and all additional tables, for JSON."""
        return {"scores": [*records(self.table)], **self.more}

    def __str__(self) -> str:
        """Return the text that the command prints."""
        return self.text


@with_arguments(request=CompareRequest)
def compare(a: str | Path | Prediction, b: str | Path | Prediction, **given: object) -> Comparison:
    """Compare two checkpoints, coefficient files or evaluations, as ``pinn compare`` does.

    Args:
        a: Path of a checkpoint, coefficient file or evaluation; or a result of ``pinn.predict``.
        b: Path or prediction to compare with ``a``. Coefficients are compared for one model, GPU,
            number format and parallelism.
        **given: Keyword arguments listed below.

    Raises:
        PinnError: If ``a`` and ``b`` have different formats or nothing in common, or one of them
            lacks the method.
    """
    from pinn.evaluation import sides
    from pinn.surrogate.prediction import Prediction

    predicted = {n: each for n, each in (("a", a), ("b", b)) if isinstance(each, Prediction)}
    paths = [each if not isinstance(each, Prediction) else "." for each in (a, b)]
    asked, _ = read_request(CompareRequest, given, a=paths[0], b=paths[1])
    found = {"a": asked.a, "b": asked.b} | predicted
    return sides.compare(found["a"], found["b"], asked.method)


@dataclass(frozen=True, repr=False, eq=False)
class Results(PrintedResult):
    """Prediction errors on held-out models and GPUs, or counts of measurements.

    Attributes:
        table: Errors, one row per data split, held-out part of the data, method and metric; or
            counts of measurements, one row per engine and release.
        measured: Whether the table contains counts of measurements instead of errors.
    """

    table: pd.DataFrame
    measured: bool = False

    def show(self, markdown: bool = False, models_only: bool = False) -> None:
        """Print one screen of rows; with ``markdown``, rows of every method and part of the data.

        Args:
            markdown: Whether to print Markdown tables.
            models_only: Whether to print only rows of whole models in Markdown.
        """
        from pinn.evaluation import tables

        if self.measured:
            if markdown:
                print(_measured_grid(self.table).markdown())
            else:
                page(WIDEST).print(_measured_screen(self.table))
            return
        for (split, metric), part in self.table.groupby(["split", "metric"], sort=False):
            say(f"{str(metric).upper()}, {split}: median / mean absolute percentage error\n")
            methods = list(dict.fromkeys(part["method"]))
            whole = tables.error_grid("held out", part, methods, models_only)
            if markdown:
                print(whole.markdown())
            else:
                page().print(tables.screen_grid(part))
            say("")
        if not markdown:
            more = "--metric ttft, --markdown (every method and part), --json FILE, docs/trust.md"
            say(f"More: {more}.")

    def to_json(self) -> list[dict[str, Json]]:
        """Return the rows of the table for JSON."""
        return records(self.table)

    def __str__(self) -> str:
        """Return the text that ``pinn results`` prints."""
        return printed(self.show)


@with_arguments(request=ResultsRequest)
def results(path: str | Path | None = None, **given: object) -> Results:
    """Read prediction errors on held-out models and GPUs, as ``pinn results`` does.

    >>> found = results(metric="ttft")
    >>> set(found.table["metric"])
    {'ttft'}

    Args:
        path: results.csv of an evaluation. In the folder of a checkpoint, the file must belong to
            that checkpoint's own cross-validation folds. [default: the file of the checkpoint]
        **given: Keyword arguments listed below.

    Raises:
        PinnError: If the file does not exist, or has no rows of the metric.
    """
    from pinn.evaluation import metrics

    asked, _ = read_request(ResultsRequest, given, path=path)
    if asked.measured:
        from pinn.training.data.released import released_measurements

        return Results(released_measurements(), measured=True)
    place = asked.path or find_checkpoint().with_suffix(metrics.KEPT)
    table = metrics.read_results(place)
    metrics.check_checkpoint(table, place)
    chosen = table[table["metric"] == asked.metric]
    if chosen.empty:
        known = ", ".join(sorted(table["metric"].unique()))
        raise PinnError(
            f"the metric {asked.metric} has no results: give one of {known} as metric (--metric)"
        )
    return Results(chosen)


def _measured_grid(found: pd.DataFrame) -> Grid:
    from pinn.evaluation.tables import frame_grid

    counts = ("rows", "configurations", "setups", "points")
    columns = {Column(name, name not in counts): name for name in found.columns}
    return frame_grid(found, columns)


def _measured_screen(found: pd.DataFrame) -> Grid:
    """Return a terminal table of measurement counts by engine release, model and GPU."""
    grid = _measured_grid(found.rename(columns={"configurations": "setups"}))
    rows = [Row([cell.replace(" ", "\n") for cell in row.cells]) for row in grid.rows]
    columns = [replace(column, folds=False) for column in grid.columns]
    return replace(grid, columns=columns, rows=rows, gap=1)


@with_arguments()
def kernels_score() -> ScoreTable:
    """Score kernel surrogates on held-out kernels, as ``pinn kernels score`` does.

    Fitting the surrogates takes 10 to 15 minutes on one core.
    """
    import torch

    from pinn.kernels.heldout import held_out_table
    from pinn.kernels.tables.tables import read_kernel_tables

    torch.set_num_threads(1)
    table = held_out_table(read_kernel_tables(), progress=note)
    return ScoreTable(table, f"{len(table)} errors", decimals="%.4f")


@with_arguments(request=KernelErrorsRequest)
def kernels_errors(path: str | Path | None = None, **given: object) -> ScoreTable:
    """Read the errors of each operator on held-out kernels, as ``pinn kernels errors`` does.

    Args:
        path: CSV file of ``pinn kernels score``. [default: the file of the checkpoint]
        **given: No other arguments are accepted.

    Raises:
        PinnError: If the file does not exist or is not a table of kernel errors.
    """
    from pinn.kernels.heldout import TABLE_COLUMNS, operator_grid

    asked, _ = read_request(KernelErrorsRequest, given, path=path)
    place = asked.path or find_checkpoint().parent / "kernels" / "held_out.csv"
    table = read_frame(place, f"run 'pinn kernels score --out {place}'")
    if tuple(table.columns) != TABLE_COLUMNS:
        raise PinnError(
            f"{place} is not a table of kernel errors, which has the columns "
            f"{', '.join(TABLE_COLUMNS)}: give a file of 'pinn kernels score'"
        )
    caption = "Median / mean absolute percentage error, by the data held out of the fit:"
    return ScoreTable(table, f"{caption}\n\n{operator_grid(table).markdown()}")


@with_arguments()
def kernels_mixers() -> ScoreTable:
    """Score roofline fits of linear and sparse attention, as ``pinn kernels mixers`` does.

    Fitting takes a minute.
    """
    from pinn.kernels.heldout import error_grid, mixer_errors

    table = mixer_errors()
    caption = "Median / mean absolute percentage error, by the data held out of the fit:"
    return ScoreTable(table, f"{caption}\n\n{error_grid(table).markdown()}")
