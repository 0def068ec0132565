"""A whole look at the best candidates: which scheduler limits, and what holds them back."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial

import numpy as np

from pinn.physics.batch_sums import BatchSums, uniform_sums
from pinn.planning import commands, pools, sizing
from pinn.planning.candidates import NETWORK, Brief, Candidate, gpu_count
from pinn.planning.plan import Choice, HighestRate, Latencies, LeftOut, Point
from pinn.planning.sizing import Trials, latencies_s
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.step_features import STEP_FEATURES

# Where a replica's time goes, and what stops a higher rate.

#: Steps of a run that are accounted for at most, evenly spread.
_MOST_STEPS = 20_000
#: What limits where as many requests run as may: the flag that says how many.
MOST_REQUESTS, KV_MEMORY = "max_num_seqs", "KV memory"
#: Share of the engine's time in which requests wait for memory, or for others to end, from which on
#: that is what limits.
_WAITING_SHARE = 0.05
#: Share of the blocks in use that counts as full.
_FULL_SHARE = 0.95


def step_time_shares(run: Run, latency: LinearLatency) -> dict[str, float]:
    """Part of a step's breakdown -> share of the engine's time.

    Multiplications are cut at what a lone token takes: its weights, once a step.
    """
    others = [f.part for f in STEP_FEATURES.values() if f.part != "gemm"]
    found = dict.fromkeys(["weights", "gemm_compute", *others], 0.0)
    seconds = deployment_features(latency.deployment, _sums(run)) * latency.beta
    one_token = uniform_sums(decode_requests=np.ones(1))
    lone = deployment_features(latency.deployment, one_token)[0] * latency.beta
    columns = zip(STEP_FEATURES.values(), seconds.sum(axis=0), len(seconds) * lone, strict=True)
    for feature, total, weights in columns:
        if feature.part == "gemm":
            found["weights"] += float(weights)
            found["gemm_compute"] += float(total - weights)
        else:
            found[feature.part] += float(total)
    whole = sum(found.values())
    return {part: value / whole for part, value in found.items()}


def limited_by(run: Run, latency: LinearLatency) -> str:
    """What stops a higher rate, from a run a little beyond the highest.

    KV memory or the number of requests that may run where others wait while nearly every block is
    taken, or so many run; else what most of the engine's time goes to.
    """
    recipe, steps = latency.deployment.recipe, run.steps
    weight = steps["duration_s"] / steps["duration_s"].sum()
    waiting = steps["waiting"] > 0
    most = min(recipe.max_requests, recipe.token_budget)
    full = steps["used_blocks"] >= _FULL_SHARE * run.step_blocks
    short = float(weight[full & (waiting | (steps["preempted"] > 0))].sum())
    all_run = steps["running"] >= most * run.step_replicas
    if short > _WAITING_SHARE:
        return KV_MEMORY
    if float(weight[all_run & waiting].sum()) > _WAITING_SHARE:
        return MOST_REQUESTS
    return _most_time(run, latency)


def _most_time(run: Run, latency: LinearLatency) -> str:
    """What most of the engine's time goes to; prefill is what prompts add to a step's decodes."""
    deployment, sums = latency.deployment, _sums(run)
    prompts = [f.name for f in fields(BatchSums) if "prefill_" in f.name]
    without = replace(sums, **dict.fromkeys(prompts, np.zeros_like(sums.prefill_requests)))
    seconds, decodes = (
        deployment_features(deployment, each).sum(axis=0) * latency.beta for each in (sums, without)
    )
    part = np.array([f.part for f in STEP_FEATURES.values()])
    communication, host = part == "communication", np.isin(part, ("host", "small_kernels"))
    work = ~communication & ~host
    spent = {
        "prefill compute": (seconds - decodes)[work].sum(),
        "decode bandwidth": decodes[work].sum(),
        "communication": seconds[communication].sum(),
        "host": seconds[host].sum(),
    }
    return max(spent, key=lambda name: spent[name])


def _sums(run: Run) -> BatchSums:
    every = -(-len(run.steps) // _MOST_STEPS)
    return replace(run.steps, table=run.steps.table[::every]).sums


# Which limits of the scheduler need the fewest replicas on one kind of hardware.


@dataclass(frozen=True)
class Picked:
    """A candidate with as few replicas as hold the limits.

    Attributes:
        trials: Of one replica.
        rate: The highest that it holds.
        sized: The replicas.
        interval: How wrong the prediction may be; None for calibrated coefficients.
        share_per_s: Of the asked rate that one replica serves; its highest without one.
        run: Of one replica at that rate.
    """

    trials: Trials
    rate: HighestRate
    sized: sizing.Sized
    interval: sizing.Interval | None
    share_per_s: float
    run: Run


@dataclass(frozen=True)
class Unfit:
    """Why a candidate cannot be rented.

    Attributes:
        label: The candidate's name.
        reason: In words.
        gpus: How many its fleet takes, of those that hold the limits.
    """

    label: str
    reason: str
    gpus: float = math.inf


def _fastest(tried: Sequence[Trials], guesses: Sequence[float]) -> tuple[int, HighestRate]:
    """Which replica holds the highest rate on the whole load; the first where none holds any."""
    best, rate = 0, HighestRate(0.0, None)
    for i, (trials, guess) in enumerate(zip(tried, guesses, strict=True)):
        if rate.per_s > 0 and trials.excess(rate.per_s * (1 + sizing.WIDTH)) > 1:
            continue
        found = _highest(trials, max(guess, rate.per_s))
        if found.per_s > rate.per_s:
            best, rate = i, found
    return best, rate


def _highest(trials: Trials, guess: float) -> HighestRate:
    return HighestRate(*sizing.highest_rate(trials.excess, guess, stride=1.03))


def _settled(trials: Trials, rate: HighestRate) -> HighestRate:
    """A rate with clear rates on either side, else the one that fewest contradict."""
    if sizing.is_clear(trials.excess, rate.per_s, rate.fails_per_s):
        return rate
    return HighestRate(*sizing.settled_rate(trials.excess, rate.per_s))


def _sized(trials: Trials, rate: HighestRate, brief: Brief) -> Picked | Unfit:
    """A candidate's fleet, or why there is none."""
    candidate = trials.candidate
    unfit = partial(Unfit, candidate.label)
    if rate.per_s == 0:
        return unfit("holds 0 requests/s on the whole load")
    if rate.fails_per_s is None:
        sent = len(trials.load.at(rate.per_s))
        return unfit(
            f"runs all of the {sent:,} requests at once: its rate takes a longer load to find"
        )
    sized = sizing.fewest_replicas(trials, rate.per_s, brief)
    if sized is None:
        return unfit(
            f"holds {rate.per_s:.3g} requests/s alone, but no fleet of them that can be simulated "
            "holds the asked rate"
        )
    gpus, may_be = sized.replicas * candidate.gpus, brief.max_gpus
    if may_be is not None and gpus > may_be:
        each = f"at {rate.per_s:.3g} requests/s a replica"
        return unfit(f"needs {gpus} GPUs {each}, {may_be} may be", gpus)
    asked = brief.rate_per_s
    share = rate.per_s if asked is None else asked / sized.replicas
    run = trials.run(share) if asked is not None else trials.run_of(brief.load.draw(share))
    return Picked(trials, rate, sized, _interval(candidate, run, brief), share, run)


