"""Random workloads on random engines."""

from __future__ import annotations

import dataclasses

import numpy as np
from assumed_priors import prior_coefficients
from hypothesis import strategies as st
from simulator_helpers import DENSE, MIXTURE, deployment, load, scheduled

from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate


@dataclasses.dataclass
class Case:
    """A random workload on a random engine; blocks hold 4 tokens, contexts 64."""

    seed: int
    requests: int
    model: str
    serving: dict
    engine: dict
    concurrency: int | None
    stages_wait: bool
    patience_s: float

    @property
    def transfers(self) -> float:
        """Share of requests; in a small cache, waiting transfers can lock each other out."""
        return 0.1 if self.engine["num_gpu_blocks_override"] == 400 else 0.0

    def build(self):
        rng = np.random.default_rng(self.seed)
        n = self.requests
        prompts, outputs = rng.integers(1, 40, n), rng.integers(1, 24, n)
        stage = np.sort(rng.integers(0, 2, n))
        stage[0] = 0
        offset = np.zeros(n)
        for s in (0, 1):
            offset[stage == s] = np.cumsum(rng.exponential(2e-4, (stage == s).sum()))
        donors = np.array([rng.integers(-1, i) for i in range(n)])
        starts = (0.0, max(0.01, offset[stage == 0].max()))[: stage[-1] + 1]
        workload = load(
            prompts,
            outputs,
            offset,
            stage=stage,
            stage_starts_s=starts,
            stages_wait=self.stages_wait,
            shares_with=donors,
            shared_tokens=rng.integers(0, 60, n),
            transferred_tokens=np.where(rng.random(n) < self.transfers, prompts, 0),
            timeout_s=np.where(rng.random(n) < 0.2, self.patience_s, np.inf),
            concurrency=self.concurrency,
        )
        target = deployment({"dense": DENSE, "mixture": MIXTURE}[self.model], **self.serving)
        target, engine = scheduled(target, self.engine)
        return target, workload, engine

    def run(self, compiled: bool = True):
        target, workload, engine = self.build()
        return simulate(target, workload, latency_of(target), engine, compiled=compiled)


def latency_of(target, request_s=1.0):
    """Priors; alpha is multiplied by ``request_s``."""
    prior = prior_coefficients(1)
    return LinearLatency(target, prior.beta[0], prior.alpha[0] * request_s)


@st.composite
def cases(draw) -> Case:
    """Random cases."""
    replicas = draw(st.sampled_from([1, 1, 2, 3]))
    pipeline = draw(st.sampled_from([1, 1, 1, 2]))
    front_ends = [{}, {}, {"api_server_count": 2}, {"v1_multiprocessing": False}]
    return Case(
        seed=draw(st.integers(0, 10**6)),
        requests=draw(st.integers(2, 30)),
        model=draw(st.sampled_from(["dense", "mixture"])),
        serving={
            "max_num_batched_tokens": draw(st.sampled_from([4, 16, 64])),
            "max_num_seqs": draw(st.sampled_from([1, 3, 8])),
            "enable_prefix_caching": draw(st.booleans()),
            "data_parallel_size": replicas,
            "pipeline_parallel_size": pipeline,
        },
        engine={
            "async_scheduling": draw(st.booleans()),
            "num_gpu_blocks_override": draw(st.sampled_from([18, 24, 40, 400])),
            "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 3])),
            "data_parallel_routing": draw(st.sampled_from(["least_loaded", "round_robin"])),
            **draw(st.sampled_from(front_ends)),
        },
        concurrency=draw(st.sampled_from([None, None, 1, 4])),
        stages_wait=draw(st.booleans()),
        patience_s=draw(st.sampled_from([5e-4, 5e-3])),
    )


def crowded(**changes) -> Case:
    """Thirty requests in a cache that holds a few."""
    serving = {"max_num_batched_tokens": 16, "data_parallel_size": 1}
    base = Case(1, 30, "dense", serving, {"num_gpu_blocks_override": 18}, None, False, 5e-3)
    return dataclasses.replace(base, **changes)
