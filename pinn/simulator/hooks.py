"""Hooks of the simulation loop that call a latency model, in plain and in compiled Python."""

from collections.abc import Callable
from inspect import unwrap

import numpy as np
from jaxtyping import Float
from numba import types

from pinn.errors import PinnError
from pinn.physics.costs import COST_NAMES, StepCosts
from pinn.simulator.client import group_of
from pinn.simulator.compiler import compiled_as, inner
from pinn.simulator.engine import Engine
from pinn.simulator.latency_model import LatencyModel
from pinn.simulator.prefill_first import schedule_apart
from pinn.simulator.state import PADDING, REREAD, SHARED_SUMS
from pinn.simulator.step_formulas import StepValues, Sums, step_formulas
from pinn.specs.batch import Batch
from pinn.specs.request_media import items_begun
from pinn.surrogate.encoder_time import EncoderTime, step_encoder_seconds
from pinn.surrogate.request_features import PHASES, REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

# Request features in compiled code, for one request at a time. A test compares them with their
# definitions in ``pinn.surrogate.request_features``.


#: Quantities that multiply request coefficients: 1, or the number of prompt tokens. The last part
#: of a request feature's name states which.
REQUEST_VALUES = ("constant", "prompt_token")

ARRIVAL, SCHEDULE, FIRST_TOKEN, OUTPUT_TOKEN, COMPLETION, PREEMPTION = range(len(PHASES))
#: Phases whose features cannot depend on the request (``output_token_processing_time`` takes no
#: argument).
_FIXED_PHASES = ("output_token", "completion")


def request_coefficients(
    alpha: Float[np.ndarray, " features"],
) -> Float[np.ndarray, "phases values"]:
    """Return the request coefficients (alpha) as an array of shape [phases, ``REQUEST_VALUES``].

    Raises:
        PinnError: If a request feature has no compiled form, or if a feature depends on the request
            in a phase where the request is unknown.
    """
    table = np.zeros((len(PHASES), len(REQUEST_VALUES)))
    for (name, feature), value in zip(REQUEST_FEATURES.items(), alpha, strict=True):
        kind = name.removeprefix(f"{feature.phase}.")
        if kind not in REQUEST_VALUES:
            remedy = "add the feature to pinn/simulator/hooks.py"
            raise PinnError(f"the request feature {name} has no compiled form: {remedy}")
        if feature.phase in _FIXED_PHASES and kind != "constant":
            raise PinnError(
                f"the request feature {name} depends on the request, but the phase {feature.phase} "
                "allows only a constant"
            )
        table[PHASES.index(feature.phase), REQUEST_VALUES.index(kind)] += value
    return table


# Step features in compiled code, for one batch at a time. ``pinn.surrogate.step_features`` defines
# these features, and ``step_formulas`` repeats them for compiled code. A test compares the two for
# random batches and models. ``step_coefficients`` rejects features that ``step_formulas`` lacks.


def step_coefficients(beta: Float[np.ndarray, " features"]) -> Float[np.ndarray, " values"]:
    """Return the step coefficients (beta) in the order of ``StepValues``.

    Raises:
        PinnError: If a step feature has no compiled form.
    """
    unknown = [name for name in STEP_FEATURES if name not in StepValues._fields]
    if unknown:
        fault = f"the step features {', '.join(unknown)} have no compiled form"
        raise PinnError(f"{fault}: add the formulas to pinn/simulator/step_formulas.py")
    by_name = dict(zip(STEP_FEATURES, beta, strict=True))
    return np.array([by_name.get(name, 0.0) for name in StepValues._fields], dtype=np.float64)


def numbers(**values: float | Float[np.ndarray, "..."] | np.record) -> np.record:
    """Combine named numbers, arrays and nested records into one record, in the given order.

    Compiled code receives the record as one pointer; the record's type has the names and shapes.
    """
    columns = {name: np.asarray(value) for name, value in values.items()}
    kinds = [
        (name, column.dtype if column.dtype.names else "f8", column.shape)
        for name, column in columns.items()
    ]
    record = np.zeros(1, kinds).view(np.recarray)
    for name, column in columns.items():
        record[name] = column
    return record[0]


def cost_numbers(costs: StepCosts) -> np.record:
    """Return a deployment's costs (seconds per unit of work, and counts) as one record.

    ``costs`` has arrays with one entry for the deployment.
    """
    return numbers(**{name: getattr(costs, name)[0] for name in COST_NAMES})


@inner
def step_values(c: np.record, sums: Float[np.ndarray, " sums"]) -> StepValues:
    """Return the step features of one batch.

    Args:
        c: Costs of the deployment as a record (``Costs``).
        sums: Sums over the batch: the fields of ``BatchSums`` in order, then the two additional
            sums of ``pinn.simulator.state``.
    """
    context, near = _read_contexts(sums)
    return step_formulas(c, Sums(
        sums[0], sums[1], sums[2], context, sums[4], sums[5], near, sums[7], sums[8], sums[9],
        sums[PADDING],
    ))  # fmt: skip


