"""Latencies of an idle server that misses the SLO."""

import re
from pathlib import Path

import numpy as np
import pytest

from pinn.common.files import find_checkpoint
from pinn.common.workers import Workers
from pinn.engines.engine_spec import EngineSpec
from pinn.planning.candidates import SearchSpace, find_candidates
from pinn.planning.idle_server import missed_limits
from pinn.planning.plan import NoPlanError
from pinn.planning.problem import PlanningProblem
from pinn.planning.screening import least_excess, screen
from pinn.planning.search import Search, by_hardware
from pinn.planning.search_result import make_plan
from pinn.planning.trials import Trials
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.arrivals import Gaps, Stage
from pinn.simulator.workloads.load import Load, LoadFlags
from pinn.simulator.workloads.workload import open_loop

TTFT_S = np.array([0.1, 0.2, 0.3, 0.4])
TPOT_S = np.array([0.02, 0.01, 0.01, 0.01])
LATENCIES = {"ttft": TTFT_S, "tpot": TPOT_S, "e2e": TTFT_S + 10 * TPOT_S}
GAPS = (np.array([0.01]), np.array([40]))


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        ("p50 ttft<=250ms; mean tpot<=20ms", []),
        ("p50 ttft<=249.5ms", ["p50 TTFT is 250 ms (limit 249.5 ms)"]),
        ("mean e2e<=100ms; p50 tpot<=5ms",
         ["mean E2E is 375 ms (limit 100 ms)", "p50 TPOT is 10 ms (limit 5 ms)"]),
        ("ttft<=200ms, tpot<=30ms for 75 %", ["TTFT of 75 % of requests is 300 ms (limit 200 ms)"]),
        ("ttft<=300ms, tpot<=15ms for 75 %",
         ["only 50.0 % of the requests meet TTFT <= 300 ms and TPOT <= 15 ms"]),
    ],
)  # fmt: skip
def test_each_missed_limit_has_its_value(slo, said):
    assert missed_limits(parse_slo(slo), LATENCIES, GAPS) == said


def test_lower_bounds_are_called_so():
    slo = parse_slo("p100 ttft<=100ms")
    assert missed_limits(slo, LATENCIES, GAPS, least=True) == [
        "p100 TTFT is at least 400 ms (limit 100 ms)"
    ]


def asked(slo, gpus):
    load = open_loop([Stage(1.0, 300.0)], 2048, 8, gaps=Gaps("poisson"), seed=1)
    space = SearchSpace({"model": "Qwen/Qwen3-4B"}, gpus, [None], EngineSpec(), None)
    found, _ = find_candidates(space.bases, space, load, find_checkpoint())
    problem = PlanningProblem([load], 1.0, slo, find_checkpoint(), {}, None,
                              Load(Path("load"), LoadFlags()), gpus=gpus)  # fmt: skip
    return problem, found


@pytest.mark.parametrize("share", [0.99, 0.5])
def test_a_missed_limit_is_that_of_a_simulated_idle_server(share):
    """A limit between the lower bound and the simulated TTFT is missed, too."""
    _, (candidate,) = asked(parse_slo("p95 ttft<=1s"), ["H100-SXM"])
    problem, _ = asked(parse_slo("p95 ttft<=1s"), ["H100-SXM"])
    trials = Trials(candidate, problem.replica_load(most=200), problem.slo)
    idle_s = trials.point(trials.run(0.01), 0.01).latency_s["ttft"]["p95"]
    slo = parse_slo(f"p95 ttft<={1000 * share * idle_s:.4f}ms")
    problem, _ = asked(slo, ["H100-SXM"])
    bound = least_excess(problem.workload, candidate.latency, candidate.prompt_latency, slo)
    found = screen([candidate], problem)
    assert not found.kept
    assert found.idle.excess == pytest.approx(1 / share, rel=1e-3)
    assert found.idle.excess > bound
    assert found.idle.label == candidate.label
    (missed,) = found.idle.missed
    value_ms, limit_ms = map(float, re.findall(r"([\d.]+) ms", missed))
    assert value_ms == pytest.approx(1000 * idle_s, rel=1e-3)
    assert limit_ms == pytest.approx(1000 * share * idle_s, rel=1e-3)


def test_an_infeasible_plan_has_the_reason_of_each_gpu(tmp_path):
    problem, found = asked(parse_slo("p95 ttft<=1ms"), ["H100-SXM", "L40S"])
    groups = by_hardware(found, each_alone=False)
    search = Search(problem, groups, Workers(torch=False), cache=tmp_path)
    with pytest.raises(NoPlanError) as caught:
        make_plan(search, top=1)
    said = str(caught.value)
    reasons = {each.gpu: each.reason for each in caught.value.plan.by_gpu}
    for gpu in ("H100-SXM", "L40S"):
        expected = (
            rf"infeasible: on an idle server of {gpu} .*, p95 TTFT is [\d.,]+ ms \(limit 1 ms\)"
        )
        assert re.search(expected, reasons[gpu])
    assert f"the closest of 2 GPUs is H100-SXM: {reasons['H100-SXM']}" in said
    assert said.endswith("or give faster GPUs or formats with fewer bits")
