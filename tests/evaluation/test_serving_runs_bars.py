"""The released checkpoint on the runs that it learned from, and on one that it did not."""

import os
from pathlib import Path

import pytest

from pinn.coefficients.checkpoint_search import find_checkpoint
from pinn.evaluation.serving_runs import ranking_inversions, score_runs
from pinn.latency.surrogate import Surrogate
from pinn.simulator.linear_latency import LinearLatency
from pinn.workloads.load_reports import read_load_report
from pinn.workloads.measured_runs import WHOLE_RUN, read_measured_runs


@pytest.fixture(scope="module")
def released():
    """The checkpoint of the repository, which serving runs taught."""
    surrogate = Surrogate.load(find_checkpoint())
    assert "departures" in surrogate.checkpoint.metadata["scalars"]
    return surrogate


def data(variable):
    if variable not in os.environ:
        pytest.skip(f"set {variable} to the measured runs")
    return Path(os.environ[variable])


def scores(released, runs):
    found = released.coefficients([run.deployment for run in runs])
    latencies = [
        LinearLatency(run.deployment, beta, alpha)
        for run, beta, alpha in zip(runs, found.beta, found.alpha, strict=True)
    ]
    return score_runs(runs, latencies, "network")


def test_every_run_is_close_and_none_is_ranked_wrongly(released):
    path = data("PINN_SERVING_RUNS")
    runs, _ = read_measured_runs(path, path.parents[1] / "model_configs")
    found = scores(released, runs)
    whole = found[found.stage == WHOLE_RUN]
    assert whole["run"].nunique() == len(runs) == 15
    error = whole.set_index(["run", "figure"])["error_percent"].abs().unstack()
    assert (error["e2e_mean_s"] <= 5).all(), error["e2e_mean_s"]
    assert (error[["ttft_mean_s", "itl_mean_s"]] <= 10).all(axis=None)
    assert ranking_inversions(found) == []


def test_an_overloaded_run_fails_as_often_and_takes_as_long(released):
    folder = next(data("PINN_INFERENCE_PERF").glob("*reasoning*"))
    configs = folder.parents[1] / "model_configs"
    found = scores(released, [read_load_report(folder, "H100", configs)])
    e2e = found[(found.stage == WHOLE_RUN) & (found.figure == "e2e_mean_s")].iloc[0]
    assert abs(e2e["failed_predicted"] - e2e["failed_measured"]) <= 0.10
    assert abs(e2e["error_percent"]) <= 20
