"""A load at another rate: laws of scaling and of dropping requests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.rates import at_rate, mean_rate_per_s, thinned
from pinn.simulator.workloads.workload import Workload, closed_loop, open_loop


def two_stages():
    return open_loop([Stage(4, 50), Stage(10, 50)], 100, 10)


def test_a_scaled_load_keeps_everything_but_its_clock():
    load = two_stages()
    faster = at_rate(load, 21.0)
    assert mean_rate_per_s(faster) == pytest.approx(21)
    factor = mean_rate_per_s(load) / 21
    assert faster.offset_s == pytest.approx(load.offset_s * factor)
    assert faster.stage_starts_s == pytest.approx(np.array(load.stage_starts_s) * factor)
    assert (faster.prompt_tokens == load.prompt_tokens).all()


def test_what_has_no_rate_is_refused():
    with pytest.raises(PinnError, match="closed loop of 4 clients, which has no rate"):
        mean_rate_per_s(closed_loop(4, 8, 10, 10))
    with pytest.raises(PinnError, match="all at the same time"):
        mean_rate_per_s(Workload("x", np.array([1, 1]), np.array([1, 1]), np.zeros(2)))
    with pytest.raises(PinnError, match="must be positive"):
        at_rate(two_stages(), 0.0)


def test_a_thinned_load_keeps_the_times_of_what_is_left():
    load = two_stages()
    kept = np.arange(len(load)) % 3 == 0
    left = thinned(load, kept)
    due = np.array(load.stage_starts_s)[load.stage] + load.offset_s
    assert np.array(left.stage_starts_s)[left.stage] + left.offset_s == pytest.approx(due[kept])


def test_a_stage_without_requests_left_goes():
    load = two_stages()
    left = thinned(load, load.stage == 1)
    assert left.stages == 1
    assert left.stage_starts_s == (load.stage_starts_s[1],)


def sequences(load):
    """A token sequence per request that agrees with its donor exactly as far as it shares."""
    found, fresh = [], iter(range(10**9))
    for r in range(len(load)):
        length = int(load.prompt_tokens[r] + load.output_tokens[r])
        donor = found[load.shares_with[r]] if load.shares_with[r] >= 0 else []
        common = donor[: min(int(load.shared_tokens[r]), length)]
        found.append([*common, *(next(fresh) for _ in range(length - len(common)))])
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_requests_left_share_no_more_than_they_did_and_as_much_with_one_of_those_before(seed):
    rng = np.random.default_rng(seed)
    n = 12
    load = Workload(
        "x", rng.integers(1, 12, n), rng.integers(1, 4, n), np.arange(n, dtype=float),
        shares_with=np.array([rng.integers(-1, i) for i in range(n)]),
        shared_tokens=rng.integers(0, 12, n),
    )  # fmt: skip
    kept = rng.random(n) < 0.6
    kept[rng.integers(n)] = True
    left, whole = thinned(load, kept), [s for s, k in zip(sequences(load), kept, strict=True) if k]

    def common(a, b):
        return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
                    min(len(a), len(b)))  # fmt: skip

    for r, sequence in enumerate(sequences(left)):
        most = max((common(whole[r], whole[e]) for e in range(r)), default=0)
        donor = left.shares_with[r]
        shared = 0 if donor < 0 else min(left.shared_tokens[r], len(sequence))
        shared = min(shared, len(whole[donor])) if donor >= 0 else 0
        assert shared <= most
        if donor >= 0:
            assert common(whole[r], whole[donor]) >= shared
