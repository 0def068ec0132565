"""Make a plan: a quick look at every candidate, a whole one at the best of each hardware."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Int, Real

from pinn.common.workers import Workers
from pinn.errors import PinnError
from pinn.physics.batch_sums import uniform_sums
from pinn.planning import sizing
from pinn.planning.candidates import Brief, Candidate
from pinn.planning.examine import Unfit, examine
from pinn.planning.plan import Ask, Choice, FrontierPoint, Latencies, LeftOut, Limits, Plan, Point
from pinn.planning.pools import PoolsCandidate
from pinn.simulator.engine_spec import EngineSpec
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.memory import kv_layout
from pinn.simulator.pools import halves
from pinn.simulator.workloads.workload import Workload
from pinn.surrogate.deployment_features import deployment_features

# Latencies that no rate can be low enough for: each request alone on an idle server.
#
# Times of steps never fall with more requests in them (every coefficient is non-negative and
# every feature grows with the batch), so a request among others takes at least as long. Left out
# is everything outside the steps.

#: Lengths are rounded down to these many tokens, so that few different ones are timed.
_GRAIN_TOKENS = 64


def step_seconds(
    latency: LinearLatency, **requests: float | Real[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Seconds of steps whose requests are alike; arguments as of ``uniform_sums``."""
    sums = uniform_sums(**requests, window=latency.deployment.model.window_tokens)
    return np.asarray(deployment_features(latency.deployment, sums) @ latency.beta)


def floor_latencies_s(
    workload: Workload, latency: LinearLatency, prompts: LinearLatency
) -> Latencies:
    """Lower bounds of every request's TTFT, TPOT and E2E.

    Prompts are computed in chunks of the token budget, but for what they share with another
    request where the prefix cache is on, or had computed elsewhere. Pipeline stages may work on
    several chunks at once. Decodes are timed at the prompt's length; under speculation each may
    bring as many tokens as can be accepted.

    Args:
        workload: The requests.
        latency: Of what decodes.
        prompts: Of what computes prompts: the same, but where prefill and decode are apart.
    """
    ready = np.minimum(_ready_tokens(workload, prompts), workload.prompt_tokens - 1)
    new = _rounded(workload.prompt_tokens - ready)
    known = ready // _GRAIN_TOKENS * _GRAIN_TOKENS
    pairs, place = np.unique(np.stack([new, known]), axis=1, return_inverse=True)
    ttft = np.array([_prefill_s(prompts, *pair) for pair in pairs.T.tolist()])[place.reshape(-1)]
    contexts, place = np.unique(_rounded(workload.prompt_tokens), return_inverse=True)
    decode = step_seconds(latency, decode_requests=1.0, decode_context=contexts)[place]
    speculation = latency.deployment.recipe.speculation
    if speculation is not None:
        decode = decode / (1 + len(speculation.acceptance))
    gaps = workload.output_tokens - 1.0
    tpot = np.where(gaps > 0, decode, np.nan)
    return {"ttft": ttft, "tpot": tpot, "e2e": ttft + decode * gaps}


def floor_excess(
    workload: Workload, latency: LinearLatency, prompts: LinearLatency, limits: Limits
) -> float:
    """The least that the worst latency can be, as a share of its limit: beyond 1 none holds it."""
    means = [limit for limit in limits.on_gaps if limit.name == "mean"]
    lone = floor_latencies_s(workload, latency, prompts)
    # A single gap may be short where tokens are streamed late; all together take their steps.
    weights = np.maximum(workload.output_tokens - 1, 0)
    some = weights > 0
    gaps = (lone["tpot"][some], weights[some])
    rest = [limit for limit in limits.statistics if limit.metric != "itl"]
    return replace(limits, statistics=(*rest, *means)).excess(lone, gaps)


def _prefill_s(latency: LinearLatency, new: float, known: float) -> float:
    """A lone prompt, chunk by chunk."""
    recipe = latency.deployment.recipe
    budget = recipe.token_budget if recipe.chunked_prefill else new
    starts = np.arange(0, new, budget, dtype=np.float64)
    chunks = np.minimum(new - starts, budget)
    seconds = step_seconds(
        latency, prefill_requests=1.0, prefill_tokens=chunks, prefill_cached=known + starts
    )
    return float(max(seconds.sum() / recipe.pipeline_parallel_size, seconds.max()))


