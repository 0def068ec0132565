"""Probability that a limit is met."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.surrogate.uncertainty.quantiles import ErrorLaw, error_law

EXCESS = np.geomspace(0.5, 2.0, 31)
LAWS = st.lists(st.floats(-3, 3), min_size=1, max_size=9).map(lambda x: ErrorLaw(tuple(x)))


@given(LAWS, st.floats(0.01, 0.5))
@settings(max_examples=30, deadline=None)
def test_a_tighter_limit_is_held_with_no_larger_chance(law, half):
    chance = law.chance(EXCESS, np.full(len(EXCESS), half))
    assert (np.diff(chance) <= 0).all()
    assert ((chance >= 0) & (chance <= 1)).all()


@given(LAWS, st.floats(-4, 4))
@settings(max_examples=30, deadline=None)
def test_trials_find_the_chance_that_a_formula_gives(law, worst):
    width = np.array([0.1])
    excess = np.exp(-0.1 * np.array([worst]))
    tried = law.held(lambda error: excess[0] * np.exp(0.1 * error) <= 1)
    assert tried == pytest.approx(law.chance(excess, width)[0])


def test_the_interval_of_normal_rows_holds_its_level():
    half, rows = np.array([0.2]), np.random.default_rng(0).normal(0, 1, 4000)
    for level in (0.5, 0.8, 0.9):
        quantile = NormalDist().inv_cdf((1 + level) / 2)
        law = error_law(rows, np.full(4000, quantile), np.ones(4000))
        inside = [law.chance(np.exp(end * half), half) for end in (-1, 1)]
        # The probability of meeting a limit is taken 1 half-width away at either end of the
        # interval.
        assert inside[0] - inside[1] == pytest.approx(level, abs=0.05)


def test_a_law_is_that_of_the_rows_in_their_own_half_widths():
    draw = np.random.default_rng(0)
    half = draw.uniform(0.05, 0.3, 4000)
    errors = half * draw.normal(0.3, 0.5, 4000)
    law = error_law(errors, half, np.ones(4000))
    assert np.mean(law.errors) == pytest.approx(0.3, abs=0.03)
    chance = law.chance(np.exp(-0.3 * half[:1]), half[:1])
    assert chance == pytest.approx([0.5], abs=0.06)
