"""``pinn ingest``."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from pinn.cli.serving_flags import engine_flags
from pinn.observations.cleaning import cleaning_tables
from pinn.observations.ingestion import ingest_steps, ingest_vllm
from pinn.observations.trace_run import Target
from pinn.observations.trace_tables import atomic_folder, write_manifest, write_table
from pinn.sources.report import ReadReport
from pinn.sources.traces.blis_trace import read_blis_trace
from pinn.sources.traces.inference_perf import read_inference_perf
from pinn.sources.traces.iteration_log import read_iteration_log
from pinn.specs.serving import ServingSpec

app = ingest_app = typer.Typer(
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

    Example: pinn ingest vllm traces.json -o run1 --model codellama/CodeLlama-34b-Instruct-hf --gpu
    H100 --tensor-parallel-size 2
    """
    target = _target(model, gpu, flags)
    tables = ingest_vllm(traces, out, target, kv_events=kv_events, workers=workers)
    _tell(tables.folder, cleaning_tables(tables.manifest))


@app.command()
@engine_flags(ServingSpec)
def steps(
    file: Annotated[Path, typer.Argument(help="Step summaries as Parquet.")],
    out: Out,
    model: Model = None,
    gpu: Gpu = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Read step summaries that are already in a table.

    Example: pinn ingest steps steps.parquet -o run1 --model codellama/CodeLlama-34b-Instruct-hf
    --gpu H100 --tensor-parallel-size 2
    """
    target = _target(model, gpu, flags)
    tables = ingest_steps(file, out, target)
    _tell(tables.folder, cleaning_tables(tables.manifest))


@app.command("inference-perf")
def inference_perf(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, or of several.")], out: Out
) -> None:
    """Read the lifecycle reports of the load generator inference-perf.

    Example: pinn ingest inference-perf results/ -o run1
    """
    rows, report = read_inference_perf(folder)
    _write(out, "stages", pa.Table.from_pandas(rows, preserve_index=False), report, folder)
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
    _write(out, "client_requests", table, trace.report, data, {"header": trace.header})
    _tell(out, trace.report.table())


@app.command("iteration-log")
def iteration_log(file: Annotated[Path, typer.Argument(help="Log of vLLM.")], out: Out) -> None:
    """Read the lines that vLLM logs with --enable-logging-iteration-details.

    Example: pinn ingest iteration-log vllm.log -o run1
    """
    table, report = read_iteration_log(file)
    _write(out, "iterations", table, report, file)
    _tell(out, report.table())


def _write(
    out: Path,
    name: str,
    table: pa.Table,
    report: ReadReport,
    source: Path,
    more: dict[str, Any] | None = None,
) -> None:
    with atomic_folder(out) as folder:
        tables = {name: write_table(folder, name, table, table.schema)}
        entry = {"path": source.name, "sha256": report.sha256}
        reports = {name: report.to_json()}
        write_manifest(
            folder, {"sources": [entry], "tables": tables, "reports": reports, **(more or {})}
        )


def _tell(folder: Path, text: str) -> None:
    typer.echo(text)
    typer.echo(f"\nwrote {folder}")


if __name__ == "__main__":
    app()
