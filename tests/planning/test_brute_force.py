"""Small plans compared with brute force; ``scripts/check_plan.py`` runs thirty such cases."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from pages import command_on, missing

from pinn.engines.engine_spec import ROUTINGS
from pinn.planning.trials import Trials
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.rates import at_rate

_PATH = Path(__file__).parents[2] / "scripts" / "check_plan.py"


@pytest.fixture(scope="module")
def check_plan():
    specification = importlib.util.spec_from_file_location("check_plan", _PATH)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("seed", "hardware", "ladder"),
    [
        # Two limits of requests per step, on loads of a few hundred requests.
        (8, "H200-SXM TP 2 ", (1.002, 48)),
        # A coarser ladder, to save time.
        (132, "H100-SXM TP 2 ", (1.005, 18)),
    ],
)
def test_the_choice_and_its_rate_are_those_of_brute_force(
    check_plan, monkeypatch, capsys, seed, hardware, ladder
):
    monkeypatch.setattr(check_plan, "RUNG", ladder[0])
    monkeypatch.setattr(check_plan, "FAR", ladder[1])
    problem, candidates = check_plan.question(seed)
    alike = [candidate for candidate in candidates if candidate.label.startswith(hardware)]
    monkeypatch.setattr(check_plan, "question", lambda _: (problem, alike))
    (_, *words), shown = command_on("plan_notes.md", "check_plan.py")
    monkeypatch.setattr(sys, "argv", [*words, "--cases", "1", "--first", str(seed)])
    check_plan.main()
    printed = capsys.readouterr().out
    assert not missing(shown, printed)
    found = json.loads(printed.splitlines()[0])
    assert found["seed"] == seed
    assert found["same_winner"] or found["tied"]
    assert abs(found["expense_percent"]) <= 2
    # Where rates pass beyond others that fail, the threshold lies anywhere between.
    between = 0.98 * found["first_fails_after"] <= found["rate"] <= 1.02 * found["holds"]
    assert found["off_percent"] <= 2 or between


def test_a_fleet_too_large_to_simulate_holds_nothing(check_plan):
    """The plan continues without that fleet, and reports it."""
    problem, (candidate, *_) = check_plan.question(200)
    trials = Trials(candidate, problem.replica_load(), parse_slo("p99 ttft<=1000s"))
    workload = at_rate(problem.workload, 0.1)
    assert trials.fleet(workload, 1, ROUTINGS[-1]) is not None
    assert trials.fleet(workload, 100_000, ROUTINGS[-1]) is None
    assert trials.fleet_excess(workload, 100_000, ROUTINGS[-1]) == float("inf")