def _ready_tokens(workload: Workload, latency: LinearLatency) -> Int[np.ndarray, " requests"]:
    """Tokens of each prompt that were computed elsewhere, or for a request that shares them."""
    ready = workload.transferred_tokens
    if not latency.deployment.recipe.prefix_caching:
        return ready
    return np.maximum(ready, np.where(workload.shares_with >= 0, workload.shared_tokens, 0))


def _rounded(tokens: np.ndarray) -> np.ndarray:
    """Rounded down, but to no less than 1."""
    return np.maximum(tokens // _GRAIN_TOKENS * _GRAIN_TOKENS, 1)


# A first guess of the rate that a replica holds, by a formula without queues: where to begin.


def guessed_rates_per_s(
    workload: Workload, latency: LinearLatency, engine: EngineSpec, limits: Limits | None
) -> tuple[float, float]:
    """Rates of one replica at which all its time is used, and at which TPOT reaches its limit.

    With B requests decoding, a request takes output x decode(B) / B of the engine's time and its
    prompt what it adds to such a step. The largest rate over B is the first, over those B whose
    TPOT, prompts of others included, holds its limit the second.
    """
    recipe = latency.deployment.recipe
    output = float(workload.output_tokens.mean())
    ready = _ready_tokens(workload, latency)
    prompt = float(np.maximum(workload.prompt_tokens - ready, 1).mean())
    context = float(workload.prompt_tokens.mean()) + output / 2
    batch = _batches(workload, latency, engine)
    decodes: dict[str, float | np.ndarray] = {"decode_requests": batch, "decode_context": context}
    chunk = min(prompt, recipe.token_budget)
    decode_s = step_seconds(latency, **decodes)
    mixed_s = step_seconds(latency, **decodes, prefill_requests=1.0, prefill_tokens=chunk)
    prompt_s = (mixed_s - decode_s) * prompt / chunk
    drafts = recipe.speculation
    token_s = decode_s / (1.0 if drafts is None else drafts.tokens_per_step)
    # The replica's data-parallel ranks work side by side, pipeline stages on batches of their own.
    side_by_side = recipe.data_parallel_size * recipe.pipeline_parallel_size
    rate = side_by_side / (output * token_s / batch + prompt_s)
    tpot_s = token_s / np.maximum(1 - rate / side_by_side * prompt_s, 1e-3)
    each = [] if limits is None else limits.each
    of_gaps = [seconds for metric, _, seconds in each if metric in ("tpot", "itl")]
    limit_s = min(of_gaps, default=np.inf)
    held = rate[tpot_s <= limit_s]
    return float(rate.max()), float(held.max()) if len(held) else float(rate[0])


def _batches(workload: Workload, latency: LinearLatency, engine: EngineSpec) -> np.ndarray:
    """Batch sizes up to what ``max_num_seqs`` and the cache allow."""
    recipe, layout = latency.deployment.recipe, kv_layout(latency.deployment, engine)
    each = float(workload.prompt_tokens.mean() + workload.output_tokens.mean() / 2)
    cached = layout.blocks / float(layout.request_blocks(max(int(each), 1), recipe.block_tokens))
    most = min(recipe.max_requests, recipe.token_budget, cached, len(workload))
    return np.unique(np.geomspace(1, max(most, 1), 24).round())


# A quick look at candidates on the same hardware: which limits of the scheduler are worth more.

#: Requests of a quick look.
_REQUESTS = 1000
#: Candidates whose quick highest rate is this close to the best on their hardware stay.
_MARGIN = 0.04
#: Width of the bisection of a quick look.
_WIDTH = 0.02
#: Times the rate at which all time is used, by a formula without queues, that nothing exceeds.
_MOST_GUESSED = 2.0
#: Rates of the frontier, as shares of that at which all time is used.
_LADDER = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)


@dataclass(frozen=True)
class Scouted:
    """What a quick look found.

    Attributes:
        kept: Candidates worth a whole look and their quick highest rates, best first.
        left_out: The others.
        points: Of the first one kept, at rising rates.
        floor: The least that the worst latency of any can be, as a share of its limit.
        simulations: Runs that it took.
    """

    kept: Sequence[tuple[Candidate, float]]
    left_out: Sequence[LeftOut]
    points: Sequence[Point]
    floor: float
    simulations: int


