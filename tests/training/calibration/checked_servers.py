"""Servers with known coefficients, as tables of steps and as benchmark runs, to check flags."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pandas as pd
import pytest
from assumed_priors import prior_coefficients
from synthetic_engine import Arrival, EngineLimits, EngineRun, run_engine

from pinn.calibration.checks import check_traces
from pinn.calibration.checks_benchmarks import check_benchmarks
from pinn.engines.configurations import make_deployment
from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun
from pinn.measurements.traces.ingestion import benchmark_target, ingest_steps
from pinn.measurements.traces.trace_tables import Target, TraceTables
from pinn.memory.kv_cache import kv_layout
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.serving import ServingSpec
from pinn.surrogate.coefficients import Coefficients
from pinn.surrogate.step_features import step_features, step_time

#: Server of most cases: CodeLlama-34B over two H100.
SERVER = {
    "model": "codellama/CodeLlama-34b-Instruct-hf", "gpu": "H100", "tensor_parallel_size": 2,
    "max_num_batched_tokens": 2048, "max_num_seqs": 128,
}  # fmt: skip

#: Keys of a target's ``vars`` that are not flags.
_NOT_FLAGS = ("model", "gpu", "precision")


def before(_: Deployment) -> Coefficients:
    """Return the priors, in place of a network's coefficients."""
    return prior_coefficients(1)


def truth(deployment: Deployment, seed: int = 0, spread: float = 0.2) -> LinearLatency:
    """Return a server's own coefficients, with a log spread around the priors."""
    draw, prior = np.random.default_rng(seed), prior_coefficients(1)
    beta, alpha = (
        values[0] * np.exp(spread * draw.standard_normal(values.shape[1]))
        for values in (prior.beta, prior.alpha)
    )
    return LinearLatency(deployment, beta, alpha)


def engine_run(requests: int, rate_per_s: float, latency: LinearLatency) -> EngineRun:
    """Return the run of a small engine with a server's limits and coefficients."""
    draw, now, arrivals = random.Random(0), 0.0, []
    for _ in range(requests):
        now += draw.expovariate(rate_per_s)
        arrivals.append(Arrival(now, draw.randint(50, 900), draw.randint(10, 60)))
    deployment = latency.deployment
    costs = step_costs([deployment])

    def seconds(batch) -> float:
        sums = sum_batches([batch], deployment.model.window_tokens)
        return float(step_time(step_features(costs, sums), latency.beta)[0])

    limits = EngineLimits(
        deployment.recipe.token_budget,
        deployment.recipe.max_requests,
        kv_layout(deployment, EngineSpec()).blocks + 1,
        deployment.recipe.block_tokens,
    )
    with pytest.MonkeyPatch.context() as patch:
        # Checking shapes anew in each of thousands of steps would take nine tenths of the time.
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        return run_engine(arrivals, seconds, limits)


def step_table(run: EngineRun) -> pd.DataFrame:
    """Return step summaries with the wire's names."""
    rows = []
    for step in run.steps:
        prefills = [p for p in step.parts if p.is_prefill]
        in_prefill = sum(p.new_tokens for p in prefills)
        rows.append(
            {
                "step.id": step.step_id + 1,
                "step.ts_start_ns": 8_123_461_900_000 + round(1e9 * step.start_s),
                "queue.running_depth": len(step.parts),
                "queue.waiting_depth": step.waiting,
                "batch.num_prefill_reqs": len(prefills),
                "batch.num_decode_reqs": len(step.parts) - len(prefills),
                "batch.prefill_tokens": in_prefill,
                "batch.decode_tokens": sum(p.new_tokens for p in step.parts) - in_prefill,
                "batch.num_finished": step.finished,
                "batch.num_preempted": step.preempted,
                "kv.usage_gpu_ratio": step.blocks_used / run.blocks,
                "kv.blocks_total_gpu": run.blocks,
            }
        )
    return pd.DataFrame(rows)


@cache
def traced(requests: int = 90, rate_per_s: float = 12.0, **flags: Any) -> pd.DataFrame:
    """Return step summaries of a server; the table is cached, so it must not be changed."""
    server = SERVER | flags
    latency = truth(make_deployment(server))
    return step_table(engine_run(requests, rate_per_s, latency))


def target(**flags: Any) -> Target:
    """Return the target that a user names."""
    given = SERVER | flags
    serving = {k: v for k, v in given.items() if k not in _NOT_FLAGS}
    return Target(given["model"], given["gpu"], ServingSpec(**serving), given.get("precision"))


@cache
def tables_of(folder: Path, **server: Any) -> TraceTables:
    """Return the tables of a server under its own flags."""
    name = "-".join(map(str, sum(server.items(), ()))).replace("/", "-") or "plain"
    (folder / name).mkdir()
    return ingested(traced(**server), folder / name, **flags_of(server))


def flags_of(server: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of the server in a case."""
    return {k: v for k, v in server.items() if k not in ("requests", "rate_per_s")}


def ingested(table: pd.DataFrame, folder: Path, **flags: Any) -> TraceTables:
    """Return step summaries ingested under flags."""
    table.to_parquet(folder / "steps.parquet")
    return ingest_steps(folder / "steps.parquet", folder / "tables", target(**flags))


def check_tables(tables: TraceTables, **flags: Any) -> list[str]:
    """Check tables under flags."""
    return check_traces(tables, target(**flags).deployment(), before)


def check_runs(runs: list[BenchmarkRun], **flags: Any) -> list[str]:
    """Check benchmark runs under flags."""
    serving = {k: v for k, v in flags.items() if k not in ("model", "gpu")}
    named = benchmark_target(runs, flags.get("model"), flags.get("gpu"), serving)
    return check_benchmarks(runs, named.deployment(), before)
