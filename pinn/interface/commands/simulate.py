"""``pinn simulate``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pinn
from pinn.common.files import file_sha256, find_checkpoint
from pinn.interface.commands.options import JsonPath, engine_flags, named, output
from pinn.interface.commands.outputs import write_json
from pinn.interface.commands.requests import SimulationRequest
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.workloads.load_flags import Load, LoadFlags, asked_load
from pinn.specs.flags import flags_apart
from pinn.specs.serving import ServingSpec

if TYPE_CHECKING:
    from pinn.engines.deployment import Deployment
    from pinn.simulator.linear_latency import LinearLatency
    from pinn.simulator.many import Job
    from pinn.simulator.run import Run

app = typer.Typer(add_completion=False)

_POOLS = "Prefill and decode apart"


@app.command()
@engine_flags(ServingSpec, EngineSpec, LoadFlags, deploys=True)
def simulate(
    asked: SimulationRequest,
    json_path: JsonPath = None,
    requests: Annotated[
        Path | None, output("--requests", "Also write every request, as Parquet.", ".parquet")
    ] = None,
    timeline: Annotated[
        Path | None, output("--timeline", "Also draw the run over time, as PNG.", ".png")
    ] = None,
    prefill: Annotated[
        str | None,
        typer.Option(
            "--prefill",
            metavar="POOL",
            help="Prefill servers of their own: '2x tp=4' is two with -tp 4 each; other flags in "
            "short or in full, such as ep, dp=2, gpu=H200. Goes with --decode.",
            rich_help_panel=_POOLS,
        ),
    ] = None,
    decode: Annotated[
        str | None,
        typer.Option(
            "--decode", metavar="POOL", help="The decode servers.", rich_help_panel=_POOLS
        ),
    ] = None,
    kv_link_gb_per_s: Annotated[
        float | None,
        typer.Option(
            "--kv-link-gb-per-s",
            help="Rate at which a GPU sends or takes keys and values, in GB/s; inf for transfers "
            "that take no time. [default: the network port that the GPU's PCIe link fills]",
            rich_help_panel=_POOLS,
        ),
    ] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Serve a workload on a simulated engine and report what its clients see.

    It schedules as vLLM, SGLang or TensorRT-LLM does, by the rules of the release that
    --engine-version names: token budget, chunked prefill, prefix cache, preemption, asynchronous
    scheduling, client timeouts. Step times come from the trained network.

    Examples:
      pinn simulate --model Llama-3.1-8B --gpu H100 --input-len 1024
        --output-len 256 --concurrency 64

      pinn simulate --model Llama-3.1-8B --gpu H100 --workload profile.yaml

      pinn simulate --model Qwen/Qwen3-30B-A3B --gpu H200 -tp 2
        --max-num-seqs 256 --workload trace.csv --timeline run.png

      pinn simulate --coefficients run1.json --workload profile.yaml
        --sensitivity e2e_mean_ms

      pinn simulate --model Qwen/Qwen3-30B-A3B --gpu H100 --workload trace.csv
        --prefill '2x tp=2' --decode '1x tp=4 ep'
    """
    from pinn.common.screen import doing

    load, flags = asked_load(asked.workload, flags, asked.seed)
    if (prefill, decode, kv_link_gb_per_s) != (None, None, None):
        from pinn.interface.commands.simulate_pools import pool_flags, refuse, serve_pools

        refuse(flags | {"timeline": timeline, "sensitivity": asked.sensitivity})
        pools = pool_flags(prefill, decode)
        jobs = [simulation_job(asked, load, flags | of_pool)[0] for _, of_pool in pools]
        served = serve_pools(jobs, [workers for workers, _ in pools], kv_link_gb_per_s, requests)
        if json_path is not None:
            write_json(served.document([_about(job, load, asked) for job in jobs]), json_path)
        return
    job, latency = simulation_job(asked, load, flags)
    doing(f"serving {len(job.workload):,} requests")
    run, deployment = job.run(), job.deployment
    trust = intervals_of(run, job, latency, asked)
    found = sensitivity_of(job, latency, run, asked.sensitivity)
    print_simulation(run, deployment, trust, found)
    if json_path is not None:
        write_json(_about(job, load, asked) | simulation_figures(run, trust, found), json_path)
    _write_tables(run, requests, timeline)


def simulation_job(
    asked: SimulationRequest, load: Load, flags: dict[str, Any]
) -> tuple[Job, LinearLatency]:
    """What is simulated, and the coefficients that time its steps; flags go before the request."""
    from pinn.coefficients.coefficients import read_coefficient_set
    from pinn.coefficients.configurations import canonical, make_deployment
    from pinn.simulator.many import Job

    of_engine, others = flags_apart(EngineSpec, flags)
    engine = EngineSpec(**of_engine)
    file = asked.coefficients
    known = {} if file is None else read_coefficient_set(file).configuration()
    known |= named(asked.model, asked.gpu)
    deployment = make_deployment(canonical(known | others))
    workload = load.draw(asked.rate)
    latency = _latency(deployment, asked)
    return Job(deployment, workload, latency, engine), latency


