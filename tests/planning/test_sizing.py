"""How many replicas are worth most, of made-up fleets whose chance is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.planning.interval import Interval
from pinn.planning.sizing import fewest_replicas, worth_most
from pinn.planning.trial import Misjudged
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.synthetic import open_loop
from pinn.trust.chance import normal_law

LAW = normal_law()
INTERVAL = Interval(Misjudged(step=1.0), 0.9, LAW)
LOAD = open_loop([Stage(1.0, 20.0)], 10, 10, seed=0)


@dataclass
class MadeUp:
    """Replicas whose times are by so much below their limit as there are more than needed."""

    needed: int
    steepness: float
    misjudged: Misjudged = field(default_factory=Misjudged)
    count: int = 0
    candidate = SimpleNamespace(gpus=1, engine=SimpleNamespace(data_parallel_routing="round_robin"))

    def fleet_excess(self, _workload, replicas, _routing):
        return 1 + self.misjudged.step - self.margin(replicas)

    def fleet(self, _workload, replicas, _routing):
        return replicas

    def excess_of(self, replicas):
        return 1 + self.misjudged.step - self.margin(replicas)

    def point(self, *_):
        return None

    def margin(self, replicas):
        """The largest error that so many replicas hold."""
        return self.steepness * (replicas / self.needed - 1)

    def chance(self, replicas):
        return sum(error <= self.margin(replicas) for error in LAW.errors) / len(LAW.errors)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.floats(0.1, 20))
def test_the_number_of_replicas_is_the_one_worth_most_of_all(needed, steepness):
    trials = MadeUp(needed, steepness)
    brief = SimpleNamespace(rate_per_s=10.0, workload=LOAD, max_gpus=None)
    fewest = fewest_replicas(trials, 10.0 / needed, brief)
    assert fewest.replicas == needed
    found = worth_most(fewest, trials, INTERVAL, brief)
    assert found.chance == trials.chance(found.replicas)
    of_all = max(trials.chance(n) / n for n in range(needed, 4 * needed + 1))
    assert found.worth >= of_all * (1 - 1e-12)
