"""``pinn ingest``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.api.score_requests import IngestRequest
from pinn.cli.options import engine_flags
from pinn.cli.outputs import PARTLY_READ
from pinn.measurements.benchmarks.reading import GivenLoad
from pinn.specs.serving import ServingSpec

app = typer.Typer(
    no_args_is_help=True, help="Read a server's traces into tables, with a report of what was read."
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
    """Read the traces of an instrumented vLLM.

    Example: pinn ingest vllm traces.json -o run1 --model Llama-3.1-8B --gpu H100

    Options:
        traces: traces.json: one OTLP-JSON export a line.
        workers: Processes that parse.
    """
    from pinn.api import ingestion

    typer.echo(ingestion.ingest_vllm(traces, workers=workers, **(vars(asked) | flags)))


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
    from pinn.api import ingestion

    typer.echo(ingestion.ingest_steps(file, **(vars(asked) | flags)))


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
    read is skipped, counted and named, and the exit status is 3.

    Examples:
      pinn ingest benchmarks *.json -o run1 --model Llama-3.1-8B --gpu H100

      pinn ingest benchmarks results/ -o run1 --gpu H100
        --serve 'vllm serve Qwen/Qwen3-32B -tp 2'

    Options:
        files: Files or folders; metrics pages in pairs, the earlier first, or one with --duration.
    """
    from pinn.api import ingestion

    found = ingestion.ingest_benchmarks(files, **(vars(asked) | flags))
    typer.echo(found)
    if found.left_out:
        raise typer.Exit(PARTLY_READ)
