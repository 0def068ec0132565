"""``pinn ingest``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.cli.options import engine_flags
from pinn.cli.outputs import PARTLY_READ
from pinn.measurements.benchmarks.reading import GivenLoad, split_flags
from pinn.measurements.benchmarks.run_table import run_lines
from pinn.measurements.traces import ingestion, trace_tables
from pinn.measurements.traces.trace_tables import Target
from pinn.specs.serving import ServingSpec

app = typer.Typer(
    no_args_is_help=True, help="Read a server's traces into tables, with a report of what was read."
)


@dataclass(frozen=True, kw_only=True)
class IngestRequest:
    """Where tables go, and the server that they are of.

    Attributes:
        out: Folder for the tables.
        model: Model served: a name, or the path of its config.json.
        gpu: GPU it ran on, such as H100.
    """

    out: Annotated[Path, typer.Option("--out", "-o")]
    model: str | None = None
    gpu: str | None = None


def _target(asked: IngestRequest, flags: dict[str, Any]) -> Target | None:
    """The deployment named by the flags; None without a model or a GPU."""
    if (asked.model is None) != (asked.gpu is None):
        raise typer.BadParameter("give --model and --gpu together, or neither")
    return None if asked.model is None else Target.of(asked.model, asked.gpu, flags)


@app.command()
@engine_flags(ServingSpec, serves=True)
def vllm(
    traces: Annotated[Path, typer.Argument()],
    asked: IngestRequest,
    workers: Annotated[int, typer.Option(min=1)] = 1,
    *,
    flags: dict[str, Any],
) -> None:
    """Read the traces of an instrumented vLLM.

    Example: pinn ingest vllm traces.json -o run1 --model Llama-3.1-8B --gpu H100

    Options:
        traces: traces.json: one OTLP-JSON export a line.
        workers: Processes that parse.
    """
    target = _target(asked, flags)
    tables = ingestion.ingest_vllm(traces, asked.out, target, workers)
    _tell(tables.folder, trace_tables.cleaning_tables(tables.manifest))
    if not tables.manifest["tables"]["steps"]["rows"]:
        typer.echo(
            "it holds no engine steps, so there is nothing to calibrate on; request spans of stock "
            "vLLM, which carry latencies, are read by 'pinn ingest benchmarks'"
        )


@app.command()
@engine_flags(ServingSpec, serves=True)
def steps(
    file: Annotated[Path, typer.Argument()], asked: IngestRequest, *, flags: dict[str, Any]
) -> None:
    """Read step summaries that are already in a table, or whole steps with their own times.

    Whole steps are what 'pinn measure' writes, or the same columns of Dynamo's forward-pass
    metrics, of one server.

    Examples:
      pinn ingest steps steps.parquet -o run1 --model Llama-3.1-8B --gpu H100

      pinn ingest steps steps/ -o run1

    Options:
        file: Step summaries as Parquet, or whole steps: a folder or a CSV file.
    """
    if file.is_dir() or file.suffix == ".csv":
        given = ingestion.GivenServer(asked.model, asked.gpu, flags)
        found = ingestion.ingest_measured_steps(file, asked.out, given)
        _tell(asked.out, f"{found.report.table()}\n{len(found):8}  batches with a median")
        return
    named = _target(asked, flags)
    tables = ingestion.ingest_steps(file, asked.out, named)
    _tell(tables.folder, trace_tables.cleaning_tables(tables.manifest))


@app.command()
@engine_flags(ServingSpec, GivenLoad, serves=True)
def benchmarks(
    files: Annotated[list[Path], typer.Argument()], asked: IngestRequest, *, flags: dict[str, Any]
) -> None:
    """Read result files of serving benchmarks, metrics pages and logs, of any known tool.

    vllm bench serve, sglang.bench_serving, aiperf and genai-perf, guidellm, inference-perf,
    InferenceX, llm-d-benchmark, llmperf, the latency profile generator; what vLLM's and SGLang's
    benchmark print, and tables of 'vllm bench sweep'; /metrics pages of vLLM and SGLang; vLLM's
    iteration log and its request spans. The content tells which tool wrote a file. What cannot be
    read is left out, counted and named, and the exit status is 3.

    Examples:
      pinn ingest benchmarks *.json -o run1 --model Llama-3.1-8B --gpu H100

      pinn ingest benchmarks results/ -o run1 --gpu H100
        --serve 'vllm serve Qwen/Qwen3-32B -tp 2'

    Options:
        files: Files or folders; metrics pages in pairs, the earlier first, or one with --duration.
    """
    server, given = split_flags(flags)
    named = ingestion.GivenServer(asked.model, asked.gpu, server)
    runs, report = ingestion.ingest_benchmarks(files, asked.out, named, given)
    _tell(asked.out, "\n".join([report.table(), "", *run_lines(runs)]))
    if report.refused:
        raise typer.Exit(PARTLY_READ)


def _tell(folder: Path, text: str) -> None:
    typer.echo(text)
    typer.echo(f"\nwrote {folder}")
