"""Small plans beside brute force; ``scripts/check_plan.py`` runs thirty such cases."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from pages import command_on, missing

_PATH = Path(__file__).parents[2] / "scripts" / "check_plan.py"


@pytest.fixture(scope="module")
def check_plan():
    specification = importlib.util.spec_from_file_location("check_plan", _PATH)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    module.RUNG, module.FAR = 1.005, 18  # a coarser ladder, for time
    return module


@pytest.mark.parametrize(
    ("seed", "hardware"),
    [
        (8, "H200-SXM TP 2 "),  # the higher rate alone is not the likelier fleet
        (132, "H100-SXM TP 2 "),  # nor is half of it too little
    ],
)
def test_the_choice_and_its_rate_are_those_of_brute_force(
    check_plan, monkeypatch, capsys, seed, hardware
):
    brief, candidates = check_plan.question(seed)
    alike = [candidate for candidate in candidates if candidate.label.startswith(hardware)]
    monkeypatch.setattr(check_plan, "question", lambda _: (brief, alike))
    (_, *words), shown = command_on("plan.md", "check_plan.py")
    monkeypatch.setattr(sys, "argv", [*words, "--cases", "1", "--first", str(seed)])
    check_plan.main()
    printed = capsys.readouterr().out
    assert not missing(shown, printed)
    found = json.loads(printed.splitlines()[0])
    assert found["seed"] == seed
    assert found["same_winner"] or found["tied"]
    assert abs(found["expense_percent"]) <= 2
    assert found["off_percent"] <= 2
