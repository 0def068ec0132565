"""Selections: no look at measured times, every region, the more informative first."""

from dataclasses import replace

import numpy as np
import pytest
from calibration_rows import BASE, intervals

from pinn.server.calibration.calibrate import SELECTIONS, regions, select


@pytest.mark.parametrize("how", SELECTIONS)
def test_measured_times_play_no_part(how: str) -> None:
    rows = intervals(BASE)
    shuffled = replace(rows, seconds=np.random.default_rng(3).permutation(rows.seconds))
    chosen = select(how, rows, BASE, 30, seed=5)
    assert np.array_equal(chosen, select(how, shuffled, BASE, 30, seed=5))
    assert len(np.unique(chosen)) == 30


@pytest.mark.parametrize("how", SELECTIONS)
def test_a_budget_beyond_the_candidates_takes_all(how: str) -> None:
    rows = intervals(BASE, 12)
    assert select(how, rows, BASE, 99, seed=0).tolist() == list(range(12))


def test_every_region_is_chosen_from_before_any_is_exhausted() -> None:
    rows = intervals(BASE, 1000)
    region = regions(rows)
    present = np.unique(region)
    chosen = select("active", rows, BASE, len(present), seed=0)
    assert sorted(region[chosen]) == sorted(present)


def test_active_learns_more_than_random() -> None:
    """The determinant of the information about relative offsets, which D-optimal design grows."""
    rows = intervals(BASE, 1000)
    relative = rows.features * BASE / (rows.features @ BASE)[:, None]

    def information(chosen: np.ndarray) -> float:
        u = relative[chosen] / 0.01
        return np.linalg.slogdet(np.eye(u.shape[1]) + u.T @ u)[1]

    active = information(select("active", rows, BASE, 25, seed=0))
    random = [information(select("random", rows, BASE, 25, seed)) for seed in range(10)]
    assert active > max(random)


def test_one_measurement_tells_a_coefficient_to_within_the_noise_of_an_interval() -> None:
    """Two intervals of one feature alone, and one with equal shares of all N features.

    Offsets have a variance of 0.25. The first leaves 0.25 x 0.0001 / 0.2501 = 0.0001 of its own,
    which is all that the second would gain; the third gains 0.25 (N - 1) / N^2, about 0.007.
    """
    some = intervals(BASE, 3)
    features = np.where(BASE > 0, 1 / np.where(BASE > 0, BASE, 1.0), 0.0)[None].repeat(3, axis=0)
    first = np.flatnonzero(BASE)[0]
    features[:2] = np.eye(len(BASE))[first] / BASE[first]
    alike = np.zeros(3)
    rows = replace(some, features=features, queue_share=alike, kv_usage=alike)
    assert select("active", rows, BASE, 2, seed=0).tolist() == [0, 2]
