"""Mean TPOT and TTFT of a run as sums of its steps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from assumed_priors import prior_coefficients
from simulator_helpers import Recorder, load, play, scheduled

from pinn.engines.deployment import Deployment
from pinn.physics.costs import step_costs
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import mean_steps
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.workload import PromptGroups, closed_loop, open_loop, shared_prefix
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import step_features, step_time

RANGE = (0.8, 1.0)
LOADS = {
    "1 client": closed_loop(1, 10, 1024, 256, length_range=RANGE),
    "4 clients": closed_loop(4, 40, 1024, 256, length_range=RANGE),
    "64 clients": closed_loop(64, 640, 1024, 1024, length_range=RANGE),
    "64 clients with chunked prompts": closed_loop(64, 320, 6000, 64, length_range=RANGE),
    "200 clients in 32 places": closed_loop(200, 600, 256, 32, length_range=RANGE),
    "answers of one to three tokens": closed_loop(8, 200, 300, 3, length_range=(0.34, 1.0)),
    "open loop": open_loop([Stage(8, 30)], 500, 100, length_range=RANGE),
    "almost idle": open_loop([Stage(0.5, 60)], 500, 100, length_range=RANGE),
    "shared prefixes": shared_prefix(
        [Stage(20, 20)],
        PromptGroups(4, 5, 400, 200), 80,
    ),
}  # fmt: skip
SERVER = Deployment(
    load_model("meta-llama/Llama-3.1-8B"),
    load_gpu("H100"),
    ServingSpec(max_num_batched_tokens=2048),
)
PRIOR = prior_coefficients(1)
LATENCY = LinearLatency(SERVER, PRIOR.beta[0], PRIOR.alpha[0])


def served(name, *, latency=LATENCY, asynchronous=True):
    seats = 32 if name == "200 clients in 32 places" else 1024
    target = dataclasses.replace(
        SERVER, serving=dataclasses.replace(SERVER.serving, max_num_seqs=seats)
    )
    target, engine = scheduled(target, {"async_scheduling": asynchronous})
    return simulate(target, LOADS[name], latency, engine)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("name", LOADS)
def test_beta_times_the_mean_features_is_what_the_engine_takes(name, asynchronous):
    run = served(name, asynchronous=asynchronous)
    r, steps = run.requests, mean_steps(run)
    features = step_features(step_costs([SERVER]), steps.sums)
    several = r.output_tokens > 1
    gaps = r.output_tokens[several] - 1
    tpot = (r.engine_finish_s - r.engine_first_token_s)[several] / gaps
    seconds = step_time(features, LATENCY.beta)
    assert steps.tpot_share @ seconds == pytest.approx(tpot.mean(), rel=1e-3)
    ttft = (r.engine_first_token_s - r.handed_s).mean()
    assert steps.ttft_share @ seconds == pytest.approx(ttft, rel=1e-3)


@pytest.mark.parametrize("name", ["1 client", "4 clients", "64 clients"])
def test_clients_see_the_same_tpot_where_answers_are_long(name):
    """The API server's time for the first and the last token is spread over many gaps."""
    run = served(name)
    steps = mean_steps(run)
    features = step_features(step_costs([SERVER]), steps.sums)
    tpot = steps.tpot_share @ step_time(features, LATENCY.beta)
    assert run.requests.mean_itl_s.mean() == pytest.approx(tpot, rel=1e-3)


@pytest.mark.parametrize("name", LOADS)
def test_clients_see_the_same_tpot_and_ttft_where_the_api_server_has_nothing_to_do(name):
    bare = dataclasses.replace(LATENCY, alpha=np.zeros_like(LATENCY.alpha))
    run = served(name, latency=bare)
    steps = mean_steps(run)
    seconds = step_time(step_features(step_costs([SERVER]), steps.sums), bare.beta)
    tpot = np.nanmean(run.requests.mean_itl_s)
    assert steps.tpot_share @ seconds == pytest.approx(tpot, rel=1e-3)
    assert steps.ttft_share @ seconds == pytest.approx(run.requests.ttft_s.mean(), rel=1e-3)


@pytest.mark.parametrize("name", LOADS)
def test_shares_are_the_steps_that_a_mean_request_lives_through(name):
    run = served(name)
    r, steps = run.requests, mean_steps(run)
    several = r.output_tokens > 1
    lived = _steps_between(run, r.engine_first_token_s, r.engine_finish_s)[several]
    assert steps.tpot_share.sum() == pytest.approx((lived / (r.output_tokens[several] - 1)).mean())
    waited = _steps_between(run, r.handed_s, r.engine_first_token_s)
    assert steps.ttft_share.sum() == pytest.approx(waited.mean())
    assert (steps.tpot_share >= -1e-12).all()
    assert (steps.ttft_share >= -1e-12).all()


def test_a_request_that_is_in_every_step_makes_a_token_in_each():
    assert mean_steps(served("4 clients")).tpot_share.sum() == pytest.approx(1)


def _steps_between(run, begin, end):
    """Steps of the run between two moments of each request, cut ones by what lies between."""
    start = run.steps["start_s"]
    stop = start + run.steps["duration_s"]
    return np.array([
        np.clip((np.minimum(stop, e) - np.maximum(start, b)) / (stop - start), 0, None).sum()
        for b, e in zip(begin, end, strict=True)
    ])  # fmt: skip


def test_shares_worked_out_by_hand():
    # The second request comes in the middle of the first one's second step, which is a decode; the
    # third step has its prompt. Answers of 4 and 2 tokens: gaps are the steps 2, 3, 4, and 4.
    run = play(load([4, 6], [4, 2], [0.0, 1.5])).run
    steps = mean_steps(run)
    assert steps.sums.prefill_tokens.tolist() == [4, 0, 6, 0]
    np.testing.assert_allclose(steps.tpot_share, np.array([0, 1 / 3, 1 / 3, 1 / 3 + 1]) / 2)
    np.testing.assert_allclose(steps.ttft_share, np.array([1, 0.5, 1, 0]) / 2)


def test_requests_that_were_not_served_and_gaps_that_there_are_not_count_for_nothing():
    # The second client gives up, the third request has one token only.
    workload = load([4, 4, 4], [3, 9, 1], timeout_s=[np.inf, 2.5, np.inf])
    steps = mean_steps(play(workload, recorder=Recorder()).run)
    assert steps.tpot_share.sum() == pytest.approx(1)
    assert steps.ttft_share.sum() == pytest.approx(1)
