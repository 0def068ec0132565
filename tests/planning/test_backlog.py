"""A server keeps up if its last answers come about as soon as its first ones."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from pinn.common.files import find_checkpoint
from pinn.engines.configurations import make_deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.planning.trials import backlog
from pinn.simulator.linear_latency import latency_from_checkpoint
from pinn.simulator.run import Run
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Gaps, Stage
from pinn.simulator.workloads.rates import at_rate
from pinn.simulator.workloads.workload import open_loop


class MadeUp(SimpleNamespace):
    """Made-up records of requests."""

    def __len__(self):
        return len(self.arrival_s)


@pytest.fixture(scope="module")
def server():
    flags = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "max_model_len": 1024}
    deployment = make_deployment(flags)
    latency = latency_from_checkpoint(deployment, find_checkpoint())
    return lambda load: simulate(deployment, load, latency, EngineSpec())


def test_a_long_answer_at_the_end_is_no_backlog(server):
    """The last answer takes many times as long as the first, but little of the load's time."""
    load = open_loop([Stage(2, 60)], 64, 4, gaps=Gaps("constant"))
    tokens = load.output_tokens.copy()
    tokens[-1] = 200
    run = server(replace(load, output_tokens=tokens))
    r = run.requests
    assert r.e2e_s[-1] > 10 * r.e2e_s[:-1].max()
    assert backlog(run) < 1


def test_a_server_sent_more_than_it_serves_falls_behind(server):
    load = open_loop([Stage(2, 1000)], 512, 64, gaps=Gaps("constant"))
    assert backlog(server(load)) < 1
    assert backlog(server(at_rate(load, 200.0))) > 1


def test_the_last_answer_is_held_against_the_first_ones_and_the_loads_time():
    arrival = np.arange(101.0)  # 100 s
    e2e = np.full(101, 3.0)
    e2e[-1] = 12.0
    records = MadeUp(arrival_s=arrival, finished=e2e > 0, e2e_s=e2e, finish_s=arrival + e2e)
    assert backlog(Mock(spec=Run, requests=records)) == pytest.approx(12 / (3 + 0.05 * 100))
