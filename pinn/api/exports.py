"""Export of files for other programs: coefficient tables, ONNX graphs, BLIS, llm-d."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinn.api.arguments import read_request, with_arguments
from pinn.api.prediction import configuration_rows
from pinn.api.requests import BlisRequest, LlmDRequest, OnnxRequest, TableRequest
from pinn.common.files import find_checkpoint
from pinn.common.screen import printed, skipped_lines
from pinn.engines.configurations import Values, canonical, make_deployments, typed_configurations
from pinn.errors import PinnError
from pinn.specs.serving import VLLM

if TYPE_CHECKING:
    from pinn.api.prediction import AnyConfigurations
    from pinn.export.configured import Configured


@dataclass(frozen=True)
class Written:
    """Files that an export wrote.

    Attributes:
        path: Path of the file or folder.
        lines: Sentences about what was written, and about skipped configurations with reasons.
    """

    path: Path
    lines: tuple[str, ...]

    def __str__(self) -> str:
        """Return the text that the command prints."""
        return "\n".join(self.lines)


@with_arguments(request=TableRequest)
def export_table(
    out: str | Path, configurations: AnyConfigurations | None = None, **given: object
) -> Written:
    """Write the coefficient table that the Go package loads, as ``pinn export table`` does.

    Args:
        out: File to write.
        configurations: Configurations in any form that :func:`pinn.predict_many` accepts. [default:
            configurations of the files ``coefficients``]
        **given: Keyword arguments listed below.

    Raises:
        PinnError: If a name or flag is unknown, or a configuration contradicts itself.
    """
    from pinn.export import table
    from pinn.export.configured import find_intervals

    how, _ = read_request(TableRequest, given, out=out, configurations=configurations)
    (configured, lines), ends = _configured(configurations, how), None
    if how.intervals:
        try:
            ends = find_intervals(configured, find_checkpoint(how.checkpoint))
        except PinnError as error:
            lines.append(f"the exported table has no prediction intervals: {error}")
    path = Path(out)
    table.write_table_file(table.export_table(configured, ends), configured.provenance, path)
    return Written(path, (*lines, f"{len(configured):8} configurations written to {out}"))


@with_arguments(request=BlisRequest)
def export_blis(
    out: str | Path, configurations: AnyConfigurations | None = None, **given: object
) -> Written:
    """Write files with which an unmodified BLIS runs configurations, as ``pinn export blis`` does.

    Args:
        out: Folder to write to. It gets a folder for each configuration or, with --target kernel,
            a registry, a catalog and scenarios.
        configurations: Configurations in any form that :func:`export_table` accepts.
        **given: Keyword arguments listed below.

    Raises:
        PinnError: If a name or flag is unknown, a configuration contradicts itself, or BLIS cannot
            express a configuration.
    """
    from pinn.export.blis_files import WORST_ERROR, write_folders
    from pinn.export.kernel_documents import ENGINE_VERSION
    from pinn.export.kernel_files import write_registry

    how, _ = read_request(BlisRequest, given, out=out, configurations=configurations)
    if how.target == "kernel":
        if how.workloads:
            raise PinnError(
                "--workload applies only to --target folder: omit --workload, since a "
                "coefficient set has no load"
            )
        configured, lines = _configured(configurations, how, ENGINE_VERSION)
        said = printed(write_registry, configured, Path(out), how.worst_error, how.skip_invalid)
        return _folders(out, lines, said)
    worst = WORST_ERROR if how.worst_error is None else how.worst_error
    configured, lines = _configured(configurations, how)
    settings = (how.workloads or [], Path(out), worst, how.skip_invalid)
    return _folders(out, lines, printed(write_folders, configured, *settings))


@with_arguments(request=LlmDRequest)
def export_llm_d(
    out: str | Path, configurations: AnyConfigurations | None = None, **given: object
) -> Written:
    """Write initial data for llm-d, a folder per configuration, as ``pinn export llm-d`` does.

    Args:
        out: Folder to write to, with a subfolder for each configuration.
        configurations: Configurations in any form that :func:`export_table` accepts.
        **given: Keyword arguments listed below.

    Raises:
        PinnError: If a name or flag is unknown, or a configuration contradicts itself or cannot
            serve a load.
    """
    from pinn.export.llmd_files import SeedSettings, write_seeds

    how, _ = read_request(LlmDRequest, given, out=out, configurations=configurations)
    configured, lines = _configured(configurations, how)
    checkpoint = find_checkpoint(how.checkpoint)
    settings = SeedSettings(checkpoint, how.coefficients or [], how.entries, how.seed)
    said = printed(write_seeds, configured, settings, Path(out), how.skip_invalid)
    return _folders(out, lines, said)


def _folders(out: str | Path, lines: Sequence[str], said: str) -> Written:
    """Return the result of an export that wrote one folder per configuration."""
    return Written(Path(out), (*lines, *said.splitlines()))


@with_arguments(request=OnnxRequest)
def export_onnx(out: str | Path, **given: object) -> Written:
    """Write the network and the step time formula as ONNX graphs, as ``pinn export onnx`` does.

    Args:
        out: Folder to write the two ONNX graphs to.
        **given: Keyword arguments listed below.
    """
    from pinn.export import onnx_graphs
    from pinn.export.configured import checkpoint_provenance
    from pinn.surrogate.checkpoint import load_checkpoint

    how, _ = read_request(OnnxRequest, given, out=out)
    path = find_checkpoint(how.checkpoint)
    loaded = load_checkpoint(path)
    provenance = checkpoint_provenance(path, loaded.metadata)
    files = onnx_graphs.export_onnx(loaded, provenance, Path(out))
    lines = [f"{file.stat().st_size:10,} bytes  {file}" for file in files]
    if how.inputs is not None:
        rows = typed_configurations(how.configs)
        if len(rows) != 1:
            raise PinnError(
                f"--inputs needs one configuration, but --configs gives {len(rows)}: give one "
                f"configuration"
            )
        configured, _ = _configured(rows, TableRequest(checkpoint=path))
        found = onnx_graphs.write_inputs(configured, how.batch, how.inputs)
        name = f"{found['configuration']['model']} on {found['configuration']['gpu']}"
        took = f"the graphs predict {found['step_time_us']} us"
        lines.append(f"inputs of {name}, {how.batch}: {how.inputs}; {took}")
    return Written(Path(out), tuple(lines))


def _configured(
    configurations: AnyConfigurations | None,
    how: TableRequest | BlisRequest | LlmDRequest,
    release: str = "",
) -> tuple[Configured, list[str]]:
    """Return configurations with their coefficients, and notes on skipped configurations.

    Args:
        configurations: Configurations in any form that :func:`export_table` accepts.
        how: Settings of the export.
        release: vLLM release for configurations that specify no release and have no coefficient
            file.
    """
    from pinn.export.configured import from_checkpoint, with_coefficient_files

    rows = _rows(configurations, how.coefficients)
    if release and not how.coefficients:
        rows = [_at_release(row, release) for row in rows]
    kept, deployments, errors = make_deployments(rows, how.skip_invalid)
    reasons = [str(error) for error in errors.values()]
    if not kept:
        why = f", first reason: {reasons[0]}" if reasons else ""
        fault = f"all {len(reasons)} configurations were skipped{why}"
        raise PinnError(f"{fault}: give a valid configuration")
    configured = from_checkpoint(find_checkpoint(how.checkpoint), kept, deployments)
    configured = with_coefficient_files(configured, how.coefficients or [])
    return configured, skipped_lines(Counter(sorted(reasons)))


def _at_release(row: Values, release: str) -> Values:
    """Add a vLLM release to a configuration that specifies neither a release nor an engine."""
    named = row.get("engine_version") or row.get("engine", VLLM) != VLLM
    return row if named else {**row, "engine_version": release}


def _rows(configurations: AnyConfigurations | None, files: Sequence[Path] | None) -> list[Values]:
    """Return the given configurations, or else those of the coefficient files."""
    from pinn.surrogate.coefficient_set import read_coefficient_set

    if configurations is not None:
        return configuration_rows(configurations)
    if not files:
        raise PinnError(
            "no configuration to export is given: give configurations (--configs) or coefficient "
            "files (--coefficients)"
        )
    return [canonical(read_coefficient_set(path).configuration(), f"{path}: ") for path in files]
