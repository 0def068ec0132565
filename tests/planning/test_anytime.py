"""Searches that end by time or interrupt, and go on from what an earlier one has found."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import msgspec
import pytest

from pinn.common.files import find_checkpoint
from pinn.common.workers import Workers
from pinn.engines.configurations import expand_grid
from pinn.engines.engine_spec import EngineSpec
from pinn.planning import search_steps
from pinn.planning.candidates import SearchSpace, find_candidates
from pinn.planning.plan import Plan
from pinn.planning.prices import Price
from pinn.planning.problem import PlanningProblem
from pinn.planning.ranking import costs_more, fleet_expense
from pinn.planning.screening import screen
from pinn.planning.search import Search, by_hardware
from pinn.planning.search_extent import counts
from pinn.planning.search_result import make_plan
from pinn.planning.search_steps import warm_up
from pinn.planning.time_budget import OutOfTimeError, TimeBudget
from pinn.planning.trials import Trials
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.arrivals import Gaps, Stage
from pinn.simulator.workloads.load import Load, LoadFlags
from pinn.simulator.workloads.rates import at_rate
from pinn.simulator.workloads.workload import open_loop

GPUS = ("H100-SXM", "L40S", "T4")
GRID = {"tensor_parallel_size": [1, 2], "max_num_seqs": [8, 64]}
RATE = 30.0


@pytest.fixture(scope="module")
def question():
    """Return a problem on three GPUs, of which a T4 is too slow, and its candidates."""
    load = open_loop([Stage(1.0, 300.0)], 256, 16, gaps=Gaps("poisson"), seed=1)
    space = SearchSpace({"model": "Qwen/Qwen3-4B"}, GPUS, [None], EngineSpec(), None)
    rows = [row | base for base in space.bases for row in expand_grid(GRID)]
    candidates, _ = find_candidates(rows, space, load, find_checkpoint())
    prices = {"H100-SXM": Price(2.5)}
    slo = parse_slo("p95 ttft<=300ms; p95 tpot<=12ms")
    draws = [at_rate(load, RATE)]
    whole = Load(Path("load"), LoadFlags())
    problem = PlanningProblem(draws, RATE, slo, find_checkpoint(), prices, None, whole, gpus=GPUS)
    groups = by_hardware(candidates, each_alone=False)
    warm_up(problem, Ticks(), groups[0][0])  # compiling would shift the budgets below
    return problem, groups


class Ticks:
    """A clock that moves on by a second whenever it is read."""

    now_s = 0.0

    def __call__(self):
        self.now_s += 1
        return self.now_s


def planned(question, cache, seconds=float("inf"), clock=Ticks) -> Plan:
    problem, groups = question
    budget = TimeBudget.starting(seconds, clock())
    workers = Workers(torch=False)
    return make_plan(Search(problem, groups, workers, budget, cache), top=1)


def written(plan: Plan) -> dict:
    """Return a plan as plan.json has it, without the time that it took."""
    timeless = dataclasses.replace(plan, seconds=0.0, spent_s={})
    return msgspec.json.decode(msgspec.json.encode(timeless))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def whole(question, cache):
    return planned(question, cache)


def test_every_gpu_that_was_asked_has_its_best_row_or_a_reason(whole):
    """Rows without a price come last; a GPU that meets no limit says why."""
    with_row = [each for each in whole.by_gpu if each.rank is not None]
    assert {each.gpu for each in with_row} == {"H100-SXM", "L40S"}
    for each in with_row:
        (rank, *_) = [i for i, c in enumerate(whole.choices, 1) if c.gpu == each.gpu]
        assert each.rank == rank
    (without,) = (each for each in whole.by_gpu if each.rank is None)
    assert without.gpu == "T4"
    assert without.reason.startswith("infeasible: on an idle server of T4 TP ")
    value_ms, limit_ms = map(float, re.findall(r"([\d.]+) ms", without.reason)[-2:])
    assert value_ms > limit_ms == 12
    costs = [choice.cost_per_hour for choice in whole.choices]
    priced = [cost for cost in costs if cost is not None]
    assert costs == sorted(priced) + [None] * (len(costs) - len(priced))
    assert {c.gpu for c in whole.choices if c.cost_per_hour is None} == {"L40S"}
    assert not whole.stopped
    assert whole.untried == 0


def test_costs_are_the_whole_cost_over_the_tokens_of_either_kind(whole):
    first = whole.choices[0]
    seconds = 1e6 / (RATE * 256)
    assert first.cost_per_million_prompt_tokens == pytest.approx(
        first.cost_per_hour * seconds / 3600
    )
    assert first.cost_per_million_output_tokens == pytest.approx(
        first.cost_per_million_prompt_tokens * 256 / 16
    )
    assert whole.choices[-1].cost_per_million_prompt_tokens is None


def test_without_time_the_best_guess_on_each_gpu_is_evaluated(question, whole, tmp_path):
    plan = planned(question, tmp_path, 1e-9)
    assert {choice.gpu for choice in plan.choices} == {"H100-SXM", "L40S"}
    assert plan.stopped == "time budget"
    assert 0 < plan.untried < plan.candidates
    untried = [each for each in plan.left_out if each.reason == "not tried: time was over"]
    assert len(untried) == plan.untried
    assert plan.candidates == whole.candidates == len(plan.choices) + len(plan.left_out)
    for choice in plan.choices:
        assert choice.is_partial
        assert choice.chance is None
        assert choice.fleet_rate.interval_per_s is None
        assert all(fleet.point.holds for fleet in choice.fleets)
    assert plan.choices[0].cost_per_hour >= whole.choices[0].cost_per_hour


@pytest.mark.parametrize("seconds", [1e-9, 8.0, 25.0, 100.0, 400.0, float("inf")])
def test_every_candidate_is_accounted_for_whenever_time_ends(question, tmp_path, seconds):
    plan = planned(question, tmp_path, seconds)
    assert plan.candidates == len(plan.choices) + len(plan.left_out)
    assert {each.gpu for each in plan.by_gpu} == set(GPUS)
    labels = [each.label for each in (*plan.choices, *plan.left_out)]
    assert len(set(labels)) == len(labels)
    _, _, parts = counts(plan, 0)[-1].partition(": ")
    total, _, rest = parts.partition(" candidates: ")
    numbers = [int(part.split()[0]) for part in rest.partition(";")[0].split(", ")]
    assert int(total) == plan.candidates == sum(numbers)
    assert bool(plan.stopped) == any(
        each.reason.startswith(("not tried", "not evaluated")) for each in plan.left_out
    ) | any(choice.is_partial for choice in plan.choices)


def test_the_same_search_goes_on_to_the_same_plan(question, whole, cache, tmp_path, monkeypatch):
    screened = []
    screen = search_steps.screen
    monkeypatch.setattr(
        search_steps,
        "screen",
        lambda *given, **named: screened.append(1) or screen(*given, **named),
    )
    begun = planned(question, tmp_path, 1e-9)
    assert len(screened) == len(GPUS)  # one hardware of each
    found = planned(question, tmp_path)
    # Each once, and again the two whose screening time did not complete.
    assert len(screened) == len(question[1]) + 2
    assert written(found)["choices"] == written(whole)["choices"]
    assert begun.simulations < found.simulations

    def fail(*_, **__):
        raise AssertionError("simulated again")

    for step in ("screen", "size_fleet", "examine"):
        monkeypatch.setattr(search_steps, step, fail)
    assert written(planned(question, cache)) == written(whole)


@pytest.mark.usefixtures("whole")
def test_another_question_is_another_key(question, cache, monkeypatch):
    problem, groups = question
    seen = []
    monkeypatch.setattr(search_steps, "screen", lambda *_, **__: seen.append(1) or 1 / 0)
    for change in (
        {"slo": parse_slo("p95 ttft<=200ms; p95 tpot<=12ms")},
        {"draws": [at_rate(problem.draws[0], 29.0)]},
        {"max_gpus": 64},
    ):
        with pytest.raises(ZeroDivisionError):
            planned((dataclasses.replace(problem, **change), groups), cache)
    assert len(seen) == 3


@pytest.mark.parametrize("tasks", [2, 6])
def test_an_interrupt_leaves_the_best_so_far(question, whole, tmp_path, monkeypatch, tasks):
    done = []
    run = Workers.run

    def interrupted(self, work, given):
        for result in run(self, work, given):
            done.append(result)
            yield result
            if len(done) == tasks:
                raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "run", interrupted)
    plan = planned(question, tmp_path)
    assert plan.stopped == "interrupt"
    assert plan.choices[0].replicas >= 1
    assert all(fleet.point.holds for fleet in plan.choices[0].fleets)
    assert plan.candidates == len(plan.choices) + len(plan.left_out)
    monkeypatch.undo()
    assert written(planned(question, tmp_path))["choices"] == written(whole)["choices"]


def test_an_interrupt_before_anything_is_an_interrupt(question, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Workers, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        planned(question, tmp_path)


@pytest.mark.parametrize(
    ("rate_per_s", "limits"),
    [
        (RATE, "p95 ttft<=300ms; p95 tpot<=12ms"),  # prices of one GPU only
        (95.0, "p95 ttft<=150ms"),
    ],
)
def test_no_gpu_has_a_row_dearer_than_screening_promises(question, tmp_path, rate_per_s, limits):
    """Hardware that was screened but not sized is no cheaper than the best fleet of its GPU."""
    problem, groups = question
    draws = [at_rate(problem.draws[0], rate_per_s)]
    problem = dataclasses.replace(
        problem, draws=draws, rate_per_s=rate_per_s, slo=parse_slo(limits)
    )
    budget = TimeBudget.starting(float("inf"), Ticks())
    search = Search(problem, groups, Workers(torch=False), budget, tmp_path)
    make_plan(search, top=1)
    best = {}
    for i, fleet in search.fleets.items():
        gpu, found = groups[i][0].deployment.gpu.name, fleet_expense(*fleet, problem)
        best[gpu] = min(found, best.get(gpu, found))
    assert set(best) >= {"H100-SXM", "L40S"}
    for i, (candidate, rate) in search.fastest.items():
        screened = costs_more(candidate, rate, problem, 1)
        _, expense, _ = re.split(r"so ([\d.,]+) ", screened)
        if i not in search.sized:
            assert float(expense) >= best[candidate.deployment.gpu.name][1]


def test_time_left_is_estimated_from_the_pace_of_the_tasks(question):
    problem, groups = question
    search = Search(problem, groups, Workers(count=2, torch=False))
    assert search.left_s(top=1) is None  # nothing ran yet
    # Screening took 2 s a task, and no fleet was sized in 9 s; a row is as slow as a fleet.
    search.task_s, search.completed = {"screening": 4.0, "fleets": 9.0}, {"screening": 2}
    search.spent_s = {"start-up": 5.0}
    rounds = math.ceil(len(groups) / 2)
    assert search.left_s(top=1) == pytest.approx(5.0 + 2.0 * rounds + 9.0 + 9.0)


def test_compiling_is_not_part_of_the_budget(question, tmp_path, monkeypatch):
    """A first search of a new installation tries as many candidates as later ones."""
    problem, groups = question

    def searched(seconds, compiling_s, cache):
        clock = Ticks()

        def compiled(*_):
            clock.now_s += compiling_s
            return 0, compiling_s

        monkeypatch.setattr("pinn.planning.search.warm_up", compiled)
        budget = TimeBudget.starting(seconds, clock)
        return make_plan(Search(problem, groups, Workers(torch=False), budget, cache), top=1)

    plans = [searched(400.0, s, tmp_path / str(s)) for s in (0.0, 1000.0)]
    assert written(plans[0]) == written(plans[1])
    assert plans[1].spent_s.pop("compiling") == 1000
    assert plans[0].spent_s == pytest.approx(plans[1].spent_s)
    whole_plan = dataclasses.replace(plans[1], time_budget_s=None)
    said = counts(dataclasses.replace(whole_plan, spent_s={"compiling": 41.2}), 0)[-1]
    assert said.endswith(" s, after 41 s for compiling the simulator, which is needed once.")


def test_a_simulation_does_not_begin_after_the_end(question):
    problem, groups = question
    over = TimeBudget(0.0, 0.0)
    trials = Trials(groups[0][0], problem.replica_load(most=10), problem.slo, budget=over)
    with pytest.raises(OutOfTimeError):
        trials.run(1.0)
    assert trials.tally.simulations == 0


def test_a_plan_says_how_long_it_took_and_what_went_beyond_the_budget(whole):
    late = dataclasses.replace(
        whole, seconds=114.2, time_budget_s=30.0, spent_s={"start-up": 70.4, "fleets": 43.8}
    )
    assert counts(late, 0)[-1].endswith(
        "simulations, 114 s, 84 s beyond --time-budget (start-up 70 s, fleets 44 s)."
    )
    assert "beyond" not in counts(dataclasses.replace(late, time_budget_s=120.0), 0)[-1]
    assert "beyond" not in counts(whole, 0)[-1]


def test_a_screened_candidate_beyond_the_gpus_is_not_called_dear(question):
    problem, groups = question
    candidate = groups[0][0]
    limited = dataclasses.replace(problem, max_gpus=2)
    assert costs_more(candidate, 1.0, limited, 5) == (
        f"needs about {30 * candidate.gpus} GPUs, more than --max-gpus 2: about 1.00 requests/s "
        "per replica"
    )
    assert costs_more(candidate, 1.0, problem, 5).startswith(
        "by screening, neither among the 5 cheapest hardware configurations (--top) nor the "
    )


def test_requests_of_a_simulation_that_is_stopped_early_are_counted(question):
    """Overload fills a batch, so that a higher limit on requests is tried, too."""
    problem, groups = question
    candidate = groups[0][0]
    trials = Trials(candidate, problem.replica_load(most=1000), problem.slo)
    assert trials.excess(2000.0) == float("inf")
    assert trials.tally.most_running == candidate.deployment.recipe.max_requests == 8


@pytest.mark.parametrize(
    ("slo", "tried"), [("p95 ttft<=300ms", False), ("p95 ttft<=300ms; p95 tpot<=12ms", True)]
)
def test_a_small_token_budget_is_tried_where_the_slo_limits_gaps(question, slo, tried):
    problem, groups = question
    problem = dataclasses.replace(problem, slo=parse_slo(slo))
    rows = [
        {**groups[0][0].configuration, "max_num_seqs": 64, "max_num_batched_tokens": budget}
        for budget in (512, 2048)
    ]
    space = SearchSpace({}, GPUS, [None], EngineSpec(), None)
    candidates, _ = find_candidates(rows, space, problem.workload, find_checkpoint())
    small = next(c.label for c in candidates if "512 tokens" in c.label)
    rejected = {each.label: each for each in screen(candidates, problem).rejected}
    skipped = small in rejected and not rejected[small].simulated
    assert skipped != tried
