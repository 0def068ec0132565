"""Files for other programs: coefficient tables, ONNX graphs, folders for BLIS."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.api import requests
from pinn.api.arguments import read_request, with_arguments
from pinn.api.prediction import configuration_rows
from pinn.common.files import find_checkpoint
from pinn.common.screen import left_out_lines, printed
from pinn.engines.configurations import Values, canonical, make_deployments, typed_configurations
from pinn.errors import PinnError

if TYPE_CHECKING:
    from pinn.api.prediction import AnyConfigurations
    from pinn.export.configured import Configured


@dataclass(frozen=True)
class Written:
    """Files that an export wrote.

    Attributes:
        path: The file or folder.
        lines: What it holds, and what was left out, in words.
    """

    path: Path
    lines: tuple[str, ...]

    def __str__(self) -> str:
        """Return what the command prints."""
        return "\n".join(self.lines)


@with_arguments(request=requests.TableRequest)
def export_table(
    out: str | Path, configurations: AnyConfigurations | None = None, **given: object
) -> Written:
    """Write the flat coefficient table that the Go package loads: ``pinn export table``.

    Args:
        out: File to write.
        configurations: As of :func:`pinn.predict_many`. [default: those of ``coefficients``]
        **given: The keyword arguments below.

    Raises:
        PinnError: If something is unknown or does not fit together.
    """
    how, _ = read_request(requests.TableRequest, given)
    return write_table(Path(out), rows_of(configurations, how.coefficients), how)


def write_table(out: Path, rows: list[Values], how: requests.TableRequest) -> Written:
    """Write the table of configurations."""
    from pinn.export.configured import find_intervals
    from pinn.export.table import export_table, write_table_file

    (configured, lines), ends = _configured(rows, how), None
    if how.intervals:
        try:
            ends = find_intervals(configured, find_checkpoint(how.checkpoint))
        except PinnError as error:
            lines.append(f"without intervals: {error}")
    write_table_file(export_table(configured, ends), configured.provenance, out)
    return Written(out, (*lines, f"{len(configured):8} configurations written to {out}"))


@with_arguments(request=requests.BlisRequest)
def export_blis(
    out: str | Path, configurations: AnyConfigurations | None = None, **given: object
) -> Written:
    """Write a folder per configuration that an unmodified BLIS runs: ``pinn export blis``.

    Args:
        out: Folder for the folders.
        configurations: As of :func:`export_table`.
        **given: The keyword arguments below.

    Raises:
        PinnError: If something is unknown, does not fit together, or BLIS cannot express it.
    """
    how, _ = read_request(requests.BlisRequest, given)
    return write_blis(Path(out), rows_of(configurations, how.coefficients), how)


def write_blis(out: Path, rows: list[Values], how: requests.BlisRequest) -> Written:
    """Write the folders of configurations."""
    from pinn.export.blis_files import write_folders

    configured, lines = _configured(rows, how)
    settings = (how.workloads or [], out, how.worst_error, how.skip_invalid)
    said = printed(write_folders, configured, *settings)
    return Written(out, (*lines, *said.splitlines()))


@with_arguments(request=requests.OnnxRequest)
def export_onnx(out: str | Path, **given: object) -> Written:
    """Write the network and the step time as ONNX graphs into a folder: ``pinn export onnx``.

    Args:
        out: Folder for the two graphs.
        **given: The keyword arguments below.
    """
    return write_onnx(Path(out), read_request(requests.OnnxRequest, given)[0])


def write_onnx(out: Path, how: requests.OnnxRequest) -> Written:
    """Write the graphs and, where they are asked for, their inputs for one configuration."""
    from pinn.export.configured import checkpoint_provenance
    from pinn.export.onnx_graphs import export_onnx, write_inputs
    from pinn.surrogate.checkpoint import load_checkpoint

    path = find_checkpoint(how.checkpoint)
    loaded = load_checkpoint(path)
    files = export_onnx(loaded, checkpoint_provenance(path, loaded.metadata), out)
    lines = [f"{file.stat().st_size:10,} bytes  {file}" for file in files]
    if how.inputs is not None:
        rows = typed_configurations(how.configs)
        if len(rows) != 1:
            raise PinnError(f"--inputs is for one configuration, and --configs gives {len(rows)}")
        configured, _ = _configured(rows, requests.TableRequest(checkpoint=path))
        found = write_inputs(configured, how.batch, how.inputs)
        name = f"{found['configuration']['model']} on {found['configuration']['gpu']}"
        took = f"the graphs give {found['step_time_us']} us"
        lines.append(f"inputs of {name}, {how.batch}: {how.inputs}; {took}")
    return Written(out, tuple(lines))


def _configured(
    rows: list[Values], how: requests.TableRequest | requests.BlisRequest
) -> tuple[Configured, list[str]]:
    """Return configurations with coefficients, and a line for each reason to leave some out."""
    from pinn.export.configured import from_checkpoint, with_coefficient_files

    kept, deployments, reasons = make_deployments(rows, how.skip_invalid)
    configured = from_checkpoint(find_checkpoint(how.checkpoint), kept, deployments)
    configured = with_coefficient_files(configured, how.coefficients or [])
    return configured, left_out_lines(Counter(sorted(reasons)))


def rows_of(configurations: AnyConfigurations | None, files: Sequence[Path] | None) -> list[Values]:
    """Return configurations in any form; without them, those that coefficient files belong to."""
    from pinn.surrogate.coefficient_set import read_coefficient_set

    if configurations is not None:
        return configuration_rows(configurations)
    if not files:
        raise PinnError("nothing to export: give --configs, or files with --coefficients")
    return [canonical(read_coefficient_set(path).configuration(), f"{path}: ") for path in files]
