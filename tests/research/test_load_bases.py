"""Means of a formula's basis functions over the simulated steps of each benchmark."""

import numpy as np
import pytest
from serving_cases import FIVE, observations

from pinn.evaluation.formulas import (
    hierarchical_basis,
    phase_floors,
    row_bases,
    token_counts,
)
from pinn.physics.batch_sums import uniform_sums
from pinn.physics.costs import step_costs
from pinn.surrogate.step_features import overlapped, step_features
from pinn.training.serving_rows import PRIOR_BETA, serving_rows


def features(deployment, sums, _):
    return overlapped(step_features(step_costs([deployment]), sums), PRIOR_BETA)


@pytest.fixture(scope="module")
def rows():
    return serving_rows(observations())


def test_the_surrogates_own_features_are_those_of_its_rows(rows):
    found = row_bases(observations(), features)
    tpot, ttft = found.of(rows)
    np.testing.assert_allclose(tpot, rows.tpot_features, rtol=1e-12)
    np.testing.assert_allclose(ttft, rows.ttft_features, rtol=1e-12)
    some = np.arange(len(rows)) % 2 == 1
    np.testing.assert_array_equal(found.of(rows.take(some))[0], tpot[some])


def test_a_decode_interval_is_whole_steps_of_no_more_than_all_clients():
    found = row_bases(observations(), token_counts)
    busy, _, decodes = found.tpot.T
    # A request that decodes is in every step of its interval: the intervals' shares sum to 1.
    np.testing.assert_allclose(busy, 1.0, rtol=1e-9)
    clients = np.array([concurrency for *_, concurrency in FIVE])
    assert (decodes >= 1).all()
    assert (decodes <= clients).all()


def test_every_request_waits_for_a_step_that_computes_its_prompt():
    busy, prefilled, _ = row_bases(observations(), token_counts).ttft.T
    assert (busy >= 1 - 1e-9).all()
    # Prompts are 205 to 256 tokens.
    assert (prefilled >= 205).all()


def test_the_floors_of_both_phases_are_no_less_than_that_of_the_step(rows):
    found = row_bases(observations(), phase_floors)
    for phases, whole in ((found.tpot, rows.tpot_floor_s), (found.ttft, rows.ttft_floor_s)):
        assert (phases.sum(1) >= whole * (1 - 1e-9)).all()
        assert (phases.max(1) <= whole * (1 + 1e-9)).all()


def test_the_hierarchical_basis_by_hand(rows):
    deployment = rows.measured[0].served
    sums = uniform_sums(decode_requests=np.array([4.0]), decode_context=np.array([100.0]))
    (found,) = hierarchical_basis(deployment, sums, 0.0)
    costs, moe = step_costs([deployment]), deployment.model.moe
    recipe = deployment.recipe
    np.testing.assert_allclose(
        found,
        [
            0, 4 * costs.kv_read_s[0], 4 / recipe.token_budget, 1 / recipe.tensor_parallel_size,
            moe.experts / 8 if moe else 0, 0,
        ],
    )  # fmt: skip
