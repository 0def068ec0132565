"""Steps of a search, which run in worker processes and whose results are cached as JSON."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pinn.planning.candidate import Candidate
from pinn.planning.evaluation import Row, SizedFleet, SizingResult, examine, size_fleet
from pinn.planning.problem import PlanningProblem
from pinn.planning.screening import ScreeningResult, screen
from pinn.planning.time_budget import OutOfTimeError, TimeBudget
from pinn.planning.trials import Trials
from pinn.simulator.compiler import compilations

Given = TypeVar("Given")
Result = TypeVar("Result")

#: Number of requests in the simulation that warms up a worker process.
_WARM_UP_REQUESTS = 2


@dataclass(frozen=True)
class Task(Generic[Given]):
    """Task for one step of a search: screening, sizing or a row.

    Attributes:
        given: Argument of the step: candidates, or a candidate and its fleet.
        budget: Time budget of the step.
        in_any_case: Whether to run the step even if time runs out.
    """

    given: Given
    budget: TimeBudget
    in_any_case: bool

    def result(self, step: Callable[..., Result], *given: object) -> Result | None:
        """Return the result of a step; None if time runs out before there is one."""
        if self.budget.is_over and not self.in_any_case:
            return None
        try:
            return step(*given, self.budget, in_any_case=self.in_any_case)
        except OutOfTimeError:
            return None


def screen_group(
    problem: PlanningProblem, task: Task[Sequence[Candidate]]
) -> ScreeningResult | None:
    """Return the screening result for one hardware configuration; None if time runs out."""
    return task.result(screen, task.given, problem)


def size_group(
    problem: PlanningProblem, task: Task[Sequence[tuple[Candidate, float]]]
) -> SizingResult | None:
    """Return the best fleet for one hardware configuration; None if time runs out."""
    return task.result(size_fleet, task.given, problem)


def make_row(problem: PlanningProblem, task: Task[tuple[Candidate, SizedFleet]]) -> Row | None:
    """Return the plan's row of a fleet; a partial row, or None, if time runs out."""
    return task.result(examine, *task.given, problem)


def timed(
    step: Callable[[PlanningProblem, Task[Given]], Result],
    problem: PlanningProblem,
    task: Task[Given],
) -> tuple[Result, float]:
    """Return the result of a step, and how many seconds it took."""
    begin_s = task.budget.clock()
    return step(problem, task), task.budget.clock() - begin_s


def warm_up(
    problem: PlanningProblem, clock: Callable[[], float], candidate: Candidate
) -> tuple[int, float]:
    """Simulate a few requests, which compiles the simulator if it is not compiled yet.

    Return the number of the process, and its seconds by ``clock`` if it compiled; otherwise 0.
    """
    before, begin_s = compilations(), clock()
    load = problem.replica_load(most=_WARM_UP_REQUESTS)
    Trials(candidate, load, problem.slo).run(load.rate_per_s)
    return os.getpid(), clock() - begin_s if compilations() > before else 0.0
