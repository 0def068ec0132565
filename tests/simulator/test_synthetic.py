"""Arrivals, lengths and shared prompts made from a few numbers."""

from __future__ import annotations

import numpy as np
import pytest

from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import (
    DISTRIBUTIONS,
    PROCESSES,
    Gaps,
    Stage,
    draw_gaps,
    draw_lengths,
    draw_range,
    weibull_shape,
)
from pinn.simulator.workloads.workload import (
    PromptGroups,
    Workload,
    closed_loop,
    open_loop,
    shared_prefix,
)


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_gaps_have_the_mean_and_the_spread_that_was_asked_for(process, cv):
    gaps = draw_gaps(process, 8.0, 200_000, np.random.default_rng(0), cv)
    spread = {"poisson": 1.0, "constant": 0.0}.get(process, cv)
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(spread, rel=0.03)


def test_a_weibull_process_of_cv_1_is_exponential():
    assert weibull_shape(1.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("name", "parameters", "mean"),
    [
        ("constant", {"value": 100}, 100),
        ("uniform", {"min": 50, "max": 150}, 100),
        ("gaussian", {"mean": 100, "std_dev": 10}, 100),
        ("exponential", {"mean": 100}, 100),
        ("lognormal", {"mu": 4.0, "sigma": 0.5}, np.exp(4.125)),
        (
            "pareto_lognormal",
            {"alpha": 3, "xm": 100, "mu": 4.0, "sigma": 0.5, "mix_weight": 0.5},
            (150 + np.exp(4.125)) / 2,
        ),
    ],
)
def test_lengths_have_the_mean_of_their_distribution(name, parameters, mean):
    lengths = draw_lengths(name, parameters, 100_000, np.random.default_rng(0))
    assert lengths.dtype == np.int64
    assert lengths.mean() == pytest.approx(mean, rel=0.02)
    assert name in DISTRIBUTIONS


def test_lengths_keep_within_their_bounds():
    bounds = {"mean": 100, "std_dev": 80, "min": 90, "max": 110}
    lengths = draw_lengths("gaussian", bounds, 1000, np.random.default_rng(0))
    assert lengths.min() == 90
    assert lengths.max() == 110


def test_a_length_range_is_uniform_between_its_shares():
    lengths = draw_range(1024, (0.8, 1.0), 50_000, np.random.default_rng(0))
    assert lengths.min() == 820
    assert lengths.max() == 1024
    assert lengths.mean() == pytest.approx(922, rel=1e-3)


def test_a_stage_sends_rate_times_duration_requests():
    load = open_loop([Stage(8, 600), Stage(20, 600)], 547, 248)
    assert np.bincount(load.stage).tolist() == [4800, 12000]
    assert load.offset_s[4799] == pytest.approx(600, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_a_stage_opens_when_the_one_before_is_over_and_sent(seed):
    load = open_loop([Stage(8, 60), Stage(20, 60), Stage(5, 60)], 547, 248, seed=seed)
    lasts = [load.offset_s[load.stage == s].max() for s in (0, 1)]
    expected = [0.0, max(60.0, lasts[0]), max(60.0, lasts[0]) + max(60.0, lasts[1])]
    assert load.stage_starts_s == pytest.approx(expected)
    assert (np.diff(np.array(load.stage_starts_s)[load.stage] + load.offset_s) >= 0).all()


def test_equal_seeds_give_equal_loads():
    loads = [open_loop([Stage(5, 20)], 100, 10, length_range=(0.5, 1), seed=s) for s in (1, 1, 2)]
    assert (loads[0].offset_s == loads[1].offset_s).all()
    assert (loads[0].prompt_tokens == loads[1].prompt_tokens).all()
    assert (loads[0].offset_s != loads[2].offset_s).any()


def test_a_closed_loop_starts_with_a_burst():
    load = closed_loop(16, 160, 1024, 128, length_range=(0.8, 1.0))
    assert (load.offset_s == 0).all()
    assert load.concurrency == 16
    assert len(load) == 160


def test_prompts_repeat_in_one_order_and_share_their_group_s_start():
    load = shared_prefix(
        [Stage(10, 30)],
        PromptGroups(3, 4, 100, 50, (1.0, 1.05)),
        8,
    )
    donors, shared = load.shares_with, load.shared_tokens
    assert (donors[:12] < 12).all()
    assert (donors[12:] == np.tile(np.arange(12), 24)).all()
    assert (shared[12:] == load.prompt_tokens[12:]).all()
    first = donors[:12] < 0
    assert first.sum() == 3
    assert (shared[:12][~first] == 100).all()
    assert (load.prompt_tokens >= 150).all()
    assert load.prompt_tokens.max() <= 157
    assert (load.prompt_tokens[12:] == load.prompt_tokens[donors[12:]]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Stage(0, 600), "the rate of .* must be positive.*, got 0"),
        (lambda: Stage(1, 0.5), "sends no request"),
        (lambda: open_loop([], 10, 10), "has no stages, expected at least one"),
        (lambda: open_loop([Stage(1, 9)], 0, 10), "at least 1 token, got 0"),
        (lambda: open_loop([Stage(1, 9)], 10, 10, gaps=Gaps("burst")), "poisson, gamma"),
        (lambda: open_loop([Stage(1, 9)], 10, 10, gaps=Gaps("gamma", 0)), "got 0"),
        (lambda: closed_loop(0, 10, 10, 10), "concurrency must be at least 1, got 0"),
        (lambda: closed_loop(1, 0, 10, 10), "at least 1 request, got 0"),
        (lambda: draw_lengths("normal", {}, 1, np.random.default_rng(0)), "gaussian"),
        (lambda: draw_lengths("gaussian", {}, 1, np.random.default_rng(0)), "mean, std_dev"),
        (lambda: Workload("w", np.zeros(0, int), np.zeros(0, int), np.zeros(0)), "no requests"),
        (
            lambda: _two(prompt_tokens=[1, 0]),
            "prompt_tokens of request 1 must be at least 1, got 0",
        ),
        (
            lambda: _two(output_tokens=[-1, 1]),
            "output_tokens of request 0 must be at least 0, got -1",
        ),
        (lambda: _two(offset_s=[1.0, 0.5]), "request 1 is out of order"),
        (lambda: _two(shares_with=[-1, 1]), "not sent earlier"),
        (lambda: _two(timeout_s=[1.0, -1.0]), "timeout_s of request 1 must be at least 0, got -1"),
        (lambda: _two(stage=[0, 1]), "a start time for each of 2 stages, got 1"),
        (
            lambda: _two(stage=[0, 1], offset_s=[5.0, 1.0], stage_starts_s=(0.0, 3.0)),
            "request 1 of stage 1 is due at 4 s, before request 0 of the previous stage at 5 s",
        ),
        (lambda: _two(shared_tokens=[1]), "1 entries, expected one for each of 2 requests"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_number(make, message):
    with pytest.raises(PinnError, match=message):
        make()


def _two(**columns):
    base = {"prompt_tokens": [1, 1], "output_tokens": [1, 1], "offset_s": [0.0, 0.0]} | columns
    lists = {name: column for name, column in base.items() if isinstance(column, list)}
    return Workload("w", **base | {name: np.array(column) for name, column in lists.items()})
