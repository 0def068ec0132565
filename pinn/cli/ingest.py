"""``pinn ingest``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import typer

from pinn.observations.cleaning import cleaning_tables
from pinn.observations.ingestion import ingest_steps, ingest_vllm
from pinn.observations.trace_run import Target
from pinn.observations.trace_tables import atomic_folder, write_manifest, write_table
from pinn.sources.report import ReadReport
from pinn.sources.traces.blis_trace import read_blis_trace
from pinn.sources.traces.inference_perf import read_inference_perf
from pinn.sources.traces.iteration_log import read_iteration_log
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.specs.serving_defaults import default_max_num_batched_tokens, default_max_num_seqs

app = ingest_app = typer.Typer(
    no_args_is_help=True, help="Read a server's traces into tables, with a report of what was read."
)

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the tables.")]
Model = Annotated[
    str | None, typer.Option(help="Model served: a name, or the path of its config.json.")
]
Gpu = Annotated[str | None, typer.Option(help="GPU it ran on, such as H100.")]
TensorParallel = Annotated[int, typer.Option("--tensor-parallel-size", "-tp", min=1)]
PipelineParallel = Annotated[int, typer.Option("--pipeline-parallel-size", "-pp", min=1)]
DataParallel = Annotated[int, typer.Option("--data-parallel-size", "-dp", min=1)]
ExpertParallel = Annotated[bool, typer.Option("--enable-expert-parallel")]
BatchedTokens = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", help="Default: vLLM's for the GPU.")
]
Seqs = Annotated[int | None, typer.Option("--max-num-seqs", help="Default: vLLM's for the GPU.")]
ModelLen = Annotated[int | None, typer.Option("--max-model-len")]
Chunked = Annotated[bool, typer.Option("--enable-chunked-prefill/--no-enable-chunked-prefill")]
Caching = Annotated[bool, typer.Option("--enable-prefix-caching/--no-enable-prefix-caching")]
Eager = Annotated[bool, typer.Option("--enforce-eager")]
BlockSize = Annotated[int, typer.Option("--block-size", min=1, help="Tokens per KV block.")]
Offload = Annotated[float, typer.Option("--cpu-offload-gb", min=0)]
KvDtype = Annotated[str, typer.Option("--kv-cache-dtype")]
Generation = Annotated[str, typer.Option("--generation-config", help="auto or vllm.")]
GenerationOverride = Annotated[
    str,
    typer.Option(
        "--override-generation-config", help="JSON of sampling settings, also of what clients sent."
    ),
]
Quantization = Annotated[
    str | None,
    typer.Option("--quantization", help="Format it is served in. [default: as its config says]"),
]


def _target(
    model: str | None, gpu: str | None, flags: dict[str, Any], precision: str | None
) -> Target | None:
    """The deployment named by the flags; None without a model or a GPU."""
    if model is None or gpu is None:
        if model is not None or gpu is not None:
            raise typer.BadParameter("give --model and --gpu together, or neither")
        return None
    datasheet = load_gpu(gpu)
    flags["max_num_batched_tokens"] = flags["max_num_batched_tokens"] or (
        default_max_num_batched_tokens(datasheet)
    )
    flags["max_num_seqs"] = flags["max_num_seqs"] or default_max_num_seqs(datasheet)
    return Target(model, gpu, ServingSpec(**flags), precision)


@app.command()
def vllm(
    traces: Annotated[Path, typer.Argument(help="traces.json: one OTLP-JSON export a line.")],
    out: Out,
    kv_events: Annotated[Path | None, typer.Option(help="kv_events.jsonl of the run.")] = None,
    model: Model = None,
    gpu: Gpu = None,
    tensor_parallel_size: TensorParallel = 1,
    pipeline_parallel_size: PipelineParallel = 1,
    data_parallel_size: DataParallel = 1,
    enable_expert_parallel: ExpertParallel = False,
    max_num_batched_tokens: BatchedTokens = None,
    max_num_seqs: Seqs = None,
    max_model_len: ModelLen = None,
    enable_chunked_prefill: Chunked = True,
    enable_prefix_caching: Caching = True,
    enforce_eager: Eager = False,
    block_size: BlockSize = 16,
    cpu_offload_gb: Offload = 0.0,
    kv_cache_dtype: KvDtype = "auto",
    generation_config: Generation = "auto",
    override_generation_config: GenerationOverride = "",
    quantization: Quantization = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that parse.")] = 1,
) -> None:
    """Read the traces of an instrumented vLLM.

    Example: pinn ingest vllm traces.json -o run1 --model codellama/CodeLlama-34b-Instruct-hf --gpu
    H100 --tensor-parallel-size 2
    """
    flags = _flags(locals())
    target = _target(model, gpu, flags, quantization)
    tables = ingest_vllm(traces, out, target, kv_events=kv_events, workers=workers)
    _tell(tables.folder, cleaning_tables(tables.manifest))


@app.command()
def steps(
    file: Annotated[Path, typer.Argument(help="Step summaries as Parquet.")],
    out: Out,
    model: Model = None,
    gpu: Gpu = None,
    tensor_parallel_size: TensorParallel = 1,
    pipeline_parallel_size: PipelineParallel = 1,
    data_parallel_size: DataParallel = 1,
    enable_expert_parallel: ExpertParallel = False,
    max_num_batched_tokens: BatchedTokens = None,
    max_num_seqs: Seqs = None,
    max_model_len: ModelLen = None,
    enable_chunked_prefill: Chunked = True,
    enable_prefix_caching: Caching = True,
    enforce_eager: Eager = False,
    block_size: BlockSize = 16,
    cpu_offload_gb: Offload = 0.0,
    kv_cache_dtype: KvDtype = "auto",
    generation_config: Generation = "auto",
    override_generation_config: GenerationOverride = "",
    quantization: Quantization = None,
) -> None:
    """Read step summaries that are already in a table.

    Example: pinn ingest steps steps.parquet -o run1 --model codellama/CodeLlama-34b-Instruct-hf
    --gpu H100 --tensor-parallel-size 2
    """
    target = _target(model, gpu, _flags(locals()), quantization)
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
        f"{r['run'][:48]:48s} {r['stage']:>5s}  {r['ttft_mean_s']:11.4g}  "
        f"{r['itl_mean_s'] * 1e3:11.4g}  {r['e2e_mean_s']:10.4g}"
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


def _flags(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in vars(ServingSpec())}


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
