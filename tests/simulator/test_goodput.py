"""SLO attainment and goodput, percentiles, warm-up, steady states and sweeps over rates."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_helpers import load, play
from typed import alone
from typer.testing import CliRunner

import pinn
from pinn.cli import simulate as simulate_command
from pinn.errors import PinnError
from pinn.simulator.goodput import goodput
from pinn.simulator.slo import parse_slo
from pinn.simulator.statistics import read_percentiles, run_statistics
from pinn.simulator.steady_state import steady_states, truncation

app = alone(simulate_command)
SERVED = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100"]


def test_attainment_is_over_all_requests_that_were_sent():
    # Steps of a second: first tokens at 1 s; the third client hangs up, the fourth is too long.
    got = play(
        load([4, 4, 4, 64], [2, 1, 9, 9], timeout_s=[99, 99, 2.5, 99]),
        engine={"reject_long_requests": True},
    )
    met = goodput(got.run, parse_slo("ttft<=1s, tpot<=500ms", shareless=True))
    assert (met.requests, met.met_requests, met.attainment) == (4, 1, 0.25)
    assert met.attainment_by_metric == {"ttft": 0.5, "tpot": 0.25}  # one token meets any TPOT
    assert met.requests_per_s == pytest.approx(1 / 2.5)
    assert met.met is None
    assert "25.0 % of 4 requests meet TTFT <= 1 s and TPOT <= 500 ms" in met.sentence
    decided = goodput(got.run, parse_slo("ttft<=1s for 50 %; p50 ttft<=2s"))
    assert (decided.met, decided.statistics_s["p50 TTFT <= 2 s"]) == (False, np.inf)


def test_percentiles_are_those_asked_for_beside_the_usual():
    got = play(load([4] * 9, [1 + i for i in range(9)]))
    found = run_statistics(got.run, None, read_percentiles("25,p99.9"))
    assert found["e2e_p99.9_ms"] == pytest.approx(
        1000 * np.percentile(got.run.requests.e2e_s, 99.9)
    )
    assert found["tpot_p25_ms"] == 1000
    assert set(run_statistics(got.run)) < set(found)
    for text in ("0", "101", "p", ""):
        with pytest.raises(PinnError, match="--percentiles"):
            read_percentiles(text)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 12), st.floats(0, 9), st.integers(0, 10**6))
def test_a_warm_up_is_served_and_not_measured(first, seconds, seed):
    rng = np.random.default_rng(seed)
    outputs = rng.integers(2, 6, 13).tolist()
    columns = {"arrivals": np.sort(rng.uniform(0, 8, 13))}
    whole = play(load([4] * 13, outputs, **columns)).run
    workload = load([4] * 13, outputs, **columns, warmup_requests=first, warmup_s=seconds)
    run = play(workload).run
    measured = (np.arange(13) >= first) & (run.requests.arrival_s >= seconds)
    assert (run.requests.warmup == ~measured).all()
    assert run.requests.finish_s.tolist() == whole.requests.finish_s.tolist()
    if not measured.any():
        with pytest.raises(
            PinnError,
            match="all 13 requests belong to the warm-up, so none is measured: lower --num-warmups",
        ):
            run_statistics(run)
        return
    found = run_statistics(run)
    assert found["injected_requests"] == measured.sum()
    assert found["e2e_mean_ms"] == pytest.approx(1000 * run.requests.e2e_s[measured].mean())
    assert run.gaps.count.sum() == (np.array(outputs) - 1)[measured].sum()


def test_the_beginning_that_a_steady_state_leaves_out():
    rng = np.random.default_rng(3)
    settled = 50 + rng.normal(0, 3, 200)
    rising = np.where(np.arange(200) < 40, settled * np.arange(200) / 40, settled)
    assert 30 <= truncation(rising) <= 45
    assert truncation(np.full(200, 7.0)) == 0
    for k, values in ((truncation(rising), rising), (truncation(settled), settled)):
        spread = [((y := values[i:]) - y.mean()).var() / len(y) for i in range(195)]
        assert k == int(np.argmin(spread))


def test_a_server_that_falls_behind_reaches_no_steady_state():
    steady = play(load([4] * 99, [3] * 99, np.arange(99.0)))
    (found,) = steady_states(steady.run)
    assert found.begin_s < 20
    assert found.in_flight == pytest.approx(3.5, abs=0.6)
    assert found.output_tokens_per_s == pytest.approx(3, abs=0.1)
    (behind,) = steady_states(play(load([4] * 99, [30] * 99, np.arange(99.0))).run)
    assert (behind.begin_s, str(behind)[:11]) == (None, "not reached")


def test_a_sweep_answers_with_the_highest_rate(coefficients, tmp_path):
    words = [*SERVED, "--coefficients", str(coefficients), "--input-len", "500", "--num-prompts"]
    words += ["60", "--output-len", "8", "--slo", "ttft<=1s for 90 %", "--max-num-seqs", "4"]
    files = ["--json", str(tmp_path / "a.json"), "--plot", str(tmp_path / "a.png")]
    result = CliRunner().invoke(app, [*words, "--rate", "4,1,900", *files])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("The server meets the SLO up to 4 requests/s of 1, 4, 900.")
    written = json.loads((tmp_path / "a.json").read_text())
    assert (written["highest_rate_per_s"], written["rates_per_s"]) == (4.0, [1.0, 4.0, 900.0])
    assert [run["slo"]["met"] for run in written["runs"]] == [True, True, False]
    assert (tmp_path / "a.png").stat().st_size > 10_000
    one = CliRunner().invoke(app, [*words, "--rate", "4", "--json", str(tmp_path / "b.json")])
    assert one.output.startswith("SLO met: 100.0 % of 60 requests meet TTFT <= 1 s; goodput")
    alone_at_4 = json.loads((tmp_path / "b.json").read_text())
    assert alone_at_4["e2e_mean_ms"] == written["runs"][1]["e2e_mean_ms"]


def test_limits_may_be_words_as_vllm_spells_them(coefficients):
    words = ["--coefficients", str(coefficients), "--input-len", "9", "--output-len", "3"]
    words += ["--goodput", "ttft:1000", "tpot:50", "--num-prompts", "9", "--rate", "4"]
    result = CliRunner().invoke(app, [*SERVED, *words])
    assert "requests meet TTFT <= 1 s and TPOT <= 50 ms" in result.output


def test_python_has_the_same_arguments(coefficients):
    given = {"model": "Llama-3.1-8B", "gpu": "H100", "coefficients": coefficients}
    given |= {"input_len": 100, "output_len": 4, "num_prompts": 30, "num_warmups": 10}
    found = pinn.sweep([2, 8.5], slo="ttft:1000", percentiles=[10, 99.9], **given)
    assert found.rates_per_s == [2.0, 8.5]
    assert [run.figures["injected_requests"] for run in found.runs] == [20, 20]
    assert "ttft_p99.9_ms" in found.runs[0].figures
    assert found.highest_rate_per_s == 8.5
    with pytest.raises(PinnError, match=r"\(2 rates\): give one rate, or pinn\.sweep"):
        pinn.simulate(rate=[1, 2], **given)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rate", "1,x"], "--rate must be one or more rates in requests/s"),
        (
            ["--rate", "1,2", "--sensitivity", "e2e_mean_ms"],
            "--sensitivity applies to a single rate",
        ),
        (["--rate", "1", "--plot", "a.png"], "--plot needs several rates"),
        (["--rate", "1", "--slo", "speed<=1s"], "unknown metric"),
        (["--rate", "1", "--goodput", "ttft:1000", "tpot"], "the argument 'tpot' is unknown"),
        (["--rate", "1", "ttft:1000"], "the argument 'ttft:1000' is unknown"),
        (["--rate", "1", "--num-warmups", "1000"], "all 1,000 requests belong to the warm-up"),
    ],
)
def test_what_does_not_fit_is_refused(words, says, coefficients):
    load_words = ["--input-len", "9", "--output-len", "2", "--coefficients", str(coefficients)]
    result = CliRunner().invoke(app, [*SERVED, *load_words, *words])
    assert result.exit_code != 0
    assert says in str(result.exception)
