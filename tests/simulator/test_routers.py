"""Laws of routers: what they leave alone, whom they choose, and how much that helps."""

from __future__ import annotations

import numpy as np
import pytest
from random_cases import latency_of
from simulator_helpers import DENSE, MIXTURE, Recorder, deployment, load

from pinn.engines.engine_spec import EngineSpec
from pinn.engines.routers import PREFIX_AWARE, ROUTERS
from pinn.errors import PinnError
from pinn.simulator.servers import server_of_requests, server_statistics
from pinn.simulator.simulate import simulate
from pinn.simulator.statistics import run_statistics

STALE_S = 2e-3


def some_load(seed=0, n=200, gap_s=1.5e-4, **columns):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(gap_s, n))
    return load(rng.integers(4, 40, n), rng.integers(1, 24, n), arrivals, **columns)


def conversations(seed=0, n=40, turns=4, gap_s=2e-3, turn_s=16e-3):
    """Conversations whose prompts repeat all that was said; each starts with 16 tokens of its own.

    Every turn adds 8 tokens, of which 4 are the answer to the turn before.
    """
    first = np.cumsum(np.random.default_rng(seed).exponential(gap_s, n))
    arrivals = (first[:, None] + turn_s * np.arange(turns)).ravel()
    order = np.argsort(arrivals, kind="stable")
    place = np.empty(n * turns, np.int64)
    place[order] = np.arange(n * turns)
    turn = np.tile(np.arange(turns), n)
    before = np.where(turn > 0, np.roll(place, 1), -1)
    columns = {"shares_with": before[order], "shared_tokens": (16 + 8 * (turn - 1)).clip(0)[order]}
    return load((16 + 8 * turn)[order], np.full(n * turns, 4), arrivals[order], **columns)


def simulated(workload, compiled=None, model=DENSE, ranks=1, **given):
    target = deployment(model, data_parallel_size=ranks, enable_prefix_caching=True)
    return simulate(target, workload, latency_of(target), EngineSpec(**given), compiled=compiled)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(("model", "ranks"), [(DENSE, 1), (DENSE, 2), (MIXTURE, 2)])
def test_one_replica_under_any_router_is_the_single_server(router, model, ranks):
    alone = simulated(some_load(), model=model, ranks=ranks)
    routed = simulated(some_load(), model=model, ranks=ranks, router=router, router_staleness_s=0.1)
    assert (alone.steps.table == routed.steps.table).all()
    assert (alone.requests.finish_s == routed.requests.finish_s).all()


def test_round_robin_is_an_external_load_balancers():
    one, other = (
        simulated(some_load(), replicas=3, **given)
        for given in ({"router": "round-robin"}, {"data_parallel_routing": "round_robin"})
    )
    assert (one.steps.table == other.steps.table).all()
    assert (one.requests.replica == np.arange(200) % 3).all()


@pytest.mark.parametrize("stale_s", [0.0, STALE_S])
@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize(("model", "ranks"), [(DENSE, 1), (MIXTURE, 2)])
def test_plain_python_routes_as_compiled_code_does(router, stale_s, model, ranks):
    given = {"router": router, "router_staleness_s": stale_s, "replicas": 3}
    fast, slow = (
        simulated(conversations(), compiled, model, ranks, **given) for compiled in (True, False)
    )
    assert (fast.requests.replica == slow.requests.replica).all()
    assert fast.requests.finish_s == pytest.approx(slow.requests.finish_s, rel=1e-9)


def test_random_routing_is_even_and_belongs_to_the_requests():
    found = simulated(some_load(n=3000), router="random", replicas=5)
    counts = np.bincount(server_of_requests(found), minlength=5)
    assert ((counts - 600) ** 2 / 600).sum() < 18.5  # 99.9 % of chi-square with 4 degrees
    slower = simulated(some_load(n=3000, gap_s=1e-3), router="random", replicas=5)
    assert (slower.requests.replica == found.requests.replica).all()


