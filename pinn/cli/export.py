"""``pinn export``: onnx, table and blis."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.api.requests import BlisRequest, OnnxRequest, TableRequest
from pinn.cli.options import asked, output

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Write what other programs read: ONNX graphs, coefficient tables, files for the Go simulator.

    The Go package that reads tables is in the folder export/go of the repository.
    """


@app.command()
@asked
def onnx(out: Path, how: OnnxRequest) -> None:
    """The network and the step time as ONNX graphs.

    coefficients.onnx maps embedded deployments to alpha and beta, step_time.onnx maps summed batch
    features and beta to step times; names, units and provenance are in their metadata.

    Example:
      pinn export onnx --out export/onnx --inputs inputs.json

    Options:
        out: Folder for the two graphs.
    """
    from pinn.api import exports

    typer.echo(exports.export_onnx(out, **vars(how)))


@app.command()
@asked
def table(
    out: Annotated[Path, output(".json", ".csv", ".parquet")],
    configs: str | None = None,
    *,
    how: TableRequest,
) -> None:
    """Flat coefficient tables, a row per configuration, which the Go package loads.

    Examples:
      pinn export table --configs 'model=Llama-3.1-8B gpu=H100,H200' --out table.json

      pinn export table --coefficients run1.json --out coefficients.json

    Options:
        out: File to write: .json, .csv or .parquet.
    """
    from pinn.api import exports

    typer.echo(exports.export_table(out, configs, **vars(how)))


@app.command()
@asked
def blis(out: Path, configs: str | None = None, *, how: BlisRequest) -> None:
    """Files with which an unmodified BLIS serves a configuration.

    --target folder, for BLIS up to August 2026: a folder per configuration with config.json,
    hardware.json, coefficients and run.sh, one whole command line, behind which goes what BLIS
    shall serve. run.sh picks the coefficients of the simulated loads nearest to it.

    --target kernel, for BLIS with a latency kernel: coefficient sets, scenarios and what a catalog
    lacks.

    Example:
      pinn export blis --configs 'model=Llama-3.1-8B gpu=H100' --out blis

    Options:
        out: Folder for the folders, or for registry, catalog and scenarios.
    """
    from pinn.api import exports

    typer.echo(exports.export_blis(out, configs, **vars(how)))