def scout(candidates: Sequence[Candidate], brief: Brief) -> Scouted:
    """Look at candidates that differ in the scheduler's limits alone.

    Those whose floor misses a limit are not simulated. Nor are those with a ``max_num_seqs`` above
    one that was never reached: requests would run as before. The others first try the best rate so
    far.
    """
    load, limits = brief.replica_load(most=_REQUESTS), brief.limits
    found: list[tuple[Candidate, float]] = []
    left_out: list[LeftOut] = []
    unfilled: list[Candidate] = []
    simulations, least = 0, float("inf")
    for candidate in sorted(candidates, key=_scheduler_limits):
        floor = floor_excess(brief.workload, candidate.latency, candidate.prompt_latency, limits)
        least = min(least, floor)
        reason = _same(candidate, unfilled)
        if floor > 1:
            reason = f"a request alone on it takes {floor:.2f} times as long as the limits allow"
        if reason is not None:
            left_out.append(candidate.left_out(reason, simulated=False))
            continue
        trials = sizing.Trials(candidate, load, limits)
        best = max((rate for _, rate in found), default=0.0)
        near = _near(best, brief)
        rate = _quick_rate(trials, best, near)
        simulations += trials.count
        if trials.most_running < candidate.deployment.recipe.max_requests and rate > 0:
            unfilled.append(candidate)
        if rate < near or rate == 0:
            left_out.append(candidate.left_out(_too_low(rate, best)))
        else:
            found.append((candidate, rate))
    found.sort(key=lambda each: -each[1])
    kept = [(c, rate) for c, rate in found if rate >= _near(found[0][1], brief)]
    left_out += [c.left_out(_too_low(rate, found[0][1])) for c, rate in found[len(kept) :]]
    points = _ladder(sizing.Trials(kept[0][0], load, limits), brief) if kept else []
    return Scouted(kept, left_out, points, least, simulations + len(points))


def _near(best: float, brief: Brief) -> float:
    """The least quick rate that stays: close to the best, or of as few replicas at the asked rate.

    Replicas of a fleet hold more than a lone one, and not of every candidate as much more.
    """
    near, asked = best * (1 - _MARGIN), brief.rate_per_s
    if asked is None or asked <= best or best == 0:
        return near
    return min(near, asked / math.ceil(asked / best) / sizing.BALANCED_GAIN)


def _quick_rate(trials: sizing.Trials, best: float, near: float) -> float:
    """The highest rate on few requests; 0 where it does not come near the best."""
    if best > 0:
        if trials.excess(near) > 1:
            return 0.0
        # Of those that do, how far they stay behind does not matter.
        return max(_highest(trials, best, stride=1 + _MARGIN, best=best), near)
    most, guess = _guesses(trials.candidate, trials.load.workload, trials.limits)
    # So few requests may all run at once, at whatever rate.
    return min(_highest(trials, guess), _MOST_GUESSED * most)


def _highest(trials: sizing.Trials, guess: float, stride: float = 1.25, best: float = 0.0) -> float:
    return sizing.highest_rate(trials.excess, guess, stride=stride, width=_WIDTH, enough=best)[0]


def _ladder(trials: sizing.Trials, brief: Brief) -> list[Point]:
    most, _ = _guesses(trials.candidate, brief.workload, None)
    return [trials.point(trials.run(share * most), share * most) for share in _LADDER]


def _guesses(candidate: Candidate, load: Workload, limits: Limits | None) -> tuple[float, float]:
    if not isinstance(candidate, PoolsCandidate):
        return guessed_rates_per_s(load, candidate.latency, candidate.engine, limits)
    first, rest = halves(load)
    prompts, _ = guessed_rates_per_s(first, candidate.prompt_latency, candidate.engine, None)
    answers = guessed_rates_per_s(rest, candidate.latency, candidate.engine, limits)
    prompts *= candidate.prefill_servers
    most, held = (min(prompts, candidate.decode_servers * rate) for rate in answers)
    return most, held


def _scheduler_limits(candidate: Candidate) -> tuple[int, int]:
    recipe = candidate.deployment.recipe
    return -recipe.token_budget, recipe.max_requests


