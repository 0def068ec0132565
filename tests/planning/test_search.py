"""The highest rate of made-up replicas whose crossing is known."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.planning.search import WIDTH, highest_rate


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
