"""``pinn coefficients``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.common.files import find_checkpoint
from pinn.errors import PinnError
from pinn.interface.commands.options import JsonPath, engine_flags, named, output
from pinn.interface.commands.outputs import TABLES, write_json
from pinn.interface.commands.requests import MANY, PredictionRequest, SkipMany
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from pinn.coefficients.coefficients import CoefficientSet
    from pinn.coefficients.surrogate import Surrogate
    from pinn.engines.deployment import Deployment

app = typer.Typer()

EXAMPLES = (
    "1 decode @ 700",
    "32 decode @ 700",
    "256 decode @ 2000",
    "1 prefill 2048 @ 0",
    "1 prefill 512 @ 0 + 16 decode @ 600",
)


@app.command()
@engine_flags(ServingSpec, deploys=True)
def coefficients(
    asked: PredictionRequest,
    batch: Annotated[
        list[str] | None,
        typer.Option(
            "--batch",
            help="Batch to time, such as '32 decode @ 700' (32 requests after 700 tokens each) or "
            "'1 prefill 512 @ 0 + 16 decode @ 600'. Repeatable.",
        ),
    ] = None,
    json_path: JsonPath = None,
    configs: Annotated[
        Path | None,
        typer.Option(
            "--configs",
            help="CSV, YAML or JSON list of configurations, or a YAML or JSON grid (lists per "
            "key). Keys are the flags' names; flags given beside it hold where a row has none.",
            rich_help_panel=MANY,
        ),
    ] = None,
    grid: Annotated[
        str | None,
        typer.Option(
            "--grid",
            help="Grid in place of a file: 'gpu=H100,A100 tensor_parallel_size=1,2'.",
            rich_help_panel=MANY,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        output(
            "--out",
            "Table to write, one row per configuration: .csv, .json or .parquet.",
            *TABLES,
            rich_help_panel=MANY,
        ),
    ] = None,
    skip_invalid: SkipMany = False,
    *,
    recipe: Annotated[
        bool, typer.Option("--recipe", help="Print what the engine runs and what set it instead.")
    ] = False,
    betas: Annotated[
        bool, typer.Option("--betas", help="Print the coefficients with their units instead.")
    ] = False,
    flags: dict[str, Any],
) -> None:
    """How long the steps of an engine take, and the coefficients that say so.

    Prints whether the model fits, the times of example batches with their intervals, and how far
    the configuration lies from what was measured. --betas has alpha, what happens to a request
    outside the steps, and beta, whose sum with a step's features is its time; --json has it all,
    the physical floor of each batch too.

    Examples:
      pinn coefficients --model Qwen/Qwen3-30B-A3B --gpu H200 -tp 2 -ep
        --batch '64 decode @ 1500' --json qwen.json

      pinn coefficients --model ./config.json --gpu my_gpu.json --quantization fp8

      pinn coefficients --configs candidates.csv --gpu H100 --out table.parquet

      pinn coefficients --model meta-llama/Llama-3.1-70B --out grid.csv
        --grid 'gpu=H100,B200 tensor_parallel_size=2,4,8 precision=bf16,fp8'
    """
    from pinn.interface.commands.coefficient_report import print_report

    given = named(asked.model, asked.gpu) | flags
    if configs is None and grid is None:
        if out is not None or skip_invalid:
            raise PinnError("--out and --skip-invalid are for --configs or --grid: use --json")
        report, _ = one_report(given, batch or list(EXAMPLES), asked.checkpoint, asked.coefficients)
        if json_path is not None:
            write_json(report, json_path)
        print_report(report, recipe=recipe, betas=betas)
    elif asked.coefficients is not None:
        raise PinnError("--coefficients belong to one configuration: leave --configs, --grid out")
    elif out is None:
        raise PinnError("--configs and --grid need --out PATH, a .csv, .json or .parquet file")
    elif json_path is not None:
        raise PinnError("--json is for one configuration: use --out with a name ending in .json")
    else:
        rows = _many(configs, grid, given)
        _write(rows, batch or [], out, asked.checkpoint, skip_invalid)


def one_report(
    given: dict[str, Any], batches: list[str], checkpoint: Path | None, path: Path | None
) -> tuple[dict[str, Any], Deployment]:
    """What is written of one configuration, and its deployment.

    Args:
        given: The configuration.
        batches: To be timed.
        checkpoint: Trained network; None for the usual one.
        path: Coefficients in place of the network, or None.
    """
    from pinn.interface.commands.coefficient_report import file_report, network_report

    found, deployment = one_set(given, checkpoint, path)
    if path is None:
        used = find_checkpoint(checkpoint)
        report = network_report(_surrogate(used), deployment, batches, used)
    else:
        report = file_report(found, deployment, batches)
    return report | {"named": found.deployment["named"]}, deployment


def one_set(
    given: dict[str, Any], checkpoint: Path | None, path: Path | None
) -> tuple[CoefficientSet, Deployment]:
    """The coefficients of one configuration, and its deployment; arguments as :func:`one_report`.

    What the user called model, GPU and format is in the set's deployment as ``named``.
    """
    from pinn.coefficients.coefficients import (
        NAMED,
        CoefficientSet,
        deployment_facts,
        read_coefficient_set,
    )
    from pinn.coefficients.configurations import canonical, make_deployment

    configuration = canonical(given)
    if path is None:
        deployment = make_deployment(configuration)
        surrogate = _surrogate(checkpoint)
        coefficients = surrogate.coefficients([deployment])
        facts = deployment_facts(deployment)
        found = CoefficientSet(facts, coefficients, surrogate.taught_alphas())
    else:
        found = read_coefficient_set(path)
        configuration = canonical(found.configuration() | given)
        deployment = make_deployment(configuration)
        found.check_deployment(deployment, str(path))
    named = {k: configuration[k] for k in NAMED if k in configuration}
    return replace(found, deployment=found.deployment | {"named": named}), deployment


def _many(configs: Path | None, grid: str | None, given: dict[str, Any]) -> list[dict[str, Any]]:
    """The configurations of file and grid, combined with each other and with the flags."""
    from pinn.coefficients.configurations import (
        canonical,
        check_configurations,
        parse_grid,
        read_configurations,
    )

    shared = canonical(given)
    rows = read_configurations(configs) if configs is not None else [{}]
    crossed = parse_grid(grid) if grid is not None else [{}]
    check_configurations(len(rows) * len(crossed))
    return [{**shared, **row, **point} for row in rows for point in crossed]


def _write(
    rows: list[dict[str, Any]],
    batches: list[str],
    out: Path,
    checkpoint: Path | None,
    skip_invalid: bool,
) -> None:
    from pinn.interface.commands.coefficient_table import write_table

    table, reasons = many_table(rows, batches, checkpoint, skip_invalid)
    write_table(table, out)
    for reason in sorted(set(reasons)):
        typer.echo(f"{reasons.count(reason):8} left out: {reason}")
    typer.echo(f"{len(table):8} configurations written to {out}")


def many_table(
    rows: list[dict[str, Any]], batches: list[str], checkpoint: Path | None, skip_invalid: bool
) -> tuple[pa.Table, list[str]]:
    """The table of many configurations, and why others were left out."""
    from pinn.coefficients.configurations import make_deployments
    from pinn.common.screen import doing
    from pinn.interface.commands.coefficient_table import coefficient_table

    doing(f"{len(rows):,} configurations")
    surrogate = _surrogate(checkpoint)
    kept, deployments, reasons = make_deployments(rows, skip_invalid)
    return coefficient_table(surrogate, kept, deployments, batches), reasons


def _surrogate(checkpoint: Path | None) -> Surrogate:
    from pinn.coefficients.surrogate import Surrogate

    return Surrogate.load(find_checkpoint(checkpoint))