@inner
def _read_contexts(sums: np.ndarray) -> tuple[float, float]:
    """Return the context tokens that decodes read from GPU memory, excluding L2 cache hits.

    The first number is for full attention, the second for windowed attention.
    """
    context, near = sums[3], sums[6]
    if sums[REREAD] > 0:
        context -= sums[REREAD]
        near *= context / sums[3]
    return context, near


# Hooks through which the event loop calls the latency model. Each hook is a plain function for any
# Python object with the methods of ``LatencyModel``. By ``numba.extending.overload``, each hook
# also has a compiled version for the coefficients from
# ``pinn.simulator.linear_latency.LinearLatency.compile``.


def step_seconds(latency: LatencyModel, engine: Engine, replica: int, shared_s: float) -> float:
    """Return the step time in seconds of the batch that a replica has just scheduled.

    ``shared_s`` is the time in seconds of the expert work that all ranks of the group share, or 0.
    """
    group = engine.groups[group_of(engine, replica)]
    column = (group.oldest + group.in_flight) % engine.config.depth
    rows = [engine.entries[replica, column, i] for i in range(engine.batches[replica, column].size)]
    batch = Batch(
        tuple(row.new for row in rows),
        tuple(row.cached for row in rows),
        tuple(bool(row.prefill) for row in rows),
        float(engine.replicas[replica].sums[REREAD]),
    )
    if engine.config.shares_experts and hasattr(latency, "own_step_time"):
        return float(latency.own_step_time(batch, shared_s))
    return float(latency.step_time(batch)) + shared_s


def shared_seconds(latency: LatencyModel, engine: Engine, group: int) -> float:
    """Return the time of the experts' work that a group's replicas share in a step, in seconds."""
    if not hasattr(latency, "shared_step_time"):
        return 0.0
    return float(latency.shared_step_time(*engine.groups[group].shared[: len(SHARED_SUMS)]))


def schedule_apart_if(
    latency: LatencyModel,  # noqa: ARG001  compiled code goes by its type
    engine: Engine,
    replica: int,
) -> None:
    """Schedule a batch of prompts only or of decodes only, for engines that never mix them.

    For engines whose steps mix prompts and decodes, this scheduler is not compiled.
    """
    schedule_apart(engine, replica)


#: Methods of the latency model that are called when a phase of a request begins, by phase.
_METHODS = {
    ARRIVAL: "queueing_time",
    SCHEDULE: "scheduling_processing_time",
    PREEMPTION: "preemption_processing_time",
}


def request_seconds(latency: LatencyModel, engine: Engine, r: int, phase: int) -> float:
    """Return a request's delay in seconds in one phase: sending, scheduling or preemption."""
    return float(getattr(latency, _METHODS[phase])(float(engine.requests[r].prompt)))


def after_output_seconds(latency: LatencyModel) -> tuple[float, float]:
    """Return the API server's time per output token and after the last token, in seconds."""
    per_token = float(latency.output_token_processing_time())
    return per_token, float(latency.post_decode_fixed_overhead())


@inner
def _dot(weights: np.ndarray, values: tuple[float, ...]) -> float:
    total = 0.0
    for i in range(len(weights)):
        total += weights[i] * values[i]
    return total


_LAUNCHED = StepValues._fields.index("launched_layer")
_STEP, _REQUEST = (StepValues._fields.index(name) for name in ("step", "request"))


@inner
def _launching(beta: np.ndarray, values: tuple[float, ...]) -> float:
    return beta[_LAUNCHED] * values[_LAUNCHED]


@inner
def _linear_step(latency: np.record, sums: Float[np.ndarray, " sums"], shared_s: float) -> float:
    """Return the step time of a batch in seconds, as ``step_features.step_time`` computes it."""
    values, beta = step_values(latency.costs, sums), latency.beta
    host = beta[_STEP] * values[_STEP] + beta[_REQUEST] * values[_REQUEST]
    launching = _launching(beta, values)
    return host + max(launching, _dot(beta, values) - host - launching + shared_s)


