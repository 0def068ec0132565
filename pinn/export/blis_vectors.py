"""Request (alpha) and step-time (beta) coefficients for BLIS: per load, and for all loads."""

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

#: Name of the coefficient vector fitted to all loads together.
MIX = "mix"


@dataclass(frozen=True)
class WorstBatch:
    """Batch with BLIS's largest step time error among the batches for which a vector is used.

    Attributes:
        error: Relative step time error, BLIS / surrogate - 1.
        decodes: Number of decodes in the batch, in one replica.
        prompts: Number of prompts in the batch.
        prompt_tokens: Tokens of each prompt; 0 without prompts.
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
#: Types of steps by number of prompts: none; one; several, up to the load's usual maximum; and
#: more.
KINDS = "decodes alone", "one prompt", SEVERAL, "rarely so many prompts"
#: Limits of a batch's relative error in a fit. ``GUARD``: for dense models, and for batches without
#: prompts. ``_EXPERTS``: for batches with prompts of mixture-of-experts models. Errors exceed their
#: limits only if BLIS's formula cannot meet them.
GUARD, _EXPERTS = 0.145, 0.245
#: A vector's errors are also limited for batches with more decodes than in its range, up to this
#: many standard deviations, because random arrivals make the number of decodes vary.
_CROWDED = 2.0
#: Weights, relative to the mean error, of the amounts by which the largest step time errors exceed
#: their limits. ``_BEYOND_FEW``: in batches with at most one prompt. ``_BEYOND_SEVERAL``: in
#: batches with several prompts.
_BEYOND_FEW, _BEYOND_SEVERAL = 100.0, 30.0


@dataclass(frozen=True)
class BlisVector(Seen):
    """Coefficients for BLIS, for one configuration and load, with the simulation of that load.

    ``alpha[0]`` is exact at the load's mean step. The coefficients account for the time saved when
    requests share prompts.

    Attributes:
        alpha: Values for BLIS's option ``--alpha-coeffs``, in microseconds: per request before
            queueing, per request at completion, and per output token (0).
        projection: Fitted step-time coefficients (beta), with their errors on held-out batches.
        taken: Minimum and maximum number of decodes for which ``run.sh`` uses the vector, alone or
            interpolated with the vector of an adjacent load.
        kinds: Batch with the largest error in the range ``taken``, by type of step.
        prompt_us: Time in microseconds that one more prompt token adds to a step with ``decodes``
            decodes, over all replicas.
        arrival_prompt_us: Time in microseconds that a prompt token, cached or not, adds to a
            request before it is queued.
        replicas: Number of data-parallel replicas, which BLIS treats as one engine.
        step_errors: Median absolute relative step time error of BLIS with this vector, by name of
            the load.
        first_token_errors: Name of a load -> (``alpha[0]`` - delay of that load) / its median TTFT.
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
        """Return the batch with the largest step time error and at most one prompt.

        Steps with several prompts are reported separately. In BLIS's formula all prompts cost the
        same, but in the engine the first prompt causes eager launches and activates most experts.
        """
        few = (batch for batch in self.kinds.values() if batch.prompts < 2)
        return max(few, key=lambda batch: abs(batch.error))

    @property
    def several(self) -> WorstBatch | None:
        """Return the batch with the largest error and several prompts; None if there is none."""
        return self.kinds.get(SEVERAL)


def latency_of(configured: Configured, row: int) -> LinearLatency:
    """Return the latency model (step times and request overheads) for a configuration."""
    coefficients = configured.coefficients.take(row)
    return LinearLatency(configured.deployments[row], coefficients.beta[0], coefficients.alpha[0])


def typical_tokens(configured: Configured, row: int, workloads: Sequence[Workload]) -> int:
    """Return the mean number of tokens (prompt plus output) of a request in given loads.

    Without loads, return that of a steady load.
    """
    usual = request_lengths(latency_of(configured, row))
    lengths = mean_lengths(workloads) if workloads else usual[len(usual) // 2]
    return lengths.prompt + lengths.output


def blis_vectors(
    configured: Configured, row: int, workloads: Sequence[Workload] = ()
) -> list[BlisVector]:
    """Return coefficient vectors: one per load, then one for all loads together.

    The loads are the steady loads with short, typical and long prompts, by increasing number of
    decodes from one to near saturation, and then the given loads. Given loads that the
    configuration cannot sustain are excluded from the vector for all loads.

    ``alpha[0]`` is the part of TTFT in the surrogate's engine that BLIS does not simulate as
    queueing, the running step or later steps. It is the median over a load's requests; for all
    loads, the mean of these medians. ``alpha[2]`` is 0: BLIS would add it to each ITL, but the API
    server processes a token while the engine computes the next one.

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
        # Between two loads run.sh combines their vectors, so each vector must be accurate up to the
        # decodes of the adjacent loads.
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
    """Return batches whose errors a fit limits: with no prompt, one prompt, several prompts."""
    # A linear formula cannot fit all batches of an MoE model, because its step times are too
    # nonlinear. Only batches in and just above the range are therefore used. Random arrivals may
    # exceed the range, and the vector with the fewest decodes also serves single requests.
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
    """Return, by type of step, the batch with the largest step time error.

    Args:
        asked: Batches with the numbers of decodes for which ``run.sh`` uses the vector.
        prompts: Maximum number of prompts per step under the vector's load.
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
    """Merge the simulations of all loads, with the same number of batches per load."""
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
    """Return the vector with the largest error among those that ``run.sh`` uses by default."""
    return max((v for v in vectors if is_standard(v.load)), key=lambda v: abs(v.worst.error))
