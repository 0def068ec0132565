"""Closed loops: a client sends its next request when its last one has ended for it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from assumed_priors import prior_coefficients
from hand_stepped_clients import serve_by_hand
from hypothesis import example, given, settings
from random_loops import Loop, loops
from simulator_helpers import Recorder, deployment, load, play

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.load import load_workload
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

ALIKE = Loop(0, 40, 4, True, 0.0, 0.0, {}, {"async_scheduling": True}, 16)


@given(loops())
@example(ALIKE)
@settings(max_examples=120)
def test_each_request_is_sent_when_the_end_that_freed_its_place_is_seen(loop):
    r = loop.run().requests
    assert (r.arrival_s[: loop.clients] == 0).all()
    for i in range(loop.clients, len(r)):
        ends = np.sort(r.finish_s[:i])
        assert r.arrival_s[i] == ends[i - loop.clients], i


@given(loops())
@example(ALIKE)
@settings(max_examples=120)
def test_no_more_are_in_flight_than_there_are_clients(loop):
    r = loop.run().requests
    assert (np.diff(r.arrival_s) >= 0).all()
    for i, moment in enumerate(r.arrival_s):
        assert (r.finish_s[: i + 1] > moment).sum() <= loop.clients, i
    if loop.refused == 0:
        assert (r.finish_s >= r.arrival_s).all()
        assert (r.ttft_s[r.finished] > 0).all()


@given(loops())
@example(ALIKE)
@settings(max_examples=60)
def test_nothing_waits_where_places_are_free(loop):
    run = dataclasses.replace(loop, seats=16).run()
    started = ~np.isnan(run.requests.scheduled_s)
    assert (run.requests.scheduled_s - run.requests.queued_s)[started].sum() == 0
    assert (run.steps["waiting"] == 0).all()


@given(loops(patient=True))
@example(ALIKE)
@settings(max_examples=60)
def test_a_first_token_comes_within_the_steps_in_flight_and_its_own(loop):
    """One step in flight and its own where nothing is planned ahead; else two and its own."""
    free = dataclasses.replace(loop, seats=16, work_s={})
    assert free.run().requests.ttft_s.max() <= 2 + free.engine["async_scheduling"]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("seats", [3, 8])
@pytest.mark.parametrize(
    ("work_s", "token_s"), [(0.0, 0.0), (0.07, 0.0), (0.0, 0.03), (0.4, 0.11), (2.0, 0.5)]
)
def test_hand_stepped_clients_see_the_same(depth, seats, work_s, token_s):
    class Growing(Recorder):
        def step_time(self, batch):
            return 1 + 0.1 * len(batch)

    rng = np.random.default_rng(7)
    outputs = np.where(rng.random(300) < 0.5, 4, rng.integers(1, 12, 300))
    clients = 8
    workload = load(np.full(300, 3), outputs, concurrency=clients)
    run = simulate(
        deployment(max_num_seqs=seats, async_scheduling=depth == 2),
        workload,
        Growing(queueing_s=work_s, output_s=token_s),
        EngineSpec(),
    )
    expected = serve_by_hand(outputs, clients, seats, depth, lambda n: 1 + 0.1 * n, work_s, token_s)
    got = (run.requests.arrival_s, run.requests.first_token_s, run.requests.finish_s)
    for name, mine, theirs in zip(("sent", "first", "last"), got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, err_msg=name)


def test_short_requests_of_a_few_clients_wait_for_no_one(tmp_path):
    path = tmp_path / "load.yaml"
    path.write_text("{prompt_tokens: 230, output_tokens: 217, concurrency: 4, requests: 100}")
    server = Deployment(load_model("Qwen/Qwen3-8B"), load_gpu("H100"), ServingSpec())
    prior = prior_coefficients(1)
    latency = LinearLatency(server, prior.beta[0], prior.alpha[0])
    run = simulate(server, load_workload(path), latency)
    r = run.requests
    assert r.finished.all()
    assert r.ttft_s.max() == r.ttft_s[:4].max()
    assert 0.015 < r.ttft_s.mean() < 0.035
    assert (run.steps["waiting"] == 0).all()
    assert run.steps["running"].max() == 4


def test_a_place_is_free_when_a_client_hangs_up_not_when_the_engine_learns_of_it():
    # The first client hangs up in the middle of the second step; the next request is on its way to
    # the engine before the third.
    got = play(load([4, 4, 4], [8, 8, 2], concurrency=2, timeout_s=[1.5, np.inf, np.inf]))
    r = got.run.requests
    assert r.arrival_s.tolist() == [0.0, 0.0, 1.5]
    assert r.queued_s[2] == 2.0
    assert r.first_token_s[2] == 3.0


def test_a_lone_client_that_hangs_up_does_not_turn_the_clock_back():
    got = play(load([4, 4], [8, 2], concurrency=1, timeout_s=[1.5, np.inf]))
    r = got.run.requests
    assert (r.arrival_s[1], r.queued_s[1], r.first_token_s[1]) == (1.5, 2.0, 3.0)
