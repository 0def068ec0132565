"""``pinn export``: onnx, table, blis and specs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.common.files import find_checkpoint
from pinn.errors import PinnError
from pinn.interface.commands.options import asked, output
from pinn.interface.commands.requests import BlisRequest, OnnxRequest, SpecsRequest, TableRequest
from pinn.specs.catalog import list_models, load_model
from pinn.specs.gpu import list_gpus, load_gpu
from pinn.specs.model_variants import with_precision

if TYPE_CHECKING:
    import numpy as np

    from pinn.interface.exports.blis_vectors import BlisVector
    from pinn.interface.exports.configured import Configured
    from pinn.simulator.workloads.workload import Workload

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
def onnx(
    out: Annotated[Path, typer.Option(help="Folder for the two graphs.")], how: OnnxRequest
) -> None:
    """The network and the step time as ONNX graphs.

    coefficients.onnx maps embedded deployments to alpha and beta, step_time.onnx maps summed batch
    features and beta to step times; names, units and provenance are in their metadata.

    Example:
      pinn export onnx --out export/onnx --inputs inputs.json
    """
    onnx_of(out, how)


def onnx_of(out: Path, how: OnnxRequest) -> None:
    """Write the graphs, and what goes into them where it is asked for."""
    from pinn.coefficients.trained_network import load_checkpoint
    from pinn.interface.exports.configured import checkpoint_provenance
    from pinn.interface.exports.onnx_graphs import export_onnx

    path = find_checkpoint(how.checkpoint)
    loaded = load_checkpoint(path)
    for written in export_onnx(loaded, checkpoint_provenance(path, loaded.metadata), out):
        typer.echo(f"{written.stat().st_size:10,} bytes  {written}")
    if how.inputs is not None:
        _write_inputs(how.inputs, how.configs, how.batch, path)


def _write_inputs(path: Path, configs: str, batch: str, checkpoint: Path) -> None:
    from pinn.coefficients.configurations import typed_configurations
    from pinn.interface.exports.onnx_inputs import write_inputs

    rows = typed_configurations(configs)
    if len(rows) != 1:
        raise PinnError(f"--inputs is for one configuration, and --configs gives {len(rows)}")
    found = write_inputs(_configured(rows, TableRequest(checkpoint=checkpoint)), batch, path)
    name = f"{found['configuration']['model']} on {found['configuration']['gpu']}"
    typer.echo(f"inputs of {name}, {batch}: {path}; the graphs give {found['step_time_us']} us")


@app.command()
@asked
def table(
    out: Annotated[
        Path,
        output("--out", "File to write: .json, .csv or .parquet.", ".json", ".csv", ".parquet"),
    ],
    configs: Configs = None,
    *,
    how: TableRequest,
) -> None:
    """Flat coefficient tables, a row per configuration, which the Go package loads.

    Examples:
      pinn export table --configs 'model=Llama-3.1-8B gpu=H100,H200' --out table.json

      pinn export table --coefficients run1.json --out coefficients.json
    """
    table_of(_asked_rows(configs, how.coefficients), out, how)


def table_of(rows: list[dict[str, Any]], out: Path, how: TableRequest) -> None:
    """Write the table of configurations."""
    from pinn.interface.exports.table import export_table, write_table_file

    configured = _configured(rows, how)
    ends = _intervals(configured, how.checkpoint) if how.intervals else None
    write_table_file(export_table(configured, ends), configured.provenance, out)
    typer.echo(f"{len(configured):8} configurations written to {out}")


def _intervals(configured: Configured, checkpoint: Path | None) -> np.ndarray | None:
    """The intervals' ends, or None after saying why there are none."""
    from pinn.interface.exports.configured import find_intervals

    try:
        return find_intervals(configured, find_checkpoint(checkpoint))
    except PinnError as error:
        typer.echo(f"without intervals: {error}")
        return None


@app.command()
@asked
def blis(
    out: Annotated[Path, typer.Option(help="Folder for the folders.")],
    configs: Configs = None,
    *,
    how: BlisRequest,
) -> None:
    """A folder per configuration that an unmodified BLIS runs as it is.

    config.json, hardware.json, coefficients and run.sh, one whole command line: behind it goes what
    BLIS shall serve. BLIS's own formula gets the vector that reproduces the step times best over
    the batches of a simulated load, and run.sh picks that of the load nearest to what it is given;
    each file says what it costs under the others.

    Example:
      pinn export blis --configs 'model=Llama-3.1-8B gpu=H100' --out blis
    """
    blis_of(_asked_rows(configs, how.coefficients), out, how)


def blis_of(rows: list[dict[str, Any]], out: Path, how: BlisRequest) -> None:
    """Write the folders of configurations."""
    from pinn.common.screen import counted
    from pinn.interface.exports.blis_files import write_summary

    configured = _configured(rows, how)
    loads = _named_loads(how.workloads or [])
    found = {}
    for row in counted(range(len(configured)), "configuration"):
        try:
            found[row] = _write_blis(configured, row, loads, out, how.worst_error)
        except PinnError as error:
            if not how.skip_invalid:
                raise PinnError(f"configuration {row + 1}: {error}") from error
            typer.echo(f"configuration {row + 1} left out: {error}")
    if found:
        write_summary(configured, found, out / "summary.csv")
        _print_errors(list(found.values()))


