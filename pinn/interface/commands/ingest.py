"""``pinn ingest``."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from pinn.common.files import ReadReport
from pinn.interface.commands.options import engine_flags
from pinn.server.benchmarks.benchmark_run import BenchmarkRun, GivenLoad, split_flags
from pinn.server.benchmarks.read import read_benchmarks
from pinn.server.readers.inference_perf import read_inference_perf
from pinn.server.readers.iteration_log import read_blis_trace, read_iteration_log
from pinn.server.traces import ingestion
from pinn.server.traces.cleaning import cleaning_tables
from pinn.server.traces.measured_steps import MEASURED, read_measured_steps
from pinn.server.traces.trace_run import Target
from pinn.server.traces.trace_tables import (
    atomic_folder,
    deployment_entry,
    write_manifest,
    write_table,
)
from pinn.specs.serving import ServingSpec
from pinn.units import MILLISECOND

# Benchmark runs in print.

_SHOWN = ("ttft_mean_s", "tpot_mean_s", "itl_mean_s", "e2e_mean_s")


def run_lines(runs: Sequence[BenchmarkRun]) -> list[str]:
    """A table of runs and, below it, what was assumed of them."""
    heads = " ".join(f"{name.removesuffix('_mean_s').upper():>9s}" for name in _SHOWN)
    lines = [f"{'mean, ms':40s} {heads}  load"]
    for run in runs:
        cells = " ".join(_milliseconds(run.figures.get(name)) for name in _SHOWN)
        lines.append(f"{_short(run.name):40s} {cells}  {run.load.text}")
        if run.failed:
            lines.append(f"{'':40s} {run.failed} of {run.served + run.failed} requests failed")
    tools = {tool: sum(run.tool == tool for run in runs) for tool in {run.tool for run in runs}}
    lines.append("\n" + ", ".join(f"{n} of {tool}" for tool, n in sorted(tools.items())))
    assumed = dict.fromkeys(text for run in runs for text in run.assumed)
    return lines + [f"assumed: {text}" for text in assumed]


def _short(name: str) -> str:
    """The end of a path."""
    return name if len(name) <= 40 else "..." + name[-37:]


def _milliseconds(seconds: float | None) -> str:
    return f"{'-':>9s}" if seconds is None else f"{seconds / MILLISECOND:9.4g}"


app = typer.Typer(
    no_args_is_help=True, help="Read a server's traces into tables, with a report of what was read."
)

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the tables.")]
Model = Annotated[
    str | None, typer.Option(help="Model served: a name, or the path of its config.json.")
]
Gpu = Annotated[str | None, typer.Option(help="GPU it ran on, such as H100.")]


def _target(model: str | None, gpu: str | None, flags: dict[str, Any]) -> Target | None:
    """The deployment named by the flags; None without a model or a GPU."""
    if model is None or gpu is None:
        if model is not None or gpu is not None:
            raise typer.BadParameter("give --model and --gpu together, or neither")
        return None
    serving = dict(flags)
    precision = serving.pop("precision", None)
    return Target(model, gpu, ServingSpec(**serving), precision)


@app.command()
@engine_flags(ServingSpec)
def vllm(
    traces: Annotated[Path, typer.Argument(help="traces.json: one OTLP-JSON export a line.")],
    out: Out,
    kv_events: Annotated[Path | None, typer.Option(help="kv_events.jsonl of the run.")] = None,
    model: Model = None,
    gpu: Gpu = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that parse.")] = 1,
    *,
    flags: dict[str, Any],
) -> None:
    """Read the traces of an instrumented vLLM.

    Example: pinn ingest vllm traces.json -o run1 --model Llama-3.1-8B --gpu H100
    """
    target = _target(model, gpu, flags)
    tables = ingestion.ingest_vllm(traces, out, target, kv_events=kv_events, workers=workers)
    _tell(tables.folder, cleaning_tables(tables.manifest))
    if not tables.manifest["tables"]["steps"]["rows"]:
        typer.echo(
            "it holds no engine steps, so there is nothing to calibrate on; request spans of stock "
            "vLLM, which carry latencies, are read by 'pinn ingest benchmarks'"
        )


@app.command()
@engine_flags(ServingSpec)
def steps(
    file: Annotated[
        Path,
        typer.Argument(help="Step summaries as Parquet, or whole steps: a folder or a CSV file."),
    ],
    out: Out,
    model: Model = None,
    gpu: Gpu = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Read step summaries that are already in a table, or whole steps with their own times.

    Whole steps are what 'pinn measure' writes, or the same columns of Dynamo's forward-pass
    metrics, of one server.

    Examples:
      pinn ingest steps steps.parquet -o run1 --model Llama-3.1-8B --gpu H100

      pinn ingest steps steps/ -o run1
    """
    if file.is_dir() or file.suffix == ".csv":
        _measured(file, out, model, gpu, flags)
        return
    target = _target(model, gpu, flags)
    tables = ingestion.ingest_steps(file, out, target)
    _tell(tables.folder, cleaning_tables(tables.manifest))


def _measured(
    file: Path, out: Path, model: str | None, gpu: str | None, flags: dict[str, Any]
) -> None:
    found = read_measured_steps(file)
    target = found.target(model, gpu, flags)
    target.deployment()
    table = pa.Table.from_pandas(found.rows, preserve_index=False)
    _write(out, {MEASURED: table}, found.report, [file], target, {"facts": dict(found.facts)})
    _tell(out, f"{found.report.table()}\n{len(found):8}  batches with a median")


