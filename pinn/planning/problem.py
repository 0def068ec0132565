"""Planning problem: a load with its random requests, an SLO, and prices."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int

from pinn.engines.deployment import Deployment
from pinn.engines.recipe import unread_notice
from pinn.errors import PinnError
from pinn.planning.plan import AskedRate, PlanRequest, PlanSummary
from pinn.planning.prices import Price
from pinn.simulator.slo import Slo
from pinn.simulator.workloads.load import Load
from pinn.simulator.workloads.rates import at_rate, mean_rate_per_s, repeated, thinned
from pinn.simulator.workloads.workload import Workload
from pinn.surrogate.encoder_time import media_notice
from pinn.surrogate.uncertainty.distance import served_gpus

#: Minimum number of requests in a simulation, because fewer yield inaccurate percentiles. If a
#: replica's share of the load is smaller, it receives this many requests at its share's rate. A
#: load with fewer requests is repeated.
LEAST_REQUESTS = 2000
#: Maximum number of requests up to which a load is repeated. Loads are repeated if they are short,
#: and at rates above the requested rate, to preserve their duration.
MOST_REPEATED = 10_000
#: Duration, in seconds, of a load for which flags set neither duration nor number of requests.
_DURATION_S = 600.0
#: Number of random seeds with which the load is generated, to compare the resulting maximum rates.
_DRAWS = 5


@dataclass(frozen=True)
class ReplicaLoad:
    """Load of one replica at any rate, with common random numbers at all rates.

    For a lower rate, requests are removed in a fixed random order, one conversation after another.
    The requests at a lower rate are therefore a subset of those at a higher rate, at the same
    times. Once the minimum or maximum number of requests is reached, all times between requests are
    scaled by a common factor instead.

    Attributes:
        workload: Whole load.
        rate_per_s: Mean rate of the whole load.
        order: Rank of each request in the removal order; requests with low ranks are removed last.
        least: Minimum number of requests that are sent.
        most: Maximum number of requests that are sent.
    """

    workload: Workload
    rate_per_s: float
    order: Int[np.ndarray, " n"]
    least: int
    most: int

    def at(self, rate_per_s: float) -> Workload:
        """Return the requests that one replica receives at a mean rate in requests/s."""
        count = round(len(self.workload) * rate_per_s / self.rate_per_s)
        count = min(max(count, self.least), self.most)
        if count > len(self.workload):
            return at_rate(repeated(self.workload, count), rate_per_s)
        return at_rate(thinned(self.workload, self.order < count), rate_per_s)


def replica_load(
    workload: Workload, seed: int, most: int | None = None, *, keep_all: bool = False
) -> ReplicaLoad:
    """Return the load of one replica, from which loads at lower rates are derived.

    Args:
        workload: Whole load, at the requested rate or else at the file's rate.
        seed: Seed of the random order in which requests are removed.
        most: Maximum number of requests to send, for screening; None for no limit.
        keep_all: Whether lower rates keep all requests, up to ``most``, and only spread them out
            over time.
    """
    count = len(workload)
    order = _order_kept(workload, np.random.default_rng(seed))
    most = max(count, MOST_REPEATED) if most is None else most
    least = min(max(LEAST_REQUESTS, count if keep_all else 0), most)
    return ReplicaLoad(workload, mean_rate_per_s(workload), order, least, most)


def _order_kept(workload: Workload, rng: np.random.Generator) -> Int[np.ndarray, " n"]:
    """Return each request's rank in the random removal order of whole conversations."""
    sizes = np.bincount(workload.conversations)
    rank = rng.permutation(len(sizes))
    begins = np.cumsum(sizes[np.argsort(rank)]) - sizes[np.argsort(rank)]
    order: Int[np.ndarray, " n"] = begins[rank][workload.conversations] + workload.turns
    return order


