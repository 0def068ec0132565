"""The highest rate of made-up replicas whose crossing is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.planning.rate_search import WIDTH, highest_rate, is_clear, settled_rate


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.01, 100), st.floats(0.1, 10), st.sampled_from([0.05, 1.0, 8.0, 200.0]),
    st.booleans(),
)  # fmt: skip
def test_the_crossing_is_found_within_the_width(crossing, off, power, gives_up):
    tried = []

    def excess(rate):
        tried.append(rate)
        found = min((rate / crossing) ** power, 1e300)
        return math.inf if gives_up and found > 1 else found

    low, high = highest_rate(excess, crossing * off)
    assert low <= crossing < high <= low * (1 + WIDTH) * (1 + 1e-12)
    assert len(tried) <= 30


def test_a_good_guess_takes_few_runs():
    tried = []

    def excess(rate):
        tried.append(rate)
        return (rate / 10) ** 3

    highest_rate(excess, 10.1, stride=1.03)
    assert len(tried) <= 5


def test_where_no_rate_holds_there_is_none():
    low, high = highest_rate(lambda _: 2.0, 5.0)
    assert low == 0
    assert high < 0.01


def test_where_every_rate_holds_no_end_is_told():
    low, high = highest_rate(lambda _: 0.5, 5.0)
    assert low > 1000
    assert high is None


def jagged(rate, width=0.05):
    """Return an excess that passes with a probability falling from 1 to 0 around 10 requests/s."""
    chance = 0.5 - math.log(rate / 10) / width
    drawn = np.random.default_rng(int(1e6 * rate)).random()
    return 0.9 if drawn < chance else 1.1


@settings(max_examples=30, deadline=None)
@given(st.floats(-0.025, 0.025))
def test_a_jagged_crossing_is_settled_wherever_a_search_came_upon_it(off):
    low, high = settled_rate(jagged, 10 * math.exp(off))
    assert jagged(low) <= 1 < jagged(high)
    assert low == pytest.approx(10, rel=0.03)


def test_only_a_jagged_crossing_is_settled():
    tried = []

    def sharp(rate):
        tried.append(rate)
        return rate / 10

    assert is_clear(sharp, 9.95, 10.05)
    assert len(tried) == 6
    assert not is_clear(lambda rate: 0.9 if 10.15 < rate < 10.2 else rate / 10, 9.95, 10.05)
    assert not is_clear(lambda rate: 1.1 if 9.8 < rate < 9.9 else rate / 10, 9.95, 10.05)


def test_a_sharp_crossing_is_settled_from_afar():
    for guess in (8.0, 10.0, 12.0):
        low, high = settled_rate(lambda rate: rate / 10, guess)
        assert low <= 10 < high <= low * (1 + WIDTH)


def test_nothing_is_settled_where_no_rate_holds_or_all_do():
    assert settled_rate(lambda _: 2.0, 5.0)[0] == 0
    low, high = settled_rate(lambda _: 0.5, 5.0)
    assert low > 5
    assert high is None
