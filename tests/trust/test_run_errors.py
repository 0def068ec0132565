"""Errors of held-out serving runs whose measured values are simulated."""

from dataclasses import replace

import numpy as np
import pytest

from pinn.evaluation.crossvalidation import COLUMNS
from pinn.evaluation.folds import FIGURES, run_error_rows
from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.metric_features import WHOLE_RUN, figure_seconds
from pinn.simulator.simulate import Job
from pinn.simulator.workloads.workload import Workload
from pinn.surrogate.surrogate import Surrogate
from pinn.surrogate.uncertainty.held_out import decode_step, situation


@pytest.fixture
def latency(checkpoint_path, llama_8b_h100):
    found = Surrogate.load(checkpoint_path).coefficients([llama_8b_h100])
    return LinearLatency(llama_8b_h100, found.beta[0], found.alpha[0])


def run_of(latency, rate_per_s):
    """Return a run whose measured metrics are those of a simulation."""
    n = 200
    offsets = np.arange(n) / rate_per_s
    workload = Workload("even", np.full(n, 512), np.full(n, 64), offsets)
    simulated = Job(latency.deployment, workload, latency).run()
    measured = {name: figure_seconds(simulated, WHOLE_RUN, name) for name in FIGURES.values()}
    return MeasuredRun(
        f"at {rate_per_s}", latency.deployment, "even", (rate_per_s,), workload,
        {WHOLE_RUN: measured}, {WHOLE_RUN: 0.0},
    )  # fmt: skip


def test_a_run_that_is_predicted_by_what_made_it_has_no_error(latency, h100_kernels):
    (row,) = run_error_rows([run_of(latency, 2.0)], [latency], h100_kernels).to_dict("records")
    assert set(row) == set(COLUMNS)
    assert [row[metric] for metric in ("tpot", "ttft", "e2e")] == pytest.approx([0, 0, 0])
    assert 0 < row["ttft_share"] < 0.5
    load = decode_step(row["concurrency"], row["prompt_tokens"], row["output_tokens"])
    at = situation(h100_kernels, latency.deployment, load)
    assert row["distance"] == pytest.approx(at.distance.total)


def test_an_error_over_its_gain_is_that_of_the_step_time(latency, h100_kernels):
    faster = replace(latency, beta=latency.beta / 1.05)
    calm, busy = (run_of(latency, rate) for rate in (2.0, 40.0))
    rows = run_error_rows([calm, busy], [faster, faster], h100_kernels)
    np.testing.assert_allclose(rows["tpot"] / rows["tpot_gain"], np.log(1.05), rtol=0.15)
    assert rows["tpot_gain"][1] > 1.2 * rows["tpot_gain"][0]
    assert rows["concurrency"][1] > rows["concurrency"][0]
