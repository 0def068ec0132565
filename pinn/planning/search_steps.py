"""Steps of a search, as tasks of other processes and as entries of a cache.

Results name candidates by their place in the group, so that they are small and JSON-ready.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pinn.planning.candidate import Candidate
from pinn.planning.evaluation import Infeasible, SizedCandidate, examine, size_fleet
from pinn.planning.fleet import FleetSize
from pinn.planning.plan import Choice, HighestRate, Point, RejectedCandidate
from pinn.planning.problem import PlanningProblem
from pinn.planning.screening import ScreeningResult, screen
from pinn.planning.time_budget import TimeBudget


@dataclass(frozen=True)
class ScreenedGroup:
    """Result of screening; attributes as of a ``ScreeningResult``.

    Attributes:
        kept: Places of candidates worth an evaluation and their highest rates, best first.
        rejected: Candidates that were tried and are not kept.
        points: Metrics of the first kept candidate.
        least_excess: Lower bound of the worst latency, as a share of its limit.
        simulations: Number of runs.
        untried: Places of candidates for which there was no time.
    """

    kept: Sequence[tuple[int, float]]
    rejected: Sequence[RejectedCandidate]
    points: Sequence[Point]
    least_excess: float
    simulations: int
    untried: Sequence[int]

    @property
    def is_whole(self) -> bool:
        """Return whether every candidate was tried."""
        return not self.untried

    def of(self, group: Sequence[Candidate]) -> ScreeningResult:
        """Return the result with the candidates of the group."""
        return ScreeningResult(
            [(group[place], rate) for place, rate in self.kept],
            self.rejected,
            self.points,
            self.least_excess,
            self.simulations,
            [group[place] for place in self.untried],
        )


@dataclass(frozen=True)
class SizedGroup:
    """Result of sizing fleets.

    Attributes:
        place: Place of the candidate with the smallest fleet; None where there is none.
        rate: Highest rate of one replica.
        size: Number of replicas, and their runs together.
        nearest: Without a candidate, the one that exceeds the number of GPUs least.
        rejected: Candidates that are not the best.
        simulations: Number of runs.
        untried: Whether there was no time.
    """

    place: int | None
    rate: HighestRate | None
    size: FleetSize | None
    nearest: Infeasible | None
    rejected: Sequence[RejectedCandidate]
    simulations: int
    untried: bool = False

    @property
    def is_whole(self) -> bool:
        """Return whether fleets were sized."""
        return not self.untried


@dataclass(frozen=True)
class Row:
    """Row of a plan.

    Attributes:
        choice: Choice with its metrics.
        simulations: Number of runs.
    """

    choice: Choice
    simulations: int

    @property
    def is_whole(self) -> bool:
        """Return whether the certainty of the choice was estimated."""
        return not self.choice.is_partial


def screen_group(
    task: tuple[Sequence[Candidate], bool], problem: PlanningProblem, budget: TimeBudget
) -> ScreenedGroup:
    """Screen candidates of the same hardware.

    Args:
        task: Candidates, and whether to screen at least one of them after the time.
        problem: Load and SLO.
        budget: Time after which no candidate is tried.
    """
    group, in_any_case = task
    if budget.is_over and not in_any_case:
        return ScreenedGroup([], [], [], math.inf, 0, list(range(len(group))))
    found = screen(group, problem, budget)
    places = {candidate.label: place for place, candidate in enumerate(group)}
    return ScreenedGroup(
        [(places[candidate.label], rate) for candidate, rate in found.kept],
        found.rejected,
        found.points,
        found.least_excess,
        found.simulations,
        [places[candidate.label] for candidate in found.untried],
    )


def size_group(
    task: tuple[tuple[Sequence[Candidate], Sequence[tuple[int, float]]], bool],
    problem: PlanningProblem,
    budget: TimeBudget,
) -> SizedGroup:
    """Size fleets of screened candidates.

    Args:
        task: Candidates with the places and rates of those that were kept, and whether to size
            a fleet after the time too.
        problem: Load and SLO.
        budget: Time after which nothing is sized.
    """
    (group, kept), in_any_case = task
    if budget.is_over and not in_any_case:
        return SizedGroup(None, None, None, None, [], 0, untried=True)
    found = size_fleet([(group[place], rate) for place, rate in kept], problem)
    best = found.best
    if best is None:
        return SizedGroup(None, None, None, found.nearest, found.rejected, found.simulations)
    place = [candidate.label for candidate in group].index(best.candidate.label)
    return SizedGroup(place, best.rate, best.size, None, found.rejected, found.simulations)


def make_row(
    task: tuple[SizedCandidate, bool], problem: PlanningProblem, budget: TimeBudget
) -> Row:
    """Return the row of a sized candidate; a partial one where time is over."""
    sized, _ = task
    return Row(*examine(sized, problem, budget))