def _same(candidate: Candidate, unfilled: Sequence[Candidate]) -> str | None:
    """Why more requests at a time change nothing: as many as another candidate runs never came."""
    a = candidate.deployment.recipe
    for b in (other.deployment.recipe for other in unfilled):
        alike = (a.token_budget, a.graph_tokens) == (b.token_budget, b.graph_tokens)
        if alike and a.max_requests > b.max_requests:
            return f"as with {b.max_requests} requests a step, which never run at once"
    return None


def _too_low(rate: float, best: float) -> str:
    if rate == 0 and best == 0:
        return "holds the limits at no rate"
    return f"holds less than {best:.3g} requests/s, as other limits of the scheduler do"


# The plan: every candidate by its quick look, and the whole ones in order.

#: A quick highest rate may be this much too low, as a share, before a candidate is lost to it.
_QUICK_ERROR = 0.2

_Kind = TypeVar("_Kind")
_Found = TypeVar("_Found")

#: Told what happens: a line for people.
Progress = Callable[[str], None]


def make_plan(
    ask: Ask,
    brief: Brief,
    candidates: Sequence[Candidate],
    misfits: Sequence[LeftOut],
    *,
    top: int,
    each_alone: bool,
    workers: Workers,
    progress: Progress,
) -> Plan:
    """Rank candidates.

    Args:
        ask: What was asked, for the record.
        brief: The same with the data.
        candidates: That fit.
        misfits: That do not.
        top: How many choices to examine, at least.
        each_alone: Whether every candidate is a row; else the best on each hardware.
        workers: Where simulations run.
        progress: Told how far it is.

    Raises:
        PinnError: If no candidate holds the limits, with what comes nearest.
    """
    begin = time.monotonic()
    groups = _by_hardware(candidates, each_alone)
    progress(f"{len(candidates)} candidates on {len(groups)} kinds of hardware")
    scouted = dict(_run(workers, partial(scout, brief=brief), groups, progress, "looked at"))
    _check_any(scouted, brief, groups)
    chosen = _promising(scouted, brief, top)
    left_out = [*misfits, *(each for found in scouted.values() for each in found.left_out)]
    for found in (scouted[i] for i in scouted if i not in chosen):
        left_out += [c.left_out(_costs_more(found, brief)) for c, _ in found.kept]
    choices, simulations = [], sum(found.simulations for found in scouted.values())
    # The longest first: a replica of a higher rate is sent more of the load's requests.
    chosen.sort(key=lambda i: -scouted[i].kept[0][1])
    tasks = [scouted[i].kept for i in chosen]
    unfit: list[Unfit] = []
    for _, examined in _run(workers, partial(examine, brief=brief), tasks, progress, "examined"):
        simulations += examined.simulations
        left_out += examined.left_out
        choices += [examined.choice] if examined.choice else []
        unfit += [examined.unfit] if examined.unfit else []
    if not choices:
        nearest = min(unfit, key=lambda each: each.gpus)
        raise PinnError(
            f"no candidate can be rented for {brief.limits.text!r}: the nearest, {nearest.label}, "
            f"{nearest.reason}"
        )
    choices.sort(key=partial(_rank, brief.rate_per_s))
    return Plan(
        ask=ask,
        choices=choices,
        left_out=left_out,
        frontier=_frontier(scouted),
        candidates=len(candidates) + len(misfits),
        simulations=simulations,
        seconds=time.monotonic() - begin,
    )


def _run(
    pool: Workers, do: Callable[[_Kind], _Found], tasks: Sequence[_Kind], tell: Progress, verb: str
) -> Iterator[tuple[int, _Found]]:
    begin = time.monotonic()
    for done, (i, result) in enumerate(pool.run(do, tasks), 1):
        tell(f"{verb} {done} of {len(tasks)} in {time.monotonic() - begin:.0f} s")
        yield i, result


def _by_hardware(candidates: Sequence[Candidate], each_alone: bool) -> list[list[Candidate]]:
    if each_alone:
        return [[candidate] for candidate in candidates]
    ordered = sorted(candidates, key=lambda c: str(c.hardware))
    return [list(group) for _, group in groupby(ordered, key=lambda c: c.hardware)]


