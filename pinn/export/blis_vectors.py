"""Alpha and beta vectors for BLIS: one per configuration and load, and one for all loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from pinn.export.blis_batches import Guard, Lengths, guard, request_lengths, step_us
from pinn.export.blis_projection import Projection, joined, project
from pinn.export.blis_workloads import Seen, is_standard, mean_lengths, observe, standard_loads
from pinn.export.configured import Configured
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.workloads.workload import Workload
from pinn.units import MICROSECOND

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
class BlisVector:
    """What BLIS needs for one configuration under one load.

    Attributes:
        load: Name of the load, or ``mix``.
        alpha: For ``--alpha-coeffs``: microseconds per request before queueing, once at
            completion, per output token (0).
        projection: Beta with its error.
        mean_step_us: Mean step under the load, at which ``alpha[0]`` holds.
        lengths: Of its requests in the mean.
        decodes: In a step of one replica, the mean over the requests that decode.
        taken: From how many decodes to how many ``run.sh`` takes it, alone or with its neighbour.
        worst: Of the batches there.
        output_per_s: Tokens that so many decodes alone give in a second, of all replicas.
        prompt_us: What a prompt token adds to a step of so many decodes, over all replicas.
        overloaded: Whether the configuration cannot keep up with the load.
        shared: Share of the load's steps that prompts in common save; in the coefficients.
        step_errors: Taken for each load, the median |BLIS - surrogate| / surrogate of a step.
        first_token_errors: Taken for each load, what ``alpha[0]`` adds too much (or, negative, too
            little), over that load's median time to first token.
    """

    load: str
    alpha: tuple[float, float, float]
    projection: Projection
    mean_step_us: float
    lengths: Lengths
    decodes: float
    taken: tuple[float, float]
    worst: WorstBatch
    output_per_s: float
    prompt_us: float
    overloaded: bool
    shared: float
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
    return sorted(found, key=_decodes)


def _decodes(one: Seen) -> float:
    return one.decodes


def _vector(
    latency: LinearLatency,
    one: Seen,
    loads: Sequence[Seen],
    guarded: Guard,
    taken: tuple[float, float],
) -> BlisVector:
    deployment, asked = latency.deployment, guarded.within(*taken)
    # Step times of experts are too bent for one line through all of them.
    kept = asked if deployment.model.moe else guarded
    projection = project(one.batches, kept.batches)
    beta = projection.beta
    errors, shapes = asked.batches.errors(beta), asked.shapes
    at = int(np.abs(errors).argmax())
    completion_us = latency.post_decode_fixed_overhead() / MICROSECOND
    alpha = (one.first_token_delay_us, completion_us, 0.0)
    decode_us = step_us(latency, one.decodes, one.lengths)
    prompt_us = step_us(latency, one.decodes, one.lengths, prompt=True) - decode_us
    replicas = deployment.recipe.data_parallel_size
    return BlisVector(
        one.name,
        alpha,
        projection,
        one.mean_step_us,
        one.lengths,
        one.decodes,
        taken,
        WorstBatch(float(errors[at]), int(shapes[at, 0]), int(shapes[at, 1])),
        one.decodes * replicas / (decode_us * MICROSECOND),
        prompt_us / one.lengths.prompt / replicas,
        one.overloaded,
        one.shared,
        {load.name: float(np.median(np.abs(load.batches.errors(beta)))) for load in loads},
        {load.name: (alpha[0] - load.first_token_delay_us) / load.ttft_us for load in loads},
    )


def _together(seen: Sequence[Seen]) -> Seen:
    """All loads with equal weight: each brings as many batches as the others."""
    count = min(len(one.batches.step_us) for one in seen)
    places = [np.linspace(0, len(one.batches.step_us) - 1, count).astype(int) for one in seen]
    mean = {
        name: float(np.mean([getattr(one, name) for one in seen]))
        for name in ("mean_step_us", "decodes", "first_token_delay_us", "ttft_us", "shared")
    }
    batches = joined([one.batches[rows] for one, rows in zip(seen, places, strict=True)])
    middle = sorted((one.lengths for one in seen), key=lambda each: each.prompt)[len(seen) // 2]
    return Seen(MIX, batches, lengths=middle, overloaded=False, **mean)


def worst_taken(vectors: Sequence[BlisVector]) -> BlisVector:
    """The vector of those that ``run.sh`` picks by itself with the worst batch."""
    return max(
        (v for v in vectors if is_standard(v.load)),
        key=lambda v: abs(v.worst.error),
    )
