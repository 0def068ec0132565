"""A whole look at the best candidates on one kind of hardware: the choice and all that is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from pinn.planning.bottleneck import limited_by, step_time_shares, time_shares
from pinn.planning.brief import Brief
from pinn.planning.candidates import Candidate, gpu_count
from pinn.planning.commands import serve_command, simulate_command
from pinn.planning.figures import latencies_s
from pinn.planning.interval import Interval
from pinn.planning.limits import Latencies
from pinn.planning.pick import Picked, pick
from pinn.planning.plan import Choice, HighestRate, LeftOut, Point
from pinn.planning.pools import PoolsCandidate
from pinn.planning.search import highest_rate
from pinn.planning.trial import Trials
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run

#: Rates of a choice's ladder, as shares of the highest that it holds.
_LADDER = (0.25, 0.5, 0.7, 0.85, 1.0, 1.1)
#: Width of the bisections behind an error bar.
_BAR_WIDTH = 0.02


@dataclass(frozen=True)
class Examined:
    """What a whole look found.

    Attributes:
        choice: None where nothing holds the limits with the GPUs there are.
        left_out: Candidates that are not the choice.
        simulations: Runs that it took.
    """

    choice: Choice | None
    left_out: Sequence[LeftOut]
    simulations: int


def examine(kept: Sequence[tuple[Candidate, float]], brief: Brief) -> Examined:
    """Pick the limits of the scheduler, size the fleet, and say how sure that is."""
    picked, left_out, simulations = pick(kept, brief)
    if picked is None:
        return Examined(None, left_out, simulations)
    choice = _choice(picked, brief)
    return Examined(choice, left_out, simulations + picked.trials.count)


def _choice(picked: Picked, brief: Brief) -> Choice:
    trials, rate, sized = picked.trials, picked.rate, picked.sized
    candidate, asked, share = trials.candidate, brief.rate_per_s, picked.share_per_s
    ladder, beyond = _ladder(trials, rate.per_s)
    rate = replace(rate, seeds_per_s=[rate.per_s, *_other_seeds(trials, rate.per_s, brief)])
    if picked.interval is not None:
        rate = _at_ends(trials, rate, picked.interval)
    gpus = sized.replicas * candidate.gpus
    at_rate = trials.point(picked.run, share, candidate.gpus)
    output_per_s = sized.replicas * share * float(brief.workload.output_tokens.mean())
    cost = brief.price_per_hour(candidate.deployment.gpu.name, gpus)
    deployment = candidate.deployment
    formats = {k: p.name for k, p in vars(deployment.model.precisions).items()}
    return Choice(
        label=candidate.label,
        engine=deployment.serving.engine,
        gpu=deployment.gpu.name,
        gpus_per_replica=candidate.gpus,
        replicas=sized.replicas,
        gpus=gpus,
        formats=formats | {"kv_cache": deployment.kv_cache_precision.name},
        flags=asdict(deployment.serving),
        coefficients=candidate.source,
        highest_rate=rate,
        utilization=None if asked is None else asked / (sized.replicas * rate.per_s),
        at_rate=at_rate,
        cost_per_hour=cost,
        cost_per_million_output_tokens=None if cost is None else cost / output_per_s / 3600 * 1e6,
        limited_by=_limited_by(candidate, beyond, brief),
        chance=sized.chance,
        safe=sized.safe,
        ladder=ladder,
        step_time=_mean_shares(step_time_shares, candidate, picked.run),
        limits_time=_mean_shares(time_shares, candidate, picked.run),
        fleets=sized.fleets,
        serve_command=serve_command(candidate),
        simulate_command=simulate_command(
            candidate,
            brief.path,
            share if asked is None else asked,
            sized.replicas,
            sized.fleets[-1].routing if sized.replicas > 1 else None,
            brief.seed,
        ),
        pools=candidate.pool_texts(sized.replicas)
        if isinstance(candidate, PoolsCandidate)
        else None,
    )


def _ladder(trials: Trials, rate_per_s: float) -> tuple[list[Point], Run]:
    """Runs at rising rates, and the last of them, beyond the limits."""
    points = []
    for share in _LADDER:
        run = trials.run(share * rate_per_s)
        points.append(trials.point(run, share * rate_per_s, trials.candidate.gpus))
    return points, run


def _other_seeds(trials: Trials, rate_per_s: float, brief: Brief) -> list[float]:
    """The highest rate of every other draw of the load."""
    found = []
    for seed in range(1, len(brief.draws)):
        other = Trials(trials.candidate, brief.replica_load(seed), brief.limits)
        found.append(
            highest_rate(other.excess, rate_per_s, stride=1 + _BAR_WIDTH, width=_BAR_WIDTH)[0]
        )
        trials.count += other.count
    return found


def _limited_by(candidate: Candidate, beyond: Run, brief: Brief) -> str:
    """Of prefill servers where the decode servers are not full and all but TTFT is held."""
    parts = candidate.parts(beyond)
    found = limited_by(*parts[-1])
    if found in ("KV memory", "seats") or brief.limits.excess(*_but_ttft(beyond)) > 1:
        return found
    return limited_by(*parts[0])


def _but_ttft(run: Run) -> tuple[Latencies, tuple[np.ndarray, np.ndarray]]:
    """Latencies and gaps as if first tokens came at once."""
    found = latencies_s(run)
    served = np.isfinite(found["e2e"])
    ttft = np.where(served, found["ttft"], 0.0)
    without = {**found, "ttft": found["ttft"] - ttft, "e2e": found["e2e"] - ttft}
    return without, (run.gaps.seconds, run.gaps.count)


def _mean_shares(
    shares: Callable[[Run, LinearLatency], dict[str, float]], candidate: Candidate, run: Run
) -> dict[str, float]:
    """Shares of the time of all GPUs: of each kind of server, by what its GPUs were busy."""
    parts = candidate.parts(run)
    busy = [
        float(part.steps["duration_s"].sum()) * gpu_count(latency.deployment)
        for part, latency in parts
    ]
    found = [shares(part, latency) for part, latency in parts]
    return {
        name: sum(time / sum(busy) * each[name] for time, each in zip(busy, found, strict=True))
        for name in found[0]
    }


def _at_ends(trials: Trials, rate: HighestRate, interval: Interval) -> HighestRate:
    """The highest rate at both ends of the prediction's interval, and what is expected of it."""
    ends = []
    for way in (1, -1):
        other = replace(trials, misjudged=interval.at(way), count=0)
        guess = rate.per_s * math.exp(-way * interval.bad.step)
        ends.append(highest_rate(other.excess, guess, stride=1.05, width=_BAR_WIDTH)[0])
        trials.count += other.count
    return replace(
        rate,
        interval_per_s=(ends[0], ends[1]),
        level=interval.level,
        expected_per_s=interval.expected_rate(ends[0], rate.per_s, ends[1]),
    )
