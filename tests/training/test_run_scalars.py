"""Fits to serving runs: shared calibration factors, per-model effects, alpha."""

from dataclasses import replace

import numpy as np
import pytest
from run_cases import measured, operator_betas, three_runs
from serving_cases import with_times

from pinn.errors import PinnError
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.simulator.metric_features import figure_seconds
from pinn.simulator.simulate import simulate
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.training.run_rows import FIGURE_WEIGHTS, run_rows
from pinn.training.run_scalars import (
    Evidence,
    RunFit,
    RunFitSettings,
    fit_in_rounds,
    run_fit_from_json,
    run_latencies,
)
from pinn.training.serving_rows import model_weights, simulate_rows
from pinn.training.teacher import Scalars, prior_scalars

SETTINGS = RunFitSettings(rounds=4, noise=0.01)
SERVER = list(REQUEST_FEATURES).index("arrival_to_queue.constant")


@pytest.fixture(scope="module")
def runs():
    return three_runs()


@pytest.fixture(scope="module")
def parts(runs):
    return np.stack([operator_betas()] * len(runs))


def taught(runs, parts, serving, truth, settings=SETTINGS):
    """Return runs that behave as ``truth``, and the fit to them."""
    seen = [measured(r, la) for r, la in zip(runs, run_latencies(truth, runs, parts), strict=True)]
    serving_parts = np.stack([operator_betas()] * len(serving.deployments))
    return seen, fit_in_rounds(Evidence(seen, parts, serving, serving_parts), settings)


def linear_times(rows, truth):
    """Return measured deployments with times by the sums of features."""
    beta = truth.scalars.betas(operator_betas())
    beside = rows.request_features @ truth.alpha + rows.ttft_offset_s
    return with_times(rows, rows.tpot_features @ beta, rows.ttft_features @ beta + beside)


def simulated_times(rows, truth):
    """Return measured deployments with times by a simulation."""
    deployments = len(rows.deployments)
    beta = np.tile(truth.scalars.betas(operator_betas()), (deployments, 1))
    found = simulate_rows(rows, beta, np.tile(truth.alpha, (deployments, 1)))
    return with_times(rows, found.tpot_s, found.ttft_s)


def errors(fit, runs, parts, figure="e2e_mean_s"):
    found = []
    for run, latency in zip(runs, run_latencies(fit, runs, parts), strict=True):
        simulated = simulate(run.deployment, run.workload, latency)
        found.append(figure_seconds(simulated, "all", figure) / run.measured["all"][figure] - 1)
    return np.abs(found)


def dot_products(fit, runs, parts):
    """Return rows of runs that behave as a fit predicts, and the dot products of their features."""
    latencies = run_latencies(fit, runs, parts)
    seen = [measured(run, latency) for run, latency in zip(runs, latencies, strict=True)]
    rows = run_rows(seen, latencies)
    np.testing.assert_allclose(rows.simulated, rows.measured_s, rtol=1e-12)
    beta = np.array([latency.beta for latency in latencies])[rows.run]
    return rows, (rows.step_features * beta).sum(1) + rows.request_features @ fit.alpha


def test_a_figure_is_the_dot_product_of_its_features(runs, parts):
    rows, linear = dot_products(RunFit(alpha=np.zeros(len(REQUEST_FEATURES))), runs, parts)
    error = np.abs(linear / rows.simulated - 1).reshape(-1, len(FIGURE_WEIGHTS))
    means = np.array(["mean" in figure for figure in FIGURE_WEIGHTS])
    assert error[:, means].max() < 0.01
    assert error[:, ~means].max() < 0.06  # a percentile lies between two requests
    assert (rows.gain.reshape(error.shape)[:, means] > 0.5).all()


def test_a_servers_work_is_waited_for_once_at_most(runs, parts):
    """Check that a server's work before a request came costs that request nothing."""
    rows, linear = dot_products(RunFit(), runs, parts)
    share = (linear / rows.simulated).reshape(-1, len(FIGURE_WEIGHTS))
    means = np.array(["mean" in figure for figure in FIGURE_WEIGHTS])
    assert (share > 0.97).all()
    assert (share[:, means] < 1.06).all()
    assert (share < 1.12).all()  # a percentile lies between two requests


def test_runs_that_agree_with_the_priors_change_nothing(runs, parts, rows):
    truth = RunFit()
    _, fit = taught(runs, parts, linear_times(rows, truth), truth)
    np.testing.assert_allclose(fit.scalars.multipliers, 1.0, atol=1e-3)
    np.testing.assert_allclose(fit.alpha, truth.alpha, rtol=1e-3)


def test_one_slow_model_departs_and_the_others_stay(runs, parts, rows):
    effects = np.append(np.zeros(len(COMPOSED_PARTS)), 1.0)
    truth = RunFit(model_effects={"mixture-c": effects})
    seen, fit = taught(runs, parts, rows, truth, replace(SETTINGS, rounds=8))
    assert errors(RunFit(), seen, parts)[2] > 0.05
    assert errors(fit, seen, parts).max() < 0.02
    own = fit.of_model("mixture-c").overheads / fit.scalars.overheads.clip(1e-30)
    others = fit.of_model("dense-a").overheads / fit.scalars.overheads.clip(1e-30)
    assert own.max() > 1.3 > others.max()


