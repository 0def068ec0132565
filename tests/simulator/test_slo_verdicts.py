"""Verdicts on limits: overloaded servers, requests that are not served, plans alike."""

from __future__ import annotations

import json

import numpy as np
import pytest
from assumed_priors import prior_coefficients
from simulator_helpers import deployment, load, play
from typed import alone
from typer.testing import CliRunner

import pinn
from pinn.cli import simulate as simulate_command
from pinn.common.screen import printed
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.planning.candidate import Candidate
from pinn.planning.problem import replica_load
from pinn.planning.trials import Trials
from pinn.simulator.goodput import goodput
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.report import print_latencies
from pinn.simulator.slo import parse_slo
from pinn.simulator.statistics import overload, run_statistics
from pinn.simulator.steady_state import steady_states

app = alone(simulate_command)
SERVED = {"model": "Llama-3.1-8B", "gpu": "H100", "input_len": 500, "output_len": 8}


def simulated(coefficients, *words):
    given = ["--model", "Llama-3.1-8B", "--gpu", "H100", "--coefficients", str(coefficients)]
    return CliRunner().invoke(app, [*given, "--input-len", "500", "--output-len", "8", *words])


def limited(text):
    return parse_slo(text, shareless=True)


def planned(slo):
    prior = prior_coefficients(1)
    latency = LinearLatency(deployment(), prior.beta[0], prior.alpha[0])
    sent = replica_load(load([4] * 3, [2] * 3, np.arange(3.0)), 0)
    return Trials(Candidate({}, latency, EngineSpec()), sent, slo)


def test_gaps_that_are_short_while_requests_wait_meet_no_slo(coefficients):
    """Limits on TPOT or ITL say nothing of the queue, which grows with the length of the load."""
    run = play(load([4] * 99, [30] * 99, np.arange(99.0))).run
    found = goodput(run, limited("p99 tpot<=2s"))
    assert (found.statistics_s["p99 TPOT <= 2 s"], found.met) == (1.0, False)
    assert found.sentence.startswith("SLO missed: p99 TPOT <= 2 s: it was 1 s; overloaded: ")
    assert goodput(run, limited("p99 tpot<=2s; p99 ttft<=999s")).met
    words = ["--num-prompts", "60", "--max-num-seqs", "4", "--slo", "p99 tpot<=10s"]
    swept = simulated(coefficients, *words, "--rate", "1,4,900")
    assert swept.output.startswith("The server meets the SLO up to 4 requests/s of 1, 4, 900.")
    rows = [line.split() for line in swept.output.splitlines()]
    assert [row[-1] for row in rows if row[0] in ("rate", "1", "4", "900")] == [
        "met", "yes", "yes", "no",
    ]  # fmt: skip


def test_requests_that_are_not_served_exceed_limits_on_gaps():
    run = play(load([4, 4], [3, 9], timeout_s=[99, 2.5])).run
    assert run.requests.status.tolist() == ["finished", "timed_out"]
    slo = limited("p50 itl<=2s")
    found = goodput(run, slo)
    assert (found.met, found.statistics_s) == (False, {"p50 ITL <= 2 s": np.inf})
    assert found.sentence == "SLO missed: p50 ITL <= 2 s: it was infinite"
    none_served = play(load([4], [9], timeout_s=[0.5])).run
    assert goodput(none_served, slo).met is False
    assert planned(slo).excess_of(run) == np.inf
    assert not planned(slo).point(run, 1.0).limits[0].met


@pytest.mark.parametrize("slo", ["p99 tpot<=1s", "mean itl<=1s", "ttft:1000 tpot:50"])
def test_limits_on_gaps_need_a_second_token(coefficients, slo):
    given = {**SERVED, "output_len": 1, "num_prompts": 9, "rate": 4, "coefficients": coefficients}
    with pytest.raises(PinnError, match="no request of the load generates two tokens, so there is"):
        pinn.simulate(slo=slo, **given)
    assert pinn.simulate(slo="ttft:1000", **given).goodput.attainment == 1


