"""Screening of candidates on the same hardware, by estimates and by runs with few requests.

Two estimates need no simulation: lower bounds of latencies, and a guess of the maximum rate. A
lower bound is the latency of a request on an idle server, excluding time outside engine steps.
Additional requests never shorten a step, because all coefficients are nonnegative and all features
grow with the batch. On a busy server, a request therefore takes at least as long.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float, Int, Real

from pinn.common.numbers import number
from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import kv_layout
from pinn.physics.batch_sums import BatchSums, uniform_sums
from pinn.planning.candidate import Candidate
from pinn.planning.fleet import BALANCED_GAIN
from pinn.planning.idle_server import IdleServer, missed_limits
from pinn.planning.plan import NOT_TRIED, TIME_OVER, Point, RejectedCandidate
from pinn.planning.pools import PoolsCandidate
from pinn.planning.problem import PlanningProblem
from pinn.planning.rate_search import highest_rate
from pinn.planning.time_budget import UNLIMITED, OutOfTimeError, TimeBudget
from pinn.planning.trials import Trials, latencies_s
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.pools import halves
from pinn.simulator.slo import Gaps, Latencies, Slo
from pinn.simulator.workloads.workload import Workload
from pinn.surrogate.deployment_features import deployment_features
from pinn.surrogate.group_features import group_features
from pinn.surrogate.step_features import step_time

#: Lengths are rounded down to a multiple of this number of tokens, so that step times are computed
#: for only a few different lengths.
_GRAIN_TOKENS = 64


def step_seconds(
    latency: LinearLatency, **requests: float | Real[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Return step times in seconds for equal requests; arguments as in ``uniform_sums``."""
    sums = uniform_sums(**requests, window=latency.deployment.model.window_tokens)
    return step_time(deployment_features(latency.deployment, sums), latency.beta)


