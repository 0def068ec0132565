"""Ingestion of a server's traces, steps and benchmark files into tables on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinn.api.arguments import read_request, with_arguments
from pinn.api.score_requests import IngestRequest
from pinn.calibration.checks_benchmarks import stated_mismatches, unknown_servers
from pinn.engines.labels import server_label
from pinn.errors import PinnError
from pinn.measurements.benchmarks.reading import GivenLoad, split_flags
from pinn.measurements.benchmarks.run_table import run_lines
from pinn.measurements.benchmarks.taken_flags import taken_lines
from pinn.measurements.traces import ingestion, trace_tables
from pinn.measurements.traces.trace_tables import Target
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Ingested:
    """Tables of a server's measurements on disk.

    Attributes:
        folder: Folder of the tables, for ``pinn.calibrate(observations=...)``.
        report: Printed text with the counts of data read, accepted and rejected.
        left_out: Number of benchmark files, runs and lines that could not be read.
    """

    folder: Path
    report: str
    left_out: int = 0

    def names(self) -> list[str]:
        """Names of the ingested tables that have rows."""
        listed = trace_tables.read_trace_tables(self.folder).manifest["tables"]
        return [name for name, table in listed.items() if table.get("rows")]

    def table(self, name: str) -> pd.DataFrame:
        """Return the rows of the table with this name."""
        found: pd.DataFrame = trace_tables.read_trace_tables(self.folder).table(name).to_pandas()
        return found

    def __str__(self) -> str:
        """Return the text that ``pinn ingest`` prints."""
        return f"{self.report}\n\nwrote {self.folder}"


@with_arguments(ServingSpec, request=IngestRequest, serves=True)
def ingest_vllm(
    traces: str | Path, out: str | Path, *, workers: int = 1, **given: object
) -> Ingested:
    """Read the OpenTelemetry step traces of a vLLM server, as ``pinn ingest vllm`` does.

    Args:
        traces: File with one OTLP-JSON export on each line.
        out: Folder to write the tables to.
        workers: Number of processes that parse the file.
        **given: Model, GPU and flags of the server.

    Raises:
        PinnError: If the file cannot be read, or contains no data from the server.
    """
    own = {"traces": traces, "out": out, "workers": workers}
    asked, flags = read_request(IngestRequest, given, ServingSpec, **own)
    tables = ingestion.ingest_vllm(Path(traces), asked.out, _target(asked, flags), workers)
    report = trace_tables.cleaning_tables(tables.manifest)
    if not tables.manifest["tables"]["steps"]["rows"]:
        report += (
            "\nthere are no engine steps in it, so nothing can be calibrated; if "
            "these are request spans of an unmodified vLLM, read them with 'pinn "
            "ingest benchmarks'"
        )
    return Ingested(tables.folder, report)


@with_arguments(ServingSpec, request=IngestRequest, serves=True)
def ingest_steps(file: str | Path, out: str | Path, **given: object) -> Ingested:
    """Read step summaries or measured steps, as ``pinn ingest steps`` does.

    Args:
        file: Parquet file of step summaries, or folder or CSV file of measured steps.
        out: Folder to write the tables to.
        **given: Model, GPU and flags of the server.

    Raises:
        PinnError: If the file cannot be read.
    """
    asked, flags = read_request(IngestRequest, given, ServingSpec, file=file, out=out)
    source = Path(file)
    if source.is_dir() or source.suffix == ".csv":
        server = ingestion.GivenServer(asked.model, asked.gpu, flags)
        found = ingestion.ingest_measured_steps(source, asked.out, server)
        batches = f"{len(found):8}  batches with a median"
        return Ingested(asked.out, f"{found.report.table()}\n{batches}")
    tables = ingestion.ingest_steps(source, asked.out, _target(asked, flags))
    return Ingested(tables.folder, trace_tables.cleaning_tables(tables.manifest))


@with_arguments(ServingSpec, GivenLoad, request=IngestRequest, serves=True)
def ingest_benchmarks(
    files: str | Path | Sequence[str | Path], out: str | Path, **given: object
) -> Ingested:
    """Read result files of serving benchmarks, as ``pinn ingest benchmarks`` does.

    Args:
        files: Files or folders. Metrics pages are given in pairs, the earlier page first, or as one
            page with a ``duration``.
        out: Folder to write the tables to.
        **given: Model, GPU and flags of the server, and flags of the load for data missing from the
            files.

    Raises:
        PinnError: If no file can be used.
    """
    own = {"files": files, "out": out}
    asked, flags = read_request(IngestRequest, given, ServingSpec, GivenLoad, **own)
    server, load = split_flags(flags)
    named = ingestion.GivenServer(asked.model, asked.gpu, server)
    listed = [files] if isinstance(files, str | Path) else files
    paths = [Path(file) for file in listed]
    runs, report = ingestion.ingest_benchmarks(paths, asked.out, named, load)
    target = ingestion.benchmark_target(runs, asked.model, asked.gpu, server)
    taken = taken_lines(runs, target, server)
    deployment = target.deployment()
    found = [*stated_mismatches(runs, deployment), *unknown_servers(runs, deployment)]
    warnings = [f"WARNING: {each}" for each in found]
    shown = [report.table(), "", *run_lines(runs), server_label(deployment), *taken, *warnings]
    text = "\n".join(shown)
    return Ingested(asked.out, text, sum(report.refused.values()))


def _target(asked: IngestRequest, flags: dict[str, Any]) -> Target | None:
    """Return the measured deployment that the flags describe; None if model or GPU is missing."""
    if (asked.model is None) != (asked.gpu is None):
        raise PinnError("only one of --model and --gpu is given: give both, or omit both")
    return None if asked.model is None else Target.of(asked.model, asked.gpu, flags)