@app.command()
@engine_flags(ServingSpec, GivenLoad)
def benchmarks(
    files: Annotated[
        list[Path],
        typer.Argument(help="Files or folders; metrics pages in pairs, the earlier first."),
    ],
    out: Out,
    model: Model = None,
    gpu: Gpu = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Read result files of serving benchmarks, metrics pages and logs, of any known tool.

    vllm bench serve, sglang.bench_serving, aiperf and genai-perf, guidellm, inference-perf,
    InferenceX, llm-d-benchmark; pairs of /metrics pages of vLLM and SGLang; vLLM's iteration log
    and its request spans. The content tells which tool wrote a file.

    Example: pinn ingest benchmarks *.json -o run1 --model Llama-3.1-8B --gpu H100
    """
    server, given = split_flags(flags)
    runs, report = read_benchmarks(files, given)
    target = ingestion.benchmark_target(runs, model, gpu, server)
    target.deployment()
    _write(out, {ingestion.BENCHMARKS: ingestion.benchmark_table(runs)}, report, files, target)
    _tell(out, "\n".join([report.table(), "", *run_lines(runs)]))


@app.command("inference-perf")
@engine_flags(ServingSpec, GivenLoad)
def inference_perf(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, or of several.")],
    out: Out,
    model: Model = None,
    gpu: Gpu = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Read the lifecycle reports of the load generator inference-perf.

    Model and flags are read off exp-config.yaml where a folder has one; with --gpu, the folder can
    be scored and calibrated on.

    Example: pinn ingest inference-perf results/ -o run1 --gpu H100
    """
    rows, report = read_inference_perf(folder)
    server, given = split_flags(flags)
    tables = {"stages": pa.Table.from_pandas(rows, preserve_index=False)}
    target = None
    if gpu is not None:
        runs, _ = read_benchmarks([folder], given)
        target = ingestion.benchmark_target(runs, model, gpu, server)
        target.deployment()
        tables[ingestion.BENCHMARKS] = ingestion.benchmark_table(runs)
    _write(out, tables, report, [folder], target)
    halved, overloaded = rows["itl_rule"] == "halved", rows[rows["overloaded"]]
    notes = [f"{'run':48s} {'stage':>5s}  TTFT mean s  ITL mean ms  E2E mean s"]
    notes += [
        f"{r['run'][:48]:48s} {r['stage']:>5s}  {_figure(r['ttft_mean_s']):>11s}  "
        f"{_figure(r['itl_mean_s'], 1e3):>11s}  {_figure(r['e2e_mean_s']):>10s}"
        for _, r in rows.iterrows()
    ]
    if halved.any():
        notes.append(
            f"\n{int(halved.sum())} report(s) count two stream chunks per token, so that their "
            "ITL is near half; it was replaced by (E2E - TTFT) / (requested output tokens - 1)"
        )
    notes += [
        f"OVERLOADED: {r['run']} stage {r['stage']}: {r['why']}" for _, r in overloaded.iterrows()
    ]
    _tell(out, "\n".join([report.table(), "", *notes]))


def _figure(value: float | None, scale: float = 1.0) -> str:
    """Four digits, or a dash where a report leaves the figure out."""
    return "-" if value is None or isnan(value) else f"{value * scale:.4g}"


@app.command("blis-trace")
def blis_trace(
    header: Annotated[Path, typer.Argument(help="TraceV2 header (YAML).")],
    data: Annotated[Path, typer.Argument(help="TraceV2 requests (CSV).")],
    out: Out,
) -> None:
    """Read a TraceV2 trace of the BLIS simulator.

    Example: pinn ingest blis-trace trace.yaml trace.csv -o run1
    """
    trace = read_blis_trace(header, data)
    table = pa.Table.from_pandas(trace.requests, preserve_index=False)
    _write(out, {"client_requests": table}, trace.report, [data], more={"header": trace.header})
    _tell(out, trace.report.table())


@app.command("iteration-log")
@engine_flags(ServingSpec, GivenLoad)
def iteration_log(
    file: Annotated[Path, typer.Argument(help="Log of vLLM.")],
    out: Out,
    model: Model = None,
    gpu: Gpu = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Read the lines that vLLM logs with --enable-logging-iteration-details.

    With --gpu the log's load and mean gap between tokens become a run to score and calibrate on.

    Example: pinn ingest iteration-log vllm.log -o run1 --gpu H100
    """
    table, report = read_iteration_log(file)
    server, given = split_flags(flags)
    tables, target = {"iterations": table}, None
    lines: list[str] = []
    if gpu is not None:
        runs, _ = read_benchmarks([file], given)
        target = ingestion.benchmark_target(runs, model, gpu, server)
        target.deployment()
        tables[ingestion.BENCHMARKS] = ingestion.benchmark_table(runs)
        lines = ["", *run_lines(runs)]
    _write(out, tables, report, [file], target)
    _tell(out, "\n".join([report.table(), *lines]))


def _write(
    out: Path,
    tables: dict[str, pa.Table],
    report: ReadReport,
    sources: list[Path],
    target: Target | None = None,
    more: dict[str, Any] | None = None,
) -> None:
    with atomic_folder(out) as folder:
        entries = {
            name: write_table(folder, name, table, table.schema) for name, table in tables.items()
        }
        write_manifest(
            folder,
            {
                "sources": [{"path": source.name, "sha256": report.sha256} for source in sources],
                "deployment": target and deployment_entry(**vars(target)),
                "tables": entries,
                "reports": {next(iter(tables)): report.to_json()},
                **(more or {}),
            },
        )


def _tell(folder: Path, text: str) -> None:
    typer.echo(text)
    typer.echo(f"\nwrote {folder}")


if __name__ == "__main__":
    app()
