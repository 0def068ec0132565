"""Command ``pinn plan``: the cheapest servers that meet an SLO under a load."""

from pathlib import Path
from typing import Annotated

import typer

from pinn.api.requests import WorkersRequest
from pinn.cli.options import engine_flags, output
from pinn.common.files import write_whole
from pinn.common.screen import say
from pinn.common.workers import interrupted_once
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError, printable
from pinn.planning.plan import NoPlanError, Plan, PlanRequest
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
    manifest_row: int | None = None,
    out: Annotated[Path | None, output()] = None,
    *,
    flags: dict[str, FlagValue],
) -> None:
    """Find the cheapest servers that meet an SLO under a load, by simulating every candidate.

    Candidates are all combinations of parallelism, token budget and requests per step with which
    the engine starts and the load's longest request fits. Options that are given apply to all
    candidates; --quantization, --engine and --tensor-parallel-size take several values, separated
    by commas. The search finds the maximum rate at which one replica of a candidate meets the SLO.
    It then simulates the smallest number of replicas that meets the SLO at --rate, behind a load
    balancer.

    Columns:
      row           rank in the plan, as in plan.csv and for --manifest-row
      GPUs          of all replicas: replicas x TP x PP x DP size
      cost/hour     GPUs x price
      cost of 10^6  whole cost per million prompt tokens (in), and whole cost per
        tokens      million output tokens (out); the two are not added; only with
                    prices
      start         the row's servers: replicas x GPU, parallel sizes (TP, PP, DP,
                    EP), weight format (attention/experts, if they differ),
                    engine, and the most tokens and requests of a step, such as
                    8192/128; options that were given are not repeated
      max req/s     maximum rate at which all replicas together meet the SLO, in
                    requests/s, with its 90 % prediction interval below. '>='
                    stands before a rate that is met, if time ran out before
                    higher ones were tried
      limits        a column for each limit: its value over the requests of all
                    replicas, and whether it is met. For limits on each request:
                    the share of the requests that meet them. TPOT is (last
                    token - first token) / (tokens - 1)
      P(SLO met)    probability in % that all replicas meet the SLO at --rate: the
                    share of 20 equally likely errors of the prediction at which
                    they do, so in steps of 5 %; '>97 %' at all 20. safe: they
                    meet it at the pessimistic end of the interval, too. '-' if
                    time was over, for coefficients without a calibration, and for
                    a load shorter than 10 times its mean E2E latency
      preemptions   (if there are any) number of times that a request lost its KV
                    cache at --rate, because batches exceed the cache
      coefficients  network, or the coefficient file of the row
      best on       (several GPUs) the best row on each GPU, in place of start

    Rows are sorted by cost per hour (or GPUs), then by P(SLO met); without --rate, by cost (or
    GPUs) per request/s, and the limits are then those of one replica at its maximum rate. The files
    of --out have more: bottleneck, utilization, further percentiles, and rejected candidates with
    the reason.

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
        price: Price per GPU and hour, such as 'H100=2.5 H200=3.2', or a CSV, YAML or JSON file of
            prices. [default: none; rows are sorted by the number of GPUs]
        purchase_price: Purchase price of each GPU that you own, such as 'H100=30000'. Its cost per
            hour is the price / --purchase-years / 8,766 hours, without power and space.
        purchase_years: Number of years over which purchased GPUs are written off.
        manifest: Also write a row as Kubernetes objects to this YAML file: a Deployment, or a
            LeaderWorkerSet for replicas that span machines, and a Service.
        manifest_row: Number of the row that --manifest writes, as in the table and plan.csv.
            [default: 1, the recommended row]
        out: Folder to write plan.json, plan.csv, plan.html, pictures and manifest.yaml to.
    """
    from pinn.api import plans
    from pinn.planning.manifest import deployed

    if manifest_row is not None and manifest is None:
        raise PinnError("--manifest-row selects the row of --manifest: give --manifest FILE")
    costs = {"price": price or "", "purchase_price": purchase_price or ""}
    with interrupted_once(
        "printing the best plan so far, if there is one; interrupt again to stop immediately"
    ) as signals:
        simulating = vars(where) | {"workers": where.count}
        given = vars(asked) | simulating | flags | costs
        try:
            found = plans.plan(**given, purchase_years=purchase_years)
        except NoPlanError as error:
            reasons = [] if error.plan is None else error.plan.by_gpu
            for each in reasons if len(reasons) > 1 else []:
                typer.echo(printable(f"none on {each.gpu}: {each.reason}", 1000), err=True)
            raise PinnError(f"{error}{_written(error.plan, out, manifest)}") from error
        if out is not None:
            found.save(out)
    found.print_report(out)
    if manifest is not None:  # last, because it raises an error if there is no such row
        row = manifest_row or 1
        write_whole(manifest, found.manifest(row))
        say(f"Written: {manifest}. {deployed(found.plan, row)}")
    if signals:
        raise typer.Exit(128 + signals[0])


def _written(plan: Plan | None, out: Path | None, manifest: Path | None) -> str:
    """Write plan.json of a plan without choices, and return a sentence about the files."""
    from pinn.planning.plan_files import plan_json

    if plan is None or (out is None and manifest is None):
        return ""
    if out is None:
        return ". No manifest was written"
    write_whole(out / "plan.json", plan_json(plan))
    return f". Written: {out / 'plan.json'}, with the reasons by GPU; no manifest was written"