def test_a_plan_measures_the_gaps_of_a_simulation_under_speculation():
    flags = {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'}
    flags |= {"speculative_acceptance": "0.8", "enable_prefix_caching": False}
    run = play(load([4] * 8, [20] * 8), **flags).run
    assert (run.gaps.tokens > 1).any()
    found = run_statistics(run)
    middle = (found["itl_mean_ms"] + found["step_itl_mean_ms"]) / 2
    slo = limited(f"mean itl<={middle}ms")
    point = planned(slo).point(run, 1.0)
    assert point.latency_s["itl"]["mean"] == pytest.approx(found["itl_mean_ms"] / 1000)
    assert (point.holds, goodput(run, slo).met) == (True, True)


def test_a_share_that_is_only_asked_for_is_no_limit(coefficients):
    run = play(load([4] * 3, [2] * 3)).run
    found = goodput(run, limited("p50 ttft<=2s; tpot<=1ms"))
    assert (found.attainment, found.met) == (0.0, True)
    slo = limited("tpot<=1ms")
    gaps = run.gaps.per_token
    assert (slo.excess({"tpot": np.ones(3), "e2e": np.ones(3)}, gaps), slo.each) == (0.0, [])
    swept = simulated(coefficients, "--num-prompts", "9", "--rate", "1,2", "--slo", "ttft:1000")
    assert "within limits" in swept.output
    assert "keeps up" in swept.output
    mean = simulated(coefficients, "--num-prompts", "9", "--rate", "1,2", "--slo", "p50 ttft<=1us")
    rows = [line.split() for line in mean.output.splitlines()]
    assert [row[-1] for row in rows if row[0] in ("1", "2")] == ["no", "no"]
    assert "100.0 %" not in mean.output


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("p99 ttft:2000", ["p99 TTFT <= 2 s"]),
        ("mean ttft=1s", ["mean TTFT <= 1 s"]),
        ("p99 ttft:2000 mean tpot:50", ["p99 TTFT <= 2 s", "mean TPOT <= 50 ms"]),
        ("ttft p99.9=2 s tpot mean:50", ["p99.9 TTFT <= 2 s", "mean TPOT <= 50 ms"]),
        ("ttft:1000 ms e2e:5 s for 90 %", ["90 % of the requests: TTFT <= 1 s and E2E <= 5 s"]),
    ],
)
def test_pairs_may_name_statistics(text, sentences):
    assert parse_slo(text).sentences == sentences


def test_a_rate_with_clients_at_most_may_be_too_high():
    """Where no client is free, requests wait to be sent, and the server sees no queue."""
    prompts, outputs = [4] * 60, [3] * 60
    fast, slow = (
        play(load(prompts, outputs, gap * np.arange(60), concurrency=2)).run for gap in (0.1, 2.0)
    )
    assert overload(fast) == (
        "overloaded: 56 of 60 requests were still waiting when the last one was due, with at most "
        "2 in flight"
    )
    assert overload(slow) is None
    assert overload(play(load(prompts, outputs, concurrency=2)).run) is None


def test_a_steady_state_takes_more_than_a_few_requests():
    few, enough = (
        steady_states(play(load([4] * n, [3] * n, np.arange(float(n)))).run) for n in (49, 50)
    )
    assert str(few[0]).startswith("not reached: too few requests")
    assert enough[0].begin_s is not None


def test_a_stage_inside_the_warm_up_has_no_rate():
    run = play(
        load([4] * 4, [2] * 4, stage=[0, 0, 1, 1], stage_starts_s=(0.0, 50.0), warmup_requests=2)
    ).run
    assert np.isnan(run_statistics(run, 0)["responses_per_sec"])
    assert run_statistics(run, 1)["responses_per_sec"] == 1.0
    rows = [line.split() for line in printed(lambda: print_latencies(run, {}, {}, {})).splitlines()]
    assert [row[1:3] for row in rows if row[0] in "01"] == [["0/0", "-"], ["2/2", "1.00"]]


def test_json_has_no_infinity(coefficients):
    words = ["--rate", "inf", "--concurrency", "4", "--num-prompts", "9", "--json", "-"]
    for more in ([], ["--prefill", "1x tp=1", "--decode", "1x tp=1"]):
        text = simulated(coefficients, *words, *more).output
        begin = text.index("\n{") + 1 if not text.startswith("{") else 0
        found = json.loads(text[begin:], parse_constant=pytest.fail)
        workload = found if not more else found["pools"]["decode"]["deployment"]
        assert workload["workload"]["rate_per_s"] is None
    rates = pinn.sweep([4, np.inf], **SERVED, num_prompts=9, coefficients=coefficients)
    assert json.loads(json.dumps(rates.to_json(), allow_nan=False))["rates_per_s"] == [4, None]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rate": None}, "rate is missing: give the rates of the sweep"),
        ({"rate": [1, 2], "sensitivity": "e2e_mean_ms"}, "^sensitivity applies to a single rate"),
        ({"rate": [1], "num_warmups": -1}, "^num_warmups must be 0 or more, got -1"),
        ({"rate": [1], "warmup_s": -2.0}, "^warmup_s must be 0 or more, got -2.0"),
    ],
)
def test_a_sweep_refuses_what_it_cannot_do(given, says, coefficients):
    with pytest.raises(PinnError, match=says):
        pinn.sweep(**given, **SERVED, num_prompts=9, coefficients=coefficients)


def test_a_sweep_shows_the_percentiles_that_are_asked_for_of_two_pools_too(coefficients):
    given = {**SERVED, "num_prompts": 30, "coefficients": coefficients, "percentiles": "25,99.9"}
    found = pinn.sweep([2, 4], prefill="1x tp=1", decode="1x tp=2", **given)
    heading, row = (line.split() for line in str(found).splitlines()[1:3])
    assert heading[3:9] == ["TTFT", "p25", "p99.9", "TPOT", "p25", "p99.9"]
    figures = found.runs[0].to_json()
    assert row[4:6] == [f"{figures[f'ttft_{p}_ms']:,.2f}" for p in ("p25", "p99.9")]
    assert figures["pools"]["decode"]["gpus"] == 2
    assert "1 x H100" in str(found.runs[0])
