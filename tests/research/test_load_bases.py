"""Means of a formula's own basis functions over the steps that each benchmark's simulation made."""

import numpy as np
import pytest
from serving_cases import FIVE, observations

from pinn.errors import PinnError
from pinn.laboratory.formulas import phase_floors, row_bases, token_counts
from pinn.laboratory.step_baselines import DONORS, donor_coefficients, hierarchical_basis
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.training.data.silicon import read_silicon
from pinn.training.serving_rows import serving_rows


def features(deployment, sums, _):
    return step_features(step_costs([deployment]), sums)


@pytest.fixture(scope="module")
def rows():
    return serving_rows(observations())


def test_the_surrogates_own_features_are_those_of_its_rows(rows):
    found = row_bases(observations(), features)
    tpot, ttft = found.of(rows.row_id)
    np.testing.assert_allclose(tpot, rows.tpot_features, rtol=1e-12)
    np.testing.assert_allclose(ttft, rows.ttft_features, rtol=1e-12)
    backwards = found.of(rows.row_id[::-1])
    np.testing.assert_array_equal(backwards[0], tpot[::-1])


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


def test_other_deployments_keep_the_steps_and_change_what_they_cost(rows):
    other = {
        row_id: type(d)(d.model, load_gpu("L4"), d.serving)
        for row_id, d in zip(rows.row_id, (m.served for m in rows.measured), strict=True)
    }
    plain = row_bases(observations(), token_counts)
    moved = row_bases(observations(), token_counts, other)
    np.testing.assert_array_equal(plain.tpot, moved.tpot)
    floors = [row_bases(observations(), phase_floors, of).tpot for of in (None, other)]
    assert (floors[1][:, 1] > 2 * floors[0][:, 1]).all()


@pytest.fixture(scope="module")
def donors():
    """Some of the donors' benchmarks, and others."""
    found, _ = read_silicon()
    quick = found[(found["concurrency"] <= 32) & (found["output_tokens"] == 1024)]
    return quick.groupby(["model", "gpu"]).head(3).reset_index(drop=True)


def test_donors_teach_times_that_are_about_theirs(donors):
    shared = donor_coefficients(donors)
    assert (shared >= 0).all()
    assert (shared > 0).any()
    chosen = donors[[pair in DONORS for pair in of_pairs(donors)]]
    predicted = row_bases(chosen, hierarchical_basis).tpot @ shared
    assert np.median(np.abs(predicted / chosen["tpot_s"] - 1)) < 0.3


def of_pairs(table):
    return list(zip(table["model"], (load_gpu(g).name for g in table["gpu"]), strict=True))


def test_only_donors_teach(donors):
    shared = donor_coefficients(donors)
    others = [pair not in DONORS for pair in of_pairs(donors)]
    assert any(others)
    changed = donors.copy()
    changed.loc[others, "tpot_s"] *= 3
    np.testing.assert_array_equal(donor_coefficients(changed), shared)
    with pytest.raises(PinnError, match="none of the donors"):
        donor_coefficients(donors[others])


def test_every_donor_was_measured():
    assert set(DONORS) <= set(of_pairs(read_silicon()[0]))
    assert all(load_model(model) for model, _ in DONORS)
