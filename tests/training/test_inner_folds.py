"""Script that compares recipes on a second model that is held out."""

import inner_folds
import numpy as np
import pandas as pd
import pytest
from serving_cases import FIVE, observations, with_times

from pinn.common.files import find_checkpoint
from pinn.errors import PinnError
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.specs.catalog import load_model
from pinn.training.run_scalars import RunFitSettings
from pinn.training.serving_rows import serving_rows

GPT_OSS = "openai/gpt-oss-120b"


@pytest.fixture(scope="module")
def rows():
    first = ((GPT_OSS, "mxfp4", 1, False, 2), (GPT_OSS, "mxfp4", 2, False, 8))
    return serving_rows(observations((*FIVE, *first)))


@pytest.fixture(scope="module")
def kernels():
    folder = find_checkpoint().parent / "kernels"
    return KernelSurrogates.load(folder / Exclusion(models=(load_model(GPT_OSS),)).slug())


def folds(kernels, rows, second=""):
    measured = inner_folds.Measurements(rows)
    return inner_folds.inner_folds(kernels, RunFitSettings(), measured, load_model(GPT_OSS), second)


def by_name(found):
    return {model.name: table for model, table in found}


def test_neither_model_teaches_and_the_others_do(kernels, rows):
    ones = np.ones(len(rows))
    plain = by_name(folds(kernels, with_times(rows, 0.01 * ones, 0.1 * ones)))
    assert {name: len(table) for name, table in plain.items()} == {
        "meta-llama/Meta-Llama-3.1-8B": 6, "mistralai/Mixtral-8x7B-v0.1": 4
    }  # fmt: skip
    models = np.array([rows.deployments[i].model.name for i in rows.deployment])
    slower = np.where(models == "mistralai/Mixtral-8x7B-v0.1", 3.0, 1.0)
    slower[models == GPT_OSS] = 7.0
    moved = by_name(folds(kernels, with_times(rows, 0.01 * slower, 0.1 * slower)))
    of_mixture = [table["mistralai/Mixtral-8x7B-v0.1"]["predicted_s"] for table in (plain, moved)]
    pd.testing.assert_series_equal(*of_mixture)
    of_llama = [table["meta-llama/Meta-Llama-3.1-8B"] for table in (plain, moved)]
    decodes = of_llama[0]["metric"] == "tpot"
    before, after = (table.loc[decodes, "predicted_s"] for table in of_llama)
    assert (after > before).all()


def test_a_name_that_is_not_one_models_is_refused(kernels, rows):
    with pytest.raises(
        PinnError,
        match="'l' is in the names of 2 measured models, expected one: give a part of one",
    ):
        inner_folds._named(rows, "l")
    assert inner_folds._named(rows, "gpt-oss").name == GPT_OSS
    with pytest.raises(
        PinnError,
        match=r"--second 'nobody' is in no model's name: give a part of one of .*meta-llama",
    ):
        next(folds(kernels, rows, "nobody"))
