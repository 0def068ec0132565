"""Command ``pinn ingest`` with subcommands vllm, steps and benchmarks."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.api.score_requests import IngestRequest
from pinn.cli.options import engine_flags
from pinn.cli.outputs import PARTLY_READ
from pinn.measurements.benchmarks.reading import GivenLoad
from pinn.specs.serving import ServingSpec

app = typer.Typer(
    no_args_is_help=True,
    help="Convert a server's traces or benchmark results into tables for 'pinn calibrate'.",
)


@app.command()
@engine_flags(ServingSpec, serves=True)
def vllm(
    traces: Annotated[Path, typer.Argument()],
    asked: IngestRequest,
    workers: Annotated[int, typer.Option(min=1)] = 1,
    *,
    flags: dict[str, Any],
) -> None:
    """Read the step traces of an instrumented vLLM.

    Example: pinn ingest vllm traces.json -o run1 --model Llama-3.1-8B --gpu H100

    Options:
        traces: File of traces, with one OTLP-JSON export on each line.
        workers: Number of processes that parse the file.
    """
    from pinn.api import ingestion

    typer.echo(ingestion.ingest_vllm(traces, workers=workers, **(vars(asked) | flags)))


@app.command()
@engine_flags(ServingSpec, serves=True)
def steps(
    file: Annotated[Path, typer.Argument()], asked: IngestRequest, *, flags: dict[str, Any]
) -> None:
    """Read a table of step summaries, or of measured steps with the time of each.

    Measured steps come from 'pinn measure', or are Dynamo's forward-pass metrics of one server in
    the same columns.

    Examples:
      pinn ingest steps steps.parquet -o run1 --model Llama-3.1-8B --gpu H100

      pinn ingest steps steps/ -o run1

    Options:
        file: Step summaries as a Parquet file, or measured steps as a folder or a CSV file.
    """
    from pinn.api import ingestion

    typer.echo(ingestion.ingest_steps(file, **(vars(asked) | flags)))


@app.command()
@engine_flags(ServingSpec, GivenLoad, serves=True)
def benchmarks(
    files: Annotated[list[Path], typer.Argument()], asked: IngestRequest, *, flags: dict[str, Any]
) -> None:
    """Read result files of serving benchmarks, /metrics pages and logs.

    Accepted are the results of vllm bench serve, sglang.bench_serving, aiperf, genai-perf,
    guidellm, inference-perf, InferenceX, llm-d-benchmark, llmperf and the latency profile
    generator; the printed output of vLLM's and SGLang's benchmarks, and tables of 'vllm bench
    sweep'; /metrics pages of vLLM and SGLang; vLLM's iteration log and its request spans. The tool
    is recognized by the contents of a file. Files and lines that cannot be read are skipped,
    counted and named, and the exit status is then 3.

    Examples:
      pinn ingest benchmarks *.json -o run1 --model Llama-3.1-8B --gpu H100

      pinn ingest benchmarks results/ -o run1 --gpu H100
        --serve 'vllm serve Qwen/Qwen3-32B -tp 2'

    Options:
        files: Result files of benchmark tools, or folders of them. Give /metrics pages in pairs,
            the earlier one first, or one page with --duration.
    """
    from pinn.api import ingestion

    found = ingestion.ingest_benchmarks(files, **(vars(asked) | flags))
    typer.echo(found)
    if found.left_out:
        raise typer.Exit(PARTLY_READ)
