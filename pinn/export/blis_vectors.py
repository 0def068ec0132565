"""Vectors of BLIS's coefficients, and the workloads that they are fitted to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from pinn.engines.engine_spec import EngineSpec
from pinn.export import blis_features
from pinn.export.blis_batches import Guard, Lengths, guard, request_lengths, step_us
from pinn.export.blis_model import blis_model
from pinn.export.configured import Configured
from pinn.memory.kv_cache import kv_layout
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import RequestRecords, Run, StepRecords
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.workload import Workload, open_loop
from pinn.surrogate.group_features import group_features
from pinn.surrogate.step_features import step_time
from pinn.units import MICROSECOND

# Loads that vectors are fitted to, simulated: their batches and their waiting times.

#: Batches that are kept of each load, evenly over its steps.
BATCHES = 20_000
#: Share of requests above which a load is overloaded, if that many wait longer than a step for a
#: place in the batch, or lose theirs. Their times then follow the queue, not the steps.
WAITING = 0.005
#: Decodes of the first load; ratio of decodes from one load to the next; share of the saturating
#: rate that the last load but one sends.
_FIRST, _APART, _LAST = 0.7, 1.7, 0.95
#: Most numbers of decodes that are tried in the search for the last load.
_TRIED = 24
#: Standard deviations of the number of requests that arrive at random.
_CROWDED = 2.0
_NAME = "decodes-"
#: Smallest and largest length relative to the mean, uniform in between.
_LENGTHS = (0.5, 1.5)
#: Requests of a load, and further requests per request in flight.
_REQUESTS, _EACH = 50, 8


@dataclass(frozen=True)
class Seen:
    """Observed batches and delays of a deployment under one load.

    Attributes:
        load: Name of the load, or ``mix``.
        batches: BLIS's basis functions of the batches and the surrogate's step times.
        mean_step_us: Mean step time over all steps.
        lengths: Mean prompt and output tokens of a request.
        decodes: Decodes in a step of one replica, averaged over the requests that decode.
        first_token_delay_us: Part of the time to first token that BLIS's own simulation of queue
            and steps does not cover.
        ttft_us: Median time to first token.
        overloaded: Whether the requests queue up.
        shared: Share of the steps' time that is saved by prompts which decodes have in common.
    """

    load: str
    batches: blis_features.Timed
    mean_step_us: float
    lengths: Lengths
    decodes: float
    first_token_delay_us: float
    ttft_us: float
    overloaded: bool
    shared: float


def rate_per_s(latency: LinearLatency, lengths: Lengths, decodes: float) -> float:
    """Return the requests per second that keep ``decodes`` in a step of one replica."""
    alone = step_us(latency, decodes, lengths)
    prompt_us = step_us(latency, decodes, lengths, prompt=True) - alone
    return decodes / (lengths.output * alone + decodes * prompt_us) / MICROSECOND


def most_decodes(latency: LinearLatency, lengths: Lengths) -> int:
    """Return the most requests in a step of one replica, by places in batch and KV cache."""
    deployment = latency.deployment
    layout = kv_layout(deployment, EngineSpec())
    held = layout.request_blocks(lengths.prompt + lengths.output, deployment.recipe.block_tokens)
    return max(min(deployment.recipe.max_requests, int(layout.blocks // held)), 1)


def standard_loads(latency: LinearLatency, lengths: Lengths) -> list[Workload]:
    """Return steady loads, from one request at a time to saturation of the deployment.

    Requests arrive at random; their lengths vary around ``lengths``, and their prompts differ.
    """
    most = most_decodes(latency, lengths)
    counts = np.unique(np.geomspace(1, most, _TRIED).astype(int))
    # Steps beyond the largest graph may give fewer tokens than some below it.
    rates = np.maximum.accumulate([rate_per_s(latency, lengths, float(n)) for n in counts])
    last = max(float(np.interp(_LAST * rates[-1], rates, counts)), 2.0)
    apart = (_APART**i for i in range(1, 20))
    between = [n for n in apart if n * _APART**0.5 < last and round(n) < round(last)]
    return [
        steady_load(latency, lengths, n)
        for n in (_FIRST, *between, last, *([most] if most > last + 1 else []))
    ]


def steady_load(latency: LinearLatency, lengths: Lengths, decodes: float) -> Workload:
    """Return a load that keeps ``decodes`` requests decoding in each replica."""
    replicas = latency.deployment.recipe.data_parallel_size
    rate = rate_per_s(latency, lengths, decodes) * replicas
    stages = [Stage(rate, (_REQUESTS + _EACH * decodes * replicas) / rate)]
    name = f"{_NAME}{max(round(decodes * replicas), 1)}-prompts-{lengths.prompt}"
    return open_loop(stages, lengths.prompt, lengths.output, length_range=_LENGTHS, name=name)


def is_standard(name: str) -> bool:
    """Return whether a name is that of a steady load."""
    return name.startswith(_NAME)


def mean_lengths(loads: Sequence[Workload]) -> Lengths:
    """Return the tokens of a mean request, with equal weight for each load."""
    prompt = np.mean([load.prompt_tokens.mean() for load in loads])
    output = np.mean([load.output_tokens.mean() for load in loads])
    return Lengths(round(float(prompt)), round(float(output)))


def observe(latency: LinearLatency, workload: Workload) -> Seen:
    """Simulate a load twice: as BLIS does, and as the surrogate's engine does.

    BLIS schedules a batch when the last one has ended, and its only delays are its alphas. Its
    batches, queue and wait for the step in flight are therefore those of synchronous scheduling
    with equal step times and alpha 0. The time to first token that the full simulation adds is the
    delay to give to BLIS.

    Raises:
        PinnError: If the deployment cannot serve the load.
    """
    bare = replace(latency, alpha=np.zeros_like(latency.alpha))
    as_blis = simulate(latency.deployment, workload, bare, EngineSpec(async_scheduling=False))
    whole = simulate(latency.deployment, workload, latency)
    steps = _steady_steps(as_blis.steps) if is_standard(workload.name) else as_blis.steps
    duration_us = steps["duration_s"] / MICROSECOND
    kept = _evenly(duration_us, BATCHES)
    sums = blis_features.recorded_sums(steps)
    chosen = blis_features.BlisSums(*(values[kept] for values in vars(sums).values()))
    model, overloaded = blis_model(latency.deployment), is_overloaded(as_blis)
    counts = sums.decode_requests
    return Seen(
        workload.name,
        blis_features.Timed(
            blis_features.blis_features(model, chosen.scaled(model.data_parallel)),
            duration_us[kept],
        ),
        float(duration_us.mean()),
        mean_lengths([workload]),
        float(counts @ counts / max(counts.sum(), 1.0)) or 1.0,
        _first_token_delay_s(as_blis.requests, whole.requests, overloaded) / MICROSECOND,
        float(np.nanmedian(whole.requests.ttft_s)) / MICROSECOND,
        overloaded,
        _shared(latency, steps),
    )


def _steady_steps(steps: StepRecords) -> StepRecords:
    """Return the steps from the first to the last whose batch is among the fuller quarter.

    Before and after them the batch fills and empties, unlike in a load that goes on.
    """
    requests = steps.sums.requests
    full = np.flatnonzero(requests >= np.quantile(requests, 0.75))
    return StepRecords(steps.table[full[0] : full[-1] + 1])


def is_overloaded(run: Run) -> bool:
    """Return whether requests queue up for a place in the batch, or lose it to others."""
    wait_s = run.requests.scheduled_s - run.requests.queued_s
    waited = wait_s > run.steps["duration_s"].mean()
    return float((waited | (run.requests.preemptions > 0)).mean()) > WAITING


def _first_token_delay_s(blis: RequestRecords, whole: RequestRecords, overloaded: bool) -> float:
    """Return the median missing delay over requests; under overload, without time in the queue.

    Two queues of seconds differ by more than the delay in question.
    """
    if not overloaded:
        return float(np.nanmedian(whole.ttft_s - blis.ttft_s))
    before = whole.queued_s - whole.arrival_s - (blis.queued_s - blis.arrival_s)
    after = whole.first_token_s - whole.scheduled_s - (blis.first_token_s - blis.scheduled_s)
    return float(np.nanmedian(before + after))


def _shared(latency: LinearLatency, steps: StepRecords) -> float:
    """Return the share of time that steps would add if no decode reused keys in cache."""
    saved, whole = (
        step_time(group_features(latency.deployment, sums, steps.shared_sums), latency.beta).sum()
        for sums in (steps.sums, steps.whole_sums)
    )
    return float(whole / saved - 1)


# Alpha and beta vectors for BLIS: one per configuration and load, and one for all loads together.

#: Name of the vector for all loads together.
MIX = "mix"


@dataclass(frozen=True)
class WorstBatch:
    """Batch in a vector's range with the largest error of BLIS.

    Attributes:
        error: Relative error, BLIS / surrogate - 1.
        decodes: Decodes of the batch, in one replica.
        prompt_tokens: Prompt tokens beside the decodes; 0 for none.
    """

    error: float
    decodes: int
    prompt_tokens: int

    def __str__(self) -> str:
        beside = f" and a prefill of {self.prompt_tokens} tokens" if self.prompt_tokens else ""
        return f"{100 * self.error:+.1f} % at {self.decodes} decodes{beside}"


@dataclass(frozen=True)
class BlisVector(Seen):
    """Coefficients for BLIS of one configuration under one load, with what was observed of it.

    ``alpha[0]`` is right at the load's mean step. Savings of common prompts are in the
    coefficients.

    Attributes:
        alpha: Values for ``--alpha-coeffs``: microseconds per request before queueing, once at
            completion, per output token (0).
        projection: Beta with its error.
        taken: Smallest and largest number of decodes for which ``run.sh`` uses the vector, alone or
            with its neighbour.
        worst: Batch with the largest error in that range.
        output_per_s: Tokens per second of ``decodes`` without prompts, of all replicas.
        prompt_us: Time that a prompt token adds to a step of ``decodes``, over all replicas.
        arrival_prompt_us: Time that a prompt token, cached or not, adds before the queue.
        replicas: Data-parallel replicas, which BLIS treats as one engine.
        step_errors: Load -> median |BLIS - surrogate| / surrogate of a step with this vector.
        first_token_errors: Load -> excess of ``alpha[0]`` (negative if too small) over that load's
            median time to first token.
    """

    alpha: tuple[float, float, float]
    projection: blis_features.Projection
    taken: tuple[float, float]
    worst: WorstBatch
    output_per_s: float
    prompt_us: float
    arrival_prompt_us: float
    replicas: int
    step_errors: dict[str, float]
    first_token_errors: dict[str, float]


def latency_of(configured: Configured, row: int) -> LinearLatency:
    """Return the latency model of a configuration."""
    coefficients = configured.coefficients.take(row)
    return LinearLatency(configured.deployments[row], coefficients.beta[0], coefficients.alpha[0])


def typical_tokens(configured: Configured, row: int, workloads: Sequence[Workload]) -> int:
    """Return prompt plus output tokens of a mean request of the loads, or of a steady one."""
    usual = request_lengths(latency_of(configured, row))
    lengths = mean_lengths(workloads) if workloads else usual[len(usual) // 2]
    return lengths.prompt + lengths.output


def blis_vectors(
    configured: Configured, row: int, workloads: Sequence[Workload] = ()
) -> list[BlisVector]:
    """Return the vectors of a configuration: per load from few decodes to many, then for all.

    Loads are steady ones from one request to near saturation, with short, usual and long prompts,
    and the given ones. Given loads that the configuration cannot sustain do not enter the vector
    for all.

    ``alpha[0]`` is the time that the surrogate's engine adds to the time to first token, beyond the
    queue, the step in flight and the steps that BLIS simulates. It is the median over a load's
    requests; for all loads, the mean of these medians. ``alpha[2]`` is 0: BLIS would add it to each
    ITL, but the API server processes a token while the engine makes the next.

    Args:
        configured: Configurations with coefficients.
        row: Index of the configuration.
        workloads: Loads that the configuration will serve.

    Raises:
        PinnError: If the configuration cannot serve a load.
    """
    latency = latency_of(configured, row)
    most = float(latency.deployment.recipe.max_requests)
    classes = [_steady(latency, lengths) for lengths in request_lengths(latency)]
    given = [observe(latency, workload) for workload in workloads]
    kept = [*chain(*classes), *(one for one in given if not one.overloaded)]
    found = []
    for steady in classes:
        # Between two loads both vectors are used, so each must be accurate up to its neighbours.
        ends = [1.0, *(one.decodes for one in steady), most]
        guarded = guard(latency, steady[0].lengths)
        for one, low, high in zip(steady, ends, ends[2:], strict=False):
            found.append(_vector(latency, one, kept, guarded, (min(low, high), high)))
    for one in (*given, _together(kept)):
        found.append(_vector(latency, one, kept, guard(latency, one.lengths), (1.0, most)))
    return found


def _steady(latency: LinearLatency, lengths: Lengths) -> list[Seen]:
    """Return the observations of steady loads of given lengths, from few decodes to many."""
    loads = [observe(latency, load) for load in standard_loads(latency, lengths)]
    # Some requests of the last load wait for a place: that is how saturation shows.
    found = [replace(one, lengths=lengths, overloaded=False) for one in loads]
    return sorted(found, key=lambda one: one.decodes)


def _vector(
    latency: LinearLatency, one: Seen, loads: list[Seen], guarded: Guard, taken: tuple[float, float]
) -> BlisVector:
    deployment, asked = latency.deployment, guarded.within(*taken)
    # Step times of experts are too curved for one line through all of them. Random arrivals exceed
    # the range at times; the vector of the fewest decodes also serves single requests.
    more = _CROWDED * taken[1] ** 0.5 if taken[0] > 1 else 0.0
    kept = guarded.within(taken[0], taken[1] + more) if deployment.model.moe else guarded
    projection = blis_features.project(one.batches, kept.batches)
    beta = projection.beta
    errors, shapes = asked.batches.errors(beta), asked.shapes
    at = int(np.abs(errors).argmax())
    completion_us = latency.post_decode_fixed_overhead() / MICROSECOND
    delay_us = one.first_token_delay_us
    decode_us = step_us(latency, one.decodes, one.lengths)
    prompt_us = step_us(latency, one.decodes, one.lengths, prompt=True) - decode_us
    replicas = deployment.recipe.data_parallel_size
    return BlisVector(
        **vars(one),
        alpha=(delay_us, completion_us, 0.0),
        projection=projection,
        taken=taken,
        worst=WorstBatch(float(errors[at]), int(shapes[at, 0]), int(shapes[at, 1])),
        output_per_s=one.decodes * replicas / (decode_us * MICROSECOND),
        prompt_us=prompt_us / one.lengths.prompt / replicas,
        arrival_prompt_us=(latency.queueing_time(1) - latency.queueing_time(0)) / MICROSECOND,
        replicas=replicas,
        step_errors={e.load: float(np.median(np.abs(e.batches.errors(beta)))) for e in loads},
        first_token_errors={e.load: (delay_us - e.first_token_delay_us) / e.ttft_us for e in loads},
    )


def _evenly(values: np.ndarray, count: int) -> np.ndarray:
    """Return ``count`` positions among values, evenly spaced from first to last."""
    return np.linspace(0, len(values) - 1, min(count, len(values))).astype(int)


def _together(seen: Sequence[Seen]) -> Seen:
    """Return all loads with equal weight: each contributes equally many batches."""
    count = min(len(one.batches.step_us) for one in seen)
    kept = [one.batches[_evenly(one.batches.step_us, count)] for one in seen]
    batches = blis_features.Timed(
        np.concatenate([one.features for one in kept]),
        np.concatenate([one.step_us for one in kept]),
    )
    names = ("mean_step_us", "decodes", "first_token_delay_us", "ttft_us", "shared")
    mean = {name: float(np.mean([getattr(one, name) for one in seen])) for name in names}
    middle = sorted((one.lengths for one in seen), key=lambda each: each.prompt)[len(seen) // 2]
    return Seen(MIX, batches, lengths=middle, overloaded=False, **mean)


def worst_taken(vectors: Sequence[BlisVector]) -> BlisVector:
    """Return the vector with the worst batch, among those that ``run.sh`` picks by itself."""
    return max((v for v in vectors if is_standard(v.load)), key=lambda v: abs(v.worst.error))