def _named_loads(files: list[Path]) -> list[Workload]:
    """Loads of files, under names that files and a shell may have."""
    import re
    from dataclasses import replace

    from pinn.interface.exports.blis_vectors import MIX, is_standard
    from pinn.simulator.workloads.load import load_workload

    loads = [load_workload(path) for path in files]
    loads = [replace(w, name=re.sub(r"[^A-Za-z0-9._-]+", "-", w.name)) for w in loads]
    counts = Counter([MIX, *(load.name for load in loads)])
    taken = (name for name, count in counts.items() if count > 1 or is_standard(name))
    twice = next(taken, None)
    if twice is not None:
        raise PinnError(
            f"--workload: the name {twice!r} is taken by another load, by a steady one or by that "
            f"of all loads ({MIX}), and files are named after loads: rename the file"
        )
    return loads


def _write_blis(
    configured: Configured, row: int, loads: list[Workload], out: Path, worst_error: float
) -> list[BlisVector]:
    from pinn.interface.exports.blis_files import write_configuration
    from pinn.interface.exports.blis_model import blis_kv_blocks, check_expressible
    from pinn.interface.exports.blis_vectors import (
        blis_vectors,
        typical_tokens,
        worst_taken,
    )

    check_expressible(configured.deployments[row])
    blocks = blis_kv_blocks(configured.deployments[row], typical_tokens(configured, row, loads))
    vectors = blis_vectors(configured, row, loads)
    worst = worst_taken(vectors)
    if abs(worst.worst.error) > worst_error:
        raise PinnError(
            f"BLIS's formula would be off by {worst.worst} with the coefficients of {worst.load}, "
            f"more than --worst-error {worst_error:g}: raise that, or take the Go adapter with "
            "'pinn export table', which has no such error"
        )
    write_configuration(configured, row, vectors, blocks, out, worst_error)
    _print_vectors(configured, row, vectors)
    return vectors


def _print_vectors(configured: Configured, row: int, vectors: list[BlisVector]) -> None:
    from pinn.interface.exports.blis_files import folder_name
    from pinn.interface.exports.blis_vectors import is_standard, worst_taken

    typer.echo(folder_name(configured, row))
    steady = [v for v in vectors if is_standard(v.load)]
    named = {f"{len(steady)} steady loads": worst_taken(vectors)}
    named |= {v.load: v for v in vectors if v not in steady}
    for name, v in named.items():
        note = "overloaded: not written" if v.overloaded else f"worst batch {v.worst}"
        typer.echo(f"  {name:16} {note}")


def _print_errors(found: list[list[BlisVector]]) -> None:
    import numpy as np

    from pinn.interface.exports.blis_vectors import MIX, worst_taken

    mixed = [v for vectors in found for v in vectors if v.load == MIX]
    picked = [worst_taken(vectors) for vectors in found]
    for name, each in (("as run.sh picks", picked), ("one for all loads", mixed)):
        worst = max(each, key=lambda v: abs(v.worst.error))
        median = 100 * np.median([abs(v.worst.error) for v in each])
        typer.echo(
            f"worst batch, {name}: median over {len(found)} configurations {median:.1f} %,\n"
            f"  worst {worst.worst}"
        )


@app.command()
@asked
def specs(
    out: Annotated[Path, output("--out", "JSON file to write.", ".json")], how: SpecsRequest
) -> None:
    """Models and GPUs as JSON, of which the Go package makes coefficients with a checkpoint.

    Example:
      pinn export specs --model ./config.json --gpu H100 --out specs.json
    """
    specs_of(out, how)


def specs_of(out: Path, how: SpecsRequest) -> None:
    """Write the models and GPUs."""
    from dataclasses import replace

    from pinn.common.screen import counted
    from pinn.interface.exports.specs import specs_document, write_specs

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
    from pinn.coefficients.configurations import make_deployments
    from pinn.interface.exports.configured import from_checkpoint, with_coefficient_files

    kept, deployments, reasons = make_deployments(rows, how.skip_invalid)
    for reason in sorted(set(reasons)):
        typer.echo(f"{reasons.count(reason):8} left out: {reason}")
    configured = from_checkpoint(find_checkpoint(how.checkpoint), kept, deployments)
    return with_coefficient_files(configured, how.coefficients or [])


def _asked_rows(configs: str | None, coefficients: list[Path] | None) -> list[dict[str, Any]]:
    from pinn.coefficients.configurations import typed_configurations

    return rows_of_files(coefficients) if configs is None else typed_configurations(configs)


def rows_of_files(paths: list[Path] | None) -> list[dict[str, Any]]:
    """The configurations that coefficient files belong to."""
    from pinn.coefficients.coefficients import read_coefficient_set
    from pinn.coefficients.configurations import canonical

    if not paths:
        raise PinnError("nothing to export: give --configs, or files with --coefficients")
    return [canonical(read_coefficient_set(path).configuration(), f"{path}: ") for path in paths]