def _expense(found: Scouted, brief: Brief, error: float = 1.0, *, whole: bool = True) -> float:
    """Price or GPUs for the asked rate, or for each request per second without one.

    Args:
        found: Whose best candidate is meant.
        brief: What is asked.
        error: Factor by which the quick rate may be off.
        whole: Whether replicas are rounded up, else parts of them are counted beyond the first.
    """
    candidate, rate_per_s = found.kept[0][0], found.kept[0][1] * error
    gpu = candidate.deployment.gpu.name
    each = brief.price_per_hour(gpu, candidate.gpus) or candidate.gpus
    if brief.rate_per_s is None:
        return each / rate_per_s
    if whole:
        return each * -(-brief.rate_per_s // rate_per_s)
    return each * max(brief.rate_per_s / rate_per_s, 1.0)


def _promising(scouted: Mapping[int, Scouted], brief: Brief, top: int) -> list[int]:
    """Hardware to examine: the cheapest, and what may be as cheap as the cheapest.

    A quick look knows rates to a part, and replicas are whole: what is lost by rounding one up
    may be won by another. Of every engine the cheapest is, and where prefill and decode apart are
    tried, the cheapest of both kinds.
    """
    kept = [i for i, found in scouted.items() if found.kept]
    ordered = sorted(kept, key=lambda i: _expense(scouted[i], brief, whole=False))
    least = min(_expense(scouted[i], brief, 1 - _QUICK_ERROR) for i in ordered)
    kinds = [_kind(scouted[i].kept[0][0]) for i in ordered]
    return [
        i
        for place, i in enumerate(ordered)
        if place < top
        or kinds[place] not in kinds[:place]
        or _expense(scouted[i], brief, 1 + _QUICK_ERROR) <= least
    ]


def _kind(candidate: Candidate) -> tuple[str, bool]:
    """Engine, and whether prefill and decode are apart."""
    return candidate.deployment.serving.engine, isinstance(candidate, PoolsCandidate)


def _costs_more(found: Scouted, brief: Brief) -> str:
    more, what = ("costs", " an hour") if brief.prices_per_gpu_hour else ("takes", " GPUs")
    per = "" if brief.rate_per_s is not None else " for each request per second"
    return (
        f"{more} more than the choices: about {found.kept[0][1]:.3g} requests/s a replica, so "
        f"{_expense(found, brief):.3g}{what}{per}"
    )


def _rank(asked: float | None, choice: Choice) -> tuple[float, ...]:
    """Least expense of those predicted to hold the limits, then the one with most to spare."""
    expense = choice.cost_per_hour if choice.cost_per_hour is not None else choice.gpus
    rate = choice.highest_rate
    if asked is None:
        return (expense / rate.per_s, -rate.per_s)
    return (expense, choice.utilization or 0.0)


def _frontier(scouted: Mapping[int, Scouted]) -> list[FrontierPoint]:
    """Points of every hardware, each with its best limits of the scheduler."""
    kept = [found for found in scouted.values() if found.kept]
    series = {found.kept[0][0].label: (found.kept[0][0], found.points) for found in kept}
    points = [
        (speed, c, p) for c, seen in series.values() for p in seen if (speed := p.user_tokens_per_s)
    ]
    points.sort(key=lambda each: (-each[0], -each[2].output_tokens_per_gpu_s))
    frontier, most = [], 0.0
    for speed, c, p in points:
        dense, gpu = p.output_tokens_per_gpu_s, c.deployment.gpu.name
        frontier.append(
            FrontierPoint(c.label, gpu, c.gpus, p.rate_per_s, dense, speed, best=dense > most)
        )
        most = max(most, dense)
    return frontier


def _check_any(
    scouted: Mapping[int, Scouted], brief: Brief, groups: Sequence[Sequence[Candidate]]
) -> None:
    """Stop where no candidate holds the limits at any rate."""
    if any(found.kept for found in scouted.values()):
        return
    nearest = min(scouted, key=lambda i: scouted[i].floor)
    floor, label = scouted[nearest].floor, groups[nearest][0].label
    raise PinnError(
        f"no candidate holds {brief.limits.text!r}: on the nearest, {label}, a request alone takes "
        f"{floor:.2f} times as long: allow that much, or name faster GPUs or fewer bits"
    )