@dataclass(frozen=True)
class PlanningProblem(AskedRate):
    """Load to serve, with all data needed to plan for it.

    Attributes:
        draws: Loads at the requested rate, one for each seed; the first has the user's seed.
        rate_per_s: Total rate to serve in requests/s; None if only the frontier is requested.
        slo: Limits to meet.
        checkpoint: Checkpoint of the network, whose intervals describe prediction errors.
        prices: Price by GPU; empty to rank by the number of GPUs.
        max_gpus: Maximum number of GPUs; None for no limit.
        load: Path or flags from which the requests are generated.
        headroom: Share by which the load may exceed ``rate_per_s``.
        gpus: Names of the requested GPUs; empty for the GPUs of the candidates.
        least_replicas: Minimum number of replicas of a fleet, without spare replicas.
        spare_replicas: Number of replicas of a fleet beyond those that meet the SLO.
        min_probability: Minimum probability of meeting the SLO, from 0 to 1; None for any.
    """

    draws: Sequence[Workload]
    rate_per_s: float | None
    slo: Slo
    checkpoint: Path
    prices: Mapping[str, Price]
    max_gpus: int | None
    load: Load
    headroom: float = 0.0
    gpus: Sequence[str] = ()
    least_replicas: int = 1
    min_probability: float | None = None
    spare_replicas: int = 0

    @cached_property
    def sized_for(self) -> Workload:
        """Load that a fleet must sustain: the requested rate plus the headroom."""
        if not self.headroom or self.sized_rate_per_s is None:
            return self.workload
        return self.load.draw(self.sized_rate_per_s)

    @property
    def workload(self) -> Workload:
        """Load generated at the requested rate with the user's seed."""
        return self.draws[0]

    def replica_load(self, seed: int = 0, most: int | None = None) -> ReplicaLoad:
        """Return the load of one replica; ``seed`` is an index of ``draws``."""
        return replica_load(self.draws[seed], seed, most, keep_all=self.rate_per_s is None)

    def price_per_hour(self, gpu: str, gpus: int) -> float | None:
        """Return the price per hour of ``gpus`` GPUs of type ``gpu``; None if it is unknown."""
        return self.prices[gpu].per_hour * gpus if gpu in self.prices else None

    def summary(self, deployments: Sequence[Deployment]) -> PlanSummary:
        """Return the summary of the user's request, which is part of the plan.

        Args:
            deployments: Deployments of the candidates.
        """
        gpus = sorted({*self.gpus, *(deployment.gpu.name for deployment in deployments)})
        load = self.workload
        servings = dict.fromkeys(deployment.serving for deployment in deployments)
        notices = [unread_notice(each.engine, each.engine_version) for each in servings]
        if self.load.media is not None:
            notices.append(media_notice(self.load.media))
        return PlanSummary(
            model=deployments[0].model.title,
            workload=self.load.title,
            requests=len(load),
            prompt_tokens=float(load.prompt_tokens.mean()),
            output_tokens=float(load.output_tokens.mean()),
            longest_tokens=int((load.prompt_tokens + load.output_tokens).max()),
            rate_per_s=self.rate_per_s,
            slo=self.slo.text,
            limits=self.slo.sentences,
            gpus=gpus,
            max_gpus=self.max_gpus,
            prices_per_gpu_hour={gpu: price.per_hour for gpu, price in self.prices.items()},
            purchases={gpu: price.origin for gpu, price in self.prices.items() if price.origin},
            notices=list(dict.fromkeys(filter(None, notices))),
            headroom=self.headroom,
            least_replicas=self.least_replicas,
            spare_replicas=self.spare_replicas,
            min_probability=self.min_probability,
            unmeasured_gpus=self._unmeasured(gpus),
        )

    def _unmeasured(self, gpus: Sequence[str]) -> list[str]:
        """Return the GPUs without serving data in the network's training data."""
        try:
            served = served_gpus(self.checkpoint)
        except PinnError:  # the checkpoint does not say what it was trained on
            return []
        return [gpu for gpu in gpus if gpu not in served]


def check_sizes(request: PlanRequest, least_replicas: int) -> None:
    """Check that headroom, minimum replicas and minimum probability are given only with a rate.

    Raises:
        PinnError: If a headroom, a minimum of more than one replica, or a minimum probability is
            given without a rate, or if the probability is not above 0 and at most 1.
    """
    probability = request.min_probability
    if probability is not None and not 0 < probability <= 1:
        raise PinnError(
            f"--min-probability must be above 0 and at most 1, such as 0.9, got {probability:g}"
        )
    given = ["--headroom"] * (request.headroom > 0) + ["--replicas"] * (least_replicas > 1)
    given += ["--spare-replicas"] * (request.spare_replicas > 0)
    given += ["--min-probability"] * (probability is not None)
    if given and request.rate is None:
        raise PinnError(f"{given[0]} needs --rate: give --rate, or omit {given[0]}")


def draw_load(load: Load, rate_per_s: float | None) -> tuple[Load, list[Workload]]:
    """Generate a load with several seeds; by default, a load from flags lasts ten minutes.

    Args:
        load: Load to generate.
        rate_per_s: Mean rate in requests/s; None for a file's own rate.

    Returns:
        Load whose duration is set, and one set of requests per seed.

    Raises:
        PinnError: If the rate is not positive and finite, or the load cannot be generated.
    """
    if rate_per_s is not None and not 0 < rate_per_s < math.inf:
        raise PinnError(f"--rate must be positive and finite, got {rate_per_s:g} requests/s")
    if load.path is None and not {"num_prompts", "duration"} & set(load.flags.given):
        load = replace(load, flags=replace(load.flags, duration=_DURATION_S))
    # A load from flags has no rate of its own. Generate it at any rate, because it is later
    # rescaled to each simulated rate.
    drawn_at = 1.0 if rate_per_s is None and load.path is None else rate_per_s
    seeds = [load.seed, *((load.seed or 0) + 1000 + i for i in range(1, _DRAWS))]
    draws = [load.draw(drawn_at, seed) for seed in seeds]
    mean_rate_per_s(draws[0])  # raises an error for a load without a rate
    return load, draws
