"""``pinn simulate``."""

from pathlib import Path
from typing import Annotated

from pinn.api.requests import PoolsRequest, SimulationRequest
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
    apart: PoolsRequest,
    json_path: JsonPath = None,
    requests: Annotated[Path | None, output(".parquet")] = None,
    timeline: Annotated[Path | None, output(".png")] = None,
    *,
    flags: dict[str, FlagValue],
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

    Options:
        requests: Also write every request, as Parquet.
        timeline: Also draw the run over time, as PNG.
    """
    from pinn.api import simulation

    one_engine = apart == PoolsRequest()
    if timeline is not None and not one_engine:
        raise PinnError("--timeline with --prefill and --decode: it draws one engine: leave it out")
    one = simulation.simulate(**(vars(asked) | flags)) if one_engine else None
    found = one or simulation.simulate_pools(**(vars(asked) | vars(apart) | flags))
    found.print_report()
    write_json(found.to_json(), json_path)
    if requests is not None:
        found.write_requests(requests)
    if one is not None and timeline is not None:
        one.timeline(timeline)
