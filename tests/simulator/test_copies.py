"""Servers alike behind a load balancer, and runs that are given up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import latency_of
from simulator_helpers import DENSE, MIXTURE, deployment, load

from pinn.engines.engine_spec import EngineSpec
from pinn.simulator.metric_features import request_feature_sums
from pinn.simulator.simulate import StoppedEarlyError, simulate
from pinn.simulator.statistics import engine_statistics
from pinn.simulator.workloads.rates import thinned


def some_load(seed=0, n=60, gap_s=3e-4):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(gap_s, n))
    return load(rng.integers(1, 40, n), rng.integers(1, 24, n), arrivals)


@pytest.mark.parametrize("model", [DENSE, MIXTURE])
@pytest.mark.parametrize("ranks", [1, 2])
def test_servers_in_turn_are_each_a_server_of_its_own(model, ranks):
    target = deployment(model, data_parallel_size=ranks)
    workload = some_load()
    routing = {"data_parallel_routing": "round_robin", "api_server_count": 1}
    # With one rank a server's requests are every third; with more they go rank by rank.
    together = simulate(
        target, workload, latency_of(target), EngineSpec(replicas=3, **routing)
    ).requests
    server = np.arange(len(workload)) // ranks % 3
    assert (together.replica // ranks == server).all()
    for each in range(3):
        mine = server == each
        alone = simulate(
            target, thinned(workload, mine), latency_of(target), EngineSpec(**routing)
        ).requests
        assert together.ttft_s[mine] == pytest.approx(alone.ttft_s, rel=1e-9)
        assert together.e2e_s[mine] == pytest.approx(alone.e2e_s, rel=1e-9)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_use_of_the_cache_is_a_servers_however_many_serve_alike(model, ranks):
    # Each request comes once for every server and rank, in the same order for each of them.
    target = deployment(model, data_parallel_size=ranks)
    drawn = np.random.default_rng(0)
    prompts, outputs = drawn.integers(1, 40, 40), drawn.integers(1, 24, 40)
    arrivals = np.cumsum(drawn.exponential(3e-4, 40))
    found = []
    for copies in (1, 2, 6):
        each = copies * ranks
        workload = load(prompts.repeat(each), outputs.repeat(each), arrivals.repeat(each))
        engine = EngineSpec(
            replicas=copies, num_gpu_blocks_override=100, data_parallel_routing="round_robin"
        )
        run = simulate(target, workload, latency_of(target, request_s=0.0), engine)
        figures = engine_statistics(run)
        found.append([figures["kv_usage_mean"], figures["kv_usage_max"]])
    assert 0.2 < found[0][0] < found[0][1] <= 1.0
    assert found[1] == pytest.approx(found[0])
    assert found[2] == pytest.approx(found[0])


def test_the_least_loaded_server_gets_the_request():
    target = deployment()
    workload = some_load(n=200)
    spread = [
        simulate(
            target, workload, latency_of(target),
            EngineSpec(replicas=4, data_parallel_routing=routing),
        ).requests.ttft_s.mean()
        for routing in ("least_loaded", "round_robin")
    ]  # fmt: skip
    assert spread[0] <= spread[1] * 1.02
    alone = simulate(target, workload, latency_of(target)).requests.ttft_s.mean()
    assert spread[0] < alone


@pytest.mark.parametrize("routing", ["least_loaded", "round_robin"])
@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_plain_python_and_sums_of_features_agree_for_several_servers(model, routing):
    target = deployment(model, data_parallel_size=2)
    engine = EngineSpec(replicas=2, data_parallel_routing=routing)
    latency = latency_of(target)
    fast, slow = (
        simulate(target, some_load(), latency, engine, compiled=compiled)
        for compiled in (True, False)
    )
    assert fast.requests.finish_s == pytest.approx(slow.requests.finish_s, rel=1e-9)
    assert (fast.requests.replica == slow.requests.replica).all()
    served = request_feature_sums(latency, fast)[1] @ latency.beta
    waited = fast.requests.engine_finish_s - fast.requests.handed_s
    assert served == pytest.approx(waited, rel=1e-7)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.floats(0.2, 2.0))
def test_a_run_that_nobody_gives_up_is_the_run(seed, hurry):
    target, workload = deployment(), some_load(seed, gap_s=3e-4 * hurry)
    looks = []

    def early_stop(requests, now_s):
        looks.append((len(requests), now_s))
        return False

    plain = simulate(target, workload, latency_of(target))
    watched = simulate(target, workload, latency_of(target), early_stop=early_stop)
    assert (watched.steps.table == plain.steps.table).all()
    assert (watched.requests.finish_s == plain.requests.finish_s).all()
    with pytest.raises(StoppedEarlyError):
        simulate(target, some_load(n=800), latency_of(target), early_stop=lambda *_: True)
