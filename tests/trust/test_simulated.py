"""Ends of simulated metrics contain the value, follow the step time, and widen near saturation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinn.evaluation.folds import mean_figures
from pinn.simulator.intervals import end_figures, figure_ends, gains, scaled
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import Job
from pinn.simulator.workloads.workload import Workload
from pinn.surrogate.surrogate import Surrogate

STEP, TTFT = 0.1, 0.3


@pytest.fixture
def latency(checkpoint_path, llama_8b_h100):
    found = Surrogate.load(checkpoint_path).coefficients([llama_8b_h100])
    return LinearLatency(llama_8b_h100, found.beta[0], found.alpha[0])


def open_loop(rate_per_s, requests=400):
    """Return equal requests at even intervals."""
    return Workload(
        "even",
        np.full(requests, 512),
        np.full(requests, 32),
        np.arange(requests) / rate_per_s,
    )


def capacity_per_s(latency):
    """Return the requests per second of a server when all requests arrive at once."""
    run = Job(latency.deployment, open_loop(1e6), latency).run()
    return len(run.requests) / run.requests.finish_s.max()


def ends(latency, rate_per_s):
    job = Job(latency.deployment, open_loop(rate_per_s), latency)
    value = mean_figures(job.run())
    fast, slow = end_figures(job, STEP, TTFT, mean_figures)
    return value, figure_ends(value, fast, slow, TTFT)


def test_scaling_moves_every_time(latency):
    found = scaled(latency, 0.1, -0.2)
    np.testing.assert_allclose(found.beta, latency.beta * math.exp(0.1))
    np.testing.assert_allclose(found.alpha, latency.alpha * math.exp(-0.2))


def test_a_calm_run_has_the_intervals_of_its_steps(latency):
    value, found = ends(latency, 0.05 * capacity_per_s(latency))
    low, high = found["tpot"]
    assert math.log(high / value["tpot"]) == pytest.approx(STEP, abs=0.05)
    assert math.log(value["tpot"] / low) == pytest.approx(STEP, abs=0.05)
    low, high = found["ttft"]
    assert math.log(high / value["ttft"]) == pytest.approx(TTFT, abs=0.05)


def test_intervals_widen_near_saturation(latency):
    capacity = capacity_per_s(latency)
    widths = []
    for load in (0.05, 0.97):
        value, found = ends(latency, load * capacity)
        for name, (low, high) in found.items():
            assert low <= value[name] <= high, name
        widths.append({name: math.log(high / low) for name, (low, high) in found.items()})
    calm, busy = widths
    assert busy["e2e"] > 2 * calm["e2e"]
    assert busy["ttft"] > 1.5 * calm["ttft"]


def test_gains_are_one_in_a_closed_loop_and_more_where_queues_grow(latency):
    loop = Workload("loop", np.full(64, 512), np.full(64, 64), np.zeros(64), concurrency=8)
    for workload, least, most in (
        (loop, 0.8, 1.2),
        (open_loop(0.97 * capacity_per_s(latency)), 2.0, 100.0),
    ):
        job = Job(latency.deployment, workload, latency)
        found = gains(job, mean_figures, mean_figures(job.run()))
        assert least < found["e2e"] < most


TIMES = st.floats(0.01, 10.0)


@given(values=st.lists(TIMES, min_size=9, max_size=9), half=st.floats(0, 1))
def test_ends_hold_the_value_whatever_the_runs_say(values, half):
    names = ("ttft", "e2e", "itl")
    value, fast, slow = (dict(zip(names, values[i : i + 3], strict=True)) for i in (0, 3, 6))
    for name, (low, high) in figure_ends(value, fast, slow, half).items():
        assert 0 <= low <= value[name] <= high
    low, high = figure_ends(value, fast, slow, half)["ttft"]
    assert low <= value["ttft"] * math.exp(-half) * (1 + 1e-9)
    assert high >= value["ttft"] * math.exp(half) * (1 - 1e-9)


def test_where_the_slow_end_serves_nothing_there_is_no_upper_end():
    value = {"ttft": 1.0, "e2e": 4.0}
    nothing = dict.fromkeys(value, math.nan)
    found = figure_ends(value, {"ttft": 0.9, "e2e": 3.6}, nothing, 0.3)
    assert found["ttft"][1] == found["e2e"][1] == math.inf
    assert found["ttft"][0] == pytest.approx(math.exp(-0.3))
    # TTFT may be shorter than the fast run's, and E2E by as much.
    assert found["e2e"][0] == pytest.approx(3.6 - (0.9 - math.exp(-0.3)))
