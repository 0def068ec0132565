"""Compare plans for small random problems with a brute-force search over a fine grid of rates.

python scripts/check_plan.py [--cases 30] [--first 0]

For each case (model, GPUs, load, limits), the script prints the plan that 'pinn plan' recommends,
the plan that brute force finds, and the difference between their maximum rates. The last line is a
JSON document.
"""

import argparse
import itertools
import json
import math
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from pinn.common.files import find_checkpoint
from pinn.common.workers import Workers
from pinn.engines.configurations import expand_grid
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.planning import rate_search
from pinn.planning.candidate import Candidate
from pinn.planning.candidates import SearchSpace, find_candidates
from pinn.planning.fleet import router_of
from pinn.planning.plan import Choice
from pinn.planning.prices import Price
from pinn.planning.problem import PlanningProblem
from pinn.planning.screening import guessed_rates_per_s
from pinn.planning.search import Search, by_hardware
from pinn.planning.search_result import make_plan
from pinn.planning.trials import Trials
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.arrivals import Gaps, Stage
from pinn.simulator.workloads.load import Load, LoadFlags
from pinn.simulator.workloads.rates import at_rate
from pinn.simulator.workloads.workload import PromptGroups, open_loop, shared_prefix

#: ``RUNG``: ratio between neighbouring rates of the grid. ``FAR``: coarse step of the search, as a
#: number of grid rates. The search ends when this number of consecutive rates pass, or fail.
RUNG, FAR = 1.002, 48
#: Highest rate of the grid, as a multiple of the rate at which a replica is always busy.
MOST = 1000.0
MODELS = ("meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B", "Qwen/Qwen3-30B-A3B")
GPUS = ("H100", "H200", "L40S", "A100-SXM-80GB")


