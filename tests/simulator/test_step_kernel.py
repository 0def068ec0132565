"""The compiled features equal the registry's, name by name."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import simulator_helpers
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.errors import PinnError
from pinn.physics.batch_sums import BatchSums, sum_batches
from pinn.physics.costs import COST_NAMES, StepCosts, step_costs
from pinn.simulator import hooks as step_kernel
from pinn.simulator.compiler import compiled
from pinn.simulator.hooks import (
    REQUEST_VALUES,
    StepValues,
    cost_numbers,
    request_coefficients,
    step_coefficients,
    step_values,
)
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.simulate import simulate
from pinn.simulator.state import FIRST_SUM, REREAD, STEP_COLUMNS, SUMS
from pinn.simulator.step_formulas import Sums
from pinn.surrogate.deployment_features import deployment_features, padded_features
from pinn.surrogate.request_features import PHASES, REQUEST_FEATURES, request_features
from pinn.surrogate.step_features import STEP_FEATURES, step_features, step_time


@compiled
def _compiled_values(costs, sums):
    return step_values(costs, sums)


def test_compiled_code_knows_exactly_the_registry():
    assert set(StepValues._fields) == set(STEP_FEATURES)
    assert tuple(f.name for f in dataclasses.fields(BatchSums)) == SUMS == Sums._fields
    kinds = {name.split(".", 1)[1] for name in REQUEST_FEATURES}
    assert kinds <= set(REQUEST_VALUES)


@given(deployment=strategies.deployments(), batch=strategies.batches(), reread=st.floats(0, 0.99))
@settings(max_examples=150)
def test_step_features_are_equal(deployment, batch, reread):
    costs, window = step_costs([deployment]), deployment.model.window_tokens
    whole = sum_batches([batch], window)
    tokens = reread * float(whole.decode_context[0] - whole.decode_requests[0])
    sums = sum_batches([replace(batch, reread_tokens=tokens)], window)
    expected = dict(zip(STEP_FEATURES, step_features(costs, sums)[0], strict=True))
    row = np.zeros(len(STEP_COLUMNS) - FIRST_SUM)
    row[: len(SUMS)] = [getattr(whole, name)[0] for name in SUMS]
    row[REREAD] = tokens
    for got in (step_values(cost_numbers(costs), row), _compiled_values(cost_numbers(costs), row)):
        for name, value in expected.items():
            assert getattr(got, name) == pytest.approx(value, rel=1e-12, abs=1e-300), name


@pytest.mark.parametrize("decodes", [3, 9, 41])
@pytest.mark.parametrize("flags", [{}, {"async_scheduling": False}, {"engine": "sglang"}], ids=str)
def test_padded_steps_take_as_long_in_the_simulator_as_predicted(decodes, flags):
    sizes = {"max_num_seqs": 64, "max_num_batched_tokens": 512}
    deployment = simulator_helpers.deployment(**sizes, **flags)
    beta = np.random.default_rng(decodes).uniform(0.5, 2.0, len(STEP_FEATURES))
    latency = LinearLatency(deployment, beta, np.zeros(len(REQUEST_FEATURES)))
    run = simulate(deployment, simulator_helpers.load([5] * decodes, [20] * decodes), latency)
    sums = run.steps.sums
    predicted_s = step_time(padded_features(deployment, sums), beta)
    np.testing.assert_allclose(run.steps["duration_s"], predicted_s, rtol=1e-12)
    unpadded = replace(sums, padding=np.zeros_like(sums.padding))
    unpadded_s = step_time(deployment_features(deployment, unpadded), beta)
    alone = (sums.prefill_requests == 0) & (sums.decode_requests == decodes)
    assert alone.any()
    assert (predicted_s[alone] > unpadded_s[alone]).all()


def test_step_features_are_equal_for_any_costs():
    """Graphs limited by tokens, by requests and absent; dense models and experts; empty steps."""
    rng = np.random.default_rng(0)
    for case in range(200):
        numbers = rng.uniform(0.01, 1.0, len(COST_NAMES)) * (rng.random(len(COST_NAMES)) < 0.8)
        values = dict(zip(COST_NAMES, numbers[:, None], strict=True))
        values |= {
            "graph_tokens": np.array([rng.choice([0.0, 1.0, 64.0])]),
            "graph_requests": np.array([rng.choice([0.0, 16.0])]),
            "all_reduce_token_bytes": np.array([rng.choice([64.0, 1e4, 1e6])]),
        }
        sums = np.zeros(len(STEP_COLUMNS) - FIRST_SUM)
        sums[: len(SUMS)] = rng.integers(0, 40, len(SUMS)) * (case > 0)
        costs = StepCosts(**values)
        expected = step_features(costs, BatchSums(*sums[: len(SUMS), None]))[0]
        found = step_values(cost_numbers(costs), sums)
        by_registry = [getattr(found, name) for name in STEP_FEATURES]
        np.testing.assert_allclose(by_registry, expected, rtol=1e-12)


def test_request_features_are_equal():
    rng = np.random.default_rng(0)
    prompt_tokens, alpha = rng.uniform(1, 9000), rng.uniform(0.1, 2.0, len(REQUEST_FEATURES))
    table = request_coefficients(alpha) @ np.array([1.0, prompt_tokens])
    features = request_features(np.array(prompt_tokens))
    for i, phase in enumerate(PHASES):
        mine = np.array([f.phase == phase for f in REQUEST_FEATURES.values()])
        assert table[i] == pytest.approx(features[mine] @ alpha[mine], rel=1e-12)


def test_a_feature_without_a_compiled_form_is_named(monkeypatch):
    more = STEP_FEATURES | {"new_one": next(iter(STEP_FEATURES.values()))}
    monkeypatch.setattr(step_kernel, "STEP_FEATURES", more)
    with pytest.raises(PinnError, match="new_one"):
        step_coefficients(np.ones(len(more)))


def test_costs_are_in_the_order_of_the_registry():
    assert cost_numbers(step_costs([simulator_helpers.deployment()])).dtype.names == COST_NAMES
