"""Selections: no look at measured times, every region, the more informative first."""

from dataclasses import replace

import numpy as np
import pytest
from calibration_rows import BASE, intervals

from pinn.training.calibration.selection import SELECTIONS, regions, select


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
