"""Training data of a fold, and the cache of its training."""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest
from power_cuts import assert_same_bits
from run_cases import on_h100
from serving_cases import observations, with_times

from pinn.common.store import call_key
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.specs.catalog import load_model
from pinn.surrogate.architecture import NetworkSettings
from pinn.training.folds import Fold, fold_of, learn_fold, without_model
from pinn.training.kernel_learner import KernelLearner
from pinn.training.serving_rows import serving_rows

LLAMA_3_3, LLAMA_3_1 = "meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-70B"
MIXTRAL, SMALL = "mistralai/Mixtral-8x7B-v0.1", "meta-llama/Llama-3.1-8B"
CASES = [(LLAMA_3_3, "fp8", 4, False, 2), (MIXTRAL, "bf16", 4, False, 2)]


@pytest.fixture(scope="module")
def on_two_gpus():
    """Return two models on H100 and on H200."""
    tables = [observations(CASES, gpu) for gpu in ("h100_sxm", "h200_sxm")]
    table = pd.concat(tables, ignore_index=True)
    return serving_rows(table.assign(row_id=[f"{i} {g}" for i, g in enumerate(table["gpu"])]))


@pytest.fixture(scope="module")
def runs():
    models = {"large": LLAMA_3_1, "experts": MIXTRAL, "small": SMALL}
    return [on_h100(name, model, tensor_parallel_size=4) for name, model in models.items()]


def names(fold):
    return [run.name for run in fold.runs]


def test_runs_of_a_left_out_models_near_copies_go(on_two_gpus, runs):
    model = load_model(LLAMA_3_3)
    fold = fold_of(without_model(on_two_gpus, model), runs, Exclusion(models=(model,)))
    assert names(fold) == ["experts", "small"]
    assert {d.model.name for d in fold.rows.deployments} == {MIXTRAL}
    assert fold.exclude.models == (model,)


@pytest.mark.parametrize("name", [LLAMA_3_3, LLAMA_3_1, "meta-llama/Llama-2-70b-hf"])
def test_rows_of_every_model_of_the_same_shape_go(on_two_gpus, name):
    kept = without_model(on_two_gpus, load_model(name))
    assert {d.model.name for d in kept.deployments} == {MIXTRAL}
    assert not any(is_near_copy(d.model, load_model(name)) for d in kept.deployments)
    assert len(kept) == 2


def test_a_gpus_runs_leave_with_its_rows(on_two_gpus, runs):
    gpus = np.array([d.gpu.name for d in on_two_gpus.deployments])[on_two_gpus.deployment]
    for gpu, kept in (("H100-SXM", []), ("H200-SXM", ["large", "experts", "small"])):
        rest = on_two_gpus.take(gpus != gpu)
        assert names(fold_of(rest, runs, Exclusion())) == kept
        assert names(fold_of(rest, runs, Exclusion(gpus=(gpu,)))) == kept


def test_nothing_left_out_keeps_everything(on_two_gpus, runs):
    fold = fold_of(on_two_gpus, runs, Exclusion())
    assert names(fold) == [run.name for run in runs]
    assert fold.rows is on_two_gpus


@dataclass(frozen=True)
class Counting(KernelLearner):
    """Learner that counts its trainings."""

    def learn(self, rows, runs, exclude, folder):
        learned.append((rows, runs, exclude))
        return super().learn(rows, runs, exclude, folder)


learned: list = []


@pytest.fixture
def counting(kernel_learner):
    learned.clear()
    plain = replace(kernel_learner.distillation, epochs=1)
    return Counting(**vars(kernel_learner) | {"distillation": plain})


def test_a_fold_is_learned_once_and_found_again(counting, rows, tmp_path):
    fold = Fold(rows, (), Exclusion())
    first = learn_fold(counting, fold, tmp_path)
    again = learn_fold(counting, fold, tmp_path)
    assert len(learned) == 1
    assert_same_bits(first.network, again.network)
    np.testing.assert_array_equal(first.fit.alpha, again.fit.alpha)
    np.testing.assert_array_equal(
        first.teacher.betas(rows.deployments[:1]), again.teacher.betas(rows.deployments[:1])
    )
    whole = counting.learn(rows, (), Exclusion(), tmp_path / "anew")
    assert_same_bits(first.network, whole.network)
    np.testing.assert_allclose(first.fit.alpha, whole.fit.alpha, rtol=1e-12)


def test_where_kernels_lie_decides_nothing(counting, rows, released, tmp_path):
    fold = Fold(rows, (), Exclusion())
    learn_fold(counting, fold, tmp_path / "folds")
    moved = tmp_path / "moved"
    moved.symlink_to(released)
    elsewhere = replace(counting.kernels, released=str(moved), cache=str(tmp_path / "elsewhere"))
    learn_fold(replace(counting, kernels=elsewhere), fold, tmp_path / "folds")
    assert len(learned) == 1


def changed_learners(learner):
    return {
        "seed": replace(learner, seed=4),
        "network": replace(learner, network=NetworkSettings(hidden=17, depth=1)),
        "distillation": replace(
            learner, distillation=replace(learner.distillation, learning_rate=0.005)
        ),
        "how rows teach": replace(learner, run_fit=replace(learner.run_fit, ttft_weight=0.31)),
        "deployments composed": replace(learner, kernels=replace(learner.kernels, synthetic=8)),
    }


def test_another_recipe_is_another_fold(counting, rows, tmp_path):
    fold = Fold(rows, (), Exclusion())
    learn_fold(counting, fold, tmp_path)
    for count, changed in enumerate(changed_learners(counting).values(), start=2):
        learn_fold(changed, fold, tmp_path)
        assert len(learned) == count
    learn_fold(counting, fold, tmp_path)
    assert len(learned) == count


def test_other_rows_runs_or_measurements_are_another_fold(counting, rows, tmp_path, monkeypatch):
    """Check the key of a fold for changed data, without training any fold."""
    run = replace(on_h100("a", SMALL), measured={"all": {"ttft_mean_s": 0.02}})
    longer = with_times(rows, rows.tpot_s, rows.ttft_s * 1.001)
    slower = replace(run, measured={"all": {"ttft_mean_s": 0.021}})
    folds = [
        Fold(rows, (), Exclusion()),
        Fold(rows.take(np.arange(len(rows)) > 0), (), Exclusion()),
        Fold(longer, (), Exclusion()),
        Fold(rows, (run,), Exclusion()),
        Fold(rows, (slower,), Exclusion()),
        Fold(rows, (run, slower), Exclusion()),
    ]
    asked = []

    def remember(function, *arguments, **_):
        asked.append(call_key(function, arguments).digest)
        raise LookupError

    monkeypatch.setattr("pinn.training.folds.remembered_folder", remember)
    for fold in folds * 2:
        with pytest.raises(LookupError):
            learn_fold(counting, fold, tmp_path)
    assert asked[: len(folds)] == asked[len(folds) :]
    assert len(set(asked)) == len(folds)


def test_other_kernels_are_another_fold(counting, rows, h100_kernels, tmp_path):
    fold = Fold(rows, (), Exclusion())
    learn_fold(counting, fold, tmp_path / "folds")
    curves = {key: 1.01 * curve for key, curve in h100_kernels.all_reduce.curves.items()}
    bent = replace(h100_kernels, all_reduce=replace(h100_kernels.all_reduce, curves=curves))
    bent.save(tmp_path / "bent" / "all")
    kernels = replace(counting.kernels, released=str(tmp_path / "bent"))
    learn_fold(replace(counting, kernels=kernels), fold, tmp_path / "folds")
    assert len(learned) == 2