def _interval(candidate: Candidate, run: Run, brief: Brief) -> sizing.Interval | None:
    """None for calibrated coefficients, which come without one."""
    if candidate.source != NETWORK:
        return None
    servers = (latency.deployment for _, latency in candidate.parts(run))
    return sizing.prediction_interval(brief.checkpoint, *servers)


def _no_fewer(best: Picked | None, brief: Brief) -> str:
    assert best is not None, "a candidate that was sized alone has a reason of its own"
    label = best.trials.candidate.label
    if brief.rate_per_s is None:
        return f"holds no more than the {best.rate.per_s:.3g} requests/s of {label}"
    return f"needs no fewer than {label}, of which {best.sized.replicas} hold the limits"


# A whole look at the best candidates on one kind of hardware: the choice and all that is known.

#: Rates of a choice's ladder, as shares of the highest that it holds.
_LADDER = (0.25, 0.5, 0.7, 0.85, 1.0, 1.1)


@dataclass(frozen=True)
class Examined:
    """What a whole look found.

    Attributes:
        choice: None where nothing holds the limits with the GPUs there are.
        unfit: Where there is none, the candidate that takes fewest GPUs too many.
        left_out: Candidates that are not the choice.
        simulations: Runs that it took.
    """

    choice: Choice | None
    unfit: Unfit | None
    left_out: Sequence[LeftOut]
    simulations: int