def test_an_unseen_model_gets_the_shared_scalars(runs, parts, rows):
    _, fit = taught(
        runs, parts, rows, RunFit(model_effects={"dense-a": np.full(len(COMPOSED_PARTS) + 1, 0.2)})
    )
    assert fit.of_model("another") is fit.scalars


def test_a_slow_server_shows_in_alpha(runs, parts, rows):
    alpha = RunFit().alpha.copy()
    alpha[SERVER] *= 2
    # What a step waits for changes with the factors, which takes more rounds than sums do.
    seen, fit = taught(runs, parts, rows, RunFit(alpha=alpha), replace(SETTINGS, rounds=8))
    assert errors(fit, seen, parts, "ttft_mean_s").max() < 0.015
    first = ("arrival_to_queue.constant", "arrival_to_queue.prompt_token")
    later = ("queue_to_schedule.constant", "schedule_to_first_token.constant")
    columns = [list(REQUEST_FEATURES).index(name) for name in (*first, *later)]
    assert fit.alpha[columns].sum() > 1.3 * RunFit().alpha[columns].sum()


def slow_server(factor):
    """Return a server that takes requests in so many times as slowly as the prior."""
    names, alpha = list(REQUEST_FEATURES), RunFit().alpha.copy()
    for name in ("arrival_to_queue.constant", "arrival_to_queue.prompt_token"):
        alpha[names.index(name)] *= factor
    return RunFit(alpha=alpha)


def repeated(rows, index):
    """Return rows by index, each as often as it is named."""
    per_row = {k: v[index] for k, v in vars(rows).items() if isinstance(v, np.ndarray)}
    models = [rows.deployments[i].model.name for i in per_row["deployment"]]
    changed = per_row | {"weight": model_weights(models)}
    return replace(rows, measured=tuple(rows.measured[i] for i in index), **changed)


def intake_s(fit, prompt_tokens=300):
    """Return the seconds that a fit's server takes to take one request in."""
    constant, token = (
        fit.alpha[list(REQUEST_FEATURES).index(f"arrival_to_queue.{name}")]
        for name in ("constant", "prompt_token")
    )
    return constant + prompt_tokens * token


@pytest.mark.parametrize("factor", [0.6, 2.0])
def test_alpha_means_the_same_with_runs_and_without(runs, parts, rows, factor):
    """Check that simulated benchmarks and runs of a server give its alpha and the others' times."""
    truth = slow_server(factor)
    serving = simulated_times(rows, truth)
    seen, together = taught(runs, parts, serving, truth, replace(SETTINGS, rounds=8))
    # Five measurements hardly move a prior.
    many = repeated(serving, np.repeat(np.arange(len(serving)), 60))
    serving_parts = np.stack([operator_betas()] * len(rows.deployments))
    alone = fit_in_rounds(Evidence([], parts[:0], many, serving_parts), SETTINGS)
    before = errors(RunFit(), seen, parts, "ttft_mean_s").max()
    # Rows are linear around the prior alone, and launching prompts is uncertain beside alpha: rows
    # find a part of the difference, if any, and runs the rest.
    for fit, left in ((alone, 1.0), (together, 0.4)):
        assert abs(np.log(intake_s(fit) / intake_s(truth))) < left * abs(np.log(factor))
        assert errors(fit, seen, parts, "ttft_mean_s").max() < left * before
        again = simulated_times(rows, fit)
        assert np.abs(again.ttft_s / serving.ttft_s - 1).mean() < 0.15
        assert np.abs(again.tpot_s / serving.tpot_s - 1).max() < 0.06
    assert errors(together, seen, parts, "ttft_mean_s").max() < 0.05


def test_json_and_back():
    scalars = Scalars(np.linspace(0.9, 1.1, len(COMPOSED_PARTS)), prior_scalars().overheads)
    fit = RunFit(scalars, {"a": np.linspace(-0.2, 0.3, len(COMPOSED_PARTS) + 1)})
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


def test_a_ttft_whose_steps_hide_all_work_still_tells_of_the_steps(rows):
    """Check that the fit uses such rows: a first token takes at least half of its steps' time."""
    parts = np.stack([operator_betas()] * len(rows.deployments))
    beta = prior_scalars().betas(operator_betas())
    steps_s = 1.1 * rows.ttft_features @ beta
    hidden = replace(rows, ttft_offset_s=np.full(len(rows), -10.0))
    tpot_s = 1.1 * rows.tpot_features @ beta
    fits = [
        fit_in_rounds(
            Evidence([], parts[:0], with_times(hidden, tpot_s, share * steps_s), parts), SETTINGS
        )
        for share in (0.5, 0.7)
    ]
    exact, slower = (fit.scalars.multipliers for fit in fits)
    assert np.isfinite(exact).all()
    assert slower.sum() > exact.sum()
