"""Serving runs of a model are predicted by fits that hold out the model and all of its shape."""

import numpy as np
import pandas as pd
import pytest
from run_cases import on_h100
from serving_cases import observations

from pinn.common.store import call_key
from pinn.evaluation.folds import split_folds
from pinn.evaluation.measured import Measured
from pinn.evaluation.serving_runs import (
    HELD_OUT,
    NETWORK,
    RUNS_HELD_OUT,
    TEACHER,
    left_out_models,
    run_folds,
    run_results,
    score_left_out,
)
from pinn.kernels.exclusion import is_near_copy
from pinn.specs.catalog import load_model
from pinn.training import folds as folds_module
from pinn.training.data.splits import leave_one_out, named_splits
from pinn.training.serving_rows import serving_rows

LLAMA_3_3, LLAMA_3_1 = "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-70B"
LLAMA_2, SMALL = "meta-llama/Llama-2-70b-hf", "meta-llama/Llama-3.1-8B"
MIXTRAL, YI = "mistralai/Mixtral-8x7B-v0.1", "01-ai/Yi-34B"
RAN = (SMALL, LLAMA_3_1, LLAMA_2, MIXTRAL, YI)


@pytest.fixture(scope="module")
def table():
    """Return deployments of two models on two GPUs."""
    cases = [(LLAMA_3_3, "fp8", 4, False, 2), (MIXTRAL, "bf16", 4, False, 2)]
    tables = [observations(cases, gpu) for gpu in ("h100_sxm", "h200_sxm")]
    whole = pd.concat(tables, ignore_index=True)
    return whole.assign(row_id=[f"{i} {gpu}" for i, gpu in enumerate(whole["gpu"])])


@pytest.fixture(scope="module")
def rows(table):
    return serving_rows(table)


@pytest.fixture(scope="module")
def runs():
    return [on_h100(name, name, tensor_parallel_size=4) for name in RAN]


def models(fold):
    """Return the models of all training data of a fold."""
    return [d.model for d in fold.rows.deployments] + [r.deployment.model for r in fold.runs]


def test_a_runs_shape_is_left_out_once_by_the_name_of_the_deployments(rows, runs):
    found = [model.name for model in left_out_models(rows, runs)]
    assert sorted(found) == sorted(load_model(m).name for m in (LLAMA_3_3, SMALL, MIXTRAL, YI))
    # The result does not depend on the order in which models ran.
    backwards = [model.name for model in left_out_models(rows, runs[::-1])]
    assert backwards == found


def test_every_run_is_tested_once_by_what_never_saw_its_shape(rows, runs):
    folds = run_folds(rows, runs)
    assert sorted(run.name for _, test in folds for run in test) == sorted(RAN)
    for fold, test in folds:
        for run in test:
            assert not any(is_near_copy(model, run.deployment.model) for model in models(fold))
            (excluded,) = fold.exclude.models
            assert is_near_copy(excluded, run.deployment.model)
        # Runs of other shapes are kept.
        assert len(fold.runs) + len(test) == len(runs)


def test_rows_and_runs_of_one_shape_leave_together(rows, runs):
    of_llama = next(
        (fold, test) for fold, test in run_folds(rows, runs) if test[0].name in (LLAMA_3_1, LLAMA_2)
    )
    fold, test = of_llama
    assert {run.name for run in test} == {LLAMA_3_1, LLAMA_2}
    assert {d.model.name for d in fold.rows.deployments} == {load_model(MIXTRAL).name}


def test_a_model_that_has_rows_and_runs_is_learned_without_once(table, rows, runs):
    """Check that the deployments' table and the runs' table are from the same folds."""
    measured = Measured(table, rows, tuple(runs), None, None)
    of_rows = split_folds({"leave-one-model-out": leave_one_out("model", table)}, measured)
    of_runs = [fold for fold, _ in run_folds(rows, runs)]
    keys, of_all_runs = (
        {call_key(folds_module._learn, (fold,)).digest for fold in of} for of in (of_rows, of_runs)
    )
    assert len(keys) == 2
    assert keys < of_all_runs


@pytest.mark.parametrize("kind", ["leave-one-gpu-out", "leave-one-gpu-and-its-kernels-out"])
def test_a_left_out_gpu_takes_rows_and_runs_along(table, rows, runs, tmp_path, kind):
    measured = Measured(table, rows, tuple(runs), None, None)
    splits = named_splits([kind], table, tmp_path)
    found = split_folds(splits, measured)
    assert len(found) == 2
    for split, fold in zip(splits[kind], found, strict=True):
        (gpu,) = split.held_out
        ran_on = {run.deployment.gpu.name for run in fold.runs}
        trained_on = {d.gpu.name for d in fold.rows.deployments}
        left_out = {"h100_sxm": "H100-SXM", "h200_sxm": "H200-SXM"}[gpu]
        assert left_out not in ran_on | trained_on
        assert len(fold.runs) == (0 if gpu == "h100_sxm" else len(runs))
        kernels = (left_out,) if kind.endswith("kernels-out") else ()
        assert (fold.exclude.gpus, fold.exclude.models) == (kernels, ())


def test_splits_that_leave_the_same_to_learn_from_are_one_fold(table, rows, runs):
    measured = Measured(table, rows, tuple(runs), None, None)
    of_model = leave_one_out("model", table)
    twice = {"leave-one-model-out": of_model * 2}
    assert len(split_folds(twice, measured)) == len(of_model)


def test_scores_are_those_of_each_fold_and_say_so(monkeypatch, rows, runs):
    folds, asked = run_folds(rows, runs), []

    def learned(_, fold, __):
        asked.append(fold)
        return fold

    def scored(_, test, suffix):
        return pd.DataFrame({"run": [run.name for run in test], "method": NETWORK + suffix})

    monkeypatch.setattr("pinn.evaluation.serving_runs.learn_fold", learned)
    monkeypatch.setattr("pinn.evaluation.serving_runs.score_learned", scored)
    table = score_left_out("a learner", folds, "a folder")
    assert sorted(table["run"]) == sorted(RAN)
    assert set(table["method"]) == {NETWORK + HELD_OUT}
    assert [id(fold) for fold in asked] == [id(fold) for fold, _ in folds]


SCORES = pd.DataFrame(
    {
        "method": [NETWORK + HELD_OUT] * 4 + [NETWORK, TEACHER + HELD_OUT],
        "run": ["1", "2", "1", "2", "1", "1"],
        "stage": ["all", "all", "0", "all", "all", "all"],
        "model": ["a", "b", "a", "b", "a", "a"],
        "load": "chat",
        "figure": [f"{name}_mean_s" for name in ("e2e", "e2e", "e2e", "ttft", "e2e", "itl")],
        "predicted_s": [1.1, 0.8, 9.0, 1.0, 9.0, 2.0],
        "measured_s": np.ones(6),
    }
)


def test_only_whole_runs_of_left_out_models_are_summed_up():
    found = run_results(SCORES)
    assert set(found["split"]) == {RUNS_HELD_OUT}
    of_network = found[found["method"] == NETWORK].set_index(["held_out", "metric"])
    assert of_network.loc[("all", "e2e_mean"), "mean"] == pytest.approx(15.0)
    assert of_network.loc[("b", "e2e_mean"), "bias"] == pytest.approx(-20.0)
    assert of_network.loc[("all", "ttft_mean"), "n"] == 1
    of_teacher = found[found["method"] == TEACHER]
    assert set(of_teacher["metric"]) == {"itl_mean"}