def question(seed: int) -> tuple[PlanningProblem, list[Candidate]]:
    """Return a random planning problem, with a handful of candidates."""
    rng = np.random.default_rng(seed)
    prompt, output = int(rng.choice([128, 512, 2048])), int(rng.choice([32, 128]))
    stages = [Stage(1.0, float(rng.integers(200, 400)))]
    gaps = Gaps(str(rng.choice(["poisson", "gamma"])), 1.5)
    if rng.random() < 0.3:
        prompts = PromptGroups(4, 10, prompt // 2, prompt - prompt // 2)
        load = shared_prefix(stages, prompts, output, gaps=gaps, seed=seed)
    else:
        load = open_loop(stages, prompt, output, gaps=gaps, length_range=(0.5, 1.0), seed=seed)
    tight = float(rng.choice([1.5, 3.0]))
    limits = str(rng.choice([
        f"ttft<={200 * tight:.0f}ms, tpot<={15 * tight:.0f}ms for 95 %",
        f"p90 ttft<={200 * tight:.0f}ms, mean tpot<={15 * tight:.0f}ms",
        f"p99 e2e<={output * 15 * tight + 500:.0f}ms",
        f"p95 itl<={40 * tight:.0f}ms",
    ]))  # fmt: skip
    gpus = list(rng.choice(GPUS, 2, replace=False))
    space = SearchSpace({"model": str(rng.choice(MODELS))}, gpus, [None], EngineSpec(), None)
    grid = {
        "tensor_parallel_size": [1, 2],
        "max_num_batched_tokens": [2048, 8192],
        "max_num_seqs": [int(rng.choice([16, 256]))],
    }
    rows = [row | base for base in space.bases for row in expand_grid(grid)]
    checkpoint = find_checkpoint()
    candidates, _ = find_candidates(rows, space, load, checkpoint)
    prices = {c.deployment.gpu.name: Price(float(rng.uniform(1, 4))) for c in candidates}
    rate = float(rng.choice([5.0, 20.0]))
    return PlanningProblem(
        [at_rate(load, rate)], rate, parse_slo(limits), checkpoint, prices, None,
        Load(Path("load"), LoadFlags()),
    ), candidates  # fmt: skip


def choice(problem: PlanningProblem, candidates: list[Candidate]) -> Choice:
    """Return the plan that 'pinn plan' recommends for a planning problem."""
    workers = Workers(torch=False)
    groups = by_hardware(candidates, each_alone=False)
    with TemporaryDirectory() as cache:
        search = Search(problem, groups, workers, cache=Path(cache))
        return make_plan(search, top=4).choices[0]


class Highest(NamedTuple):
    """Maximum request rates of a grid at which one replica meets the latency limits.

    Attributes:
        per_s: Pass/fail threshold that contradicts the results at the fewest rates of the grid. It
            is used because percentiles over a few hundred requests scatter from rate to rate, so
            the maximum passing rate would depend on the number of rates tried. Infinite if all
            rates of the grid pass.
        first_fails_after: Maximum rate below the first rate that fails.
        holds: Maximum rate that meets the limits.
    """

    per_s: float
    first_fails_after: float
    holds: float


def highest(candidate: Candidate, problem: PlanningProblem) -> Highest | None:
    """Return the maximum request rates of the grid that pass; None if no rate passes."""
    trials = Trials(candidate, problem.replica_load(), problem.slo)
    most, _ = guessed_rates_per_s(problem.workload, candidate.latency, candidate.engine, None)
    bottom, top = (math.floor(math.log(share * most) / math.log(RUNG)) for share in (0.05, 10))
    held: dict[int, bool] = {}

    def holds(rung: int) -> bool:
        if rung not in held:
            held[rung] = trials.excess(RUNG**rung) <= 1
        return held[rung]

    rung = last = bottom
    while rung <= max(top, last + FAR) and RUNG**rung <= MOST * most:
        last = rung if holds(rung) else last
        rung += FAR
    if not any(held.values()):
        return None
    if all(held.values()):
        return Highest(math.inf, math.inf, math.inf)
    # Try lower rates until several consecutive rates pass, and higher rates until several
    # consecutive ones fail.
    first = rung = min(rung for rung, is_held in held.items() if not is_held)
    while rung >= max(first - FAR, bottom):
        first = first if holds(rung) else rung
        rung -= 1
    rung, last = first, max(rung for rung, is_held in held.items() if is_held)
    while rung <= last + FAR:
        last = max(last, rung) if holds(rung) else last
        rung += 1
    rungs = sorted(held)
    rates, is_held = np.array([RUNG**rung for rung in rungs]), np.array([held[r] for r in rungs])
    lead = np.cumsum(np.where(is_held, 1, -1))
    before = rates[: int(np.argmin(is_held))]
    return Highest(
        float(rates[np.argmax(lead)]), float(before.max(initial=0.0)), float(rates[is_held].max())
    )


def fleet(
    candidate: Candidate, problem: PlanningProblem, rate_per_s: float, least: float
) -> int | None:
    """Return the minimum number of replicas that pass at the required rate, tried one by one.

    If the load ends before the servers are full, at least the required rate divided by
    ``rate_per_s`` replicas are required. The result is None if no fleet passes among those that can
    be simulated and cost at most ``least``.
    """
    trials = Trials(candidate, problem.replica_load(), problem.slo)
    divided = problem.rate_per_s / rate_per_s - 1e-9

    def holds(replicas: int) -> bool:
        run = trials.fleet(problem.workload, replicas, router_of(candidate, replicas))
        if run is None or trials.excess_of(run) > 1:
            return False
        return replicas >= divided or not trials.point(run, problem.rate_per_s, 1).is_burst

    with suppress(PinnError):
        for replicas in itertools.count(1):
            if price(candidate, replicas, problem) > least:
                break
            if holds(replicas):
                return replicas
    return None


def price(candidate: Candidate, replicas: int, problem: PlanningProblem) -> float:
    return problem.price_per_hour(candidate.deployment.gpu.name, candidate.gpus * replicas)


def compared(seed: int) -> dict | None:
    """Compare the plan with brute force for a random seed; None if nothing meets the limits."""
    problem, candidates = question(seed)
    found, costs = {}, {}
    for candidate in sorted(candidates, key=lambda c: price(c, 1, problem)):
        rates = highest(candidate, problem)
        if rates is None:
            continue
        found[candidate.label] = rates
        least, _ = min(costs.values(), default=(math.inf, 0.0))
        replicas = fleet(candidate, problem, rates.per_s, least)
        if replicas is not None:
            used = problem.rate_per_s / (replicas * rates.per_s)
            costs[candidate.label] = (price(candidate, replicas, problem), used)
    if not costs:
        return None
    winner, (expense, used) = min(costs.items(), key=lambda one: one[1])
    first = choice(problem, candidates)
    own_expense, own_used = costs.get(first.label, (math.inf, math.inf))
    rates, is_open = found[first.label], first.highest_rate.fails_per_s is None
    rate = math.inf if is_open else first.highest_rate.per_s
    return {
        "seed": seed, "limits": problem.slo.text, "winner": winner, "plan": first.label,
        "same_winner": winner == first.label,
        # Two candidates are tied if their rates differ by less than the width of the search's final
        # interval.
        "tied": own_expense == expense and own_used <= used * (1 + rate_search.WIDTH),
        "replicas": first.replicas, "chance": first.chance,
        "expense_percent": 100 * (first.cost_per_hour / expense - 1),
        "rate": rate, **rates._asdict(),
        "off_percent": 0.0 if rate == rates.per_s else 100 * abs(rate / rates.per_s - 1),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="Seed of the first case.")
    asked = parser.parse_args()
    found: list[dict] = []
    seeds = itertools.count(asked.first)
    while len(found) < asked.cases:
        case = compared(next(seeds))
        if case is not None:
            found.append(case)
            print(json.dumps(case), flush=True)
    summary = {
        "cases": len(found),
        "same_winner": sum(case["same_winner"] for case in found),
        "same_winner_or_tied": sum(case["same_winner"] or case["tied"] for case in found),
        "most_expense_percent": max(case["expense_percent"] for case in found),
        "within_2_percent": sum(case["off_percent"] <= 2 for case in found),
        "most_off_percent": max(case["off_percent"] for case in found),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
