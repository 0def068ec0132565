"""Random closed loops: a fixed number of clients, each waiting for its answer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from simulator_helpers import Recorder, deployment, load, scheduled

from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate


@dataclass
class Loop:
    """A closed loop on an engine whose steps take one second.

    Attributes:
        seed: Of the lengths and of who gives up or is refused.
        requests: How many are sent.
        clients: How many are in flight.
        alike: Whether all answers are of one length, so that many end in one moment.
        impatient: Share of clients that hang up after a while.
        refused: Share of requests that are too long for the server.
        work_s: Times of the API server and of the client's way, for ``Recorder``.
        engine: For ``EngineSpec``.
        seats: ``max_num_seqs``.
    """

    seed: int
    requests: int
    clients: int
    alike: bool
    impatient: float
    refused: float
    work_s: dict[str, float]
    engine: dict
    seats: int

    def run(self) -> Run:
        """Serve it."""
        rng = np.random.default_rng(self.seed)
        n = self.requests
        outputs = np.full(n, 5) if self.alike else rng.integers(1, 9, n)
        prompts = np.where(rng.random(n) < self.refused, 100, rng.integers(1, 9, n))
        patience = np.where(rng.random(n) < self.impatient, rng.uniform(0.1, 6.0, n), np.inf)
        workload = load(prompts, outputs, timeout_s=patience, concurrency=self.clients)
        target = deployment(max_num_seqs=self.seats, max_num_batched_tokens=512)
        target, engine = scheduled(target, {"reject_long_requests": True} | self.engine)
        return simulate(target, workload, Recorder(**self.work_s), engine)


@st.composite
def loops(draw, patient: bool = False) -> Loop:
    """Random loops; with ``patient`` clients every request is served to its end."""
    share = st.just(0.0) if patient else st.sampled_from([0.0, 0.2])
    few = st.sampled_from([0.0, 0.0, 0.01, 0.3])
    servers = st.sampled_from([{}, {"api_server_count": 3}, {"v1_multiprocessing": False}])
    clients = draw(st.integers(1, 12))
    return Loop(
        seed=draw(st.integers(0, 10**6)),
        requests=draw(st.integers(1, 60)),
        clients=clients,
        alike=draw(st.booleans()),
        impatient=draw(share),
        refused=draw(share),
        work_s={
            "queueing_s": draw(few),
            "output_s": draw(few),
            "scheduling_s": draw(few),
            "completion_s": draw(few),
        },
        engine={"async_scheduling": draw(st.booleans()), **draw(servers)},
        seats=draw(st.sampled_from([clients, 16, 2])),
    )
