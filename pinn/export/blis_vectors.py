"""Alpha and beta vectors for BLIS: one for each load of a configuration, and one for all loads."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from pinn.export import blis_features
from pinn.export.blis_batches import (
    MOST_PROMPTS,
    Guard,
    guard,
    request_lengths,
    step_us,
)
from pinn.export.blis_loads import Seen, evenly, is_standard, mean_lengths, observe, observe_steady
from pinn.export.configured import Configured
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.workloads.workload import Workload
from pinn.units import MICROSECOND

#: Name of the vector for all loads together.
MIX = "mix"


@dataclass(frozen=True)
class WorstBatch:
    """Batch in a vector's range with the largest error of BLIS.

    Attributes:
        error: Relative error, BLIS / surrogate - 1.
        decodes: Decodes of the batch, in one replica.
        prompts: Prompts beside the decodes.
        prompt_tokens: Tokens of each prompt; 0 for none.
    """

    error: float
    decodes: int
    prompts: int
    prompt_tokens: int

    def __str__(self) -> str:
        many = f"{self.prompts} prompts" if self.prompts > 1 else "a prompt"
        beside = f" beside {many} of {self.prompt_tokens}" if self.prompts else ""
        return f"{100 * self.error:+.1f} % at {self.decodes} decodes{beside}"


SEVERAL = "several prompts"
#: Kinds of steps by their prompts, of which a load brings some at once, and others hardly ever.
KINDS = "decodes alone", "one prompt", SEVERAL, "rarely so many prompts"
#: Largest relative error of a guard's batches, where the formula can reach it: of decodes alone and
#: of dense models, and of mixtures of experts with prompts.
GUARD, _EXPERTS = 0.145, 0.245
#: Standard deviations of the number of requests that arrive at random.
_CROWDED = 2.0
#: Weights of the largest errors beyond that, relative to a mean error: with a prompt at most, and
#: with as many as the load brings at once.
_BEYOND_FEW, _BEYOND_SEVERAL = 100.0, 30.0


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
        kinds: Kind of step -> its batch with the largest error in that range.
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
    kinds: dict[str, WorstBatch]
    prompt_us: float
    arrival_prompt_us: float
    replicas: int
    step_errors: dict[str, float]
    first_token_errors: dict[str, float]

    @property
    def worst(self) -> WorstBatch:
        """Return the batch with the largest error, with a prompt at most.

        Several prompts at once are told alone: each costs the same in BLIS's formula, while the
        first one makes the engine launch kernels one by one and hit most experts.
        """
        few = (batch for batch in self.kinds.values() if batch.prompts < 2)
        return max(few, key=lambda batch: abs(batch.error))

    @property
    def several(self) -> WorstBatch | None:
        """Return the batch with the largest error and several prompts, as many as at once."""
        return self.kinds.get(SEVERAL)


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
    classes = [observe_steady(latency, lengths) for lengths in request_lengths(latency)]
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


def _vector(
    latency: LinearLatency, one: Seen, loads: list[Seen], guarded: Guard, taken: tuple[float, float]
) -> BlisVector:
    deployment = latency.deployment
    projection = blis_features.project(
        one.batches, _guards(guarded, taken, one.prompts, dense=deployment.model.moe is None)
    )
    beta = projection.beta
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
        kinds=_worst_batches(guarded.within(*taken), one.prompts, beta),
        prompt_us=prompt_us / one.lengths.prompt / replicas,
        arrival_prompt_us=(latency.queueing_time(1) - latency.queueing_time(0)) / MICROSECOND,
        replicas=replicas,
        step_errors={e.load: float(np.median(np.abs(e.batches.errors(beta)))) for e in loads},
        first_token_errors={e.load: (delay_us - e.first_token_delay_us) / e.ttft_us for e in loads},
    )


def _guards(
    guarded: Guard, taken: tuple[float, float], prompts: int, *, dense: bool
) -> list[blis_features.Limited]:
    """Return the batches whose errors a vector limits: with a prompt at most, and with several."""
    # Step times of experts are too curved for one line through all of them. Random arrivals exceed
    # the range at times; the vector of the fewest decodes also serves single requests.
    more = _CROWDED * taken[1] ** 0.5 if taken[0] > 1 else 0.0
    few = guarded if dense else guarded.within(taken[0], taken[1] + more)
    limit, asked = GUARD if dense else _EXPERTS, guarded.within(*taken)
    each = (
        (few.with_prompts(0, 0), GUARD, _BEYOND_FEW),
        (few.with_prompts(1, 1), limit, _BEYOND_FEW),
        (asked.with_prompts(2, prompts), limit, _BEYOND_SEVERAL),
    )
    return [
        blis_features.Limited(kept.batches, most, weight)
        for kept, most, weight in each
        if len(kept.shapes)
    ]


def _worst_batches(asked: Guard, prompts: int, beta: np.ndarray) -> dict[str, WorstBatch]:
    """Return the batch with the largest error of each kind of step that occurs.

    Args:
        asked: Batches in the range of a vector.
        prompts: Most prompts that its load brings at once.
        beta: Coefficients of the vector.
    """
    found = {}
    ranges = ((0, 0), (1, 1), (2, prompts), (max(prompts + 1, 2), MOST_PROMPTS))
    for kind, (least, most) in zip(KINDS, ranges, strict=True):
        each = asked.with_prompts(least, most)
        if len(each.shapes):
            errors = each.batches.errors(beta)
            at = int(np.abs(errors).argmax())
            found[kind] = WorstBatch(float(errors[at]), *each.shapes[at].tolist())
    return found


def _together(seen: Sequence[Seen]) -> Seen:
    """Return all loads with equal weight: each contributes equally many batches."""
    count = min(len(one.batches.step_us) for one in seen)
    kept = [one.batches[evenly(one.batches.step_us, count)] for one in seen]
    batches = blis_features.Timed(
        np.concatenate([one.features for one in kept]),
        np.concatenate([one.step_us for one in kept]),
    )
    names = (
        "mean_step_us", "decodes", "first_token_delay_us", "ttft_us", "output_per_s", "shared",
    )  # fmt: skip
    mean = {name: float(np.mean([getattr(one, name) for one in seen])) for name in names}
    middle = sorted((one.lengths for one in seen), key=lambda each: each.prompt)[len(seen) // 2]
    prompts = max(one.prompts for one in seen)
    return Seen(MIX, batches, lengths=middle, prompts=prompts, overloaded=False, **mean)


def worst_taken(vectors: Sequence[BlisVector]) -> BlisVector:
    """Return the vector with the worst batch, among those that ``run.sh`` picks by itself."""
    return max((v for v in vectors if is_standard(v.load)), key=lambda v: abs(v.worst.error))
