"""Command ``pinn simulate``: latencies and throughput of a server under a load."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from pinn.api.requests import ServersRequest, SimulationRequest
from pinn.cli.options import JsonPath, engine_flags, output
from pinn.cli.outputs import write_json
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.simulator.workloads.load import LoadFlags
from pinn.specs.flags import FlagValue
from pinn.specs.serving import ServingSpec


@engine_flags(ServingSpec, EngineSpec, LoadFlags, deploys=True)
def simulate(
    asked: SimulationRequest,
    servers: ServersRequest,
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    json_path: JsonPath = None,
    requests: Annotated[Path | None, output(".parquet")] = None,
    timeline: Annotated[Path | None, output(".png")] = None,
    plot: Annotated[Path | None, output(".png")] = None,
    *,
    flags: dict[str, FlagValue],
) -> None:
    """Simulate a server under a load and report latencies, throughput and cache use.

    The simulated scheduler is that of vLLM, SGLang or TensorRT-LLM in the release of
    --engine-version: token budget, chunked prefill, prefix cache, preemption, asynchronous
    scheduling, client timeouts. The trained network predicts the time of each step.

    Examples:
      pinn simulate --model Llama-3.1-8B --gpu H100 --input-len 1024
        --output-len 256 --concurrency 64

      pinn simulate --model Llama-3.1-8B --gpu H100 --workload profile.yaml

      pinn simulate --model Llama-3.1-8B --gpu H100 --input-len 1024
        --output-len 256 --rate 1,2,4,8,16 --slo 'ttft<=1s, tpot<=50ms for 95 %'
        --plot rates.png

      pinn simulate --model Qwen/Qwen3-30B-A3B --gpu H200 -tp 2
        --max-num-seqs 256 --workload trace.csv --timeline run.png

      pinn simulate --coefficients run1.json --workload profile.yaml
        --sensitivity e2e_mean_ms

      pinn simulate --model Qwen/Qwen3-30B-A3B --gpu H100 --workload trace.csv
        --prefill '2x tp=2' --decode '1x tp=4 ep'

      pinn simulate --model Llama-3.1-8B --gpu H100 --workload trace.csv
        --replicas 4 --router prefix-aware

      pinn simulate --model Llama-3.1-8B --gpu H100 --workload day.yaml
        --fleet fleet.yaml --slo 'ttft<=1s, tpot<=50ms for 95 %'

    Options:
        requests: Also write the latencies of every request, as Parquet.
        timeline: Also draw requests, tokens and KV cache over time, as PNG.
        plot: Also plot latencies and throughput against the rates in --rate, as PNG.
    """
    from pinn.api import simulation
    from pinn.simulator.fleets.result import FleetSimulation
    from pinn.simulator.result import Simulation

    asked = _with_all_limits(asked, more or [])
    if timeline is not None and servers != ServersRequest(fleet=servers.fleet):
        raise PinnError("--timeline plots one engine: omit --timeline, or --prefill and --decode")
    rates = simulation.read_rates(asked.rate)
    if len(rates) > 1 or plot is not None:
        _refuse_of_one_run(rates, requests=requests, timeline=timeline)
        sweep = simulation.swept_rates(asked, servers, flags)
        sweep.print_report()
        write_json(sweep.to_json(), json_path)
        if plot is not None:
            sweep.plot(plot)
        return
    found = simulation.served(asked, servers, flags, *rates)
    found.print_report()
    write_json(found.to_json(), json_path)
    if requests is not None:
        found.write_requests(requests)
    if isinstance(found, Simulation | FleetSimulation) and timeline is not None:
        found.timeline(timeline)


def _with_all_limits(asked: SimulationRequest, more: list[str]) -> SimulationRequest:
    """Return the request with SLO limits that are separate words: ``--slo ttft:900 tpot:50``."""
    for word in more:
        if asked.slo is None or ":" not in word:
            raise PinnError(
                f"the argument {word!r} is unknown: write options with --, as 'pinn simulate "
                "--help' lists them"
            )
    return replace(asked, slo=" ".join([asked.slo, *more])) if asked.slo else asked


def _refuse_of_one_run(rates: list[float], **given: object) -> None:
    """Raise an error if options that apply to a single run are given with several rates."""
    if len(rates) < 2:
        raise PinnError(
            "--plot needs several rates, got at most one: give, for example, --rate 1,2,4,8"
        )
    for name, value in given.items():
        if value is not None:
            raise PinnError(f"--{name} applies to a single rate: give one --rate, or omit --{name}")
