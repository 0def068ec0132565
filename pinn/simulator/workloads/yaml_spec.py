"""Loads in YAML: pinn's own format, and the format of inference-perf."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pinn.common import Json
from pinn.common.documents import first_fault, read_yaml, written
from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals, workload
from pinn.simulator.workloads.conversations import ConversationShape, converse
from pinn.simulator.workloads.rate_curve import read_rate_curve
from pinn.simulator.workloads.workload import PromptGroups, closed_loop, open_loop, shared_prefix

# Conversion of YAML files to validated models. Errors state file, place and remedy.

Model = TypeVar("Model", bound=BaseModel)


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"the value must be a number, got {str(value).lower()}")
    return value


#: Whole number in a file; ``true`` is rejected, although it equals 1 in Python.
Whole = Annotated[int, BeforeValidator(_no_truth_value)]
Number = Annotated[float, BeforeValidator(_no_truth_value)]


class Strict(BaseModel):
    """Base class of documents in which unknown keys are errors."""

    model_config = ConfigDict(extra="forbid")


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML or JSON file that contains a mapping.

    Raises:
        PinnError: If the file cannot be read, is malformed or is not a mapping.
    """
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise PinnError(
            f"{path} must be a YAML mapping of keys to values, got {type(values).__name__}"
        )
    for key in values:
        if not isinstance(key, str):
            raise PinnError(f"{path}: each key must be text, such as stages, got {key!r:.60}")
    return values


