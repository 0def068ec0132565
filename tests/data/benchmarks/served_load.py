"""A load that a simulated server served, of which tools write their files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pinn.engines.configurations import make_deployment
from pinn.engines.deployment import Deployment
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load
from pinn.measurements.benchmarks.loads import benchmark_figures, benchmark_workload
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate


@dataclass(frozen=True)
class Served:
    """A load that a simulated server served.

    Attributes:
        deployment: The server.
        load: What was sent.
        latency: Its true coefficients.
        seed: Seed of the load's draws.
    """

    deployment: Deployment
    load: Load
    latency: LinearLatency
    seed: int = 0

    @cached_property
    def run(self) -> Run:
        sent = BenchmarkRun("simulated", "simulator", self.load, {}, self.load.requests)
        return simulate(self.deployment, benchmark_workload(sent, self.seed), self.latency)

    @cached_property
    def figures(self) -> dict[str, float]:
        return benchmark_figures(self.run)

    @property
    def model(self) -> str:
        return self.deployment.model.name

    @property
    def duration_s(self) -> float:
        return float(self.run.requests.finish_s.max() - self.run.requests.arrival_s.min())

    @property
    def prompt_tokens(self) -> int:
        return int(self.run.requests.prompt_tokens.sum())

    @property
    def output_tokens(self) -> int:
        return int(self.run.requests.output_tokens.sum())

    def milliseconds(self, latency: str, statistic: str) -> float:
        return 1e3 * self.figures[f"{latency}_{statistic}_s"]


def served(
    latency_of: Callable[[Deployment], LinearLatency],
    concurrency: int | None = 16,
    rate_per_s: float | None = None,
    prompt: Lengths | None = None,
    output: Lengths | None = None,
    requests: int = 160,
    **flags: Any,
) -> Served:
    """Llama-3.1-8B on an H100, unless flags say otherwise, under a load."""
    named = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", **flags}
    deployment = make_deployment(named)
    load = Load(
        requests, prompt or Lengths(512.0), output or Lengths(64.0), concurrency, rate_per_s
    )
    return Served(deployment, load, latency_of(deployment))
