"""Command ``pinn export`` with subcommands onnx, table, blis and llm-d."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.api.requests import BlisRequest, LlmDRequest, OnnxRequest, TableRequest
from pinn.cli.options import asked, output

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Write ONNX graphs, coefficient tables, and files for BLIS and llm-d.

    The Go package that reads coefficient tables is in the folder export/go of the repository.
    """


@app.command()
@asked
def onnx(out: Path, how: OnnxRequest) -> None:
    """Write the network and the step time formula as ONNX graphs.

    coefficients.onnx maps the features of deployments to coefficients alpha and beta.
    step_time.onnx maps the features of batches and beta to step times. Names, units and origin are
    in the metadata of the graphs.

    Example:
      pinn export onnx --out export/onnx --inputs inputs.json

    Options:
        out: Folder to write the two ONNX graphs to.
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
    """Write a coefficient table for the Go package, with a row for each configuration.

    Examples:
      pinn export table --configs 'model=Llama-3.1-8B gpu=H100,H200' --out table.json

      pinn export table --coefficients run1.json --out coefficients.json

    Options:
        out: Table to write: .json, .csv or .parquet.
    """
    from pinn.api import exports

    typer.echo(exports.export_table(out, configs, **vars(how)))


@app.command()
@asked
def blis(out: Path, configs: str | None = None, *, how: BlisRequest) -> None:
    """Write files with which an unmodified BLIS simulator runs configurations.

    --target folder, for BLIS up to 2026-08-22: a folder per configuration with config.json,
    hardware.json, coefficients and run.sh. run.sh starts BLIS; its arguments are BLIS's options of
    the load. run.sh uses the coefficients of the simulated load that is nearest to its arguments.

    --target kernel, for BLIS with a latency kernel: coefficient sets of a registry, scenarios with
    their deployments, and catalog entries that BLIS lacks.

    Examples:
      pinn export blis --configs 'model=Llama-3.1-8B gpu=H100' --out blis

      pinn export blis --target kernel --configs 'model=Llama-3.3-70B-Instruct gpu=H100
      tensor_parallel_size=4 max_model_len=8192' --out kernel

    Options:
        out: Folder to write to. It gets a folder for each configuration or, with --target kernel,
            a registry, a catalog and scenarios.
    """
    from pinn.api import exports

    typer.echo(exports.export_blis(out, configs, **vars(how)))


@app.command()
@asked
def llm_d(out: Path, configs: str | None = None, *, how: LlmDRequest) -> None:
    """Write starting data for llm-d's latency predictor and autoscaler, for each configuration.

    A folder has entries.jsonl with training entries for the predictor, sampled from simulated
    loads; post.py, which posts them to the predictor's training server; and autoscaler.json with
    alpha, beta, gamma and delta of a variant of the autoscaler, and the error of their fit.

    Example:
      pinn export llm-d --configs 'model=Qwen/Qwen3-32B gpu=H200 max_model_len=16384' --out seed

    Options:
        out: Folder to write a folder for each configuration to.
    """
    from pinn.api import exports

    typer.echo(exports.export_llm_d(out, configs, **vars(how)))