def check(model: type[Model], values: object, path: Path, remedy: str) -> Model:
    """Validate values against a pydantic model.

    Raises:
        PinnError: If a value is invalid; the message includes the position of the first invalid
            value, the expected value and a remedy.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        place, words = first_fault(error)
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        where = f"{path}: {place}" if place else f"{path}"
        raise PinnError(f"{where}: {words}{more}: {remedy}") from error


# A workload as a few lines of YAML:
#
#   prompt_tokens: 1024
#   output_tokens: 256
#   length_range: [0.8, 1.0]    # lengths uniform between these multiples; default [1, 1]
#   stages:                     # open loop ...
#     - {rate: 8, duration: 600}
#     - {rate: 20, duration: 600}
#   rate: 8                     # in place of stages: one stage, with `duration` or `requests`
#   rate_curve: day.csv         # in place of stages, see ``rate_curve.py``
#   process: poisson            # or gamma, weibull (with cv), constant
#   concurrency: 64             # ... or closed loop, with `requests`
#   requests: 640
#   groups: 10                  # shared prefixes: groups x prompts_per_group prompts that repeat
#   prompts_per_group: 10
#   shared_tokens: 100
#   timeout_s: 300              # client timeout; default unlimited
#   seed: 0
#   turns: 8                    # conversations, see ConversationShape
#   turn_tokens: 200
#   think_time_s: 20
#   tool_calls: 2
#   tool_tokens: 500
#   tool_delay_s: 1


class _InferencePerfStage(BaseModel):
    rate: Number
    duration: Number


class _Stage(_InferencePerfStage, Strict):
    pass


class _Spec(Strict):
    prompt_tokens: Whole
    output_tokens: Whole
    length_range: tuple[Number, Number] = (1.0, 1.0)
    stages: list[_Stage] | None = None
    rate: Number | None = Field(default=None, gt=0)
    duration: Number | None = Field(default=None, gt=0)
    rate_curve: str | None = None
    process: str = "poisson"
    cv: Number = 1.0
    concurrency: Whole | None = None
    requests: Whole | None = None
    groups: Whole | None = None
    prompts_per_group: Whole = 1
    shared_tokens: Whole = 0
    turns: Whole | None = Field(default=None, ge=1)
    turn_tokens: Whole | None = Field(default=None, ge=1)
    think_time_s: Number = Field(default=0.0, ge=0)
    tool_calls: Whole = Field(default=0, ge=0)
    tool_tokens: Whole = Field(default=0, ge=0)
    tool_delay_s: Number = Field(default=0.0, ge=0)
    timeout_s: Number = np.inf
    seed: Whole = 0


#: Keys that say when requests are sent, of which a load has one at most.
_TIMES = ("stages", "rate", "rate_curve")
#: Keys that are valid only for conversations.
_OF_TURNS = ("turn_tokens", "think_time_s", "tool_calls", "tool_tokens", "tool_delay_s")


class _Sent(TypedDict):
    timeout_s: float
    seed: int
    name: str


def read_plain_spec(
    values: Mapping[str, Json], path: Path, seed: int | None = None, rate_per_s: float | None = None
) -> workload.Workload:
    """Return the load described by a file in pinn's own format.

    Args:
        values: Contents of the file.
        path: Path of the file, for error messages.
        seed: Seed that replaces the seed in the file; None keeps the file's seed.
        rate_per_s: Mean rate in requests per second that replaces the stages' rate; None keeps the
            stages' rate.

    Raises:
        PinnError: If a key is unknown, or the file defines neither an open nor a closed loop.
    """
    known = f"known keys are {', '.join(_Spec.model_fields)}"
    spec = check(_Spec, values, path, known)
    seed = spec.seed if seed is None else seed
    _check_lengths(spec, path)
    sent: _Sent = {"timeout_s": spec.timeout_s, "seed": seed, "name": path.stem}
    lengths = spec.prompt_tokens, spec.output_tokens
    timed = [name for name in _TIMES if getattr(spec, name) is not None]
    if spec.concurrency is not None:
        timed += ["duration"] if spec.duration is not None else []
        if timed:
            raise PinnError(
                f"{path} has both concurrency and {timed[0]}: remove one of the two keys"
            )
        if spec.requests is None:
            raise PinnError(
                f"{path}: concurrency (a closed loop) needs requests: give their number"
            )
        if spec.turns is not None:
            return _conversations(spec, None, sent)
        return closed_loop(
            spec.concurrency, spec.requests, *lengths, length_range=spec.length_range, **sent
        )
    if len(timed) > 1:
        raise PinnError(f"{path} has both {timed[0]} and {timed[1]}: remove one of the two keys")
    _check_amount(spec, path)
    stages = _stages(spec, path, rate_per_s)
    gaps = arrivals.Gaps(spec.process, spec.cv)
    if spec.turns is not None:
        return _conversations(spec, stages, sent)
    if spec.groups is not None:
        prompts = PromptGroups(
            spec.groups, spec.prompts_per_group, spec.shared_tokens,
            spec.prompt_tokens - spec.shared_tokens, spec.length_range,
        )  # fmt: skip
        return shared_prefix(stages, prompts, spec.output_tokens, gaps=gaps, **sent)
    return open_loop(stages, *lengths, gaps=gaps, length_range=spec.length_range, **sent)


def _stages(spec: _Spec, path: Path, rate_per_s: float | None) -> list[arrivals.Stage]:
    """Return the load stages in a file: those listed, those of a rate curve, or one stage."""
    if spec.rate_curve is not None:
        curve = path.parent / spec.rate_curve
        return arrivals.read_stages(read_rate_curve(curve), str(curve), rate_per_s)
    if spec.rate is not None:
        duration_s = spec.duration or (spec.requests or 0) / spec.rate
        return arrivals.read_stages([(spec.rate, duration_s)], str(path), rate_per_s)
    if spec.stages is None:
        raise PinnError(
            f"{path}: the load has neither stages nor concurrency: give stages (rate, duration), "
            "rate with duration or requests, rate_curve (a CSV file), or concurrency and requests"
        )
    rates = [(stage.rate, stage.duration) for stage in spec.stages]
    return arrivals.read_stages(rates, str(path), rate_per_s)


def _conversations(
    spec: _Spec, stages: list[arrivals.Stage] | None, sent: _Sent
) -> workload.Workload:
    """Return a load of conversations.

    They begin at the request rates of ``stages``, or with a fixed concurrency.
    """
    rng = arrivals.random_draws(sent["seed"])
    shape = ConversationShape(
        turns=spec.turns or 1,
        first_tokens=spec.prompt_tokens - spec.shared_tokens,
        turn_tokens=spec.turn_tokens or spec.prompt_tokens - spec.shared_tokens,
        output_tokens=spec.output_tokens,
        system_tokens=spec.shared_tokens,
        groups=spec.groups or 1,
        think_s=spec.think_time_s,
        tool_calls=spec.tool_calls,
        tool_tokens=spec.tool_tokens,
        tool_delay_s=spec.tool_delay_s,
    )
    if stages is None:
        count = shape.conversations(spec.requests or 0)
        offset, stage = np.zeros(count), np.zeros(count, np.int64)
        starts_s: tuple[float, ...] = (0.0,)
    else:
        begins = [arrivals.Stage(s.rate_per_s / shape.requests, s.duration_s) for s in stages]
        gaps = arrivals.Gaps(spec.process, spec.cv)
        offset, stage = arrivals.stage_arrivals(begins, gaps, rng)
        starts_s = arrivals.stage_starts([s.duration_s for s in stages], offset, stage)

    def draw(mean: int, count: int) -> np.ndarray:
        return arrivals.draw_range(mean, spec.length_range, count, rng, least=0)

    columns = converse(shape, offset, stage, draw, rng)
    patience = np.full(len(columns["stage"]), sent["timeout_s"])
    return workload.Workload(
        sent["name"], **columns, timeout_s=patience, concurrency=spec.concurrency,
        stage_starts_s=starts_s,
    )  # fmt: skip


def _check_amount(spec: _Spec, path: Path) -> None:
    """Raise an error for an open loop whose duration is not given exactly once."""
    given = [name for name in ("duration", "requests") if getattr(spec, name) is not None]
    if spec.rate is None and given:
        needed = "rate or concurrency" if given == ["requests"] else "rate"
        raise PinnError(f"{path}: {given[0]} needs {needed}: give it, or remove {given[0]}")
    if spec.rate is not None and len(given) != 1:
        raise PinnError(f"{path}: rate needs either duration (seconds) or requests: give one")


def _check_lengths(spec: _Spec, path: Path) -> None:
    for name, least in (("prompt_tokens", 1), ("output_tokens", 0)):
        if (tokens := getattr(spec, name)) < least:
            raise PinnError(f"{path}: {name} must be at least {least}, got {written(tokens)}")
    if not 0 <= spec.shared_tokens <= spec.prompt_tokens:
        raise PinnError(
            f"{path}: shared_tokens must be 0 to prompt_tokens ({written(spec.prompt_tokens)}), "
            f"got {written(spec.shared_tokens)}"
        )
    for name in ("shared_tokens", "prompts_per_group"):
        if spec.groups is None and spec.turns is None and name in spec.model_fields_set:
            raise PinnError(
                f"{path}: {name} is given without groups: give groups, or remove {name}"
            )
    if spec.turns is not None and "prompts_per_group" in spec.model_fields_set:
        raise PinnError(
            f"{path}: prompts_per_group does not apply to conversations, which share shared_tokens "
            "within a group: remove prompts_per_group or turns"
        )
    for name in _OF_TURNS:
        if spec.turns is None and name in spec.model_fields_set:
            raise PinnError(
                f"{path}: {name} applies only to conversations: give turns as well, or remove "
                f"{name}"
            )


# inference-perf's YAML: the profile written by a user, or the config of a run.
#
# The tool ignores unknown keys, and so does this reader: a profile with
# ``num_unique_system_prompts`` runs with the tool's default of 10 groups of 10 prompts. Both
# ``constant`` and ``poisson`` loads have exponentially distributed gaps. A stage sends rate x
# duration requests and ends when the last one has completed; the next stage begins ``interval``
# seconds later.

_REMEDY = "see inference-perf's documentation of this key"


class _Load(BaseModel):
    type: Literal["constant", "poisson"] = "constant"
    interval: Number = 1.0
    stages: list[_InferencePerfStage] = Field(min_length=1)
    request_timeout: Number | None = None


class _SharedPrefix(BaseModel):
    num_groups: Whole = 10
    num_prompts_per_group: Whole = 10
    system_prompt_len: Whole = 100
    question_len: Whole = 50
    output_len: Whole = 50


class _Distribution(BaseModel):
    min: Number = 10
    max: Number = 1024
    mean: Number = 512
    std_dev: Number = 200


class _Data(BaseModel):
    type: str = "mock"
    shared_prefix: _SharedPrefix | None = None
    input_distribution: _Distribution | None = None
    output_distribution: _Distribution | None = None


class _Config(BaseModel):
    load: _Load
    data: _Data = Field(default_factory=_Data)


def read_inference_perf(
    values: Mapping[str, Json],
    path: Path,
    seed: int = 0,
    prompt_range: tuple[float, float] = (1.0, 1.0),
    rate_per_s: float | None = None,
) -> workload.Workload:
    """Return the load that inference-perf sends for a profile or config.

    Args:
        values: Contents of the file.
        path: Path of the file, for error messages.
        seed: Random seed.
        prompt_range: Minimum and maximum ratio of true to nominal prompt lengths, see
            ``shared_prefix``.
        rate_per_s: Mean rate in requests per second that replaces the stages' rate; None keeps the
            stages' rate.

    Raises:
        PinnError: If a key is invalid, or the load needs text that the file does not contain.
    """
    config = check(_Config, values, path, _REMEDY)
    load, data = config.load, config.data
    rates = [(stage.rate, stage.duration) for stage in load.stages]
    stages = arrivals.read_stages(rates, str(path), rate_per_s)
    timeout = workload.AIOHTTP_TIMEOUT_S if load.request_timeout is None else load.request_timeout
    if data.type == "shared_prefix":
        prefix = data.shared_prefix or _SharedPrefix()
        prompts = PromptGroups(
            prefix.num_groups, prefix.num_prompts_per_group, prefix.system_prompt_len,
            prefix.question_len, prompt_range,
        )  # fmt: skip
        return shared_prefix(
            stages, prompts, prefix.output_len, timeout_s=timeout, stage_gap_s=load.interval,
            seed=seed, name=path.stem,
        )  # fmt: skip
    if data.type in ("random", "synthetic"):
        return _random(stages, data, timeout, load.interval, seed, path.stem)
    raise PinnError(
        f"{path}: data.type {data.type!r} needs texts, which the file does not contain: use "
        "shared_prefix, random or synthetic, or give the lengths as a CSV trace"
    )


def _random(
    stages: list[arrivals.Stage], data: _Data, timeout_s: float, gap_s: float, seed: int, name: str
) -> workload.Workload:
    """Return a load of unique prompts with normally distributed lengths, clipped to bounds."""
    rng = arrivals.random_draws(seed)
    offset, stage = arrivals.stage_arrivals(stages, arrivals.POISSON, rng)
    prompt, output = (
        arrivals.draw_lengths("gaussian", (given or _Distribution()).model_dump(), len(offset), rng)
        for given in (data.input_distribution, data.output_distribution)
    )
    return workload.Workload(
        name, prompt, output, offset, stage, timeout_s=np.full(len(offset), timeout_s),
        stages_wait=True, stage_gap_s=gap_s,
    )  # fmt: skip
