"""``pinn ingest``."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from pinn.cli.options import engine_flags
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun
from pinn.measurements.benchmarks.reading import GivenLoad, split_flags
from pinn.measurements.traces import ingestion, trace_tables
from pinn.measurements.traces.trace_tables import Target
from pinn.specs.serving import ServingSpec
from pinn.units import MILLISECOND

# Benchmark runs in print.

#: A server that answered less than this share of the rate it was asked for is overloaded.
_KEPT_UP = 0.9
_SHOWN = ("ttft", "tpot", "itl", "e2e")


def run_lines(runs: Sequence[BenchmarkRun]) -> list[str]:
    """A table of runs and, below it, what was assumed of them."""
    heads = " ".join(f"{name.upper():>9s}" for name in _SHOWN)
    lines = [f"{'mean, ms':40s} {heads}  load"]
    for run in runs:
        cells = " ".join(_milliseconds(run.figures.get(f"{name}_mean_s")) for name in _SHOWN)
        end = run.name if len(run.name) <= 40 else "..." + run.name[-37:]
        lines.append(f"{end:40s} {cells}  {run.load.text}")
        if run.failed:
            lines.append(f"{'':40s} {run.failed} of {run.served + run.failed} requests failed")
        served, rate = run.figures.get("requests_per_s"), run.load.rate_per_s
        if served is not None and rate is not None and served < _KEPT_UP * rate:
            text = f"overloaded: served {served:.3g} of {rate:.3g} requests/s"
            lines.append(f"{'':40s} {text}")
    tools = sorted(Counter(run.tool for run in runs).items())
    lines.append("\n" + ", ".join(f"{n} of {tool}" for tool, n in tools))
    assumed = dict.fromkeys(text for run in runs for text in run.assumed)
    return lines + [f"assumed: {text}" for text in assumed]


def _milliseconds(seconds: float | None) -> str:
    return f"{'-':>9s}" if seconds is None else f"{seconds / MILLISECOND:9.4g}"


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
@engine_flags(ServingSpec)
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
@engine_flags(ServingSpec)
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
@engine_flags(ServingSpec, GivenLoad)
def benchmarks(
    files: Annotated[list[Path], typer.Argument()], asked: IngestRequest, *, flags: dict[str, Any]
) -> None:
    """Read result files of serving benchmarks, metrics pages and logs, of any known tool.

    vllm bench serve, sglang.bench_serving, aiperf and genai-perf, guidellm, inference-perf,
    InferenceX, llm-d-benchmark; pairs of /metrics pages of vLLM and SGLang; vLLM's iteration log
    and its request spans. The content tells which tool wrote a file.

    Example: pinn ingest benchmarks *.json -o run1 --model Llama-3.1-8B --gpu H100

    Options:
        files: Files or folders; metrics pages in pairs, the earlier first.
    """
    server, given = split_flags(flags)
    named = ingestion.GivenServer(asked.model, asked.gpu, server)
    runs, report = ingestion.ingest_benchmarks(files, asked.out, named, given)
    _tell(asked.out, "\n".join([report.table(), "", *run_lines(runs)]))


def _tell(folder: Path, text: str) -> None:
    typer.echo(text)
    typer.echo(f"\nwrote {folder}")
