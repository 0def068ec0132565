"""Steps of a search, which run in other processes and whose results are cached as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pinn.planning.candidate import Candidate
from pinn.planning.evaluation import Row, SizedFleet, SizingResult, examine, size_fleet
from pinn.planning.problem import PlanningProblem
from pinn.planning.screening import ScreeningResult, screen
from pinn.planning.time_budget import TimeBudget

Given = TypeVar("Given")


@dataclass(frozen=True)
class Task(Generic[Given]):
    """Task for one step of a search: screening, sizing or a row.

    Attributes:
        given: Argument of the step: candidates, or a candidate and its fleet.
        budget: Time budget of the step.
        in_any_case: Whether to run the step even if the time is used up.
    """

    given: Given
    budget: TimeBudget
    in_any_case: bool

    @property
    def is_too_late(self) -> bool:
        """Whether the time is used up and the task is skipped."""
        return self.budget.is_over and not self.in_any_case


def screen_group(
    problem: PlanningProblem, task: Task[Sequence[Candidate]]
) -> ScreeningResult | None:
    """Return the screening of all candidates of one hardware; None if the time is used up."""
    return None if task.is_too_late else screen(task.given, problem)


def size_group(
    problem: PlanningProblem, task: Task[Sequence[tuple[Candidate, float]]]
) -> SizingResult | None:
    """Return the best fleet of candidates of one hardware; None if the time is used up."""
    return None if task.is_too_late else size_fleet(task.given, problem, task.budget)


def make_row(problem: PlanningProblem, task: Task[tuple[Candidate, SizedFleet]]) -> Row | None:
    """Return the plan's row of a fleet; a partial row, or None, if the time is used up."""
    return None if task.is_too_late else examine(*task.given, problem, task.budget)
