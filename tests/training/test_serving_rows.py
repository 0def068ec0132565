"""Rows that are linear in the coefficients agree with simulations of their benchmarks."""

import numpy as np
import pytest
from serving_cases import FIVE, observations

from pinn.training.data.silicon import read_silicon
from pinn.training.serving_rows import (
    PRIOR_ALPHA,
    PRIOR_BETA,
    model_weights,
    serving_rows,
    simulate_rows,
)


@pytest.fixture(scope="module")
def measured_rows():
    """Return two quick benchmarks of each model on each GPU that it was measured on."""
    found, _ = read_silicon()
    quick = found[(found["concurrency"] <= 64) & (found["output_tokens"] == 1024)]
    pairs = quick.groupby(["model", "gpu"])
    return serving_rows(pairs.sample(2, random_state=0).reset_index(drop=True))


def both(rows, beta, alpha):
    """Return (TPOT, TTFT) by the sums of features, and by simulations."""
    linear = (
        rows.tpot_features @ beta,
        rows.ttft_features @ beta + rows.request_features @ alpha + rows.ttft_offset_s,
    )
    deployments = len(rows.deployments)
    found = simulate_rows(rows, np.tile(beta, (deployments, 1)), np.tile(alpha, (deployments, 1)))
    return linear, (found.tpot_s, found.ttft_s)


def test_with_prior_coefficients_they_are_the_simulation(measured_rows):
    (tpot, ttft), (tpot_simulated, ttft_simulated) = both(measured_rows, PRIOR_BETA, PRIOR_ALPHA)
    np.testing.assert_allclose(ttft, ttft_simulated, rtol=1e-9)
    # While the first prompts come in, first tokens wait for the API server and last ones do not:
    # intervals are a little shorter than the steps, most where short steps meet many long prompts.
    off = np.abs(tpot / tpot_simulated - 1)
    assert np.median(off) < 1e-3
    assert off.mean() < 3e-3
    assert off.max() < 0.03


@pytest.mark.parametrize(
    ("steps", "server"), [(1.3, 1.0), (0.8, 1.0), (2.0, 1.0), (1.0, 2.0), (1.3, 2.0)]
)
def test_with_other_coefficients_they_are_close(measured_rows, steps, server):
    linear, simulated = both(measured_rows, steps * PRIOR_BETA, server * PRIOR_ALPHA)
    tpot, ttft = (np.abs(a / b - 1) for a, b in zip(linear, simulated, strict=True))
    assert np.median(tpot) < 5e-3
    # A slower server spreads prompts over more steps, and each of these waits for launching.
    assert tpot.mean() < (0.01 if server == 1 else 0.012)
    assert np.median(ttft) < 0.05
    assert ttft.mean() < 0.07


def test_every_coefficient_only_adds_time(measured_rows):
    assert (measured_rows.tpot_features >= 0).all()
    assert (measured_rows.ttft_features >= 0).all()
    assert (measured_rows.request_features >= 0).all()
    assert (measured_rows.tpot_floor_s > 0).all()
    # The lower bound is that of the steps, and a TTFT has at least one step.
    assert (measured_rows.ttft_floor_s >= 0.5 * measured_rows.tpot_floor_s).all()
    assert (measured_rows.tpot_features @ PRIOR_BETA > measured_rows.tpot_floor_s).all()


def test_what_a_server_does_at_once_is_waited_for_less_than_once(measured_rows):
    """Check that the rest of TTFT is at most 0: work while the engine works costs no time."""
    assert (measured_rows.ttft_offset_s < 1e-6).all()


def test_a_faster_server_and_faster_steps_make_ttft_shorter(rows):
    deployments = len(rows.deployments)
    of = [
        simulate_rows(
            rows,
            np.tile(s * PRIOR_BETA, (deployments, 1)),
            np.tile(a * PRIOR_ALPHA, (deployments, 1)),
        )
        for s, a in ((1, 1), (1.2, 1), (1, 1.5))
    ]
    usual, slower_steps, slower_server = (each.ttft_s for each in of)
    assert (slower_steps > usual).all()
    # A request that arrives later may catch an earlier step: the mean tells, not each row.
    assert slower_server.mean() > usual.mean()
    assert (slower_server > 0.95 * usual).all()


def test_deployments_are_shared_and_models_weigh_by_the_root_of_their_rows(rows):
    assert len(rows) == len(FIVE)
    assert len(rows.deployments) == 4
    assert rows.weight.mean() == pytest.approx(1)
    # 3 and 2 rows of two models, each weighted by 1 / sqrt(count).
    assert rows.weight[0] / rows.weight[3] == pytest.approx((2 / 3) ** 0.5)
    assert len(model_weights([])) == 0


def test_taken_rows_are_what_they_were(rows):
    keep = np.array([True, False, True, False, True])
    taken = rows.take(keep)
    assert taken.row_id == tuple(np.array(rows.row_id)[keep])
    assert set(taken.deployments) < set(rows.deployments)
    places = np.flatnonzero(keep)
    assert [taken.deployments[i] for i in taken.deployment] == [
        rows.deployments[rows.deployment[i]] for i in places
    ]
    np.testing.assert_array_equal(taken.tpot_features, rows.tpot_features[keep])
    np.testing.assert_array_equal(taken.ttft_s, rows.ttft_s[keep])
    assert taken.weight.mean() == pytest.approx(1)


def test_rows_are_simulated_once(rows, monkeypatch):
    monkeypatch.setattr("pinn.training.serving_rows.map_runs", None)
    again = serving_rows(observations())
    np.testing.assert_array_equal(again.ttft_features, rows.ttft_features)
    with pytest.raises(TypeError):
        serving_rows(observations().assign(prompt_tokens=257))
