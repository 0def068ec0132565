"""Steps of a search, which run in other processes; their results are cached as JSON."""

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
    """Task of a step.

    Attributes:
        given: Argument of the step.
        budget: Time of the step.
        in_any_case: Whether to do it after that time too.
    """

    given: Given
    budget: TimeBudget
    in_any_case: bool

    @property
    def is_too_late(self) -> bool:
        """Return whether the task is left undone."""
        return self.budget.is_over and not self.in_any_case


def screen_group(
    problem: PlanningProblem, task: Task[Sequence[Candidate]]
) -> ScreeningResult | None:
    """Screen all candidates of the same hardware; None where time is over."""
    return None if task.is_too_late else screen(task.given, problem)


def size_group(
    problem: PlanningProblem, task: Task[Sequence[tuple[Candidate, float]]]
) -> SizingResult | None:
    """Size fleets of candidates with their screened rates; None where time is over."""
    return None if task.is_too_late else size_fleet(task.given, problem)


def make_row(problem: PlanningProblem, task: Task[tuple[Candidate, SizedFleet]]) -> Row | None:
    """Return the row of a candidate's fleet; a partial one or None where time is over."""
    return None if task.is_too_late else examine(*task.given, problem, task.budget)
