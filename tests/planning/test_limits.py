"""Limits of an SLO: how they are written, when they are met, and when they are surely missed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.errors import PinnError
from pinn.simulator.slo import parse_slo

NO_GAPS = (np.zeros(0), np.zeros(0, np.int64))


def latencies(rng, n):
    found = {name: rng.exponential(1.0, n) for name in ("ttft", "tpot", "e2e")}
    found["tpot"][rng.random(n) < 0.1] = np.nan
    lost = rng.random(n) < 0.05
    return {name: np.where(lost & ~np.isnan(v), np.inf, v) for name, v in found.items()}


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("p99 ttft<=2s", ["p99 TTFT <= 2 s"]),
        ("e2e mean < 90s", ["mean E2E <= 90 s"]),
        ("ttft<=500ms for 90%", ["90 % of the requests: TTFT <= 500 ms"]),
        ("p50 itl <= 0.02s, TTFT <= 1s, tpot <= 40ms for 99.5 %",
         ["p50 ITL <= 20 ms", "99.5 % of the requests: TTFT <= 1 s and TPOT <= 40 ms"]),
        ("ttft:1000 e2el:9000 for 95 %", ["95 % of the requests: TTFT <= 1 s and E2E <= 9 s"]),
        ("ttft=1s, tpot = 50 for 95 %", ["95 % of the requests: TTFT <= 1 s and TPOT <= 50 ms"]),
    ],
)  # fmt: skip
def test_limits_are_read(text, sentences):
    assert parse_slo(text).sentences == sentences


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no limit"),
        ("ttft<=1s", "has neither a statistic nor a share"),
        ("p99 ttft<=1s for 95 %", "has both a statistic and a share"),
        ("ttft<=1 for 95 %", "no known unit"),
        ("speed<=1s for 95 %", "unknown metric 'speed'"),
        ("p101 ttft<=1s", "percentile must be above 0 and at most 100, got p101"),
        ("itl<=10ms for 95 %", "many values per request"),
        ("ttft<=0s for 95 %", "must be above 0"),
        ("ttft<=1s for 195 %", "at most 100 %"),
        ("ttft>1s for 95 %", "has the unreadable limit 'ttft>1s'"),
        ("ttft<=1s for 95 %; tpot<=1s for 90 %", "two shares"),
    ],
)
def test_what_cannot_be_read_is_refused_with_how_to_write_it(text, says):
    with pytest.raises(PinnError, match=says):
        parse_slo(text)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 60), st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_limits_are_held_exactly_where_enough_requests_meet_them(seed, n, share):
    found = latencies(np.random.default_rng(seed), n)
    limits = parse_slo(f"ttft<=2s, tpot<=1500ms for {100 * share} %")
    meets = (found["ttft"] <= 2) & ~(found["tpot"] > 1.5)
    assert (limits.excess(found, NO_GAPS) <= 1) == (meets.sum() >= share * n - 1e-9)
    assert (limits.met(found) == meets & np.isfinite(found["e2e"])).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 60), st.sampled_from([50, 90, 99]))
def test_percentiles_are_numpys(seed, n, percent):
    values = np.random.default_rng(seed).exponential(1.0, n)
    found = {"ttft": values, "tpot": values, "e2e": values}
    excess = parse_slo(f"p{percent} ttft<=1s").excess(found, NO_GAPS)
    assert excess == pytest.approx(np.percentile(values, percent))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 60), st.floats(0.3, 4))
def test_nothing_that_holds_is_given_up(seed, n, limit):
    rng = np.random.default_rng(seed)
    found = latencies(rng, n)
    for text in ("p95 ttft<={}s", "mean e2e<={}s", "p50 tpot<={}s", "ttft<={}s for 90 %"):
        limits = parse_slo(text.format(limit))
        least = {name: v * rng.random(n) for name, v in found.items()}
        least = {k: np.where(np.isinf(found[k]), found[k], v) for k, v in least.items()}
        if limits.is_missed(least, n):
            assert limits.excess(found, NO_GAPS) > 1
        if limits.excess(found, NO_GAPS) <= 1:
            assert not limits.is_missed(found, n)


def test_outcomes_say_value_limit_and_whether_it_is_met():
    """Requests that were not served meet no limit, and count among all of them."""
    slo = parse_slo("p95 ttft<=1s; mean e2e<=20s; ttft<=1s, tpot<=40ms for 95 %")
    served = np.linspace(0.1, 0.9, 95)
    unserved = np.full(5, np.inf)
    seconds = {
        "ttft": np.concatenate([served, unserved]),
        "tpot": np.concatenate([np.full(95, 0.02), unserved]),
        "e2e": np.concatenate([np.full(95, 3.0), unserved]),
    }
    gaps = np.array([0.02]), np.array([1])
    p95, mean, share = slo.outcomes(seconds, gaps)
    assert (p95.what, p95.bound) == ("p95 TTFT", "<= 1 s")
    assert p95.seconds is None or p95.seconds > 0.8
    assert (mean.seconds, mean.met, mean.value) == (None, False, "-")
    assert (share.share, share.met, share.value) == (0.95, True, "95.0 %")
    assert share.what == "95 % of requests"
    worst = max(np.inf if each.excess is None else each.excess for each in (p95, mean, share))
    assert slo.excess(seconds, gaps) == worst
    assert slo.asked_statistics == ["p95", "mean", "p95"]
