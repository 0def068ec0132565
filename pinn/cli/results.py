"""``pinn results``."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.cli.options import JsonPath, asked
from pinn.cli.outputs import records, write_json
from pinn.common.files import find_checkpoint
from pinn.common.screen import Column, page, say
from pinn.errors import PinnError


@asked
def results(
    path: Annotated[Path | None, typer.Argument()] = None,
    metric: str = "tpot",
    markdown: bool = False,
    models_only: bool = False,
    measured: bool = False,
    json_path: JsonPath = None,
) -> None:
    """Errors on held-out models or GPUs: median / mean absolute percentage error per method.

    One row per held-out model or GPU: this project's network beside what else predicts it. A table
    beside a checkpoint has to be of that checkpoint's own folds.

    Example: pinn results results/lomo/results.csv --metric ttft

    Options:
        path: results.csv of an experiment. [default: that of the checkpoint]
        metric: tpot or ttft.
        markdown: Every method and part, as Markdown.
        models_only: With --markdown: leave out named parts of the rows.
        measured: What was measured, by engine and release; no errors.
    """
    from pinn.evaluation import metrics, tables

    if measured:
        from pinn.training.data.released import released_measurements

        found = released_measurements()
        write_json(records(found), json_path)
        counts = ("rows", "configurations", "points")
        columns = {Column(name, name not in counts): name for name in found.columns}
        typer.echo(tables.frame_grid(found, columns).markdown())
        return
    path = path or find_checkpoint().with_suffix(metrics.KEPT)
    table = metrics.read_results(path)
    metrics.check_checkpoint(table, path)
    chosen = table[table["metric"] == metric]
    if chosen.empty:
        known = ", ".join(sorted(table["metric"].unique()))
        raise PinnError(f"no results for --metric {metric}: known ones are {known}")
    write_json(records(chosen), json_path)
    for split, part in chosen.groupby("split", sort=False):
        say(f"{split}, {metric.upper()}: median / mean absolute percentage error\n")
        if markdown:
            methods = list(dict.fromkeys(part["method"]))
            grid = tables.error_grid("held out", part, methods, models_only)
            typer.echo(grid.markdown() + "\n")
        else:
            page().print(tables.screen_grid(part))
            say("")
    if not markdown:
        say("More: --metric ttft, --markdown (every method and part), --json FILE, docs/trust.md.")
