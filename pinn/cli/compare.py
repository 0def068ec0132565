"""``pinn compare``."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.cli.options import Details, JsonPath, asked
from pinn.cli.outputs import records, write_json
from pinn.errors import PinnError


@asked
def compare(
    a: Annotated[Path, typer.Argument()],
    b: Annotated[Path, typer.Argument()],
    method: str = "network",
    details: Details = False,
    json_path: JsonPath = None,
) -> None:
    """Two checkpoints, coefficient files or evaluations, metric by metric.

    A checkpoint (.safetensors) is compared by the held-out errors that it carries and by its step
    times of well-known deployments; a coefficient file (.json of 'pinn calibrate' or 'pinn
    coefficients --json') by its coefficients, the errors of its calibration and step times; an
    evaluation (folder of an experiment, or a results.csv) by its errors. Folders with predictions
    of both get a verdict by a bootstrap over deployments; else B is better only where it is in
    every left-out part.

    Examples:
      pinn compare checkpoints/pinn.safetensors mine/checkpoint.safetensors

      pinn compare before.json after.json

      pinn compare results/moe_ep results/mine

    Options:
        a: Checkpoint, coefficient file or evaluation.
        b: What to compare it with.
        method: Whose errors are compared, of tables with several.
    """
    from pinn.cli import compare_sides
    from pinn.evaluation.comparison import compare as compare_scores

    sides = compare_sides.read_side(a, method), compare_sides.read_side(b, method)
    tables, refusal = {}, None
    try:
        tables["errors"] = compare_scores(sides[0].scores, sides[1].scores)
    except PinnError as error:
        refusal = error
    tables["step_times"] = compare_sides.compare_step_times(*sides)
    tables["coefficients"] = compare_sides.compare_coefficients(*sides)
    tables = {name: table for name, table in tables.items() if len(table)}
    if not tables and refusal is not None:
        raise refusal
    compare_sides.print_comparison(a, b, tables, str(refusal) if refusal else "", details)
    write_json({name: records(table) for name, table in tables.items()}, json_path)
