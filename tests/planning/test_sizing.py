"""Numbers of replicas, their joint rates and probabilities, for made-up fleets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import NormalDist
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.planning import fleet
from pinn.planning.fleet import (
    BAR_WIDTH,
    FleetSize,
    PredictionInterval,
    chance_to_hold,
    fewest_replicas,
    fleet_rate,
    may_do_with_fewer,
    with_probability,
)
from pinn.planning.plan import Fleet, HighestRate, Point
from pinn.planning.time_budget import UNLIMITED, TimeBudget
from pinn.planning.trials import ErrorScenario
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.workload import open_loop
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE, ErrorLaw

#: Twenty equally likely normal errors, 90 % of which are inside the interval.
NORMAL = NormalDist(0, 1 / NORMAL_QUANTILE)
LAW = ErrorLaw([NORMAL.inv_cdf((share + 0.5) / 20) for share in range(20)])
INTERVAL = PredictionInterval(ErrorScenario(step=1.0), 0.9, LAW)
#: Highest rate of one replica alone, in requests/s.
ALONE = 5.0
LOAD = open_loop([Stage(1.0, 20.0)], 10, 10, seed=0)


@dataclass
class MadeUp:
    """Replicas whose times are below their limit in proportion to replicas beyond the need."""

    needed: int
    steepness: float
    scenario: ErrorScenario = field(default_factory=ErrorScenario)
    is_burst: bool = False
    budget: TimeBudget = UNLIMITED
    candidate = SimpleNamespace(
        gpus=1, engine=SimpleNamespace(router=None, data_parallel_routing="round_robin")
    )

    def under(self, scenario):
        return replace(self, scenario=scenario)

    def fleet_excess(self, _workload, replicas, router):  # noqa: ARG002
        return 1 + self.scenario.step - self.margin(replicas)

    def excess(self, rate, replicas=1, router=""):  # noqa: ARG002
        """Return an excess: together replicas sustain a tenth more than alone, slower ones less."""
        together = 1.1 * replicas if replicas > 1 else 1
        return rate / (together * ALONE * (1 - self.scenario.step / 3))

    def fleet(self, _workload, replicas, _routing):
        return replicas

    def excess_of(self, replicas):
        return 1 + self.scenario.step - self.margin(replicas)

    def point(self, *_):
        return Mock(spec=Point, is_burst=self.is_burst)

    def margin(self, replicas):
        """Return the largest error at which so many replicas meet the SLO."""
        return self.steepness * (replicas / self.needed - 1)

    def chance(self, replicas):
        return sum(error <= self.margin(replicas) for error in LAW.errors) / len(LAW.errors)


def problem(rate_per_s=10.0, headroom=0.0, least_replicas=1):
    return SimpleNamespace(
        rate_per_s=rate_per_s, workload=LOAD, sized_for=LOAD, headroom=headroom, max_gpus=None,
        draws=[LOAD], least_replicas=least_replicas, sized_rate_per_s=rate_per_s * (1 + headroom),
        min_probability=None, checkpoint=None,
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.floats(0.1, 20))
def test_as_few_replicas_as_hold_are_rented_and_how_likely_is_counted(needed, steepness):
    trials = MadeUp(needed, steepness)
    found = fewest_replicas(trials, 10.0 / needed, problem())
    assert found.replicas == needed
    more = replace(found, replicas=needed + 3)
    chance, holds_at_bad_end = chance_to_hold(more, trials, INTERVAL, LOAD)
    assert chance == trials.chance(needed + 3)
    assert holds_at_bad_end == (trials.margin(needed + 3) >= 1)


def test_headroom_takes_the_replicas_of_the_higher_rate():
    """Five replicas meet the limits at the asked rate, and seven at 1.4 times that."""

    @dataclass
    class AtRates(MadeUp):
        def fleet(self, workload, replicas, _router, **_):
            return replicas if workload is LOAD else replicas / 1.4

    asked = problem()
    trials = AtRates(5, 1.0)
    assert fewest_replicas(trials, 2.0, asked).replicas == 5
    asked = problem(headroom=0.4)
    asked.sized_for = None
    assert fewest_replicas(trials, 2.0, asked).replicas == 7


@pytest.mark.parametrize(("one_per_s", "replicas"), [(20.0, 1), (17.9, 2)])
def test_a_fleet_with_headroom_reaches_its_rate_in_the_search_for_the_highest(one_per_s, replicas):
    """The requests of the asked rate alone would do with one replica of 17.9 requests/s."""

    @dataclass
    class Searched(MadeUp):
        def excess(self, rate, replicas=1, router=""):  # noqa: ARG002
            return rate / (one_per_s * replicas)

    asked = problem(12.0, headroom=0.5)
    assert fewest_replicas(Searched(1, 1.0), one_per_s, asked).replicas == replicas
    assert fewest_replicas(Searched(1, 1.0), one_per_s, problem(18.0)).replicas == 1


def test_no_fleet_has_fewer_replicas_than_asked():
    for least, replicas in ((1, 3), (2, 3), (5, 5)):
        asked = problem(least_replicas=least)
        assert fewest_replicas(MadeUp(3, 1.0), 4.0, asked).replicas == replicas
        assert not may_do_with_fewer(least, MadeUp(1, 1.0), asked)
    assert may_do_with_fewer(6, MadeUp(3, 1.0), problem(least_replicas=5))


def test_a_fleet_at_the_edge_has_replicas_for_other_seeds_of_the_load():
    """Five replicas meet the limits with one seed and six with all; nine would be too many."""

    @dataclass
    class OfSeeds(MadeUp):
        def fleet_excess(self, workload, replicas, router):
            needed = {"second": 5, "third": 6, "fourth": 9}[workload]
            return super().fleet_excess(workload, replicas * self.needed / needed, router)

    asked, trials = problem(), OfSeeds(5, 1.0)
    for draws, replicas in ((["second"], 5), (["second", "third"], 6), (["fourth"], 5)):
        asked.draws = [LOAD, *draws]
        assert fewest_replicas(trials, 2.0, asked).replicas == replicas
    asked = problem(headroom=0.1)  # headroom is what other seeds take
    asked.draws = [LOAD, "third"]
    assert fewest_replicas(trials, 2.0, asked).replicas == 5


def test_fewer_than_one_by_one_are_not_taken_on_the_word_of_a_burst():
    """Two replicas survive a load that ends before they are full; one by one five are needed."""
    assert fewest_replicas(MadeUp(2, 1.0), 2.0, problem()).replicas == 3  # at least half as many
    assert fewest_replicas(MadeUp(2, 1.0, is_burst=True), 2.0, problem()).replicas == 5


@pytest.mark.parametrize(("replicas", "holds"), [(1, ALONE), (6, 1.1 * 6 * ALONE)])
def test_a_fleet_s_rate_is_of_all_its_replicas_with_both_ends(replicas, holds):
    one = HighestRate(ALONE, 1.01 * ALONE)
    found = fleet_rate(FleetSize(replicas), MadeUp(1, 1.0), one, INTERVAL, problem())
    bad, good = found.interval_per_s
    assert found.per_s == pytest.approx(holds, rel=BAR_WIDTH)
    assert bad == pytest.approx(holds * 2 / 3, rel=BAR_WIDTH)
    assert good == pytest.approx(holds * 4 / 3, rel=BAR_WIDTH)
    assert (
        fleet_rate(FleetSize(replicas), MadeUp(1, 1.0), one, None, problem()).interval_per_s is None
    )


def test_the_bad_end_is_at_least_the_asked_rate_where_that_is_held_there():
    """Bisection alone would end slightly below the asked rate."""
    asked = 4.4 * ALONE * (1 - 1e-3)  # 6 hold 6.6 x ALONE, two thirds of it at the bad end
    one = HighestRate(ALONE, 1.01 * ALONE)
    found = fleet_rate(FleetSize(6), MadeUp(1, 1.0), one, INTERVAL, problem(asked))
    assert found.interval_per_s[0] >= asked


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.floats(1.0, 20), st.floats(0.05, 1.0))
def test_replicas_are_added_until_the_probability_is_reached_and_no_more(needed, steepness, least):
    trials = MadeUp(needed, steepness)
    asked = problem()
    asked.min_probability = least
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "interval_of", lambda *_: INTERVAL)
        found = FleetSize(needed, [Fleet("least-requests", trials.point())])
        size = with_probability(found, trials, asked)
    assert trials.chance(size.replicas) >= least - 1e-9
    assert size.replicas == needed or trials.chance(size.replicas - 1) < least


def test_no_fleet_beyond_the_gpus_that_may_be_rented_is_simulated():
    """Fifty replicas are needed and four may be rented, so a fleet of four decides."""
    tried = []

    @dataclass
    class Noted(MadeUp):
        def fleet(self, workload, replicas, router):
            tried.append(replicas)
            return super().fleet(workload, replicas, router)

    asked = problem()
    asked.max_gpus = 4
    assert fewest_replicas(Noted(50, 1.0), 0.2, asked) is None
    assert tried == [4]
    assert fewest_replicas(Noted(3, 1.0), 2.0, asked).replicas == 3


def test_other_seeds_are_tried_only_within_the_time_budget():
    @dataclass
    class Late(MadeUp):
        def fleet_excess(self, workload, replicas, router):
            self.budget.check()
            return super().fleet_excess(workload, replicas, router)

    asked = problem()
    asked.draws = [LOAD, LOAD]
    over = TimeBudget(0.0, 0.0)
    assert fewest_replicas(Late(5, 1.0), 2.0, asked, over).replicas == 5
