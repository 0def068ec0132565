"""Workloads that BLIS's coefficients are fitted on, and the vectors themselves."""

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
from pinn.units import MICROSECOND

# The loads that projections are made for, simulated: their batches and their waiting times.

#: Batches kept of each load, evenly over its steps.
BATCHES = 20_000
#: A load is overloaded where more than this share of its requests wait longer than a step for a
#: place in the batch, or lose theirs: their times then follow the queue, not the steps.
WAITING = 0.005
#: Decodes of the first load, of each over the one before, and what the last but one sends of the
#: rate that saturates.
_FIRST, _APART, _LAST = 0.7, 1.7, 0.95
#: Numbers of decodes among which the last is looked for.
_TRIED = 24
#: Standard deviations of the number of requests that arrive at random.
_CROWDED = 2.0
_NAME = "decodes-"
#: Lengths are uniform between these shares of the mean ones.
_LENGTHS = (0.5, 1.5)
#: Requests of a load, and further ones for each that is in flight.
_REQUESTS, _EACH = 50, 8


@dataclass(frozen=True)
class Seen:
    """What one load makes a deployment do.

    Attributes:
        load: Its name, or ``mix``.
        batches: BLIS's basis functions of its batches and the surrogate's step times.
        mean_step_us: Over all steps.
        lengths: Of a request in the mean.
        decodes: In a step of a replica, the mean over the requests that decode.
        first_token_delay_us: Of the time to first token, what BLIS's own simulation of queue and
            steps leaves out.
        ttft_us: Median time to first token.
        overloaded: Whether its requests queue up.
        shared: Share of its steps' time that prompts which decodes have in common save.
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
    """Requests per second that keep so many decodes in a step of one replica."""
    alone = step_us(latency, decodes, lengths)
    prompt_us = step_us(latency, decodes, lengths, prompt=True) - alone
    return decodes / (lengths.output * alone + decodes * prompt_us) / MICROSECOND


def most_decodes(latency: LinearLatency, lengths: Lengths) -> int:
    """Requests of a step of one replica, as places in the batch and in the KV cache allow."""
    deployment = latency.deployment
    layout = kv_layout(deployment, EngineSpec())
    held = layout.request_blocks(lengths.prompt + lengths.output, deployment.recipe.block_tokens)
    return max(min(deployment.recipe.max_requests, int(layout.blocks // held)), 1)


def standard_loads(latency: LinearLatency, lengths: Lengths) -> list[Workload]:
    """Steady loads from one request at a time to all that the deployment can keep up with.

    Requests arrive at random, about that long and unlike each other.
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
    """One that keeps so many requests decoding in each replica."""
    replicas = latency.deployment.recipe.data_parallel_size
    rate = rate_per_s(latency, lengths, decodes) * replicas
    stages = [Stage(rate, (_REQUESTS + _EACH * decodes * replicas) / rate)]
    name = f"{_NAME}{max(round(decodes * replicas), 1)}-prompts-{lengths.prompt}"
    return open_loop(stages, lengths.prompt, lengths.output, length_range=_LENGTHS, name=name)


def is_standard(name: str) -> bool:
    """Whether a name is one of a steady load."""
    return name.startswith(_NAME)


def mean_lengths(loads: Sequence[Workload]) -> Lengths:
    """Tokens of a mean request, each load counting alike."""
    prompt = np.mean([load.prompt_tokens.mean() for load in loads])
    output = np.mean([load.output_tokens.mean() for load in loads])
    return Lengths(round(float(prompt)), round(float(output)))