@pytest.mark.parametrize("gap_s", [6e-4, 3e-4, 2e-4])
def test_least_requests_are_never_worse_than_random_beyond_noise(gap_s):
    p99 = np.array([
        [
            np.percentile(
                simulated(some_load(seed, 600, gap_s), router=router, replicas=4).requests.ttft_s,
                99,
            )
            for router in ("least-requests", "random")
        ]
        for seed in range(12)
    ])  # fmt: skip
    gain = np.log(p99[:, 1] / p99[:, 0])
    assert gain.mean() > -2 * gain.std() / np.sqrt(len(gain))


def test_least_requests_pick_one_with_the_fewest_in_flight():
    found = simulated(some_load(n=400), router="least-requests", replicas=3).requests
    for r in range(1, len(found)):
        before = slice(0, r)
        open_ones = found.engine_finish_s[before] > found.arrival_s[r]
        in_flight = np.bincount(found.replica[before][open_ones], minlength=3)
        assert in_flight[found.replica[r]] == in_flight.min()


def test_prefix_aware_routing_sends_a_conversation_where_its_blocks_are():
    # Each turn comes when the one before has long ended, so that its blocks can be found.
    talks = conversations(turn_s=0.2)
    random, weighed, alone = (
        run_statistics(simulated(talks, replicas=4, **given))["cache_hit_rate"]
        for given in (
            {"router": "random"},
            {"router": PREFIX_AWARE},
            {"router": PREFIX_AWARE, "router_weights": "prefix-cache=1"},
        )
    )
    whole = run_statistics(simulated(talks))["cache_hit_rate"]
    assert random < 0.6 * whole < weighed <= alone
    assert alone == pytest.approx(whole)


def test_without_the_weight_of_prefixes_only_queues_and_caches_count():
    given = {"router": PREFIX_AWARE, "replicas": 4}
    blind = simulated(conversations(), router_weights="queue=1", **given)
    assert run_statistics(blind)["cache_hit_rate"] < 0.6
    assert len(set(blind.requests.replica.tolist())) == 4


@pytest.mark.parametrize(("stale_s", "follows"), [(0.0, True), (2.5, True), (100.0, False)])
def test_a_router_sees_the_cache_as_it_was_when_it_looked(stale_s, follows):
    # Eight prompts, one every 20 s, all of whose 16 tokens are the first one's: steps take 1 s.
    n = 8
    workload = load(
        np.full(n, 17), np.full(n, 2), 20.0 * np.arange(n),
        shares_with=np.arange(n) - 1, shared_tokens=np.full(n, 16),
    )  # fmt: skip
    target = deployment(enable_prefix_caching=True)
    spec = EngineSpec(replicas=4, router=PREFIX_AWARE, router_staleness_s=stale_s)
    found = simulate(target, workload, Recorder(), spec).requests.replica
    assert (len(set(found[:5].tolist())) == 1) == follows
    # After 100 s it has looked in either case, and goes where the blocks then were.
    assert set(found[5:].tolist()) <= set(found[:5].tolist())


def test_figures_of_servers_add_up_to_the_run():
    run = simulated(some_load(), model=MIXTURE, ranks=2, router="random", replicas=3)
    servers, whole = server_statistics(run), run_statistics(run)
    assert len(servers) == 3
    assert sum(each["requests"] for each in servers) == len(run.requests)
    assert max(each["running_max"] for each in servers) == whole["running_max"]
    assert np.mean([each["busy_share"] for each in servers]) == pytest.approx(whole["busy_share"])
    mean = sum(each["requests"] * each["ttft_mean_ms"] for each in servers) / len(run.requests)
    assert mean == pytest.approx(whole["ttft_mean_ms"])
    assert server_statistics(simulated(some_load())) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"router": "fastest"}, "use one of random, round-robin, least-requests, prefix-aware"),
        ({"router": PREFIX_AWARE, "router_weights": "cache=1"}, "the scorers are prefix-cache"),
        ({"router": PREFIX_AWARE, "router_weights": "queue=-1"}, "a weight of 0 or more"),
        ({"router": "random", "router_weights": "queue=1"}, "omit one of the two flags"),
        ({"router_staleness_s": -1.0}, "--router-staleness-s"),
    ],
)
def test_what_no_router_can_do_is_refused(given, said):
    with pytest.raises(PinnError, match=said):
        EngineSpec(**given)
