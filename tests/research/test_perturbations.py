"""Rows with something wrong: only that is wrong, and methods meet it as they would meet rows."""

from dataclasses import dataclass

import numpy as np
import pytest
from serving_cases import FIVE, observations, with_times

from pinn.evaluation.methods import Roofline
from pinn.kernels.exclusion import Exclusion
from pinn.research.perturbations import (
    Duplicates,
    HalfMissing,
    Noise,
    OneModelOnly,
    Perturbed,
    repeated,
    wrong_bandwidth,
)
from pinn.training.serving_rows import PRIOR_ALPHA, PRIOR_BETA, serving_rows
from pinn.training.simulated_rows import simulate_rows


@pytest.fixture(scope="module")
def rows():
    found = serving_rows(observations())
    return with_times(found, np.linspace(0.01, 0.05, 5), np.linspace(0.1, 0.5, 5))


def test_noise_changes_the_measurements_alone(rows):
    noisy = Noise(0.2, seed=1)(rows)
    assert noisy.row_id == rows.row_id
    ratios = np.concatenate([noisy.tpot_s / rows.tpot_s, noisy.ttft_s / rows.ttft_s])
    assert len(set(ratios.round(12))) == 10
    assert 0.05 < np.log(ratios).std() < 0.4
    np.testing.assert_array_equal(noisy.tpot_features, rows.tpot_features)
    np.testing.assert_array_equal(Noise(0.2, seed=1)(rows).tpot_s, noisy.tpot_s)
    assert not np.array_equal(Noise(0.2, seed=2)(rows).tpot_s, noisy.tpot_s)


def test_repeated_rows_are_the_rows_by_number(rows):
    index = np.array([4, 0, 0, 2])
    found = repeated(rows, index)
    assert found.row_id == tuple(np.array(rows.row_id)[index])
    np.testing.assert_array_equal(found.tpot_s, rows.tpot_s[index])
    np.testing.assert_array_equal(found.ttft_features, rows.ttft_features[index])
    assert [found.deployments[i] for i in found.deployment] == [
        rows.deployments[rows.deployment[i]] for i in index
    ]
    # Three rows of one model and one of another.
    assert found.weight[0] / found.weight[1] == pytest.approx(3**0.5)


def test_one_deployment_in_four_counts_five_times(rows):
    found = Duplicates(5)(rows)
    names, counts = np.unique(found.row_id, return_counts=True)
    assert set(names) == set(rows.row_id)
    assert set(counts) == {1, 5}
    of_name = dict(zip(rows.row_id, rows.deployment, strict=True))
    assert len({of_name[name] for name in names[counts == 5]}) == 1


def test_missing_deployments_and_models_are_gone_whole(rows):
    half = HalfMissing(seed=3)(rows)
    assert len(half.deployments) == 2
    kept = np.isin(rows.row_id, half.row_id)
    assert len(set(rows.deployment[kept]) & set(rows.deployment[~kept])) == 0
    alone = OneModelOnly()(rows)
    assert {d.model.name for d in alone.deployments} == {rows.deployments[0].model.name}
    assert len(alone) == 3


@pytest.fixture(scope="module")
def slower(rows):
    return wrong_bandwidth(observations(), 0.8)(rows)


def test_a_wrong_datasheet_is_wrong_everywhere(rows, slower):
    """In what the network sees, in the sums and in what is simulated; not in what was measured."""
    bandwidth = rows.deployments[0].gpu.memory_bandwidth_bytes_per_s
    for deployments in (slower.deployments, [m.deployment for m in slower.measured]):
        assert {d.gpu.memory_bandwidth_bytes_per_s for d in deployments} == {0.8 * bandwidth}
    for wrong, right in zip(slower.measured, rows.measured, strict=True):
        assert wrong.served.gpu == wrong.deployment.gpu
        assert wrong.served.serving == right.served.serving
        assert wrong.workload is right.workload
    np.testing.assert_array_equal(slower.tpot_s, rows.tpot_s)
    assert (slower.tpot_floor_s > rows.tpot_floor_s).all()
    assert slower.row_id == rows.row_id


def test_less_bandwidth_makes_simulated_times_longer(rows, slower):
    found, wrong = (
        simulate_rows(
            of,
            np.tile(PRIOR_BETA, (len(of.deployments), 1)),
            np.tile(PRIOR_ALPHA, (len(of.deployments), 1)),
        )
        for of in (rows, slower)
    )
    assert (wrong.tpot_s > found.tpot_s).all()
    # The sums say how much longer.
    expected = (slower.tpot_features @ PRIOR_BETA) / (rows.tpot_features @ PRIOR_BETA)
    np.testing.assert_allclose(wrong.tpot_s / found.tpot_s, expected, rtol=0.03)


@dataclass(frozen=True)
class Seen(Roofline):
    """The roofline; remembers what it learned from."""

    def learn(self, train, exclude, folder):
        seen.append(train)
        return super().learn(train, exclude, folder)


seen: list = []


def test_a_method_learns_from_changed_rows_and_predicts_whole_ones(rows, tmp_path):
    method = Perturbed("half", Seen(), train=HalfMissing())
    tpot, _ = method.learn(rows, Exclusion(), tmp_path)(rows)
    assert len(seen[-1]) < len(rows) == len(FIVE)
    np.testing.assert_array_equal(tpot, rows.tpot_floor_s)
    plain = Perturbed("test", Seen(), test=HalfMissing())
    assert plain.logs == Seen().logs
    assert method.logs != Seen().logs
