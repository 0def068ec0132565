"""A row of measured deployments is a closed loop that can be simulated."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from assumed_priors import prior_coefficients
from observation_row import observation_row

from pinn.measurements.benchmarks.inferencex import LENGTH_RANGE
from pinn.measurements.deployments.measured import measured_deployments
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate

ROW = observation_row(output_tokens=128, max_model_len="1352", max_num_seqs="8")


@pytest.fixture(scope="module")
def rows():
    load = {"concurrency": 16, "output_tokens": 256, "max_model_len": "1480", "max_num_seqs": "16"}
    more = ROW | load | {"row_id": "b", "prompts_per_client": 20}
    return measured_deployments(pd.DataFrame([ROW, more]))


def test_a_row_is_the_loop_of_its_benchmark(rows):
    assert [row.row_id for row in rows] == ["a", "b"]
    for row, clients, each, output in zip(rows, (8, 16), (10, 20), (128, 256), strict=True):
        load = row.workload
        assert row.concurrency == load.concurrency == clients
        assert len(load) == each * clients
        assert (load.offset_s == 0).all()
        for tokens, nominal in ((load.prompt_tokens, 1024), (load.output_tokens, output)):
            assert tokens.max() <= nominal
            assert tokens.min() >= LENGTH_RANGE[0] * nominal - 1
            assert np.mean(tokens) == pytest.approx(np.mean(LENGTH_RANGE) * nominal, rel=0.02)
        assert row.served.serving.max_model_len == 1024 + output + 200
        assert row.served.serving.max_num_seqs == clients
    assert (rows[0].tpot_s, rows[0].ttft_s) == (0.01, 0.1)


def test_rows_that_differ_in_load_share_their_deployment(rows):
    assert rows[0].deployment == rows[1].deployment
    assert rows[0].served != rows[1].served


def test_it_runs(rows):
    prior = prior_coefficients(1)
    for row in rows:
        latency = LinearLatency(row.served, prior.beta[0], prior.alpha[0])
        run = simulate(row.served, row.workload, latency)
        assert run.requests.finished.all()
        assert run.steps["running"].max() == row.concurrency


@pytest.mark.parametrize(("engine", "share"), [("vllm", None), ("sglang", 0.97), ("trtllm", 0.97)])
def test_a_row_of_unknown_flags_has_room_for_its_load(engine, share):
    unknown = {"engine": engine, "engine_version": "", "facts": "unknown", "max_model_len": ""}
    serving = measured_deployments(pd.DataFrame([ROW | unknown]))[0].served.serving
    assert serving.max_model_len == 1024 + 128
    assert serving.gpu_memory_utilization == share