def lone_seconds(
    latency: LinearLatency, **requests: float | Real[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Return lower bounds of step times in seconds, with only one data-parallel rank busy.

    ``requests`` are the arguments of ``uniform_sums``: numbers and lengths of equal requests.
    """
    deployment = latency.deployment
    own = uniform_sums(**requests, window=deployment.model.window_tokens)
    ranks = deployment.recipe.data_parallel_size
    shared = BatchSums(*(getattr(own, f.name) / ranks for f in fields(BatchSums)))
    return step_time(group_features(deployment, own, shared), latency.beta)


def least_latencies_s(
    workload: Workload, latency: LinearLatency, prompts: LinearLatency
) -> Latencies:
    """Return lower bounds of every request's TTFT, TPOT and E2E latency, in seconds.

    The bounds assume an idle server. Prompts are computed in chunks of the token budget. Tokens
    that another request shares (with prefix caching) or that were computed elsewhere are not
    recomputed. Pipeline stages process several chunks concurrently. Each decode takes as long as at
    the prompt's length. With speculative decoding, all draft tokens are accepted.

    Args:
        workload: Requests of the load.
        latency: Latency model of the servers that decode.
        prompts: Latency model of the servers that compute prompts; it differs for disaggregated
            P/D.
    """
    ready = np.minimum(_ready_tokens(workload, prompts), workload.prompt_tokens - 1)
    new = _rounded(workload.prompt_tokens - ready)
    known = ready // _GRAIN_TOKENS * _GRAIN_TOKENS
    pairs, place = np.unique(np.stack([new, known]), axis=1, return_inverse=True)
    ttft = np.array([_prefill_s(prompts, *pair) for pair in pairs.T.tolist()])[place.reshape(-1)]
    contexts, place = np.unique(_rounded(workload.prompt_tokens), return_inverse=True)
    decode = lone_seconds(latency, decode_requests=1.0, decode_context=contexts)[place]
    speculation = latency.deployment.recipe.speculation
    if speculation is not None:
        decode = decode / (1 + len(speculation.acceptance))
    gaps = workload.generated_tokens - 1.0
    tpot = np.where(gaps > 0, decode, np.nan)
    return {"ttft": ttft, "tpot": tpot, "e2e": ttft + decode * gaps}


def least_excess(
    workload: Workload, latency: LinearLatency, prompts: LinearLatency, slo: Slo
) -> float:
    """Return a lower bound of the SLO's excess, the largest ratio of a latency to its limit.

    If the bound exceeds 1, the SLO is missed at every rate.
    """
    bounded, lone, gaps = _lower_bounds(workload, latency, prompts, slo)
    return bounded.excess(lone, gaps)


def _lower_bounds(
    workload: Workload, latency: LinearLatency, prompts: LinearLatency, slo: Slo
) -> tuple[Slo, Latencies, Gaps]:
    """Return the limits with lower bounds of their metrics, and these bounds for all requests."""
    means = [limit for limit in slo.on_gaps if limit.name == "mean"]
    lone = least_latencies_s(workload, latency, prompts)
    # A single ITL has no lower bound, because a token may be streamed late and the next one on
    # time. The sum of a request's ITLs includes all its steps, so limits on mean ITL have a lower
    # bound.
    weights = np.maximum(workload.output_tokens - 1, 0)
    some = weights > 0
    gaps = (lone["tpot"][some], weights[some])
    rest = [limit for limit in slo.statistics if limit.metric != "itl"]
    return replace(slo, statistics=(*rest, *means)), lone, gaps


def _prefill_s(latency: LinearLatency, new: float, known: float) -> float:
    """Return the time in seconds in which an idle server computes ``new`` prompt tokens in chunks.

    ``known`` tokens before them are already in the KV cache.
    """
    recipe = latency.deployment.recipe
    budget = recipe.token_budget if recipe.chunked_prefill else new
    starts = np.arange(0, new, budget, dtype=np.float64)
    chunks = np.minimum(new - starts, budget)
    seconds = lone_seconds(
        latency, prefill_requests=1.0, prefill_tokens=chunks, prefill_cached=known + starts
    )
    if latency.encoder is not None:
        chunks_of = zip(known + starts, chunks, strict=True)
        begun = [latency.encoder.media.begun_in(*chunk) for chunk in chunks_of]
        seconds = seconds + [latency.encoder.seconds(count) for count in begun]
    return float(max(seconds.sum() / recipe.pipeline_parallel_size, seconds.max()))


def _ready_tokens(workload: Workload, latency: LinearLatency) -> Int[np.ndarray, " requests"]:
    """Return each prompt's number of tokens that need no computation: transferred or shared."""
    ready = workload.transferred_tokens
    if not latency.deployment.recipe.prefix_caching:
        return ready
    return np.maximum(ready, np.where(workload.shares_with >= 0, workload.shared_tokens, 0))


def _rounded(tokens: np.ndarray) -> np.ndarray:
    """Round numbers of tokens down to a multiple of ``_GRAIN_TOKENS``, but to at least 1."""
    return np.maximum(tokens // _GRAIN_TOKENS * _GRAIN_TOKENS, 1)


def guessed_rates_per_s(
    workload: Workload, latency: LinearLatency, engine: EngineSpec, slo: Slo | None
) -> tuple[float, float]:
    """Guess the requests/s at which a replica is always busy and those at TPOT's limit.

    If B requests decode concurrently, the decodes of one request take output x decode(B) / B
    seconds of engine time, where decode(B) is the time of a step with B decodes. The prompt takes
    the time by which it lengthens such a step. The first rate is the maximum over all B. The second
    rate is the maximum over all B whose TPOT, including the prompts of other requests, meets its
    limit.
    """
    recipe = latency.deployment.recipe
    output = float(workload.generated_tokens.mean())
    ready = _ready_tokens(workload, latency)
    prompt = float(np.maximum(workload.prompt_tokens - ready, 1).mean())
    context = float(workload.prompt_tokens.mean()) + output / 2
    batch = _batches(workload, latency, engine)
    decodes: dict[str, float | np.ndarray] = {"decode_requests": batch, "decode_context": context}
    chunk = min(prompt, recipe.token_budget)
    decode_s = step_seconds(latency, **decodes)
    mixed_s = step_seconds(latency, **decodes, prefill_requests=1.0, prefill_tokens=chunk)
    prompt_s = (mixed_s - decode_s) * prompt / chunk
    if latency.encoder is not None:
        prompt_s = prompt_s + latency.encoder.seconds(latency.encoder.media.count)
    drafts = recipe.speculation
    token_s = decode_s / (1.0 if drafts is None else drafts.tokens_per_step)
    # A replica's data-parallel ranks run in parallel, and so do its pipeline stages, on different
    # batches.
    side_by_side = recipe.data_parallel_size * recipe.pipeline_parallel_size
    rate = side_by_side / (output * token_s / batch + prompt_s)
    tpot_s = token_s / np.maximum(1 - rate / side_by_side * prompt_s, 1e-3)
    each = [] if slo is None else slo.each
    of_gaps = [seconds for metric, _, seconds in each if metric in ("tpot", "itl")]
    limit_s = min(of_gaps, default=np.inf)
    held = rate[tpot_s <= limit_s]
    return float(rate.max()), float(held.max()) if len(held) else float(rate[0])


def _batches(workload: Workload, latency: LinearLatency, engine: EngineSpec) -> np.ndarray:
    """Return batch sizes in requests, up to the limits set by ``max_num_seqs`` and the KV cache."""
    recipe, layout = latency.deployment.recipe, kv_layout(latency.deployment, engine)
    each = float(workload.prompt_tokens.mean() + workload.output_tokens.mean() / 2)
    cached = layout.blocks / float(layout.request_blocks(max(int(each), 1), recipe.block_tokens))
    most = min(recipe.max_requests, recipe.token_budget, cached, len(workload))
    return np.unique(np.geomspace(1, max(most, 1), 24).round())


#: Number of requests in a screening simulation.
_REQUESTS = 1000
#: A candidate is kept if its screened rate is at most this relative distance below the best rate on
#: the same hardware.
_MARGIN = 0.04
#: Relative distance between the passing and the failing rate at which a bisection in screening
#: ends.
_WIDTH = 0.02
#: Upper bound of a screened rate, relative to the estimated rate at which a replica is always busy.
_MOST_GUESSED = 2.0
#: Rates at the points of a frontier, relative to the estimated rate at which a replica is always
#: busy.
_LADDER = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)
#: Minimum number of requests at a point of a frontier. Lower rates get fewer requests, so that all
#: rates have similar durations. With equal numbers, most simulated steps would be at low rates.
_LEAST_REQUESTS = 200
#: Rate at which a server is idle, relative to the estimated rate at which it is always busy.
_IDLE_SHARE = 1e-3


@dataclass(frozen=True)
class ScreeningResult:
    """Result of screening the candidates of one hardware configuration.

    Attributes:
        kept: (index of a candidate to evaluate, its screened maximum rate in requests/s), best
            first.
        rejected: All other candidates, with reasons.
        points: Metrics of the first kept candidate, at increasing rates.
        idle: Closest candidate on an idle server, if no candidate meets the SLO; else None.
        simulations: Number of simulations.
        is_partial: Whether time ran out before all candidates were screened.
    """

    kept: Sequence[tuple[int, float]]
    rejected: Sequence[RejectedCandidate]
    points: Sequence[Point]
    idle: IdleServer | None
    simulations: int
    is_partial: bool = False


def screen(
    candidates: Sequence[Candidate],
    problem: PlanningProblem,
    budget: TimeBudget = UNLIMITED,
    *,
    in_any_case: bool = False,
) -> ScreeningResult:
    """Screen candidates that differ only in scheduler limits.

    Candidates whose lower bound of a latency exceeds a limit are not simulated. A candidate is also
    skipped if a lower ``max_num_seqs`` was never reached, because its requests would run in the
    same way. A small token budget is skipped unless it may help (:func:`_unhelpful`). All other
    candidates are first simulated at the best rate so far.

    Args:
        candidates: Candidates on the same hardware.
        problem: Load and SLO.
        budget: Time budget.
        in_any_case: Whether to continue after time has run out, until one candidate meets the SLO.

    Raises:
        OutOfTimeError: If time runs out, except with ``in_any_case``.
    """
    load, slo = problem.replica_load(most=_REQUESTS), problem.slo
    found: list[tuple[int, float]] = []
    rejected: list[RejectedCandidate] = []
    unfilled: list[Candidate] = []
    simulations = 0
    bounds: dict[int, float] = {}
    for place in sorted(range(len(candidates)), key=lambda i: _scheduler_limits(candidates[i])):
        candidate = candidates[place]
        bounded, lone, gaps = _lower_bounds(
            problem.workload, candidate.latency, candidate.prompt_latency, slo
        )
        bounds[place] = bounded.excess(lone, gaps)
        top, best = max(found, key=lambda each: each[1], default=(place, 0.0))
        reason = _same(candidate, unfilled) or _unhelpful(candidate, candidates[top], slo)
        if bounds[place] > 1:
            missed = ", ".join(missed_limits(bounded, lone, gaps, least=True))
            reason = f"infeasible: on an idle server, {missed}"
        if reason is not None:
            rejected.append(candidate.rejected(reason, simulated=False))
            continue
        needed = in_any_case and not found
        trials = Trials(candidate, load, slo, budget=UNLIMITED if needed else budget)
        near = best if _is_small(candidate) else _near(best, problem)
        try:
            rate = _screened_rate(trials, best, near)
        except OutOfTimeError:
            if not in_any_case:
                raise
            rejected.append(candidate.rejected(f"{NOT_TRIED}: {TIME_OVER}", simulated=False))
            continue
        simulations += trials.tally.simulations
        if trials.tally.most_running < candidate.deployment.recipe.max_requests and rate > 0:
            unfilled.append(candidate)
        if rate < near or rate == 0:
            rejected.append(candidate.rejected(_too_low(rate, best)))
        else:
            found.append((place, rate))
    found.sort(key=lambda each: -each[1])
    kept = [(place, rate) for place, rate in found if rate >= _near(found[0][1], problem)]
    rejected += [
        candidates[place].rejected(_too_low(rate, found[0][1]))
        for place, rate in found[len(kept) :]
    ]
    points: list[Point] = []
    if kept:
        with suppress(OutOfTimeError):
            points = _ladder(candidates[kept[0][0]], problem, budget)
    simulations += len(points)
    idle = None
    if not kept:
        idle = _idle(candidates[min(bounds, key=lambda i: bounds[i])], problem)
        simulations += 1
    is_partial = len(points) < len(_LADDER) * bool(kept) or any(
        each.reason.startswith(NOT_TRIED) for each in rejected
    )
    return ScreeningResult(kept, rejected, points, idle, simulations, is_partial)


def _idle(candidate: Candidate, problem: PlanningProblem) -> IdleServer:
    """Return the latencies of a candidate at a rate so low that requests do not overlap."""
    most, _ = _guesses(candidate, problem.workload, None)
    trials = Trials(candidate, problem.replica_load(most=_LEAST_REQUESTS), problem.slo)
    run = trials.run(_IDLE_SHARE * most)
    seconds, gaps = latencies_s(run), run.gaps.per_token
    missed = missed_limits(problem.slo, seconds, gaps)
    return IdleServer(candidate.label, missed, problem.slo.excess(seconds, gaps))


def _near(best: float, problem: PlanningProblem) -> float:
    """Return the minimum screened rate at which a candidate is kept.

    It is slightly below the best rate, and lower if a slower candidate may need no more replicas
    than the best one. A replica in a fleet may sustain a higher rate than a single replica, and
    this gain differs between candidates.
    """
    near, asked = best * (1 - _MARGIN), problem.rate_per_s
    if asked is None or asked <= best or best == 0:
        return near
    return min(near, asked / math.ceil(asked / best) / BALANCED_GAIN)


def _screened_rate(trials: Trials, best: float, near: float) -> float:
    """Return a candidate's maximum rate from runs with few requests; 0 if it is below ``near``."""
    if best > 0:
        if trials.excess(near) > 1:
            return 0.0
        # ``near`` passes, so the candidate is kept. Search for its rate only if it exceeds the best
        # rate.
        return max(_highest(trials, best, stride=1 + _MARGIN, best=best), near)
    most, guess = _guesses(trials.candidate, trials.load.workload, trials.slo)
    # If a screening's few requests can all run at once, every rate passes, so bound the rate.
    return min(_highest(trials, guess), _MOST_GUESSED * most)


def _highest(trials: Trials, guess: float, stride: float = 1.25, best: float = 0.0) -> float:
    return highest_rate(trials.excess, guess, stride=stride, width=_WIDTH, enough=best)[0]


def _ladder(candidate: Candidate, problem: PlanningProblem, budget: TimeBudget) -> list[Point]:
    most, _ = _guesses(candidate, problem.workload, None)
    points = []
    for share in _LADDER:
        load = problem.replica_load(most=max(round(share * _REQUESTS), _LEAST_REQUESTS))
        trials = Trials(candidate, load, problem.slo, budget=budget)
        points.append(trials.point(trials.run(share * most), share * most))
    return points


def _guesses(candidate: Candidate, load: Workload, slo: Slo | None) -> tuple[float, float]:
    if not isinstance(candidate, PoolsCandidate):
        return guessed_rates_per_s(load, candidate.latency, candidate.engine, slo)
    first, rest = halves(load)
    prompts, _ = guessed_rates_per_s(first, candidate.prompt_latency, candidate.engine, None)
    answers = guessed_rates_per_s(rest, candidate.latency, candidate.engine, slo)
    prompts *= candidate.prefill_servers
    most, held = (min(prompts, candidate.decode_servers * rate) for rate in answers)
    return most, held


#: Factor on an estimated rate for each doubling of data-parallel ranks, and of pipeline stages,
#: which share a load unevenly. The values are medians of screened over estimated rates of
#: gpt-oss-120b on A100, H100, H200, B200 and L40S. They affect only the order of a search.
_LEFT_PER_DOUBLED_RANKS, _LEFT_PER_DOUBLED_STAGES = 0.82, 0.73


def guessed_rate_per_s(candidate: Candidate, problem: PlanningProblem) -> float:
    """Guess the maximum request rate of a replica within the SLO, without a simulation.

    The guess determines the order in which hardware is screened.
    """
    recipe = candidate.deployment.recipe
    _, held = _guesses(candidate, problem.workload, problem.slo)
    ranks, stages = recipe.data_parallel_size, recipe.pipeline_parallel_size
    left = _LEFT_PER_DOUBLED_RANKS ** math.log2(ranks)
    return held * left * _LEFT_PER_DOUBLED_STAGES ** math.log2(stages)


def _scheduler_limits(candidate: Candidate) -> tuple[int, int]:
    recipe = candidate.deployment.recipe
    return -recipe.token_budget, recipe.max_requests


def _same(candidate: Candidate, unfilled: Sequence[Candidate]) -> str | None:
    """Return why a candidate's higher ``max_num_seqs`` has no effect; None if it may have one.

    It has no effect if an otherwise equal candidate in ``unfilled`` never reached its lower limit.
    """
    a = candidate.deployment.recipe
    for b in (other.deployment.recipe for other in unfilled):
        alike = (a.token_budget, a.graph_tokens) == (b.token_budget, b.graph_tokens)
        if alike and a.max_requests > b.max_requests:
            return (
                f"same result as with max_num_seqs {b.max_requests}, which was not reached in "
                "any simulation of the screening"
            )
    return None


#: Token budgets below this are tried only where they may raise the maximum rate: more and shorter
#: steps per prompt lower ITL and TPOT, but also the throughput.
_SMALL_BUDGET_TOKENS = 2048


def _is_small(candidate: Candidate) -> bool:
    return candidate.deployment.recipe.token_budget < _SMALL_BUDGET_TOKENS


def _unhelpful(candidate: Candidate, best: Candidate, slo: Slo) -> str | None:
    """Return why a candidate's small token budget is not tried; None if it is tried.

    It is tried if the SLO limits ITL or TPOT, and with at most the ``max_num_seqs`` of ``best``,
    the best candidate so far, unless that candidate also has a small budget.
    """
    if not _is_small(candidate) or _is_small(best):
        return None
    if not slo.bounds_gaps:
        return "a small token budget lowers ITL and TPOT, which the SLO does not limit"
    most = best.deployment.recipe.max_requests
    if candidate.deployment.recipe.max_requests <= most:
        return None
    return f"small token budgets are tried only up to max_num_seqs {most}, that of the best budget"


def _too_low(rate: float, best: float) -> str:
    if rate == 0 and best == 0:
        return "does not meet the SLO at any rate"
    return (
        f"screened maximum rate below {number(best)} requests/s, the best rate of other scheduler "
        f"settings on this hardware"
    )