def examine(kept: Sequence[tuple[Candidate, float]], brief: Brief) -> Examined:
    """Size a fleet of the candidate with the highest rate, and say how sure that is.

    So is a fleet of each of the others that may need fewer: a replica that holds a higher rate
    alone is not always the one of which fewer hold the asked rate together.

    Args:
        kept: Candidates that differ in the scheduler's limits alone, with quick highest rates.
        brief: What is asked.
    """
    tried = [Trials(candidate, brief.replica_load(), brief.limits) for candidate, _ in kept]
    guesses = [guess for _, guess in kept]
    first, rate = _fastest(tried, guesses)
    best: Picked | None = None
    unfit: dict[str, Unfit] = {}
    for i in [first, *(i for i in range(len(tried)) if i != first)]:
        if best is not None:
            if not sizing.may_do_with_fewer(best.sized.replicas, tried[i], brief):
                continue
            rate = _highest(tried[i], guesses[i])
        rate = _settled(tried[i], rate)
        found = _sized(tried[i], rate, brief)
        if isinstance(found, Unfit):
            unfit[found.label] = found
        elif best is None or found.sized.replicas < best.sized.replicas:
            best = found
    choice = None if best is None else _choice(best, brief)
    nearest = min(unfit.values(), key=lambda each: each.gpus) if best is None else None
    left_out = [
        candidate.left_out(
            unfit[candidate.label].reason if candidate.label in unfit else _no_fewer(best, brief)
        )
        for candidate, _ in kept
        if best is None or candidate is not best.trials.candidate
    ]
    return Examined(choice, nearest, left_out, sum(trials.count for trials in tried))


def _choice(picked: Picked, brief: Brief) -> Choice:
    trials, rate, sized = picked.trials, picked.rate, picked.sized
    candidate, asked, share = trials.candidate, brief.rate_per_s, picked.share_per_s
    apart = candidate if isinstance(candidate, pools.PoolsCandidate) else None
    ladder, beyond = _ladder(trials, rate.per_s)
    together = sizing.fleet_rate(sized, trials, rate, picked.interval, brief)
    chance, safe = _verdict(picked, together, brief)
    rate = replace(rate, seeds_per_s=[rate.per_s, *_other_seeds(trials, rate.per_s, brief)])
    gpus = sized.replicas * candidate.gpus
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
        at_rate=trials.point(picked.run, share),
        cost_per_hour=cost,
        cost_per_million_output_tokens=None if cost is None else cost / output_per_s / 3600 * 1e6,
        limited_by=_limited_by(candidate, beyond, brief),
        chance=chance,
        safe=safe,
        ladder=ladder,
        step_time=_step_time(candidate, picked.run),
        fleets=sized.fleets,
        serve_command=commands.serve_command(candidate),
        simulate_command=commands.simulate_command(
            candidate,
            brief.load.words,
            share if asked is None else asked,
            sized.replicas,
            sized.fleets[-1].routing if sized.replicas > 1 else None,
        ),
        pools=None if apart is None else apart.pool_texts(sized.replicas),
        pool_sizes=None if apart is None else apart.pool_sizes(sized.replicas),
    )


def _verdict(picked: Picked, fleet: HighestRate, brief: Brief) -> tuple[float | None, bool | None]:
    """The chance that the fleet holds the limits, and whether it does at the interval's bad end.

    None where there is no rate or no interval, and where the load is over before servers are full.
    """
    sized, interval = picked.sized, picked.interval
    if interval is None or brief.rate_per_s is None or sized.is_burst:
        return None, None
    chance, holds = sizing.chance_to_hold(sized, picked.trials, interval, brief)
    bad_end = fleet.interval_per_s[0] if fleet.interval_per_s else 0.0
    return chance, holds and bad_end >= brief.rate_per_s


def _ladder(trials: Trials, rate_per_s: float) -> tuple[list[Point], Run]:
    """Runs at rising rates, and the last of them, beyond the limits."""
    points = []
    for share in _LADDER:
        run = trials.run(share * rate_per_s)
        points.append(trials.point(run, share * rate_per_s))
    return points, run


def _other_seeds(trials: Trials, rate_per_s: float, brief: Brief) -> list[float]:
    """The highest rate of every other draw of the load."""
    found = []
    for seed in range(1, len(brief.draws)):
        other = Trials(trials.candidate, brief.replica_load(seed), brief.limits)
        width = sizing.BAR_WIDTH
        highest, _ = sizing.highest_rate(other.excess, rate_per_s, stride=1 + width, width=width)
        found.append(highest)
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
