"""Runs teach what they can tell: shared scalars, each model's departure, alpha."""

from dataclasses import replace

import numpy as np
import pytest
from run_cases import measured, operator_betas, three_runs

from pinn.errors import PinnError
from pinn.features.request import REQUEST_FEATURES
from pinn.kernels.composition import OPERATORS
from pinn.simulator.figures import figure_seconds
from pinn.simulator.simulate import simulate
from pinn.teacher.scalars import Scalars, prior_scalars
from pinn.training.run_learner import alternate, run_latencies
from pinn.training.run_rows import run_rows
from pinn.training.run_scalars import (
    LEARNED_ALPHAS,
    RunFit,
    RunFitSettings,
    run_fit_from_json,
)

SETTINGS = RunFitSettings(rounds=4, noise=0.01)
SERVER = list(REQUEST_FEATURES).index("arrival_to_queue.constant")


@pytest.fixture(scope="module")
def runs():
    return three_runs()


@pytest.fixture(scope="module")
def parts(runs):
    return np.stack([operator_betas()] * len(runs))


def taught(runs, parts, serving, truth):
    """What runs teach that behave as ``truth`` says."""
    seen = [measured(r, la) for r, la in zip(runs, run_latencies(truth, runs, parts), strict=True)]
    serving_parts = np.stack([operator_betas()] * len(serving.deployments))
    return seen, alternate(seen, parts, serving, serving_parts, SETTINGS)


def errors(fit, runs, parts, figure="e2e_mean_s"):
    found = []
    for run, latency in zip(runs, run_latencies(fit, runs, parts), strict=True):
        simulated = simulate(run.deployment, run.workload, latency)
        found.append(figure_seconds(simulated, "all", figure) / run.measured["all"][figure] - 1)
    return np.abs(found)


def test_a_figure_is_the_dot_product_of_its_features(runs, parts):
    latencies = run_latencies(RunFit(), runs, parts)
    seen = [measured(run, latency) for run, latency in zip(runs, latencies, strict=True)]
    rows = run_rows(seen, latencies)
    np.testing.assert_allclose(rows.simulated_s, rows.measured_s, rtol=1e-12)
    linear = rows.step_features @ latencies[0].beta + rows.request_features @ latencies[0].alpha
    np.testing.assert_allclose(linear, rows.simulated_s, rtol=0.01)
    assert (rows.gain > 0.5).all()


def test_runs_that_agree_with_the_priors_change_nothing(runs, parts, rows):
    truth = RunFit()
    serving = replace(rows, tpot_s=rows.tpot_features @ truth.scalars.betas(operator_betas()))
    _, fit = taught(runs, parts, serving, truth)
    np.testing.assert_allclose(fit.scalars.multipliers, 1.0, atol=1e-3)
    np.testing.assert_allclose(fit.alpha, truth.alpha, rtol=1e-3)


def test_one_slow_model_departs_and_the_others_stay(runs, parts, rows):
    departure = np.append(np.zeros(len(OPERATORS)), 1.0)
    truth = RunFit(departures={"mixture-c": departure})
    seen, fit = taught(runs, parts, rows, truth)
    assert errors(RunFit(), seen, parts)[2] > 0.05
    assert errors(fit, seen, parts).max() < 0.02
    own = fit.of_model("mixture-c").overheads / fit.scalars.overheads.clip(1e-30)
    others = fit.of_model("dense-a").overheads / fit.scalars.overheads.clip(1e-30)
    assert own.max() > 1.3 > others.max()


def test_an_unseen_model_gets_the_shared_scalars(runs, parts, rows):
    _, fit = taught(
        runs, parts, rows, RunFit(departures={"dense-a": np.full(len(OPERATORS) + 1, 0.2)})
    )
    assert fit.of_model("another") is fit.scalars


def test_a_slow_server_shows_in_alpha(runs, parts, rows):
    alpha = RunFit().alpha.copy()
    alpha[SERVER] *= 2
    seen, fit = taught(runs, parts, rows, RunFit(alpha=alpha))
    assert errors(fit, seen, parts, "ttft_mean_s").max() < 0.01
    first = ("arrival_to_queue.constant", "arrival_to_queue.prompt_token")
    later = ("queue_to_schedule.constant", "schedule_to_first_token.constant")
    columns = [list(REQUEST_FEATURES).index(name) for name in (*first, *later)]
    assert fit.alpha[columns].sum() > 1.3 * RunFit().alpha[columns].sum()


def test_the_step_time_is_no_alpha_of_a_simulation():
    names = np.array(list(REQUEST_FEATURES))
    assert not any(name.endswith("step_time") for name in names[LEARNED_ALPHAS])
    steps = [i for i, name in enumerate(names) if name.endswith("step_time")]
    assert (RunFit().alpha[steps] == 0).all()


def test_json_and_back():
    scalars = Scalars(np.linspace(0.9, 1.1, len(OPERATORS)), prior_scalars().overheads)
    fit = RunFit(scalars, {"a": np.linspace(-0.2, 0.3, len(OPERATORS) + 1)})
    again = run_fit_from_json(fit.to_json())
    for model in ("a", "b"):
        np.testing.assert_allclose(
            again.of_model(model).multipliers, fit.of_model(model).multipliers
        )
        np.testing.assert_allclose(again.of_model(model).overheads, fit.of_model(model).overheads)


def test_scalars_of_another_version_are_refused():
    values = RunFit().to_json()
    with pytest.raises(PinnError, match="train the checkpoint again"):
        run_fit_from_json(values | {"multipliers": {"gemm": 1.0}})
