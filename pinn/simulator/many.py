"""Many simulations side by side: compiled runs release the interpreter lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from pinn.coefficients.protocol import LatencyModel
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.workload import Workload
from pinn.specs.deployment import Deployment

Result = TypeVar("Result")


@dataclass(frozen=True)
class Job:
    """Arguments of one ``simulate``."""

    deployment: Deployment
    workload: Workload
    latency: LatencyModel
    engine: EngineSpec | None = None

    def run(self) -> Run:
        """Simulate it."""
        return simulate(self.deployment, self.workload, self.latency, self.engine)


def simulate_many(jobs: Iterable[Job], workers: int | None = None) -> list[Run]:
    """Simulate jobs in threads; results in the order of the jobs.

    Args:
        jobs: What to run.
        workers: Threads; as many as there are cores by default.

    Raises:
        PinnError: That of the first job that cannot run.
    """
    return map_runs(lambda _, run: run, jobs, workers)


def map_runs(
    figure: Callable[[Job, Run], Result], jobs: Iterable[Job], workers: int | None = None
) -> list[Result]:
    """Simulate and keep what ``figure`` makes of each run: records of long runs are large."""
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        return list(pool.map(lambda job: figure(job, job.run()), jobs))
