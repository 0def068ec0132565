"""Search for a plan within a time budget, which goes on from what an earlier one has found.

The most promising hardware is screened first, by a guess that needs no simulation. Fleets of what
screened best are sized, then the rest of the hardware is screened while there is time. Last come
the rows with their certainty, the cheapest first. Every GPU that was asked is screened and sized in
any case.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec

from pinn.common import progress, store
from pinn.common.workers import Workers
from pinn.planning import ranking
from pinn.planning.candidate import Candidate
from pinn.planning.evaluation import SizedCandidate
from pinn.planning.plan import Choice
from pinn.planning.problem import PlanningProblem
from pinn.planning.screening import ScreeningResult
from pinn.planning.search_steps import (
    Row,
    ScreenedGroup,
    SizedGroup,
    make_row,
    screen_group,
    size_group,
)
from pinn.planning.time_budget import UNLIMITED, TimeBudget

#: Share of the budget after which only the certainty of rows is estimated.
_SEARCH_SHARE = 0.7
#: Share of the time left for the search that a round spends on screening.
_SCREENING_SHARE = 0.6

_LOG = logging.getLogger(__name__)
_Given = TypeVar("_Given")
_Result = TypeVar("_Result", ScreenedGroup, SizedGroup, Row)
#: Step of a search: what is given and whether to do it after the time too, problem and budget.
_Step = Callable[[tuple[_Given, bool], PlanningProblem, TimeBudget], _Result]


def by_hardware(candidates: Sequence[Candidate], *, each_alone: bool) -> list[list[Candidate]]:
    """Return candidates by their hardware; each alone where every one is to be a row."""
    if each_alone:
        return [[candidate] for candidate in candidates]
    ordered = sorted(candidates, key=lambda c: str(c.hardware))
    return [list(group) for _, group in groupby(ordered, key=lambda c: c.hardware)]


def _digest(problem: PlanningProblem) -> str:
    """Return the digest of all that decides a search beside its candidates.

    The words of the load are part of rows; where they name a file, its content decides.
    """
    load = problem.load
    content = load.path if load.path is not None and load.path.exists() else None
    rest = [getattr(problem, each.name) for each in fields(problem) if each.name != "load"]
    return store.call_key(make_row, (rest, load.words, content)).digest


def _done(
    step: _Step[_Given, _Result],
    problem: PlanningProblem,
    budget: TimeBudget,
    task: tuple[_Given, bool],
) -> _Result:
    return step(task, problem, budget)


@dataclass
class Search:
    """Search for the best fleets.

    Attributes:
        problem: Load and SLO.
        groups: Candidates of each hardware.
        workers: Processes that run simulations.
        budget: Time of the search.
        cache: Folder of results of earlier searches; None for the user's cache.
        screened: Results of screening, by hardware.
        sized: Results of sizing fleets, by hardware.
        rows: Rows, by hardware.
        is_interrupted: Whether an interrupt ended the search.
    """

    problem: PlanningProblem
    groups: Sequence[Sequence[Candidate]]
    workers: Workers
    budget: TimeBudget = UNLIMITED
    cache: Path | None = None
    screened: dict[int, ScreeningResult] = field(default_factory=dict)
    sized: dict[int, SizedGroup] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    is_interrupted: bool = False

    def __post_init__(self) -> None:
        self._digest = _digest(self.problem)
        self._kept: dict[int, Sequence[tuple[int, float]]] = {}

    def run(self, top: int) -> None:
        """Search until all hardware is screened, time is over or an interrupt comes.

        Args:
            top: Smallest number of hardware to evaluate.

        Raises:
            KeyboardInterrupt: If an interrupt comes before any hardware was screened.
        """
        try:
            with progress.status(self._status):
                self._find_fleets(top)
                self._make_rows(self._fleets)
        except KeyboardInterrupt:
            self.is_interrupted = True
            self.workers.stop()
            if not any(found.kept for found in self.screened.values()):
                raise
            self._finish_at_once()

    @property
    def untried(self) -> dict[int, Sequence[Candidate]]:
        """Return the candidates of each hardware that were not screened; without those tried."""
        left = {
            i: self.screened[i].untried if i in self.screened else group
            for i, group in enumerate(self.groups)
        }
        return {i: candidates for i, candidates in left.items() if candidates}

    @property
    def choices(self) -> list[Choice]:
        """Return the rows' choices, best first."""
        asked = self.problem.rate_per_s
        return sorted(
            (row.choice for row in self.rows.values()), key=lambda each: ranking.rank(each, asked)
        )

    @property
    def simulations(self) -> int:
        """Return the number of runs, cached ones included."""
        return (
            sum(found.simulations for found in self.screened.values())
            + sum(found.simulations for found in self.sized.values())
            + sum(row.simulations for row in self.rows.values())
        )

    @property
    def _fleets(self) -> dict[int, SizedCandidate]:
        """Return the sized fleets, the cheapest first."""
        found = {
            i: SizedCandidate(self.groups[i][sized.place], sized.rate, sized.size)
            for i, sized in list(self.sized.items())
            if sized.place is not None and sized.rate is not None and sized.size is not None
        }
        order = sorted(found, key=lambda i: ranking.fleet_rank(found[i], self.problem))
        return {i: found[i] for i in order}

    def _status(self) -> str:
        """Return the progress in one line, with the best fleet so far and the time left."""
        parts = [f"screened {len(self.screened)} of {len(self.groups)} kinds of hardware"]
        if fleets := self._fleets:
            best = next(iter(fleets.values()))
            gpus = best.size.replicas * best.candidate.gpus
            parts.append(f"best so far {gpus} x {best.candidate.deployment.gpu.name}")
        if self.rows:
            parts.append(f"rows {len(self.rows)} of {len(fleets)}")
        left_s = self.budget.left_s
        parts += [f"{left_s:.0f} s left"] if left_s < float("inf") else []
        return ", ".join(parts)

    def _find_fleets(self, top: int) -> None:
        """Screen hardware and size fleets, in rounds."""
        budget = self.budget.until(_SEARCH_SHARE)
        first, rest = ranking.screening_order(self.groups, self.problem)
        count = sum(map(len, self.groups))
        _LOG.info("%d candidates on %d kinds of hardware", count, len(self.groups))
        while True:
            waiting = self.untried
            self._screen(first, [i for i in rest if i in waiting], budget)
            must, may = ranking.promising(self.screened, self.problem, top)
            self._size(must, may, budget)
            first = []
            if budget.is_over and not self._fleets:  # no row needs the rest of the time
                budget = self.budget
            if budget.is_over or not self.untried:
                break
        counts = len(self.screened), len(self.groups), len(self._fleets)
        _LOG.info("screened %d of %d kinds of hardware, sized %d fleets", *counts)

    def _screen(self, first: Sequence[int], rest: Sequence[int], budget: TimeBudget) -> None:
        tasks = {i: (self.groups[i], i in first) for i in (*first, *rest)}
        part = budget.next_part(_SCREENING_SHARE)
        for i, result in self._results(screen_group, ScreenedGroup, tasks, part):
            if len(result.untried) < len(self.groups[i]):
                self.screened[i] = result.of(self.groups[i])
                kept = [(place, rate) for place, rate in result.kept]
                if self._kept.get(i) != kept:  # a fleet of a part of the candidates is outdated
                    self.sized.pop(i, None)
                self._kept[i] = kept

    def _size(self, must: Sequence[int], may: Sequence[int], budget: TimeBudget) -> None:
        """Size fleets of hardware that was not sized yet."""
        tasks = {
            i: ((self.groups[i], self._kept[i]), i in must)
            for i in (*must, *may)
            if i not in self.sized
        }
        for i, result in self._results(size_group, SizedGroup, tasks, budget):
            if not result.untried:
                self.sized[i] = result

    def _make_rows(self, fleets: Mapping[int, SizedCandidate]) -> None:
        tasks = {i: (fleet, True) for i, fleet in fleets.items()}
        for i, row in self._results(make_row, Row, tasks, self.budget):
            self.rows[i] = row

    def _finish_at_once(self) -> None:
        """Make partial rows of the best fleet of every GPU so far, in this process."""
        self.workers = Workers(torch=self.workers.torch)
        self.budget = replace(self.budget, end_s=self.budget.begin_s)
        must, _ = ranking.promising(self.screened, self.problem, 1)
        while must and not self._fleets:
            self._size([must.pop(0)], [], self.budget)
        fleets = self._fleets
        gpus = {each.candidate.deployment.gpu.name: i for i, each in reversed(fleets.items())}
        self._make_rows({i: fleets[i] for i in gpus.values() if i not in self.rows})

    def _results(
        self,
        step: _Step[_Given, _Result],
        kind: type[_Result],
        tasks: Mapping[int, tuple[_Given, bool]],
        budget: TimeBudget,
    ) -> Iterator[tuple[int, _Result]]:
        """Yield the results of a step for each hardware; those of earlier searches come first."""
        keys = {i: store.call_key(step, (self._digest, given)) for i, (given, _) in tasks.items()}
        waiting = []
        for i, key in keys.items():
            known = store.find_value(key, self.cache)
            if known is None:
                waiting.append(i)
            else:
                yield i, msgspec.convert(known, kind)
        do = partial(_done, step, self.problem, budget)
        for place, result in self.workers.run(do, [tasks[i] for i in waiting]):
            i = waiting[place]
            if result.is_whole:
                store.keep_value(keys[i], result, self.cache)
            yield i, result
