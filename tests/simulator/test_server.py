"""API servers: one thing after another; cases by hand (a step takes one second) and laws."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_cases import cases, crowded, latency_of
from random_loops import loops
from simulator_helpers import Recorder, deployment, load, play

from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.simulator.metric_features import request_delay_features
from pinn.simulator.simulate import simulate
from pinn.surrogate.request_features import REQUEST_FEATURES, phase_mask


def gaps_of(run):
    return np.repeat(run.gaps.seconds, run.gaps.count)


def test_of_two_requests_at_once_the_second_is_handed_over_one_service_later():
    got = play(load([4, 4], [1, 1]), recorder=Recorder(queueing_s=0.25))
    assert got.run.requests.handed_s.tolist() == [0.25, 0.5]
    # The engine starts with the first; the second waits for that step.
    assert got.run.requests.first_token_s.tolist() == [1.25, 2.25]


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_a_burst_is_handed_over_at_the_rate_of_the_servers(servers):
    got = play(
        load([4] * 7, [1] * 7),
        recorder=Recorder(queueing_s=0.25),
        engine={"api_server_count": servers},
    )
    turn = np.arange(7) // servers + 1
    np.testing.assert_allclose(got.run.requests.handed_s, 0.25 * turn)


def test_an_idle_server_takes_a_request_in_at_once():
    got = play(load([4, 4], [1, 1], [0.0, 0.75]), recorder=Recorder(queueing_s=0.25))
    assert got.run.requests.handed_s.tolist() == [0.25, 1.0]


def test_a_token_that_comes_while_the_server_takes_a_request_in_waits():
    got = play(load([4, 4], [3, 1], [0.0, 1.25]), recorder=Recorder(queueing_s=0.5, output_s=0.125))
    r = got.run.requests
    # The first token is there at 1.5, the server is busy with the second request until 1.75. The
    # last one, at 3.5, comes with the second request's, and before it.
    assert r.engine_first_token_s.tolist() == [1.5, 3.5]
    assert r.first_token_s.tolist() == [1.875, 3.75]
    assert r.finish_s.tolist() == [3.625, 3.75]
    assert gaps_of(got.run).tolist() == [0.75, 1.0]


def test_a_request_that_comes_while_tokens_are_sent_waits():
    got = play(load([4, 4, 4], [1, 1, 1], [0.0, 0.0, 1.1]), recorder=Recorder(output_s=0.25))
    r = got.run.requests
    assert r.first_token_s.tolist()[:2] == [1.25, 1.5]
    assert r.handed_s[2] == 1.5


def test_servers_stream_the_tokens_of_their_own_requests():
    got = play(
        load([4] * 4, [1] * 4), recorder=Recorder(output_s=0.25), engine={"api_server_count": 2}
    )
    assert got.run.requests.first_token_s.tolist() == [1.25, 1.25, 1.5, 1.5]


def test_an_engine_in_the_servers_process_waits_for_it():
    recorder = Recorder(queueing_s=0.25, output_s=0.5)
    apart = play(load([4, 4], [3, 3]), recorder=recorder)
    assert apart.run.steps["start_s"].tolist() == [0.25, 1.25, 2.25, 3.25]
    # Both requests are taken in before the engine starts; after each step both tokens are sent.
    together = play(load([4, 4], [3, 3]), recorder=recorder, engine={"v1_multiprocessing": False})
    assert together.run.steps["start_s"].tolist() == [0.5, 2.5, 4.5]
    assert together.run.requests.first_token_s.tolist() == [2.0, 2.5]
    assert together.run.requests.finish_s.tolist() == [6.0, 6.5]


def test_one_process_holds_one_server():
    assert EngineSpec(v1_multiprocessing=False, api_server_count=1).api_server_count == 1
    with pytest.raises(PinnError, match="2 API servers need an engine in a separate process"):
        EngineSpec(v1_multiprocessing=False, api_server_count=2)
    with pytest.raises(PinnError, match="--api-server-count must be a positive whole number"):
        EngineSpec(api_server_count=0)


def test_each_data_parallel_rank_brings_a_server():
    recorder = Recorder(queueing_s=0.25)
    own = play(load([4] * 4, [1] * 4), recorder=recorder, data_parallel_size=2)
    assert own.run.requests.handed_s.tolist() == [0.25, 0.25, 0.5, 0.5]
    shared = {"api_server_count": 1}
    one = play(load([4] * 4, [1] * 4), recorder=recorder, engine=shared, data_parallel_size=2)
    assert one.run.requests.handed_s.tolist() == [0.25, 0.5, 0.75, 1.0]


@given(n=st.integers(1, 8), token_s=st.floats(0, 1), ahead=st.booleans())
def test_gaps_are_steps_until_the_server_cannot_keep_up(n, token_s, ahead):
    got = play(
        load([4] * n, [6] * n),
        recorder=Recorder(output_s=token_s),
        engine={"async_scheduling": ahead},
    )
    np.testing.assert_allclose(gaps_of(got.run), max(1.0, n * token_s))


@given(cases(), st.sampled_from([{"api_server_count": 3}, {"v1_multiprocessing": False}]))
@settings(max_examples=40)
def test_a_server_without_work_changes_nothing(case, servers):
    target, workload, spec = case.build()
    latency = latency_of(target)
    without = 1 - phase_mask("arrival_to_queue") - phase_mask("output_token")
    latency = dataclasses.replace(latency, alpha=latency.alpha * without)
    usual = dataclasses.replace(spec, api_server_count=None, v1_multiprocessing=True)
    plain, other = (
        simulate(target, workload, latency, dataclasses.replace(usual, **more))
        for more in ({}, servers)
    )
    r = plain.requests
    np.testing.assert_array_equal(r.handed_s, r.arrival_s)
    np.testing.assert_array_equal(plain.steps.table, other.steps.table)
    for name in ("status", "arrival_s", "queued_s", "first_token_s", "finish_s"):
        np.testing.assert_array_equal(getattr(r, name), getattr(other.requests, name))


@given(loops(patient=True))
@settings(max_examples=60)
def test_no_server_does_more_than_it_has_time_for(loop):
    run = loop.run()
    r, n = run.requests, loop.engine.get("api_server_count", 1)
    work = loop.work_s["queueing_s"] + loop.work_s["output_s"] * r.output_tokens
    for server in range(min(n, len(r))):
        mine = np.arange(len(r)) % n == server
        last_sent_s = r.last_token_s[mine].max() - loop.work_s["scheduling_s"]
        busy = last_sent_s - r.arrival_s[mine].min()
        assert work[mine].sum() <= busy * (1 + 1e-9)


@given(loops(patient=True))
@settings(max_examples=60)
def test_gaps_add_up_to_the_way_from_first_to_last_token(loop):
    """But for the places of a request's first and last token in their batches."""
    run = loop.run()
    r = run.requests
    several = r.output_tokens > 1
    place_s = loop.work_s["output_s"] * (run.steps["requests"].max() - 1)
    way = (r.last_token_s - r.first_token_s)[several].sum()
    assert run.gaps.count.sum() == (r.output_tokens - 1).sum()
    assert abs(gaps_of(run).sum() - way) <= several.sum() * place_s + 1e-6


