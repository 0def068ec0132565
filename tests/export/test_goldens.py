"""The committed golden vectors belong to the committed checkpoint and to today's code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from goldens import (
    CASES,
    MANIFEST,
    MODELS,
    SPECULATING_CASES,
    SPECULATING_STEPS,
    STEPS,
    TABLE,
    golden_rows,
    manifest,
    speculating_rows,
    step_cases,
)
from onnx_sessions import onnx_sessions
from table_files import read_table

from pinn.export.table import alpha_columns, beta_columns
from pinn.physics.costs import COST_NAMES
from pinn.specs.catalog import load_model
from pinn.specs.model import mixer_names
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.featurizer import featurize

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINT = ROOT / "checkpoints" / "pinn.safetensors"
GOLDENS = ROOT / "export" / "go" / "pinn" / "testdata"


@pytest.fixture(scope="module", autouse=True)
def _fresh():
    """Fail with the remedy if the golden vectors were made from other inputs."""
    found = json.loads((GOLDENS / MANIFEST).read_text())
    expected = manifest(CHECKPOINT)
    odd = [name for name in expected if found.get(name) != expected[name]]
    if odd:
        pytest.fail(
            f"the golden vectors in {GOLDENS} were made from another state ({', '.join(odd)} "
            "differ): run 'make goldens' and commit what it writes"
        )


def lines(name):
    return [json.loads(line) for line in gzip.open(GOLDENS / name, "rt")]


def test_the_table_holds_todays_coefficients():
    table, configured = read_table(GOLDENS / TABLE), golden_rows(CHECKPOINT)
    for names, values in (
        (beta_columns(), configured.coefficients.beta),
        (alpha_columns(), configured.coefficients.alpha),
    ):
        found = np.array([table[name].to_pylist() for name in names]).T
        np.testing.assert_allclose(found, values, rtol=1e-9, err_msg="run 'make goldens'")


def test_the_cases_are_todays():
    # The first cases of a shorter list differ, so all of them are drawn again.
    for found, expected in zip(lines(STEPS), step_cases(golden_rows(CHECKPOINT)), strict=True):
        assert found["batch"] == expected["batch"], "run 'make goldens'"
        assert found["seconds"] == pytest.approx(expected["seconds"], rel=1e-9)
        assert abs(found["us"] - expected["us"]) <= 1
    drafting = step_cases(speculating_rows(CHECKPOINT), SPECULATING_CASES)
    for found, expected in zip(lines(SPECULATING_STEPS), drafting, strict=True):
        assert found["batch"] == expected["batch"], "run 'make goldens'"
        assert found["seconds"] == pytest.approx(expected["seconds"], rel=1e-9)


def test_onnx_gives_the_golden_coefficients_and_step_times(tmp_path):
    coefficients, step_time = onnx_sessions(load_checkpoint(CHECKPOINT), tmp_path)
    descriptors, rates = featurize(golden_rows(CHECKPOINT).deployments)
    alpha, beta = coefficients.run(None, {"descriptors": descriptors, "rates": rates})
    table = read_table(GOLDENS / TABLE)
    betas = np.array([table[name].to_pylist() for name in beta_columns()]).T
    np.testing.assert_allclose(beta, betas, rtol=1e-9)
    alphas = np.array([table[name].to_pylist() for name in alpha_columns()]).T
    np.testing.assert_allclose(alpha, alphas, rtol=1e-9)
    steps = [case for case in lines(STEPS) if "features" in case]
    _, found = step_time.run(
        None,
        {
            "features": np.array([case["features"] for case in steps]),
            "beta": betas[[case["row"] for case in steps]],
        },
    )
    assert len(steps) >= 200
    assert found.tolist() == [case["us"] for case in steps]


def test_the_cases_cover_what_they_should():
    rows = read_table(GOLDENS / TABLE).to_pylist()
    models = [load_model(name) for name in MODELS]
    assert {(m.moe is None, "latent" in mixer_names(m)) for m in models} == {
        (True, False), (False, False), (False, True)
    }  # fmt: skip
    assert any(m.window_tokens for m in models)
    assert {row["tensor_parallel_size"] for row in rows} == {1, 2, 4, 8}
    assert any(row["enable_expert_parallel"] and row["data_parallel_size"] > 1 for row in rows)
    cases = lines(STEPS)
    kinds = {(any(p), any(d)) for p, d in map(phases, cases)}
    assert len(cases) == CASES
    assert kinds == {(False, False), (False, True), (True, False), (True, True)}
    assert max(max(case["batch"][1::3], default=0) for case in cases) > 500_000
    assert np.any([case["terms"] for case in cases], axis=0).all()
    costs = [[row[f"cost.{name}"] for name in COST_NAMES] for row in rows]
    assert np.any(costs, axis=0).all()


def phases(case):
    rows = np.reshape(case["batch"], (-1, 3))
    return rows[:, 0] < rows[:, 2], rows[:, 0] >= rows[:, 2]
