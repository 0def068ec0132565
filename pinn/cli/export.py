"""``pinn export``: onnx, table, blis and llm-d."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.api.requests import BlisRequest, LlmDRequest, OnnxRequest, TableRequest
from pinn.cli.options import asked, output

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Write what other programs read: ONNX graphs, coefficient tables, files for BLIS and llm-d.

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
    """Files with which an unmodified BLIS serves configurations.

    --target folder, for BLIS up to 2026-08-22: a folder per configuration with config.json,
    hardware.json, coefficients and run.sh, a complete command line. The workload's flags go behind
    it, and run.sh picks the coefficients of the simulated loads nearest to that workload.

    --target kernel, for BLIS with a latency kernel: coefficient sets of a registry, scenarios with
    their deployments, and catalog entries that BLIS lacks.

    Examples:
      pinn export blis --configs 'model=Llama-3.1-8B gpu=H100' --out blis

      pinn export blis --target kernel --configs 'model=Llama-3.3-70B-Instruct gpu=H100
      tensor_parallel_size=4 max_model_len=8192' --out kernel

    Options:
        out: Folder for the folders, or for registry, catalog and scenarios.
    """
    from pinn.api import exports

    typer.echo(exports.export_blis(out, configs, **vars(how)))


@app.command()
@asked
def llm_d(out: Path, configs: str | None = None, *, how: LlmDRequest) -> None:
    """A folder per configuration from which llm-d's latency predictor and autoscaler start.

    entries.jsonl has training entries of the predictor, drawn from simulated loads, post.py posts
    them to its training server, and autoscaler.json has alpha, beta, gamma and delta of a variant
    with the error of their fit.

    Example:
      pinn export llm-d --configs 'model=Qwen/Qwen3-32B gpu=H200 max_model_len=16384' --out seed

    Options:
        out: Folder for the folders.
    """
    from pinn.api import exports

    typer.echo(exports.export_llm_d(out, configs, **vars(how)))
