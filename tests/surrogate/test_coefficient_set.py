"""Coefficient sets are restored from disk bit for bit and refuse another deployment."""

import json
from pathlib import Path

import numpy as np
import pytest
from assumed_priors import prior_coefficients

from pinn.engines.configurations import make_deployment
from pinn.errors import PinnError
from pinn.surrogate.coefficient_set import (
    CoefficientSet,
    deployment_facts,
    read_coefficient_set,
    write_coefficient_set,
)
from pinn.surrogate.coefficients import Coefficients


def deployment(**flags: object):
    return make_deployment({"model": "meta-llama/Llama-3.1-8B", "gpu": "H100"} | flags)


def written(path: Path) -> CoefficientSet:
    draw, base = np.random.default_rng(0), prior_coefficients(1)
    parts = (base.beta, base.alpha)
    noisy = Coefficients(*(v * draw.uniform(0.5, 2, v.shape) for v in parts))
    taught = np.arange(base.alpha.shape[1]) % 2 == 0
    found = CoefficientSet(deployment_facts(deployment()), noisy, taught, base, {"budget": 500})
    write_coefficient_set(found, path)
    return found


def test_every_bit_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    found, again = written(path), read_coefficient_set(path)
    assert np.array_equal(found.beta, again.beta)
    assert np.array_equal(found.alpha, again.alpha)
    assert np.array_equal(found.base.beta, again.base.beta)
    assert np.array_equal(found.taught, again.taught)
    assert again.calibration == {"budget": 500}
    assert again.deployment == found.deployment


def test_coefficients_of_another_deployment_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    found = written(path)
    found.check_deployment(deployment(max_num_seqs=7), str(path))
    for flags, words in (
        ({"gpu": "A100"}, "gpu"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size 1 instead of 2"),
        ({"precision": "fp8"}, "precisions"),
    ):
        with pytest.raises(PinnError, match=words):
            found.check_deployment(deployment(**flags), str(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t | {"schema": "pinn coefficients 9"}, "this version reads"),
        (lambda t: t | {"beta": {"step": 1.0}}, "differ from this version's features"),
        (lambda t: t | {"alpha": 3}, "alpha must be a mapping"),
        (lambda t: t | {"beta": t["beta"] | {"step": -1.0}}, "beta.step must be a finite number"),
        (lambda t: t | {"beta": t["beta"] | {"step": {"value": True}}}, "beta.step must be"),
    ],
)
def test_what_is_no_coefficient_set_is_refused(tmp_path: Path, change, words: str) -> None:
    path = tmp_path / "set.json"
    written(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(PinnError, match=words):
        read_coefficient_set(path)
