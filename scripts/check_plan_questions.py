"""Compare plans for ten questions, found in the default time, with plans from longer searches.

python scripts/check_plan_questions.py [--only 1,7] [--cpu-seconds 110] [--times 10] [--seeds 3]

Time is CPU time of one process, so that other programs on the machine do not matter: 110 s
correspond to the default budget of 60 s on two cores, minus the start of the workers. For each
question, the script prints which GPUs have a plan or a reason for having none, and the extra cost
of the first plan relative to the longer search. It also prints the largest excess over a latency
limit when the first plan's fleet is simulated with other random seeds. The last line is a JSON
document with all results.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from timing import PINN

from pinn.api.arguments import read_request
from pinn.common.documents import read_yaml
from pinn.common.workers import Workers
from pinn.engines.engine_spec import EngineSpec
from pinn.planning.plan import Choice, Plan, PlanRequest
from pinn.planning.planner import plan_load
from pinn.planning.prices import read_prices
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.load import LoadFlags
from pinn.specs.serving import ServingSpec

QUESTIONS = Path(__file__).with_name("plan_questions.yaml")
#: First random seed for simulating fleets here. Plans use the seeds 0 and 1001 to 1004.
FIRST_SEED = 71
#: ``MOST_EXCESS``: maximum excess over a latency limit, as a share of the limit. ``MOST_COST``:
#: maximum extra cost, as a share of the cost that the longer search finds.
MOST_EXCESS, MOST_COST = 0.03, 0.10


def planned(question: Mapping[str, object], cpu_s: float, cache: Path) -> Plan:
    """Return the plan that a search in this process finds in ``cpu_s`` seconds of CPU time."""
    given = dict(question)
    priced = [given.pop(name, default) for name, default in
              (("price", ""), ("purchase_price", ""), ("purchase_years", None))]  # fmt: skip
    specifications = (ServingSpec, EngineSpec, LoadFlags)
    request, flags = read_request(
        PlanRequest, given | {"time_budget": cpu_s, "cache": cache}, *specifications
    )
    workers = Workers(torch=False)
    return plan_load(request, flags, read_prices(*priced), workers, time.process_time)


def expense(choice: Choice) -> float:
    return choice.gpus if choice.cost_per_hour is None else choice.cost_per_hour


def excess(choice: Choice, slo: str, seeds: Sequence[int]) -> float:
    """Return a fleet's largest relative excess over a latency limit in runs with other seeds."""
    limits = parse_slo(slo)
    worst = -1.0
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        for seed in seeds:
            words = shlex.split(choice.simulate_command)[1:]
            more = ["--slo", slo, "--seed", str(seed), "--json", str(out)]
            subprocess.run([*PINN, *words, *more], check=True, stdout=subprocess.DEVNULL)
            met = json.loads(out.read_text())["slo"]
            for limit in limits.statistics:
                worst = max(worst, met["statistics_s"][str(limit)] / limit.seconds - 1)
            if limits.goodput is not None:
                worst = max(worst, 1 - met["attainment"] / limits.goodput.share)
    return worst


def answered(question: Mapping[str, object], asked: argparse.Namespace) -> dict[str, object]:
    """Compare the plan for a question with the plan of a longer search, and return the result."""
    with tempfile.TemporaryDirectory() as folder:
        short = planned(question, asked.cpu_seconds, Path(folder))
        print(f"  {short.choices[0].label}, {short.untried} untried", file=sys.stderr, flush=True)
        long = short
        if short.stopped and asked.times > 1:
            long = planned(question, asked.cpu_seconds * asked.times, Path(folder))
    first, best = short.choices[0], long.choices[0]
    seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
    found = {each.gpu: each.rank is not None or bool(each.reason) for each in short.by_gpu}
    return {
        "model": question["model"],
        "gpus": len(short.ask.gpus),
        "gpus_in_table": sum(found.values()),
        "gpus_with_row": sum(each.rank is not None for each in short.by_gpu),
        "first": f"{first.replicas} x {first.label}",
        "longer": f"{best.replicas} x {best.label}",
        "untried": short.untried,
        "untried_longer": long.untried,
        "dearer_percent": round(100 * (expense(first) / expense(best) - 1), 1),
        "excess_percent": round(100 * excess(first, str(question["slo"]), seeds), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="Numbers of questions, from 1.")
    parser.add_argument("--cpu-seconds", type=float, default=110.0)
    parser.add_argument("--times", type=float, default=10.0, help="1 for no longer search.")
    parser.add_argument("--seeds", type=int, default=3)
    asked = parser.parse_args()
    questions = read_yaml(QUESTIONS)
    chosen = [int(text) for text in asked.only.split(",") if text]
    rows = []
    for number, question in enumerate(questions, 1):
        if not chosen or number in chosen:
            rows.append({"question": number, **answered(question, asked)})
            print(json.dumps(rows[-1]), flush=True)
    summary = {
        "questions": len(rows),
        "all_gpus_in_table": sum(row["gpus"] == row["gpus_in_table"] for row in rows),
        "within_cost": sum(row["dearer_percent"] <= 100 * MOST_COST for row in rows),
        "within_limits": sum(row["excess_percent"] <= 100 * MOST_EXCESS for row in rows),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