@inner
def speculative_seconds(
    latency: np.record, sums: Float[np.ndarray, " sums"], shared_s: float
) -> float:
    """Return the step time in seconds of a batch with speculative decoding.

    The step consists of the draft model's passes, if there is a draft model, and the verification
    pass.
    """
    added = latency.tokens * sums[1]
    padding = sums[PADDING] * (1 + latency.tokens)
    context, near = _read_contexts(sums)
    verified = step_formulas(latency.costs, Sums(
        sums[0], sums[1] + added, sums[2], context + added, sums[4], sums[5],
        near + added, sums[7], sums[8], sums[9], padding,
    ))  # fmt: skip
    once = step_values(latency.costs, sums)
    host, launching = _dot(latency.beta, once), _launching(latency.pass_beta, verified)
    passes = _dot(latency.pass_beta, verified) + shared_s
    if latency.passes == 0:
        return host + max(launching, passes - launching)
    first = step_formulas(latency.first, Sums(
        sums[0], sums[1], sums[2] + added, context + added, sums[4], sums[5],
        near + added, sums[7], sums[8], sums[9], padding,
    ))  # fmt: skip
    launching += _launching(latency.pass_beta, first)
    passes += _dot(latency.pass_beta, first)
    known, b = sums[4] + sums[2], latency.branches
    later = step_formulas(latency.later, Sums(
        0.0, b * (sums[0] + sums[1]), 0.0, b * (context + known), 0.0, 0.0,
        b * (near + sums[7] + sums[2]), 0.0, 0.0, 0.0,
        b * sums[PADDING],
    ))  # fmt: skip
    launching += (latency.passes - 1) * _launching(latency.pass_beta, later)
    passes += (latency.passes - 1) * _dot(latency.pass_beta, later)
    return host + max(launching, passes - launching)


# Encoder time in compiled code, as defined in ``pinn.surrogate.encoder_time``.

#: Functions without their runtime type checks, which compiled code cannot run.
_items_begun = inner(unwrap(items_begun))
_step_seconds = inner(unwrap(step_encoder_seconds))


def encoder_numbers(encoder: EncoderTime) -> np.record:
    """Return the constants from which compiled code computes the time of an encoder."""
    media = encoder.media
    return numbers(
        first_s=encoder.first_s,
        further_s=encoder.further_s,
        together=encoder.together,
        first_token=media.first_token,
        tokens=media.tokens,
        count=media.count,
    )


@inner
def _encoder_seconds(latency: np.record, engine: Engine, replica: int) -> float:
    """Return the encoder's time in seconds for images or audio that start in the new batch."""
    of = latency.encoder
    group = engine.groups[group_of(engine, replica)]
    column = (group.oldest + group.in_flight) % engine.config.depth
    begun = 0
    for i in range(engine.batches[replica, column].size):
        row = engine.entries[replica, column, i]
        if row.prefill:
            end = row.cached + row.new
            begun += _items_begun(end, of.first_token, of.tokens, of.count)
            begun -= _items_begun(row.cached, of.first_token, of.tokens, of.count)
    return _step_seconds(begun, of.first_s, of.further_s, of.together)


@inner
def _request_seconds(latency: np.record, engine: Engine, r: int, phase: int) -> float:
    alpha, prompt_tokens = latency.alpha, engine.requests[r].prompt
    total = alpha[phase, 0] + alpha[phase, 1] * prompt_tokens
    if phase == SCHEDULE:
        total += alpha[FIRST_TOKEN, 0] + alpha[FIRST_TOKEN, 1] * prompt_tokens
    return total


def _step_form(latency: types.Record) -> Callable[..., float]:
    seconds = speculative_seconds if "pass_beta" in latency.fields else _linear_step
    if "encoder" in latency.fields:
        return lambda latency, engine, replica, shared_s: (
            seconds(latency, engine.replicas[replica].sums, shared_s)
            + _encoder_seconds(latency, engine, replica)
        )
    return lambda latency, engine, replica, shared_s: seconds(
        latency, engine.replicas[replica].sums, shared_s
    )


def _shared_form(latency: types.Record) -> Callable[..., float]:
    if "shared" not in latency.fields:
        return lambda latency, engine, group: 0.0  # noqa: ARG005
    seconds = speculative_seconds if "pass_beta" in latency.fields else _linear_step
    return lambda latency, engine, group: seconds(latency.shared, engine.groups[group].shared, 0.0)


def _apart_form(latency: types.Record) -> Callable[..., None]:
    if "apart" in latency.fields:
        return lambda latency, engine, replica: schedule_apart(engine, replica)  # noqa: ARG005
    return lambda latency, engine, replica: None  # noqa: ARG005


def _request_form() -> Callable[..., float]:
    return lambda latency, engine, r, phase: _request_seconds(latency, engine, r, phase)


def _output_form() -> Callable[..., tuple[float, float]]:
    return lambda latency: (latency.alpha[OUTPUT_TOKEN, 0], latency.alpha[COMPLETION, 0])


# numba requires equal argument names and annotations in a hook's plain and compiled versions.
compiled_as(step_seconds)(
    lambda latency, engine, replica, shared_s: _step_form(latency)  # noqa: ARG005
)
compiled_as(shared_seconds)(lambda latency, engine, group: _shared_form(latency))  # noqa: ARG005
compiled_as(schedule_apart_if)(lambda latency, engine, replica: _apart_form(latency))  # noqa: ARG005
compiled_as(request_seconds)(lambda latency, engine, r, phase: _request_form())  # noqa: ARG005
compiled_as(after_output_seconds)(lambda latency: _output_form())  # noqa: ARG005
