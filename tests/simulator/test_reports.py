"""Figures, files and derivatives of runs."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import pytest
from assumed_priors import prior_coefficients
from hypothesis import given
from hypothesis import strategies as st
from simulator_helpers import BLIS_KEYS, Recorder, deployment, load, play

from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.simulator.fleets.run import simulate_fleet
from pinn.simulator.fleets.spec import FleetSpec
from pinn.simulator.linear_latency import LinearLatency, latency_from_checkpoint, latency_from_json
from pinn.simulator.metric_features import request_delay_features, request_feature_sums
from pinn.simulator.pools import Pool, simulate_pools
from pinn.simulator.report import print_report
from pinn.simulator.run import plot_timeline, write_requests
from pinn.simulator.sensitivity import coefficient_sensitivities
from pinn.simulator.simulate import Job, simulate, simulate_many
from pinn.simulator.statistics import run_statistics, weighted_percentiles
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.workload import open_loop
from pinn.surrogate.checkpoint import Checkpoint, save_checkpoint
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.surrogate import Surrogate


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5)), min_size=1, max_size=20))
def test_weighted_percentiles_are_those_of_the_repeated_values(rows):
    values, counts = (np.array(column) for column in zip(*rows, strict=True))
    expected = np.percentile(np.repeat(values, counts), (50, 90, 95, 99))
    np.testing.assert_allclose(weighted_percentiles(values, counts), expected, atol=1e-12)


def test_figures_of_a_run_worked_out_by_hand():
    # Both prompts take the first second; one answer ends at 1 s, the other at 3 s.
    got = play(load([4, 6], [3, 1]))
    found = run_statistics(got.run)
    assert found["e2e_mean_ms"] == 2000
    assert found["e2e_p50_ms"] == 2000
    assert found["ttft_mean_ms"] == 1000
    assert found["itl_mean_ms"] == 1000
    assert found["responses_per_sec"] == pytest.approx(2 / 3)
    assert found["tokens_per_sec"] == pytest.approx(4 / 3)
    assert found["steps"] == 3
    assert found["tokens_per_step"] == 4
    assert found["busy_share"] == 1
    assert set(BLIS_KEYS) <= set(found)


def test_figures_of_stages_and_of_lost_requests():
    workload = load(
        [2, 2, 60], [3, 9, 9], stage=[0, 1, 1], stage_starts_s=(0.0, 10.0), timeout_s=[99, 2.5, 99]
    )
    engine = EngineSpec(reject_long_requests=True)
    run = simulate(deployment(async_scheduling=False), workload, Recorder(), engine)
    first, second = run_statistics(run, 0), run_statistics(run, 1)
    assert first["e2e_mean_ms"] == 3000
    assert first["itl_mean_ms"] == 1000
    assert (second["timed_out_requests"], second["rejected_requests"]) == (1, 1)
    assert np.isnan(second["e2e_mean_ms"])


@dataclass
class SecondPerToken(Recorder):
    """A latency model in which each token of a batch takes a second."""

    def step_time(self, batch):
        return float(sum(batch.new_tokens))


def test_the_itl_of_a_stage_is_of_its_gaps_between_tokens():
    # Stage 0: a prompt of 4 tokens arrives beside an answer, whose third gap has 1 + 4 tokens.
    workload = load([4, 4, 4], [5, 1, 3], [0, 5.5, 0], stage=[0, 0, 1], stage_starts_s=(0.0, 20.0))
    run = play(workload, recorder=SecondPerToken()).run
    first, second = run_statistics(run, 0, (100,)), run_statistics(run, 1, (100,))
    assert (first["itl_mean_ms"], first["itl_p50_ms"], first["itl_p100_ms"]) == (2000, 1000, 5000)
    assert (first["tpot_mean_ms"], first["tpot_p100_ms"]) == (2000, 2000)
    assert (second["itl_mean_ms"], second["itl_p100_ms"]) == (1000, 1000)
    whole = run_statistics(run, None, (100,))
    assert (whole["itl_mean_ms"], whole["itl_p100_ms"]) == (pytest.approx(10_000 / 6), 5000)


def on_one_server(pool, workload):
    return simulate(pool.deployment, workload, pool.latency, pool.engine)


def on_two_pools(pool, workload):
    return simulate_pools(pool, pool, workload).decode


def on_a_fleet(pool, workload):
    return simulate_fleet([pool, pool], FleetSpec(), workload).run


@pytest.mark.parametrize("serve", [on_one_server, on_two_pools, on_a_fleet])
def test_each_stage_has_one_gap_for_each_token_after_the_first(serve):
    rng, n = np.random.default_rng(5), 90
    columns = {"stage": np.repeat([0, 1, 2], n // 3), "stage_starts_s": (0.0, 0.004, 0.008)}
    offsets = np.sort(rng.uniform(0, 0.004, (3, n // 3))).ravel()
    lengths = rng.integers(4, 40, n), rng.integers(1, 24, n)
    workload = load(*lengths, offsets, warmup_requests=10, **columns)
    run = serve(Pool(deployment(), latency(), EngineSpec()), workload)
    r = run.requests
    assert r.warmup.sum() == 10
    for stage in range(3):
        expected = np.nansum(r.token_gaps[r.of_stage(stage)])
        assert run.gaps.of_stage(stage).count.sum() == expected > 0
    assert run.gaps.count.sum() == np.nansum(r.token_gaps[r.of_stage(None)])


def test_recomputed_tokens_are_counted():
    got = play(
        load([4, 4], [5, 5]),
        engine={"num_gpu_blocks_override": 6},
        block_size=2,
        max_model_len=10,
    )
    found = run_statistics(got.run)
    # 5 tokens were known, 2 of them still cached, the first 4 had been computed before.
    assert (found["preemption_count"], found["recomputed_tokens"]) == (1, 2)


def latency(**serving) -> LinearLatency:
    prior = prior_coefficients(1)
    return LinearLatency(deployment(**serving), prior.beta[0], prior.alpha[0])


def test_many_runs_equal_single_ones():
    jobs = [
        Job(deployment(), open_loop([Stage(50, 2)], 20, 8, seed=seed), latency())
        for seed in range(6)
    ]
    for job, run in zip(jobs, simulate_many(jobs, workers=2), strict=True):
        assert (run.requests.finish_s == job.run().requests.finish_s).all()


def test_sensitivities_equal_the_mean_features_where_nothing_queues():
    # One request at a time: the batches do not depend on the coefficients.
    workload = load([20, 30], [8, 8], [0.0, 5.0])
    model = latency()
    found = coefficient_sensitivities(
        Job(model.deployment, workload, model), lambda r: r.requests.e2e_s.mean()
    )
    run = simulate(model.deployment, workload, model)
    sums = request_feature_sums(model, run)[1].mean(0)
    for name, expected in zip(STEP_FEATURES, sums, strict=True):
        assert found[name].derivative == pytest.approx(expected, rel=1e-5, abs=1e-9), name
    for name, expected in zip(
        REQUEST_FEATURES, request_delay_features(run)[1].mean(0), strict=True
    ):
        assert found[name].derivative == pytest.approx(expected, rel=1e-5, abs=1e-9), name
    # The API server sends a token while the engine makes the next: the last one's is waited for.
    assert found["output_token.constant"].derivative == pytest.approx(1, rel=1e-6)
    assert found["cpu_offload"].elasticity == 0


def test_requests_are_written_as_parquet(tmp_path):
    got = play(load([4, 6], [3, 1]))
    write_requests(got.run, tmp_path / "requests.parquet")
    table = pq.read_table(tmp_path / "requests.parquet").to_pydict()
    assert table["e2e_s"] == [3.0, 1.0]
    assert table["status"] == ["finished", "finished"]


def test_a_timeline_is_drawn_and_a_report_is_printed(tmp_path, capsys):
    workload = load([4, 6, 8], [3, 1, 9], timeout_s=[99.0, 99.0, 3.5])
    run = play(workload).run
    plot_timeline(run, tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000
    print_report(run, run_statistics(run), {})
    text = capsys.readouterr().out
    assert "2 of 3 served, 1 timed out" in text
    assert "TTFT" in text


def test_a_run_in_which_nothing_is_served_is_drawn(tmp_path):
    engine = EngineSpec(reject_long_requests=True)
    run = simulate(deployment(), load([80, 90], [1, 1], [0.0, 1.0]), Recorder(), engine)
    plot_timeline(run, tmp_path / "run.png")
    assert (tmp_path / "run.png").stat().st_size > 10_000


def test_no_share_of_a_figure_that_is_0_is_told():
    with pytest.raises(PinnError, match="is 0 in this run"):
        coefficient_sensitivities(
            Job(deployment(), load([4], [2]), latency()),
            lambda run: float(run.requests.preemptions.sum()),
        )


def test_coefficients_come_from_a_file(coefficients, tmp_path):
    got = latency_from_json(deployment(), coefficients)
    assert (got.beta == prior_coefficients(1).beta[0]).all()
    values = json.loads(coefficients.read_text())
    values["beta"]["strange"] = values["beta"].pop("layer")
    (tmp_path / "bad.json").write_text(json.dumps(values))
    with pytest.raises(PinnError, match="layer, strange"):
        latency_from_json(deployment(), tmp_path / "bad.json")
    values["beta"]["layer"] = values["beta"].pop("strange") | {"value": -1}
    (tmp_path / "bad.json").write_text(json.dumps(values))
    with pytest.raises(PinnError, match=r"beta\.layer must be .* number of 0 or more, got -1"):
        latency_from_json(deployment(), tmp_path / "bad.json")


def test_coefficients_of_a_checkpoint_are_remembered(untrained, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(Checkpoint(untrained.weights()), path)
    target = deployment()
    first = latency_from_checkpoint(target, path)
    expected = Surrogate.load(path).coefficients([target])
    np.testing.assert_array_equal(first.beta, expected.beta[0])
    monkeypatch.setattr(Surrogate, "load", lambda _: pytest.fail("loaded again"))
    again = latency_from_checkpoint(target, path)
    np.testing.assert_array_equal(again.beta, first.beta)
    np.testing.assert_array_equal(again.alpha, first.alpha)
