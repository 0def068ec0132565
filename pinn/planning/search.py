"""Search for a plan within a time budget, starting from cached results of earlier searches.

Hardware is screened in the order of guessed rates, which need no simulation. Fleets of the best
hardware are sized, and the row of the cheapest fleet is computed with its probability. More
hardware is then screened while time remains. Finally the other rows are computed, the cheapest on
each GPU first. Every requested GPU is screened and sized, and gets a row, regardless of the time
budget.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec

from pinn.common import progress, store
from pinn.common.numbers import amount
from pinn.common.workers import Workers
from pinn.planning import ranking
from pinn.planning.candidate import Candidate
from pinn.planning.evaluation import Row, SizedFleet, SizingResult
from pinn.planning.plan import COMPILING, Choice
from pinn.planning.problem import PlanningProblem
from pinn.planning.screening import ScreeningResult
from pinn.planning.search_steps import (
    Given,
    Task,
    make_row,
    screen_group,
    size_group,
    timed,
    warm_up,
)
from pinn.planning.time_budget import UNLIMITED, TimeBudget

#: Shares of the time budget. ``_SEARCH_SHARE``: after this share, the remaining time is used only
#: to estimate the certainty of recommendations. ``_LAST_ROUND_SHARE``: after this share, no further
#: round of screening and sizing begins. A round sends all remaining tasks to the workers.
_SEARCH_SHARE, _LAST_ROUND_SHARE = 0.7, 0.65
#: Share of the remaining search time that a round spends on screening.
_SCREENING_SHARE = 0.6

#: Name, in ``Search.spent_s``, of the time before the first step of a search.
START_UP = "start-up"

_LOG = logging.getLogger(__name__)
_Result = TypeVar("_Result", ScreeningResult, SizingResult, Row)
#: Function of one step of a search; it returns None if the time is used up.
_Step = Callable[[PlanningProblem, Task[Given]], _Result | None]


def by_hardware(candidates: Sequence[Candidate], *, each_alone: bool) -> list[list[Candidate]]:
    """Group candidates by hardware; with ``each_alone``, each candidate is its own group."""
    if each_alone:
        return [[candidate] for candidate in candidates]
    ordered = sorted(candidates, key=lambda c: str(c.hardware))
    return [list(group) for _, group in groupby(ordered, key=lambda c: c.hardware)]


def _complete(results: Mapping[int, ScreeningResult | SizingResult | Row]) -> int:
    """Return the number of results for which time did not run out."""
    return sum(not found.is_partial for found in results.values())


def _digest(problem: PlanningProblem) -> str:
    """Return a digest of everything that determines a search's results, except its candidates.

    The command-line words of the load are part of the digest, since rows contain them. If the words
    name a file, its contents are also part of the digest.
    """
    load = problem.load
    content = load.path if load.path is not None and load.path.exists() else None
    rest = [getattr(problem, each.name) for each in fields(problem) if each.name != "load"]
    return store.call_key(make_row, (rest, load.words, content)).digest


@dataclass
class Search:
    """Search for the best fleets.

    Attributes:
        problem: Load and SLO.
        groups: Candidates of each hardware configuration.
        workers: Processes that run simulations.
        budget: Time budget of the search.
        cache: Folder with results of earlier searches; None for the user's cache folder.
        screened: Screening result of each hardware configuration, by its index.
        sized: Sizing result of each hardware configuration, by its index.
        rows: Row of the plan for each hardware configuration, by its index.
        is_interrupted: Whether the search was interrupted.
        spent_s: Wall-clock seconds by step of the search. ``start-up`` is the time before the first
            step; ``compiling`` is not part of the time budget.
        task_s: Seconds of all tasks without a cached result, by step of the search.
        completed: Number of these tasks for which time did not run out, by step of the search.
    """

    problem: PlanningProblem
    groups: Sequence[Sequence[Candidate]]
    workers: Workers
    budget: TimeBudget = UNLIMITED
    cache: Path | None = None
    screened: dict[int, ScreeningResult] = field(default_factory=dict)
    sized: dict[int, SizingResult] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    is_interrupted: bool = False
    spent_s: dict[str, float] = field(default_factory=dict)
    task_s: dict[str, float] = field(default_factory=dict)
    completed: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._digest = _digest(self.problem)

    def run(self, top: int) -> None:
        """Search until all hardware is screened, time runs out, or an interrupt is received.

        Args:
            top: Minimum number of hardware configurations to evaluate.

        Raises:
            KeyboardInterrupt: If an interrupt is received before any hardware was screened.
        """
        try:
            with progress.status(self._status):
                self._find_fleets(top)
                self._make_rows()
        except KeyboardInterrupt:
            self.is_interrupted = True
            self.workers.stop()
            if not self.fastest:
                raise
            self._finish_at_once()

    @property
    def untried(self) -> dict[int, Sequence[Candidate]]:
        """Candidates of each hardware configuration that was not screened, by its index."""
        return {i: group for i, group in enumerate(self.groups) if i not in self.screened}

    @property
    def fastest(self) -> dict[int, tuple[Candidate, float]]:
        """Fastest candidate of each hardware configuration, and its screened rate, by its index."""
        return {i: self.kept(i)[0] for i, found in self.screened.items() if found.kept}

    def kept(self, i: int) -> Sequence[tuple[Candidate, float]]:
        """Return (candidate, screened rate) for the candidates of hardware ``i`` to evaluate."""
        return [(self.groups[i][place], rate) for place, rate in self.screened[i].kept]

    @property
    def choices(self) -> list[Choice]:
        """Rows of the plan, best first."""
        asked = self.problem.rate_per_s
        return sorted(
            (row.choice for row in self.rows.values()), key=lambda each: ranking.rank(each, asked)
        )

    @property
    def simulations(self) -> int:
        """Number of simulations, including cached ones."""
        return (
            sum(found.simulations for found in self.screened.values())
            + sum(found.simulations for found in self.sized.values())
            + sum(row.simulations for row in self.rows.values())
        )

    @property
    def fleets(self) -> dict[int, tuple[Candidate, SizedFleet]]:
        """Candidate and sized fleet of each hardware configuration, by index, cheapest first."""
        found = {
            i: (self.kept(i)[sized.best.place][0], sized.best)
            for i, sized in list(self.sized.items())
            if sized.best is not None
        }
        order = sorted(found, key=lambda i: ranking.fleet_rank(*found[i], self.problem))
        return {i: found[i] for i in order}

    def promising(self, top: int) -> tuple[list[int], list[int]]:
        """Return the hardware that must be evaluated and that may be as cheap, by index.

        Args:
            top: Minimum number of hardware configurations to evaluate.
        """
        found = dict.fromkeys(self.sized, (True, math.inf))
        for i, fleet in self.fleets.items():
            found[i] = ranking.fleet_expense(*fleet, self.problem)
        return ranking.promising(self.fastest, self.problem, top, found)

    def unsized(self, top: int) -> set[int]:
        """Return the indices of promising hardware without a sizing result."""
        must, may = self.promising(top)
        return {*must, *may} - set(self.sized)

    def _status(self) -> str:
        """Return the progress as one line, with the best fleet so far and the remaining time."""
        hardware = amount(len(self.groups), "hardware configuration")
        parts = [f"screened {len(self.screened)} of {hardware}"]
        if fleets := self.fleets:
            candidate, best = next(iter(fleets.values()))
            gpus = best.size.replicas * candidate.gpus
            parts.append(f"best so far {gpus} x {candidate.deployment.gpu.name}")
        if self.rows:
            parts.append(f"evaluated {len(self.rows)} of {amount(len(fleets), 'fleet')}")
        if not self.spent_s and self.budget.passed_s > progress.FIRST_S:
            parts.append("starting; the first time, the simulator is compiled (about a minute)")
        left_s = self.budget.left_s
        parts += [f"{left_s:.0f} s of the budget left"] if left_s < float("inf") else []
        return ", ".join(parts)

    def _find_fleets(self, top: int) -> None:
        """Screen hardware and size fleets in rounds, until all is screened or time runs out."""
        share, last_share = _SEARCH_SHARE, _LAST_ROUND_SHARE
        first, rest = ranking.screening_order(self.groups, self.problem)
        said = ""
        while True:
            others = [i for i in rest if i not in self.screened]
            self._screen(first, others, self.budget.until(share))
            self._size(*self.promising(top), self.budget.until(share))
            if not self.rows:  # compute the recommended row before the search continues
                self._make_rows(self.workers.count)
            first = []
            if (status := self._status()) != said:
                _LOG.info("%s", said := status)
            if self.budget.until(last_share).is_over and not self.fleets:
                share = last_share = 1.0  # without fleets, use all time for the search
            if self.budget.until(last_share).is_over or not (self.untried or self.unsized(top)):
                break
        hardware = amount(len(self.groups), "hardware configuration")
        counts = len(self.screened), hardware, amount(len(self.fleets), "fleet")
        _LOG.info("screened %d of %s, sized %s", *counts)

    def _screen(self, first: Sequence[int], rest: Sequence[int], budget: TimeBudget) -> None:
        part = budget.next_part(_SCREENING_SHARE)
        tasks = {i: Task(self.groups[i], part, i in first) for i in (*first, *rest)}
        for i, result in self._results("screening", screen_group, ScreeningResult, tasks):
            self.screened[i] = result

    def _size(self, must: Sequence[int], may: Sequence[int], budget: TimeBudget) -> None:
        """Size fleets of the given hardware (indices), first ``must``, then ``may``.

        Hardware in ``must`` is sized even after time has run out.
        """
        waiting = [i for i in (*must, *may) if i not in self.sized]
        tasks = {i: Task(self.kept(i), budget, i in must) for i in waiting}
        for i, result in self._results("fleets", size_group, SizingResult, tasks):
            self.sized[i] = result

    def _make_rows(self, most: int | None = None) -> None:
        """Compute the plan's rows of sized fleets.

        The row of the cheapest fleet on each GPU is computed even after time has run out.

        Args:
            most: Maximum number of rows to compute; None for all.
        """
        fleets = self.fleets
        must, may = ranking.firsts({i: candidate for i, (candidate, _) in fleets.items()})
        waiting = [i for i in (*must, *may)[:most] if i not in self.rows]
        tasks = {i: Task(fleets[i], self.budget, i in must) for i in waiting}
        for i, row in self._results("rows", make_row, Row, tasks):
            self.rows[i] = row

    def _finish_at_once(self) -> None:
        """After an interrupt, compute partial rows for the best fleet so far on each GPU."""
        self.workers = Workers(torch=self.workers.torch)
        self.budget = replace(self.budget, end_s=self.budget.begin_s)
        must, _ = ranking.promising(self.fastest, self.problem, 1)
        while must and not self.fleets:
            self._size([must.pop(0)], [], self.budget)
        self._make_rows()

    def left_s(self, top: int) -> float | None:
        """Return the estimated seconds to complete the search, from the speed of tasks so far.

        A step's time per task is the time of all its tasks, also of those that ran out of time,
        divided by the number of complete tasks. A step without complete tasks is assumed to be as
        slow as the slowest one. The next search also has the start-up again. None is returned if
        nothing remains, or if no task ran without a cached result.

        Args:
            top: Minimum number of hardware configurations to evaluate.
        """
        must, may = self.promising(top)
        # Hardware that was not screened may still be among the cheapest.
        others = max(len(may), min(top - len(must[:1]), len(self.untried)))
        most = len(must) + others
        left = {
            "screening": len(self.groups) - _complete(self.screened),
            "fleets": max(most - _complete(self.sized), 0),
            "rows": max(most - _complete(self.rows), 0),
        }
        if not self.task_s or not any(left.values()):
            return None
        paces = {name: s / max(self.completed.get(name, 0), 1) for name, s in self.task_s.items()}
        slowest, tasks_s = max(paces.values()), 0.0
        for name, count in left.items():
            pace = paces[name] if self.completed.get(name) else slowest
            tasks_s += pace * math.ceil(count / self.workers.count)
        return self.spent_s.get(START_UP, 0.0) + tasks_s

    def _results(
        self,
        name: str,
        step: _Step[Given, _Result],
        kind: type[_Result],
        tasks: Mapping[int, Task[Given]],
    ) -> Iterator[tuple[int, _Result]]:
        """Yield (index of hardware, result) of one step of the search, cached results first.

        Partial results are not cached for later searches. A task skipped for lack of time yields
        nothing.
        """
        keys = {i: store.call_key(step, (self._digest, task.given)) for i, task in tasks.items()}
        waiting = []
        for i, key in keys.items():
            known = store.find_value(key, self.cache)
            if known is None:
                waiting.append(i)
            else:
                yield i, msgspec.convert(known, kind)
        if waiting:
            late_s = self._start()
            tasks = {i: replace(tasks[i], budget=tasks[i].budget.later(late_s)) for i in waiting}
        begin_s = self.budget.passed_s
        work = partial(timed, step, self.problem)
        for place, (result, seconds) in self.workers.run(work, [tasks[i] for i in waiting]):
            self._spend(name, begin_s)
            begin_s = self.budget.passed_s
            self.task_s[name] = self.task_s.get(name, 0.0) + seconds
            if result is None:
                continue
            i = waiting[place]
            if not result.is_partial:
                self.completed[name] = self.completed.get(name, 0) + 1
                store.keep_value(keys[i], result, self.cache)
            yield i, result

    def _start(self) -> float:
        """Compile the simulator in the worker processes before the first step of the search.

        Compiling is needed once per installation and is not part of the time budget.

        Returns:
            Seconds by which the time budget begins later.
        """
        if START_UP in self.spent_s:
            return 0.0
        kinds = {type(each): each for group in self.groups for each in group}
        work = partial(warm_up, self.problem, self.budget.clock)
        compiling = defaultdict[int, float](float)  # by process; they compile at the same time
        for _, (process, seconds) in self.workers.run(work, [*kinds.values()] * self.workers.count):
            compiling[process] += seconds
        compiling_s = max(compiling.values(), default=0.0)
        self.budget = self.budget.later(compiling_s)
        self._spend(START_UP, 0.0)
        if compiling_s:
            self.spent_s[COMPILING] = compiling_s
        return compiling_s

    def _spend(self, name: str, since_s: float) -> None:
        self.spent_s[name] = self.spent_s.get(name, 0.0) + self.budget.passed_s - since_s
