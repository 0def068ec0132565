"""Laws of fleets: kinds of servers, start-up, failures and the autoscaler."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from random_cases import latency_of
from simulator_helpers import DENSE, MIXTURE, deployment, load

from pinn.engines.engine_spec import EngineSpec
from pinn.engines.routers import ROUTERS
from pinn.errors import PinnError
from pinn.simulator.fleets.autoscaler import MeanRequest, Scaling
from pinn.simulator.fleets.result import FleetSimulation
from pinn.simulator.fleets.run import gpu_hours, gpu_spans, mean_gpus, simulate_fleet
from pinn.simulator.fleets.spec import Autoscaler, Failure, FleetSpec, fleet_of
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.pools import Pool
from pinn.simulator.simulate import simulate

FIXED = FleetSpec()


def some_load(seed=0, n=240, gap_s=2e-4, **columns):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(gap_s, n))
    return load(rng.integers(4, 40, n), rng.integers(1, 24, n), arrivals, **columns)


def kind(replicas=2, model=DENSE, slower=1.0, router=None, request_s=1.0, **serving):
    target = deployment(model, **serving)
    latency = latency_of(target, request_s)
    latency = LinearLatency(target, slower * latency.beta, latency.alpha)
    return Pool(target, latency, EngineSpec(replicas=replicas, router=router))


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("columns", [{}, {"concurrency": 12}])
def test_a_fleet_of_one_kind_is_its_replicas(router, columns):
    one, workload = kind(3, router=router), some_load(**columns)
    alone = simulate(one.deployment, workload, one.latency, one.engine)
    found = simulate_fleet([one], FIXED, workload)
    assert (found.run.steps.table == alone.steps.table).all()
    assert (found.run.requests.finish_s == alone.requests.finish_s).all()
    assert (found.run.requests.replica == alone.requests.replica).all()
    assert (found.run.gaps.count.sum()) == alone.gaps.count.sum()


@pytest.mark.parametrize("router", ROUTERS)
def test_one_kind_in_two_parts_is_one_kind(router):
    whole = simulate_fleet([kind(4, router=router)], FIXED, some_load())
    parts = simulate_fleet([kind(1, router=router), kind(3, router=router)], FIXED, some_load())
    assert (whole.run.requests.finish_s == parts.run.requests.finish_s).all()
    assert (whole.run.requests.replica == parts.run.requests.replica).all()
    assert (parts.kind == np.minimum(parts.run.requests.replica, 1)).all()


@pytest.mark.parametrize("router", ROUTERS)
def test_the_order_of_kinds_changes_nothing(router):
    fast, slow = kind(2, router=router), kind(1, slower=3.0, router=router)
    one = simulate_fleet([fast, slow], FIXED, some_load(gap_s=6e-4))
    other = simulate_fleet([slow, fast], FIXED, some_load(gap_s=6e-4))
    assert (one.run.requests.finish_s == other.run.requests.finish_s).all()
    assert (one.kind == 1 - other.kind).all()
    assert len(set(one.kind.tolist())) == 2


def test_least_requests_send_more_to_the_faster_kind():
    workload = some_load(n=600, gap_s=6e-4)
    found, by_chance = (
        simulate_fleet(
            [kind(slower=slower, router=how, request_s=0.0) for slower in (1.0, 4.0)],
            FIXED,
            workload,
        )
        for how in ("least-requests", "random")
    )
    assert (found.kind == 0).mean() > 1.1 * (by_chance.kind == 0).mean()
    assert found.run.requests.ttft_s.mean() < by_chance.run.requests.ttft_s.mean()


def test_kinds_with_shared_experts_and_without_serve_together():
    mixed = [kind(1, MIXTURE, data_parallel_size=2), kind(1, MIXTURE)]
    found = simulate_fleet(mixed, FIXED, some_load())
    assert found.run.requests.finished.all()
    assert set(found.kind.tolist()) == {0, 1}


def a_day(**columns):
    """A load that rises to its noon and falls again, over a second."""
    rng = np.random.default_rng(3)
    moments = np.sort(np.concatenate([rng.uniform(0, 1, 100), rng.normal(0.5, 0.08, 800)]))
    moments = moments[(moments > 0) & (moments < 1)]
    n = len(moments)
    return load(rng.integers(4, 40, n), rng.integers(1, 24, n), moments, **columns)


def scaled(rule, workload, **spec):
    pool = kind(1)
    spec = FleetSpec(autoscaler=rule, **spec)
    found = simulate_fleet([pool], spec, workload)
    return FleetSimulation(found, [pool], spec)


RULE = Autoscaler(
    by="rate", target=700.0, least=1, most=6, interval_s=0.01, window_s=0.04, down_after_s=0.08
)


def test_gpu_hours_are_the_integral_of_gpus_over_time():
    found = scaled(RULE, a_day(), start_up_s=0.02)
    end = found.run.requests.finish_s.max()
    edges = np.linspace(0.0, end, 4001)
    integral = (mean_gpus(found.spans, edges) * np.diff(edges)).sum() / 3600
    assert found.metrics["gpu_hours"] == pytest.approx(integral)
    assert found.metrics["gpu_hours"] == pytest.approx(sum(s["gpu_hours"] for s in found.servers))
    assert found.spans[:, 1].max() == pytest.approx(end)
    assert sum(row["gpus_mean"] * (row["end_s"] - row["begin_s"]) for row in found.periods) / 3600 \
        == pytest.approx(integral)  # fmt: skip


def test_an_autoscaler_follows_the_load_between_its_ends():
    day = a_day()
    found = scaled(RULE, day, start_up_s=0.02)
    fixed = [simulate_fleet([kind(n)], FIXED, day) for n in (1, 6)]
    ttft = [run.run.requests.ttft_s.mean() for run in (*fixed, found.found)]
    assert ttft[1] <= ttft[2] < ttft[0]
    hours = [gpu_hours(gpu_spans(run, [1])) for run in fixed]
    assert found.metrics["gpu_hours"] < hours[1]
    assert 1 < found.metrics["gpus_max"] <= 6
    noon, evening = mean_gpus(found.spans, np.array([0.45, 0.55, 0.9, 1.0]))[[0, 2]]
    assert noon > evening


def test_a_later_start_makes_requests_wait_longer():
    ttft = [
        scaled(RULE, a_day(), start_up_s=seconds).run.requests.ttft_s.mean()
        for seconds in (0.0, 0.04, 0.16)
    ]
    assert ttft == sorted(ttft)
    assert ttft[0] < ttft[-1]


def test_an_autoscaler_with_one_choice_is_a_fixed_fleet():
    fixed = simulate_fleet([kind(2)], FIXED, some_load())
    held = simulate_fleet(
        [kind(2)], FleetSpec(autoscaler=replace(RULE, least=2, most=2)), some_load()
    )
    assert (fixed.run.requests.finish_s == held.run.requests.finish_s).all()


def test_predicted_latency_meets_what_is_simulated():
    """A server at a steady rate has about the TPOT that the autoscaler predicts for it."""
    pool = kind(1, request_s=0.0, max_num_seqs=64, max_num_batched_tokens=256)
    rate, n = 3000.0, 1500
    moments = np.cumsum(np.random.default_rng(0).exponential(1 / rate, n))
    workload = load(np.full(n, 20), np.full(n, 16), moments)
    run = simulate(pool.deployment, workload, pool.latency)
    found = MeanRequest(pool.latency, 20.0, 16.0, 64).latencies_s(rate)
    assert found["tpot"] == pytest.approx(np.nanmean(run.requests.mean_itl_s[300:]), rel=0.25)
    full = MeanRequest(pool.latency, 20.0, 16.0, 64).latencies_s(1e6)
    assert full["tpot"] == np.inf


def test_by_latency_more_servers_are_wanted_as_the_rate_rises():
    pool = kind(1)
    request = MeanRequest(pool.latency, 20.0, 16.0, 8)
    rule = Autoscaler(by="latency", slo="tpot<=1ms", least=1, most=9, down_after_s=0.0, tolerance=0)
    wanted = [Scaling(rule, request).decide(0.0, rate, 1) for rate in (10.0, 3e3, 1e4, 1e6)]
    assert wanted == sorted(wanted)
    assert wanted[0] == 1
    assert wanted[-1] == 9


def test_fewer_servers_are_kept_only_after_a_while():
    rule = Autoscaler(by="rate", target=1.0, most=9, down_after_s=100.0)
    scaling = Scaling(rule, None)
    assert scaling.decide(0.0, 8.0, 2) == 8
    assert scaling.decide(50.0, 3.0, 8) == 8
    assert scaling.decide(101.0, 3.0, 8) == 3
    assert scaling.decide(110.0, 3.2, 3) == 3  # within the tolerance


@pytest.mark.parametrize("columns", [{}, {"concurrency": 12}, {"timeout_s": np.full(240, 0.02)}])
def test_a_failure_sends_what_was_in_flight_again_or_loses_it(columns):
    workload = some_load(**columns)
    failures = (Failure(0.01, 1, 0.005), Failure(0.02, 0, 0.001))
    sent, gone = (
        simulate_fleet([kind(2)], FleetSpec(failures=failures, in_flight=how), workload)
        for how in ("resend", "lose")
    )
    assert sent.resent > 0
    assert sent.lost == gone.resent == 0
    patient = "timeout_s" not in columns
    assert sent.run.requests.finished.all() or not patient
    lost = gone.run.requests.status == "lost"
    assert lost.sum() == gone.lost > 0
    assert np.isin(gone.run.requests.finish_s[lost], (0.01, 0.02)).all()
    served = sent.run.requests.finished
    assert (sent.run.requests.output_tokens == workload.output_tokens)[served].all()
    whole = simulate_fleet([kind(2)], FIXED, workload).run.requests
    if patient:
        assert sent.run.requests.e2e_s.mean() > whole.e2e_s.mean()
    before = whole.finish_s < 0.01
    assert (sent.run.requests.finish_s == whole.finish_s)[before].all()
    down = [span for server in sent.servers for span in server.on]
    assert len(down) == 4


def test_requests_wait_at_the_router_while_no_server_is_open():
    workload = some_load(n=60)
    found = simulate_fleet(
        [kind(1)], FleetSpec(failures=(Failure(0.004, 0, 0.01),), start_up_s=0.005), workload
    )
    requests = found.run.requests
    assert requests.finished.all()
    late = requests.finish_s > 0.004
    assert (requests.scheduled_s[late] >= 0.019).all()
    assert (requests.arrival_s == np.asarray(workload.offset_s)).all()


@pytest.mark.parametrize("down_s", [40.0, 1e9])
def test_an_autoscaler_skips_decisions_that_change_nothing(down_s, monkeypatch):
    decisions = []
    decide = Scaling.decide

    def watched(self, now_s, rate_per_s, present):
        decisions.append(now_s)
        return decide(self, now_s, rate_per_s, present)

    monkeypatch.setattr(Scaling, "decide", watched)
    rule = Autoscaler("rate", target=1e6, most=1, interval_s=0.5, window_s=1.0, down_after_s=2.0)
    spec = FleetSpec(failures=(Failure(0.01, 0, down_s),), autoscaler=rule)
    workload = some_load()
    found = simulate_fleet([kind(1)], spec, workload)
    fixed = simulate_fleet([kind(1)], replace(spec, autoscaler=None), workload)
    assert (found.run.requests.finish_s == fixed.run.requests.finish_s).all()
    assert found.run.requests.finish_s.max() > down_s
    assert len(decisions) < 40
    # The decisions after the restart look back at every decision of their windows.
    assert down_s - 3.5 < min(t for t in decisions if t > 0.5 * down_s) < down_s


def test_servers_that_fail_at_one_moment_serve_nothing_while_they_are_down():
    failures = (Failure(0.01, 0, 0.03), Failure(0.01, 1, 0.03))
    found = simulate_fleet([kind(2)], FleetSpec(failures=failures), some_load())
    assert found.resent > 0
    finish_s = found.run.requests.finish_s
    assert not ((finish_s > 0.011) & (finish_s < 0.04)).any()
    assert found.run.requests.finished.all()


def test_without_an_slo_a_fleet_that_fails_is_reported(capsys):
    pool, spec = kind(2), FleetSpec(failures=(Failure(0.01, 1, 0.005),))
    FleetSimulation(simulate_fleet([pool], spec, some_load()), [pool], spec).print_report()
    printed = capsys.readouterr().out
    assert "not served" in printed
    assert "beyond SLO" not in printed


def test_a_server_that_failed_starts_with_an_empty_cache():
    n = 6
    workload = load(
        np.full(n, 17), np.full(n, 2), 0.01 * np.arange(n),
        shares_with=np.arange(n) - 1, shared_tokens=np.full(n, 16),
    )  # fmt: skip
    pool = kind(1, enable_prefix_caching=True)
    found = simulate_fleet([pool], FleetSpec(failures=(Failure(0.025, 0),)), workload)
    assert found.run.requests.cached_tokens.tolist() == [0, 16, 16, 0, 16, 16]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "must be a mapping with kinds"),
        ({"kind": []}, "a fleet has the unknown key 'kind'"),
        ({"kinds": []}, "kinds is empty"),
        ({"failures": [{"server": 0}]}, "failures lacks the key at_s"),
        ({"failures": [{"at_s": "soon", "server": 0}]}, "at_s of failures must be a number"),
        ({"failures": [{"at_s": -1, "server": 0}]}, "0 or more"),
        ({"failures": [{"at_s": 1, "server": 0, "down_s": np.inf}]}, "longer than the load"),
        ({"autoscaler": {"by": "luck"}}, "the key by of autoscaler must be rate or latency"),
        ({"autoscaler": {"by": "rate"}}, "the key target of autoscaler is missing"),
        ({"autoscaler": {"by": "latency"}}, "the key slo of autoscaler is missing"),
        (
            {"autoscaler": {"by": "rate", "target": 1, "least": 4, "most": 2}},
            "least and most of autoscaler must be at least 1",
        ),
        ({"autoscaler": {"by": "rate", "target": 1, "kind": 1}}, "give a number from 0 to 0"),
        ({"in_flight": "drop"}, "must be resend or lose"),
        ({"start_up_s": -1}, "0 or more"),
        ({"start_up_s": "long"}, "start_up_s must be a number"),
    ],
)
def test_what_no_fleet_can_be_is_refused(document, said):
    with pytest.raises(PinnError, match=said):
        fleet_of(document, "fleet.yaml")


def test_what_cannot_be_simulated_is_refused():
    with pytest.raises(PinnError, match="server is 7, but the fleet has 2"):
        simulate_fleet([kind(2)], FleetSpec(failures=(Failure(0.1, 7),)), some_load())
    stuck = (Failure(0.001, 0, 1e9),)
    found = simulate_fleet([kind(1)], FleetSpec(failures=stuck), some_load())
    assert found.run.requests.finish_s.max() > 1e9  # it does start again
