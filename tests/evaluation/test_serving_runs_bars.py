"""The released checkpoint on the runs that it learned from, and on one that it did not."""

import os
from pathlib import Path

import pandas as pd
import pytest

from pinn.coefficients.checkpoint_search import find_checkpoint
from pinn.evaluation.serving_runs import ranking_inversions, score_runs
from pinn.experiments.release_folds import LEFT_OUT
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
    # What lies beside the checkpoint is what it gives.
    beside = record("network").set_index(["run", "stage", "figure"])["predicted_s"]
    now = found.set_index(["run", "stage", "figure"])["predicted_s"]
    assert now.to_dict() == pytest.approx(beside.to_dict(), rel=1e-3)


def record(method):
    table = pd.read_csv(find_checkpoint().with_suffix(".serving_runs.csv"), dtype={"stage": str})
    return table[table.method == method]


def test_models_left_out_are_recorded_as_close_and_ranked_right():
    found = record(LEFT_OUT)
    whole = found[found.stage == WHOLE_RUN]
    error = whole.set_index(["model", "run", "figure"])["error_percent"].abs().unstack()
    assert len(error) == 15
    assert error["e2e_mean_s"].median() <= 6
    assert error["ttft_mean_s"].median() <= 8
    assert error["itl_mean_s"].median() <= 6
    dense = ~error.index.get_level_values("model").str.contains("scout")
    assert (error.loc[dense, "e2e_mean_s"] <= 12).all()
    assert ranking_inversions(found) == []


def test_an_overloaded_run_fails_as_often_and_takes_as_long(released):
    folder = next(data("PINN_INFERENCE_PERF").glob("*reasoning*"))
    configs = folder.parents[1] / "model_configs"
    found = scores(released, [read_load_report(folder, "H100", configs)])
    e2e = found[(found.stage == WHOLE_RUN) & (found.figure == "e2e_mean_s")].iloc[0]
    assert abs(e2e["failed_predicted"] - e2e["failed_measured"]) <= 0.10
    assert abs(e2e["error_percent"]) <= 20
