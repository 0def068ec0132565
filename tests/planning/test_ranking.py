"""Order of a plan's rows, and counts of a search's candidates."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from finished_plans import choice, plan

from pinn.common.files import find_checkpoint
from pinn.engines.engine_spec import EngineSpec
from pinn.planning.candidates import SearchSpace, find_candidates
from pinn.planning.plan import TIME_BUDGET, RejectedCandidate
from pinn.planning.prices import Price
from pinn.planning.problem import PlanningProblem
from pinn.planning.ranking import promising, rank
from pinn.planning.search_extent import counts
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.arrivals import Gaps, Stage
from pinn.simulator.workloads.load import Load, LoadFlags
from pinn.simulator.workloads.rates import at_rate
from pinn.simulator.workloads.workload import open_loop


def test_of_equal_cost_the_more_probable_row_comes_first():
    spare = replace(choice("H100-SXM", 2, 1, 15.2, 2.5), chance=0.7)
    likely = replace(choice("H100-SXM", 2, 1, 14.7, 2.5), chance=0.8)
    alike = replace(choice("H100-SXM", 2, 1, 16.0, 2.5), chance=0.8)
    late = replace(spare, chance=None, is_partial=True)
    calibrated = replace(spare, chance=None, coefficients="server.json")
    cheaper = replace(choice("H100-SXM", 1, 1, 12.1, 2.5), chance=0.1)
    rows = [late, spare, likely, alike, calibrated, cheaper]
    ordered = sorted(rows, key=lambda each: rank(each, 12.0))
    assert ordered == [cheaper, calibrated, alike, likely, spare, late]


@pytest.fixture(scope="module")
def problem():
    """Return a problem of 12 requests/s, with a price of 1 per GPU and hour."""
    load = at_rate(open_loop([Stage(1.0, 60.0)], 256, 16, gaps=Gaps("poisson"), seed=1), 12.0)
    prices, whole = {"A100-SXM-80GB": Price(1.0)}, Load(Path("load"), LoadFlags())
    slo = parse_slo("p95 ttft<=1s")
    return PlanningProblem([load], 12.0, slo, find_checkpoint(), prices, None, whole)


@pytest.fixture(scope="module")
def servers(problem):
    """Return one candidate with 1, 2, 4 and 8 GPUs each."""
    space = SearchSpace({"model": "Qwen/Qwen3-4B"}, ["A100-SXM-80GB"], [None], EngineSpec(), None)
    rows = [{**space.bases[0], "tensor_parallel_size": size} for size in (1, 2, 4, 8)]
    found, _ = find_candidates(rows, space, problem.workload, find_checkpoint())
    return {candidate.gpus: candidate for candidate in found}


def test_the_cheapest_hardware_needs_the_fewest_whole_replicas(problem, servers):
    """5.8 requests/s on 8 GPUs are more than 2 x 2.56, but 12 requests/s take 24 GPUs, not 20."""
    fastest = {0: (servers[8], 5.8), 1: (servers[4], 2.56)}
    assert promising(fastest, problem, 1) == ([1], [0])
    fastest |= {2: (servers[2], 0.75)}  # 32 GPUs, or 28 if the rate is 20 % higher
    assert promising(fastest, problem, 1) == ([1], [0])
    assert promising(fastest, problem, 3) == ([1], [0, 2])


def test_hardware_that_may_undercut_the_best_fleet_of_its_gpu_is_evaluated(problem, servers):
    fastest = {0: (servers[4], 2.56), 1: (servers[2], 0.75)}  # 20 GPUs; 32, or 28 at best
    assert promising(fastest, problem, 1, {0: (False, 28.0)}) == ([0], [])
    assert promising(fastest, problem, 1, {0: (False, 32.0)}) == ([0], [1])
    assert promising(fastest, problem, 1, {0: (True, math.inf)}) == ([0], [1])  # no fleet
    most = replace(problem, max_gpus=20)
    assert promising(fastest, most, 1, {0: (True, math.inf)}) == ([0], [])


def test_counts_of_candidates_add_up():
    made = plan()
    reasons = [("does not meet the SLO at any rate", True)] * 5 + [("does not fit", False)] * 2
    reasons += [("not evaluated: time was over", True)] * 3 + [("not tried: time was over", False)]
    left = [RejectedCandidate(f"{i}", "L40S", *each) for i, each in enumerate(reasons)]
    shown = replace(made, left_out=left, candidates=14, untried=1, stopped=TIME_BUDGET)
    beside, (*_, searched) = counts(shown, 2)[0], counts(shown, 2)
    assert beside == "1 further plan is in plan.html, plan.json and plan.csv in the --out folder."
    assert searched == (
        "Search: 14 candidates: 3 rows, 5 rejected after simulations, 2 rejected before, "
        "3 not evaluated in time, 1 not tried; 412 simulations, 38 s."
    )
