"""Trials that differ by their seed, over several processes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

Result = TypeVar("Result")


def run_trials(trial: Callable[[int], Result], trials: int, workers: int | None) -> list[Result]:
    """Return the results of trials 0, 1, ...; ``workers`` None is as many as there are cores."""
    if workers == 1:
        return [trial(seed) for seed in range(trials)]
    # Not by forking: threads of the simulator do not survive it.
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        return list(pool.map(trial, range(trials), chunksize=5))
