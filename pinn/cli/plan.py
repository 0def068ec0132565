"""``pinn plan``."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.api.requests import WorkersRequest
from pinn.cli.options import engine_flags, output
from pinn.common.files import write_whole
from pinn.common.workers import interrupted_once
from pinn.engines.engine_spec import EngineSpec
from pinn.planning.plan import PlanRequest
from pinn.simulator.workloads.load import LoadFlags
from pinn.specs.flags import FlagValue
from pinn.specs.serving import ServingSpec


@engine_flags(ServingSpec, EngineSpec, LoadFlags, deploys=True)
def plan(
    asked: PlanRequest,
    where: WorkersRequest,
    price: str | None = None,
    purchase_price: str | None = None,
    purchase_years: float | None = None,
    manifest: Annotated[Path | None, output(".yaml", ".yml")] = None,
    out: Annotated[Path | None, output()] = None,
    *,
    flags: dict[str, FlagValue],
) -> None:
    """Find the cheapest servers that meet an SLO under a load, by simulating every candidate.

    Candidates are all parallelisms, token budgets and numbers of requests a step that the engine
    would start with room for the load's longest request; flags that are given hold for all of
    them; --quantization, --engine and --tensor-parallel-size take several, separated by commas.
    Each is searched for the highest rate that one replica holds within the limits; as few replicas
    as hold the asked rate follow, checked together behind a load balancer.

    Columns:
      GPUs          replicas x tensor x pipeline x data-parallel ranks
      per hour      GPUs x price
      start         replicas x GPU, ranks (TP, PP, DP, EP), format, engine, and
                    the most tokens and requests of a step; flags in the line
      max req/s     maximum rate of all replicas within the limits, requests/s;
                    in brackets at both ends of the prediction's interval
      limits        one column for each limit: its value over all replicas'
                    requests, and whether it is met; of limits on each request
                    the share of all requests that meet them. TPOT is (last
                    token - first token) / (tokens - 1)
      chance        %: share of 20 equally likely errors of the prediction at
                    which all replicas hold the limits; safe: at its interval's
                    bad end too; none for a load shorter than 10 answers
      coefficients  network, or the file of --coefficients
      best on       second table, for several GPUs: the best row on each, with the
                    whole cost over a million tokens in, and over those out

    Rows are in the order of per hour (or GPUs). Without --rate, of per hour / max req/s;
    the limits' values are then of one replica at that rate. The files of --out have more: price per
    million tokens, what limits a row, use, other percentiles, excluded candidates and why.

    Examples:
      pinn plan --model Llama-3.1-8B --gpu H100,L40S --slo 'p99 ttft<=2s'
        --input-len 1024 --output-len 256 --rate 8

      pinn plan --model meta-llama/Llama-3.3-70B-Instruct --rate 12
        --workload load.yaml --slo 'ttft<=1s, tpot<=40ms for 95 %'
        --gpu H100,H200,L40S --price 'H100=2.5 H200=3.2 L40S=1.1'
        --max-gpus 32 --out plan/

      pinn plan --model Qwen/Qwen3-30B-A3B --workload trace.csv --gpu H100
        --slo 'p99 ttft<=2s' --quantization bf16,fp8

    Options:
        price: Per GPU and hour: 'H100=2.5 H200=3.2'; or a CSV, YAML or JSON file of prices.
            [default: GPUs are counted]
        purchase_price: Of GPUs that you own, such as 'H100=30000': the cost per hour is the price
            / years / 8,766 hours, without power and space.
        purchase_years: Years over which they are written off.
        manifest: YAML file for the first choice as Kubernetes objects: a Deployment, or a
            LeaderWorkerSet for replicas across machines, and a Service.
        out: Folder for plan.json, plan.csv, plan.html, PNGs, manifest.yaml.
    """
    from pinn.api import plans

    costs = {"price": price or "", "purchase_price": purchase_price or ""}
    with interrupted_once(
        "the best plan so far follows, if any; once more ends at once"
    ) as signals:
        simulating = vars(where) | {"workers": where.count}
        found = plans.plan(
            **(vars(asked) | simulating | flags), **costs, purchase_years=purchase_years
        )
        if out is not None:
            found.save(out)
    found.print_report(out)
    if manifest is not None:  # after all that a first choice without one would lose
        write_whole(manifest, found.manifest())
    if signals:
        raise typer.Exit(128 + signals[0])
