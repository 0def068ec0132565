"""``pinn simulate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.cli.serving_flags import engine_flags
from pinn.simulator.engine_spec import EngineSpec
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    from pinn.simulator.linear_latency import LinearLatency
    from pinn.simulator.many import Job
    from pinn.simulator.run import Run
    from pinn.specs.deployment import Deployment

app = typer.Typer(add_completion=False)

_COEFFICIENTS = "Coefficients"


@app.command()
@engine_flags(ServingSpec, EngineSpec)
def simulate(
    workload: Annotated[
        Path,
        typer.Option(
            "--workload",
            help="CSV trace, TraceV2 header, inference-perf or BLIS YAML, or a plain YAML with "
            "prompt_tokens, output_tokens and stages or concurrency.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="Name, or path of a config.json or its folder.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="Name, or path of a datasheet's JSON file.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of random draws. [default: the file's, else 0]")
    ] = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures as JSON.")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option("--requests", help="Also write every request, as Parquet.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option("--timeline", help="Also draw the run over time, as PNG.")
    ] = None,
    sensitivity: Annotated[
        str | None,
        typer.Option(
            "--sensitivity",
            metavar="FIGURE",
            help="Also say which coefficients a figure of the JSON hangs on, such as e2e_mean_ms: "
            "the run again with each one changed, everything else equal.",
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            help="Trained network. [default: PINN_CHECKPOINT, else checkpoints/pinn.safetensors]",
            rich_help_panel=_COEFFICIENTS,
        ),
    ] = None,
    coefficients: Annotated[
        Path | None,
        typer.Option(
            "--coefficients",
            help="File of 'pinn calibrate' or 'pinn coefficients --json', in place of the network; "
            "its deployment holds where no flag says otherwise.",
            rich_help_panel=_COEFFICIENTS,
        ),
    ] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Serve a workload on a simulated engine and report what its clients see.

    It schedules as vLLM 0.15.1, SGLang 0.5.9 or TensorRT-LLM does: token budget, chunked prefill,
    prefix cache, preemption, asynchronous scheduling, client timeouts. Step times come from the
    trained network.

    Examples:
      pinn simulate --model meta-llama/Llama-3.1-8B --gpu H100 --workload profile.yaml

      pinn simulate --model Qwen/Qwen3-30B-A3B --gpu H200 --tensor-parallel-size 2
        --max-num-seqs 256 --workload trace.csv --json run.json --timeline run.png

      pinn simulate --coefficients run1.json --workload profile.yaml --sensitivity e2e_mean_ms
    """
    named = {"model": model, "gpu": gpu}
    given = {name: value for name, value in named.items() if value is not None} | flags
    job, latency = _job(given, workload, seed, checkpoint, coefficients)
    run, deployment = job.run(), job.deployment
    trust = _trust(run, job, latency, checkpoint, coefficients)
    found = _sensitivity(job, latency, run, sensitivity)
    _report(run, deployment, trust, found)
    if json_path is not None:
        _write_json(run, trust, found, json_path)
    _write_tables(run, requests, timeline)


def _job(
    given: dict[str, Any],
    path: Path,
    seed: int | None,
    checkpoint: Path | None,
    coefficients: Path | None,
) -> tuple[Job, LinearLatency]:
    from pinn.coefficients.coefficient_set import read_coefficient_set
    from pinn.coefficients.configurations import canonical, make_deployment
    from pinn.simulator.many import Job
    from pinn.workloads.load import load_workload

    of_engine = {flag.name for flag in flags_of(EngineSpec)}
    engine = EngineSpec(**{name: v for name, v in given.items() if name in of_engine})
    named = read_coefficient_set(coefficients).configuration() if coefficients else {}
    flags = {name: v for name, v in given.items() if name not in of_engine}
    deployment = make_deployment(canonical(named | flags))
    workload = load_workload(path, seed)
    latency = _latency(deployment, checkpoint, coefficients)
    return Job(deployment, workload, latency, engine), latency


def _latency(
    deployment: Deployment, checkpoint: Path | None, coefficients: Path | None
) -> LinearLatency:
    from pinn.simulator.coefficient_source import latency_from_checkpoint, latency_from_json

    if coefficients is not None:
        return latency_from_json(deployment, coefficients)
    from pinn.coefficients.checkpoint_search import find_checkpoint

    return latency_from_checkpoint(deployment, find_checkpoint(checkpoint))


def _trust(
    run: Run,
    job: Job,
    latency: LinearLatency,
    checkpoint: Path | None,
    coefficients: Path | None,
) -> dict[str, Any] | None:
    """Intervals and what left-out data showed; None for coefficients of a file."""
    if coefficients is not None:
        return None
    from pinn.cli.simulation_trust import simulation_trust
    from pinn.coefficients.checkpoint_search import find_checkpoint

    return simulation_trust(run, job, latency, find_checkpoint(checkpoint))


def _sensitivity(
    job: Job, latency: LinearLatency, run: Run, figure: str | None
) -> dict[str, Any] | None:
    if figure is None:
        return None
    from pinn.cli.sensitivity_report import simulated_sensitivity

    return simulated_sensitivity(job, latency, run, figure)


def _report(
    run: Run,
    deployment: Deployment,
    trust: dict[str, Any] | None,
    sensitivity: dict[str, Any] | None,
) -> None:
    from pinn.simulator.report import print_report
    from pinn.simulator.statistics import run_statistics

    statistics = run_statistics(run)
    typer.echo(f"{deployment.model.name} on {deployment.gpu.name}, {run.workload.name}")
    print_report(run, statistics)
    if trust is not None:
        from pinn.cli.simulation_trust import simulation_lines

        for line in simulation_lines(trust, statistics):
            typer.echo(line)
    if sensitivity is not None:
        from pinn.cli.sensitivity_report import print_sensitivity

        print_sensitivity(sensitivity)


def _write_tables(run: Run, requests: Path | None, timeline: Path | None) -> None:
    if requests is not None:
        from pinn.simulator.request_table import write_requests

        write_requests(run, requests)
    if timeline is not None:
        from pinn.simulator.timeline import plot_timeline

        plot_timeline(run, timeline)


def _write_json(
    run: Run, trust: dict[str, Any] | None, sensitivity: dict[str, Any] | None, path: Path
) -> None:
    import json
    import math

    from pinn.simulator.statistics import run_statistics

    stages = [run_statistics(run, stage) for stage in range(run.workload.stages)]

    def finite(figures: dict[str, Any]) -> dict[str, Any]:
        return {k: None if math.isnan(v) else v for k, v in figures.items()}

    report = finite(run_statistics(run)) | {"stages": [finite(stage) for stage in stages]}
    if trust is not None:
        report["intervals"] = trust
    if sensitivity is not None:
        report["sensitivity"] = sensitivity
    path.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    from pinn.cli.main import app as commands

    commands(["simulate", *sys.argv[1:]], prog_name="pinn")