def _handed(prompts, arrivals, alpha):
    """Hand-over and what it depends on, where answers cost the server nothing."""
    target = deployment()
    latency = dataclasses.replace(latency_of(target), alpha=alpha)
    run = simulate(target, load(prompts, np.ones(len(prompts), int), arrivals), latency)
    return run.requests.handed_s, run.requests.handed_work


def _alpha(request_s, prompt_token_s):
    alpha = np.zeros(len(REQUEST_FEATURES))
    names = list(REQUEST_FEATURES)
    alpha[names.index("arrival_to_queue.constant")] = request_s
    alpha[names.index("arrival_to_queue.prompt_token")] = prompt_token_s
    return alpha


@given(
    st.lists(st.tuples(st.floats(0, 5e-3), st.integers(1, 60)), min_size=1, max_size=30),
    st.floats(0, 3e-3), st.floats(0, 1e-4), st.floats(0, 1e-3), st.floats(0, 1e-5),
)  # fmt: skip
@settings(max_examples=60)
def test_hand_over_is_a_queue_with_one_server(arriving, request_s, token_s, more_s, more_token_s):
    between, prompts = (np.array(column) for column in zip(*arriving, strict=True))
    arrivals = np.cumsum(between) - between[0]
    handed, _ = _handed(prompts, arrivals, _alpha(request_s, token_s))
    free = 0.0
    for moment, tokens, got in zip(arrivals, prompts, handed, strict=True):
        free = max(free, moment) + request_s + token_s * tokens
        assert got == pytest.approx(free, rel=1e-12)
    later, _ = _handed(prompts, arrivals, _alpha(request_s + more_s, token_s + more_token_s))
    assert (later >= handed).all()


@pytest.mark.parametrize("request_s", [0.0, 1e-3])
def test_the_servers_work_is_how_hand_over_answers_to_alpha(request_s):
    rng = np.random.default_rng(3)
    arrivals, prompts = np.repeat(np.cumsum(rng.exponential(4e-3, 10)), 3), rng.integers(1, 60, 30)
    arrivals -= arrivals[0]
    alpha = _alpha(request_s, request_s / 100)
    base, work = _handed(prompts, arrivals, alpha)
    assert 1 < work[:, 0].max() < 30
    step = 1e-8
    for i, more in enumerate((_alpha(step, 0.0), _alpha(0.0, step))):
        moved, _ = _handed(prompts, arrivals, alpha + more)
        np.testing.assert_allclose((moved - base) / step, work[:, i], rtol=1e-5)


@pytest.mark.parametrize("output_s", [0.0, 0.01])
def test_tokens_of_a_step_wait_for_each_other(output_s):
    got = play(load([4] * 3, [2] * 3), recorder=Recorder(output_s=output_s))
    r = got.run.requests
    assert r.first_work.tolist() == [[0, 0, 1], [0, 0, 2], [0, 0, 3]]
    assert r.last_work.tolist() == [[0, 0, 1], [0, 0, 2], [0, 0, 3]]
    first, last = request_delay_features(got.run)
    column = list(REQUEST_FEATURES).index("output_token.constant")
    assert first[:, column].tolist() == last[:, column].tolist() == [1, 2, 3]
    np.testing.assert_allclose(r.ttft_s, 1 + first[:, column] * output_s)


@given(cases())
@example(crowded())
@settings(max_examples=40)
def test_nothing_is_done_before_it_is_known(case):
    r = case.run().requests
    assert (r.handed_s >= r.arrival_s)[~np.isnan(r.handed_s)].all()
    made = ~np.isnan(r.engine_first_token_s)
    assert (r.first_token_s >= r.engine_first_token_s)[made].all()
    assert (r.finish_s >= r.engine_finish_s)[r.finished].all()