def _latency(deployment: Deployment, asked: SimulationRequest) -> LinearLatency:
    from pinn.simulator.linear_latency import latency_from_checkpoint, latency_from_json

    if asked.coefficients is not None:
        return latency_from_json(deployment, asked.coefficients)
    return latency_from_checkpoint(deployment, find_checkpoint(asked.checkpoint))


def intervals_of(
    run: Run, job: Job, latency: LinearLatency, asked: SimulationRequest
) -> dict[str, Any] | None:
    """Intervals and what they rest on; None for coefficients of a file that has no posterior."""
    if asked.coefficients is not None:
        from pinn.coefficients.coefficients import read_coefficient_set
        from pinn.interface.commands.simulation_report import posterior_trust

        return posterior_trust(run, job, latency, read_coefficient_set(asked.coefficients))
    from pinn.interface.commands.simulation_report import simulation_trust

    return simulation_trust(run, job, latency, find_checkpoint(asked.checkpoint))


def sensitivity_of(
    job: Job, latency: LinearLatency, run: Run, figure: str | None
) -> dict[str, Any] | None:
    """How far each coefficient moves a figure; None where none is asked for."""
    if figure is None:
        return None
    from pinn.interface.commands.simulation_report import simulated_sensitivity

    return simulated_sensitivity(job, latency, run, figure)


def print_simulation(
    run: Run,
    deployment: Deployment,
    trust: dict[str, Any] | None,
    sensitivity: dict[str, Any] | None,
) -> None:
    """Print figures, intervals and sensitivities for people."""
    from pinn.common.screen import say
    from pinn.planning.candidates import hardware_label
    from pinn.simulator.statistics import overload, print_report, run_statistics

    statistics = run_statistics(run)
    recipe = deployment.recipe
    heading = (
        f"{deployment.model.title} on {hardware_label(deployment)}, {recipe.token_budget:,} tokens "
        f"and {recipe.max_requests:,} requests a step, {run.workload.name}"
    )
    found = overload(run)
    say(f"{heading}, {found}" if found else heading)
    print_report(run, statistics, (trust or {}).get("figures", {}))
    if trust is not None:
        from pinn.interface.commands.simulation_report import simulation_lines

        for line in simulation_lines(trust, statistics):
            say(line)
    if sensitivity is not None:
        from pinn.interface.commands.simulation_report import print_sensitivity

        print_sensitivity(sensitivity)


def _write_tables(run: Run, requests: Path | None, timeline: Path | None) -> None:
    if requests is not None:
        from pinn.simulator.run import write_requests

        write_requests(run, requests)
    if timeline is not None:
        from pinn.simulator.run import plot_timeline

        plot_timeline(run, timeline)


def _about(job: Job, load: Load, asked: SimulationRequest) -> dict[str, Any]:
    """What was simulated and with what, so that the figures can be had again."""
    from dataclasses import asdict

    from pinn.coefficients.coefficients import deployment_facts
    from pinn.interface.commands.report_parts import notices

    facts = deployment_facts(job.deployment)
    facts["serving"] |= asdict(job.engine or EngineSpec())
    source = asked.coefficients or find_checkpoint(asked.checkpoint)
    return facts | {
        "recipe": job.deployment.recipe.described(),
        **notices(job.deployment.serving),
        "workload": load.document | {"rate_per_s": asked.rate, "seed": load.seed},
        "coefficients": {"path": str(source), "sha256": file_sha256(source)},
        "simulated_by": f"pinn {pinn.__version__}",
    }


def simulation_figures(
    run: Run, trust: dict[str, Any] | None, sensitivity: dict[str, Any] | None
) -> dict[str, Any]:
    """All figures of a run, ready for JSON: None is what does not exist."""
    import math

    from pinn.simulator.statistics import overload, run_statistics

    stages = [run_statistics(run, stage) for stage in range(run.workload.stages)]

    def finite(figures: dict[str, Any]) -> dict[str, Any]:
        return {k: None if math.isnan(v) else v for k, v in figures.items()}

    report = finite(run_statistics(run)) | {"stages": [finite(stage) for stage in stages]}
    report["overloaded"] = overload(run)
    if trust is not None:
        report["intervals"] = trust
    if sensitivity is not None:
        report["sensitivity"] = sensitivity
    return report


if __name__ == "__main__":
    from pinn.interface.commands.main import app as commands

    commands(["simulate", *sys.argv[1:]], prog_name="pinn")
