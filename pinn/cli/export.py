"""``pinn export``: onnx, table, blis and specs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.api.requests import BlisRequest, OnnxRequest, SpecsRequest, TableRequest
from pinn.cli.options import asked, output
from pinn.common.files import find_checkpoint
from pinn.common.screen import counted
from pinn.engines.configurations import canonical, make_deployments, typed_configurations
from pinn.errors import PinnError
from pinn.specs.catalog import list_models, load_model
from pinn.specs.gpu import list_gpus, load_gpu
from pinn.specs.model_variants import with_precision

if TYPE_CHECKING:
    from pinn.export.configured import Configured

app = typer.Typer(no_args_is_help=True)

Configs = Annotated[
    str | None,
    typer.Option(
        "--configs",
        help="CSV, YAML or JSON file of configurations or of a grid, as of 'pinn coefficients'; or "
        "a grid itself, such as 'model=Llama-3.1-8B gpu=H100,B200 tensor_parallel_size=1,2'. "
        "[default: those of --coefficients]",
        show_default=False,
    ),
]


@app.callback()
def _root() -> None:
    """Write what other programs read: ONNX graphs, coefficient tables, files for the Go simulator.

    The Go package that reads tables and checkpoints is in the folder export/go of the repository.
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
    from pinn.export.configured import checkpoint_provenance
    from pinn.export.onnx_graphs import export_onnx, write_inputs
    from pinn.surrogate.checkpoint import load_checkpoint

    path = find_checkpoint(how.checkpoint)
    loaded = load_checkpoint(path)
    for written in export_onnx(loaded, checkpoint_provenance(path, loaded.metadata), out):
        typer.echo(f"{written.stat().st_size:10,} bytes  {written}")
    if how.inputs is None:
        return
    rows = typed_configurations(how.configs)
    if len(rows) != 1:
        raise PinnError(f"--inputs is for one configuration, and --configs gives {len(rows)}")
    found = write_inputs(_configured(rows, TableRequest(checkpoint=path)), how.batch, how.inputs)
    name = f"{found['configuration']['model']} on {found['configuration']['gpu']}"
    typer.echo(
        f"inputs of {name}, {how.batch}: {how.inputs}; the graphs give {found['step_time_us']} us"
    )


@app.command()
@asked
def table(
    out: Annotated[Path, output(".json", ".csv", ".parquet")],
    configs: Configs = None,
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
    table_of(_asked_rows(configs, how.coefficients), out, how)


def table_of(rows: list[dict[str, Any]], out: Path, how: TableRequest) -> None:
    """Write the table of configurations."""
    from pinn.export.configured import find_intervals
    from pinn.export.table import export_table, write_table_file

    configured, ends = _configured(rows, how), None
    if how.intervals:
        try:
            ends = find_intervals(configured, find_checkpoint(how.checkpoint))
        except PinnError as error:
            typer.echo(f"without intervals: {error}")
    write_table_file(export_table(configured, ends), configured.provenance, out)
    typer.echo(f"{len(configured):8} configurations written to {out}")


@app.command()
@asked
def blis(out: Path, configs: Configs = None, *, how: BlisRequest) -> None:
    """A folder per configuration that an unmodified BLIS runs as it is.

    config.json, hardware.json, coefficients and run.sh, one whole command line: behind it goes what
    BLIS shall serve. BLIS's own formula gets the vector that reproduces the step times best over
    the batches of a simulated load, and run.sh picks that of the load nearest to what it is given;
    each file says what it costs under the others.

    Example:
      pinn export blis --configs 'model=Llama-3.1-8B gpu=H100' --out blis

    Options:
        out: Folder for the folders.
    """
    blis_of(_asked_rows(configs, how.coefficients), out, how)


def blis_of(rows: list[dict[str, Any]], out: Path, how: BlisRequest) -> None:
    """Write the folders of configurations."""
    from pinn.export.blis_files import write_folders

    write_folders(
        _configured(rows, how), how.workloads or [], out, how.worst_error, how.skip_invalid
    )


@app.command()
@asked
def specs(out: Annotated[Path, output(".json")], how: SpecsRequest) -> None:
    """Models and GPUs as JSON, of which the Go package makes coefficients with a checkpoint.

    Example:
      pinn export specs --model ./config.json --gpu H100 --out specs.json

    Options:
        out: JSON file to write.
    """
    from pinn.export.specs import specs_document, write_specs

    found = [load_model(name) for name in counted(how.models or list_models(), "model")]
    models = found if how.models else [m for m in found if m.is_plain]
    others = [m.name for m in found if m not in models]
    if (scheme := how.quantization) is not None:
        models = [replace(with_precision(m, scheme), name=f"{m.name}@{scheme}") for m in models]
    gpus = [load_gpu(name) for name in how.gpus or list_gpus()]
    write_specs(specs_document(models, gpus), out)
    typer.echo(f"{len(models):8} models and {len(gpus)} GPUs written to {out}")
    if others:
        typer.echo(
            f"{len(others):8} left out, whose recurrent, sparse or cross-attention layers reach Go "
            f"by 'pinn export table': {', '.join(others)}"
        )


def _configured(rows: list[dict[str, Any]], how: TableRequest | BlisRequest) -> Configured:
    from pinn.export.configured import from_checkpoint, with_coefficient_files

    kept, deployments, reasons = make_deployments(rows, how.skip_invalid)
    for reason in sorted(set(reasons)):
        typer.echo(f"{reasons.count(reason):8} left out: {reason}")
    configured = from_checkpoint(find_checkpoint(how.checkpoint), kept, deployments)
    return with_coefficient_files(configured, how.coefficients or [])


def _asked_rows(configs: str | None, coefficients: list[Path] | None) -> list[dict[str, Any]]:
    return rows_of_files(coefficients) if configs is None else typed_configurations(configs)


def rows_of_files(paths: list[Path] | None) -> list[dict[str, Any]]:
    """The configurations that coefficient files belong to."""
    from pinn.surrogate.coefficient_set import read_coefficient_set

    if not paths:
        raise PinnError("nothing to export: give --configs, or files with --coefficients")
    return [canonical(read_coefficient_set(path).configuration(), f"{path}: ") for path in paths]
