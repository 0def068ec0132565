"""A whole look at the best candidates on one kind of hardware: the choice and all that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from pinn.planning.bottleneck import (
    KV_MEMORY,
    MOST_REQUESTS,
    limited_by,
    step_time_shares,
)
from pinn.planning.brief import Brief
from pinn.planning.candidates import Candidate, gpu_count
from pinn.planning.commands import serve_command, simulate_command
from pinn.planning.figures import latencies_s
from pinn.planning.limits import Latencies
from pinn.planning.pick import Picked, pick
from pinn.planning.plan import Choice, HighestRate, LeftOut, Point
from pinn.planning.pools import PoolsCandidate
from pinn.planning.search import highest_rate
from pinn.planning.sizing import BAR_WIDTH, chance_to_hold, fleet_rate
from pinn.planning.trial import Trials
from pinn.simulator.run import Run

#: Rates of a choice's ladder, as shares of the highest that it holds.
_LADDER = (0.25, 0.5, 0.7, 0.85, 1.0, 1.1)


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
    apart = candidate if isinstance(candidate, PoolsCandidate) else None
    ladder, beyond = _ladder(trials, rate.per_s)
    together = fleet_rate(sized, trials, rate, picked.interval, brief)
    chance, safe = _verdict(picked, together, brief)
    rate = replace(rate, seeds_per_s=[rate.per_s, *_other_seeds(trials, rate.per_s, brief)])
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
        fleet_rate=together,
        utilization=None if asked is None else asked / together.per_s,
        at_rate=at_rate,
        cost_per_hour=cost,
        cost_per_million_output_tokens=None if cost is None else cost / output_per_s / 3600 * 1e6,
        limited_by=_limited_by(candidate, beyond, brief),
        chance=chance,
        safe=safe,
        ladder=ladder,
        step_time=_step_time(candidate, picked.run),
        fleets=sized.fleets,
        serve_command=serve_command(candidate),
        simulate_command=simulate_command(
            candidate,
            brief.load.words,
            share if asked is None else asked,
            sized.replicas,
            sized.fleets[-1].routing if sized.replicas > 1 else None,
        ),
        pools=None if apart is None else apart.pool_texts(sized.replicas),
        pool_sizes=None if apart is None else apart.pool_sizes(sized.replicas),
    )


def _verdict(
    picked: Picked, together: HighestRate, brief: Brief
) -> tuple[float | None, bool | None]:
    """The chance that the fleet holds the limits, and whether it does at the interval's bad end.

    None where there is no rate or no interval, and where the load is over before servers are full.
    """
    sized, interval = picked.sized, picked.interval
    if interval is None or brief.rate_per_s is None or sized.is_burst:
        return None, None
    chance, holds = chance_to_hold(sized, picked.trials, interval, brief)
    bad_end = together.interval_per_s[0] if together.interval_per_s else 0.0
    return chance, holds and bad_end >= brief.rate_per_s


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
            highest_rate(other.excess, rate_per_s, stride=1 + BAR_WIDTH, width=BAR_WIDTH)[0]
        )
        trials.count += other.count
    return found


def _limited_by(candidate: Candidate, beyond: Run, brief: Brief) -> str:
    """Of prefill servers where the decode servers are not full and all but TTFT is held."""
    parts = candidate.parts(beyond)
    found = limited_by(*parts[-1])
    if found in (KV_MEMORY, MOST_REQUESTS) or brief.limits.excess(*_but_ttft(beyond)) > 1:
        return found
    return limited_by(*parts[0])


def _but_ttft(run: Run) -> tuple[Latencies, tuple[np.ndarray, np.ndarray]]:
    """Latencies and gaps as if first tokens came at once."""
    found = latencies_s(run)
    served = np.isfinite(found["e2e"])
    ttft = np.where(served, found["ttft"], 0.0)
    without = {**found, "ttft": found["ttft"] - ttft, "e2e": found["e2e"] - ttft}
    return without, (run.gaps.seconds, run.gaps.count)


def _step_time(candidate: Candidate, run: Run) -> dict[str, float]:
    """Shares of the time of all GPUs: of each kind of server, by what its GPUs were busy."""
    parts = candidate.parts(run)
    busy = [
        float(part.steps["duration_s"].sum()) * gpu_count(latency.deployment)
        for part, latency in parts
    ]
    found = [step_time_shares(part, latency) for part, latency in parts]
    return {
        name: sum(time / sum(busy) * each[name] for time, each in zip(busy, found, strict=True))
        for name in found[0]
    }