def observe(latency: LinearLatency, workload: Workload) -> Seen:
    """Serve a load twice: as BLIS does, and as the surrogate's engine does.

    BLIS schedules a batch when the last one has ended and knows no delay but its alphas, so its
    batches, queue and wait for the step in flight are those of synchronous scheduling with the same
    step times and alpha 0. What the full simulation adds to the time to first token is the delay
    that BLIS has to be told.

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
    """Those from the first to the last whose batch is among the fuller quarter.

    Before and after them it fills and empties, as it does in no load that goes on.
    """
    requests = steps.sums.requests
    full = np.flatnonzero(requests >= np.quantile(requests, 0.75))
    return StepRecords(steps.table[full[0] : full[-1] + 1])


def is_overloaded(run: Run) -> bool:
    """Whether requests queue up for a place in the batch, or lose it to others."""
    wait_s = run.requests.scheduled_s - run.requests.queued_s
    waited = wait_s > run.steps["duration_s"].mean()
    return float((waited | (run.requests.preemptions > 0)).mean()) > WAITING


def _first_token_delay_s(blis: RequestRecords, whole: RequestRecords, overloaded: bool) -> float:
    """Median over requests of what is missing; of overloaded ones, without their time in the queue.

    Two queues of seconds differ by more than what is looked for.
    """
    if not overloaded:
        return float(np.nanmedian(whole.ttft_s - blis.ttft_s))
    before = whole.queued_s - whole.arrival_s - (blis.queued_s - blis.arrival_s)
    after = whole.first_token_s - whole.scheduled_s - (blis.first_token_s - blis.scheduled_s)
    return float(np.nanmedian(before + after))


def _shared(latency: LinearLatency, steps: StepRecords) -> float:
    """What all steps would take more if no decode found another's keys in the GPU's cache."""
    saved, whole = (
        group_features(latency.deployment, sums, steps.shared_sums) @ latency.beta
        for sums in (steps.sums, steps.whole_sums)
    )
    return float(whole.sum() / saved.sum() - 1)


# Alpha and beta vectors for BLIS: one per configuration and load, and one for all loads.

#: Name of the vector for all loads together.
MIX = "mix"


@dataclass(frozen=True)
class WorstBatch:
    """The batch of a vector's range that BLIS gets most wrong.

    Attributes:
        error: BLIS / surrogate - 1.
        decodes: Of the batch, in one replica.
        prompt_tokens: Beside them; 0 for none.
    """

    error: float
    decodes: int
    prompt_tokens: int

    def __str__(self) -> str:
        beside = f" beside a prompt of {self.prompt_tokens}" if self.prompt_tokens else ""
        return f"{100 * self.error:+.1f} % at {self.decodes} decodes{beside}"


@dataclass(frozen=True)
class BlisVector(Seen):
    """What BLIS needs for one configuration under one load, beside what was seen of that.

    ``alpha[0]`` holds at the load's mean step; what prompts in common save is in the coefficients.

    Attributes:
        alpha: For ``--alpha-coeffs``: microseconds per request before queueing, once at
            completion, per output token (0).
        projection: Beta with its error.
        taken: From how many decodes to how many ``run.sh`` takes it, alone or with its neighbour.
        worst: Of the batches there.
        output_per_s: Tokens that so many decodes alone give in a second, of all replicas.
        prompt_us: What a prompt token adds to a step of so many decodes, over all replicas.
        replicas: Data-parallel ones, which BLIS takes for one engine.
        step_errors: Taken for each load, the median |BLIS - surrogate| / surrogate of a step.
        first_token_errors: Taken for each load, what ``alpha[0]`` adds too much (or, negative, too
            little), over that load's median time to first token.
    """

    alpha: tuple[float, float, float]
    projection: blis_features.Projection
    taken: tuple[float, float]
    worst: WorstBatch
    output_per_s: float
    prompt_us: float
    replicas: int
    step_errors: dict[str, float]
    first_token_errors: dict[str, float]


def latency_of(configured: Configured, row: int) -> LinearLatency:
    """The latency model of a configuration."""
    coefficients = configured.coefficients.take(row)
    return LinearLatency(configured.deployments[row], coefficients.beta[0], coefficients.alpha[0])


def typical_tokens(configured: Configured, row: int, workloads: Sequence[Workload]) -> int:
    """Prompt and output of a mean request of the loads, or of a steady one."""
    usual = request_lengths(latency_of(configured, row))
    lengths = mean_lengths(workloads) if workloads else usual[len(usual) // 2]
    return lengths.prompt + lengths.output


def blis_vectors(
    configured: Configured, row: int, workloads: Sequence[Workload] = ()
) -> list[BlisVector]:
    """Vectors of one configuration: per load from few decodes to many, then for all of them.

    Loads are steady ones from one request to near saturation, with short, usual and long prompts,
    and those given; what the configuration cannot keep up with of the latter is in no vector for
    all.

    ``alpha[0]`` is what the surrogate's engine adds to the time to first token beyond the queue,
    the step in flight and the steps that BLIS simulates; the median over a load's requests, the
    mean of those for all loads. ``alpha[2]`` is 0: BLIS would add it to each gap between tokens,
    but the API server works on a token while the engine makes the next.

    Args:
        configured: Configurations with coefficients.
        row: Which of them.
        workloads: Loads that the configuration will see.

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
        # Between two loads both are taken, so that each is good up to its neighbours.
        ends = [1.0, *(one.decodes for one in steady), most]
        guarded = guard(latency, steady[0].lengths)
        for one, low, high in zip(steady, ends, ends[2:], strict=False):
            found.append(_vector(latency, one, kept, guarded, (min(low, high), high)))
    for one in (*given, _together(kept)):
        found.append(_vector(latency, one, kept, guard(latency, one.lengths), (1.0, most)))
    return found


def _steady(latency: LinearLatency, lengths: Lengths) -> list[Seen]:
    """Steady loads of requests of a length, from few decodes to many."""
    loads = [observe(latency, load) for load in standard_loads(latency, lengths)]
    # Some requests of the last one wait for a place; it is what saturation looks like.
    found = [replace(one, lengths=lengths, overloaded=False) for one in loads]
    return sorted(found, key=lambda one: one.decodes)


def _vector(
    latency: LinearLatency, one: Seen, loads: list[Seen], guarded: Guard, taken: tuple[float, float]
) -> BlisVector:
    deployment, asked = latency.deployment, guarded.within(*taken)
    # Step times of experts are too bent for one line through all of them. Requests that arrive at
    # random are at times more than that; the vector of few also serves one at a time.
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
        replicas=replicas,
        step_errors={e.load: float(np.median(np.abs(e.batches.errors(beta)))) for e in loads},
        first_token_errors={e.load: (delay_us - e.first_token_delay_us) / e.ttft_us for e in loads},
    )


def _evenly(values: np.ndarray, count: int) -> np.ndarray:
    """So many places among values, as far from each other as they can be."""
    return np.linspace(0, len(values) - 1, min(count, len(values))).astype(int)


def _together(seen: Sequence[Seen]) -> Seen:
    """All loads with equal weight: each brings as many batches as the others."""
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
    """The vector of those that ``run.sh`` picks by itself with the worst batch."""
    return max((v for v in vectors if is_standard(v.load)), key=lambda v: abs(v.worst.error))
