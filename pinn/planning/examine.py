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
from pinn.planning.interval import Interval, prediction_interval, widest
from pinn.planning.limits import Latencies
from pinn.planning.plan import Choice, HighestRate, LeftOut, Point
from pinn.planning.pools import PoolsCandidate
from pinn.planning.search import WIDTH, highest_rate
from pinn.planning.sizing import Sized, fewest_replicas, worth_most
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
    """Search the highest rate on the whole load, size the fleet, and say how sure that is."""
    found, left_out, simulations = _best(kept, brief)
    if found is None:
        return Examined(None, left_out, simulations)
    trials, rate, fails = found
    sized = fewest_replicas(trials, rate, brief)
    if sized is None:
        reason = f"holds {rate:.3g} requests/s alone, but no fleet holds the asked rate together"
        left_out.append(_left_out(trials.candidate, reason))
        return Examined(None, left_out, simulations + trials.count)
    gpus = sized.replicas * trials.candidate.gpus
    if brief.max_gpus is not None and gpus > brief.max_gpus:
        reason = f"needs {gpus} GPUs at {rate:.3g} requests/s a replica, {brief.max_gpus} may be"
        left_out.append(_left_out(trials.candidate, reason))
        return Examined(None, left_out, simulations + trials.count)
    choice = _choice(trials, HighestRate(rate, fails), sized, brief)
    return Examined(choice, left_out, simulations + trials.count)


def _best(
    kept: Sequence[tuple[Candidate, float]], brief: Brief
) -> tuple[tuple[Trials, float, float | None] | None, list[LeftOut], int]:
    """The candidate with the highest rate on the whole load; the others are left out."""
    best: tuple[Trials, float, float | None] | None = None
    left_out: list[LeftOut] = []
    simulations = 0
    for candidate, guess in kept:
        trials = Trials(candidate, brief.replica_load(), brief.limits)
        if best is not None and trials.excess(best[1] * (1 + WIDTH)) > 1:
            reason = f"holds no more than the {best[1]:.3g} requests/s of {best[0].candidate.label}"
            left_out.append(_left_out(candidate, reason))
            simulations += trials.count
            continue
        rate, fails = highest_rate(trials.excess, max(guess, best[1] if best else 0), stride=1.03)
        if rate > 0 and (best is None or rate > best[1]):
            if best is not None:
                reason = f"holds {best[1]:.3g} requests/s, {candidate.label} {rate:.3g}"
                left_out.append(_left_out(best[0].candidate, reason))
                simulations += best[0].count
            best = (trials, rate, fails)
        else:
            left_out.append(_left_out(candidate, f"holds {rate:.3g} requests/s on the whole load"))
            simulations += trials.count
    return best, left_out, simulations


def _choice(trials: Trials, rate: HighestRate, sized: Sized, brief: Brief) -> Choice:
    candidate, asked = trials.candidate, brief.rate_per_s
    ladder, beyond = _ladder(trials, rate.per_s)
    seeds = [rate.per_s, *_other_seeds(trials, rate.per_s, brief)]
    rate = replace(rate, seeds_per_s=seeds)
    run = trials.run(_share(rate, sized, brief))
    interval = _interval(candidate, run, brief)
    if interval is not None:
        rate = _at_ends(trials, rate, interval)
        if asked is not None:
            most = None if brief.max_gpus is None else brief.max_gpus // candidate.gpus
            fewest, sized = sized, worth_most(sized, trials, interval, brief, most)
            if sized.replicas != fewest.replicas:
                run = trials.run(_share(rate, sized, brief))
    share = _share(rate, sized, brief)
    gpus = sized.replicas * candidate.gpus
    at_rate = trials.point(run, share, candidate.gpus)
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
        step_time=_mean_shares(step_time_shares, candidate, run),
        limits_time=_mean_shares(time_shares, candidate, run),
        fleets=sized.fleets,
        serve_command=serve_command(candidate),
        simulate_command=simulate_command(
            candidate, brief.path, share if asked is None else asked, sized.replicas, brief.seed
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


def _share(rate: HighestRate, sized: Sized, brief: Brief) -> float:
    """Of the asked rate that one replica serves; its highest without one."""
    return rate.per_s if brief.rate_per_s is None else brief.rate_per_s / sized.replicas


def _interval(candidate: Candidate, run: Run, brief: Brief) -> Interval | None:
    """None for calibrated coefficients, which come without one."""
    if candidate.is_calibrated:
        return None
    found = [
        prediction_interval(brief.checkpoint, latency.deployment, part)
        for part, latency in candidate.parts(run)
    ]
    return widest(found)


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
        ends.append(highest_rate(other.excess, guess, stride=1.1, width=_BAR_WIDTH)[0])
        trials.count += other.count
    return replace(
        rate,
        interval_per_s=(ends[0], ends[1]),
        level=interval.level,
        expected_per_s=interval.expected_rate(ends[0], rate.per_s, ends[1]),
    )


def _left_out(candidate: Candidate, reason: str) -> LeftOut:
    return LeftOut(candidate.label, candidate.deployment.gpu.name, reason, simulated=True)
