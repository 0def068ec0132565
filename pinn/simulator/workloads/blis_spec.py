"""BLIS's workload specification: what its YAML says is sent.

``clients`` with ``aggregate_rate`` and ``num_requests`` or ``horizon`` (microseconds), or an
``inference_perf`` load of stages and shared prefixes; see the models below for the keys. A client's
prompt is its prefix, 50 tokens where its group names none, followed by a draw of its input
distribution. What says nothing about the load of one server is read over: tenants, SLO classes and
targets, names of models, streaming, what share of an output is reasoning, and the network, which
has no effect in BLIS either. Any other key is refused by its name, as are those whose load cannot
be simulated here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field

from pinn.common.documents import MOST_SECONDS
from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import (
    check_requests,
    draw_gaps,
    draw_lengths,
    random_draws,
    read_stages,
)
from pinn.simulator.workloads.workload import Workload, share_prompts
from pinn.simulator.workloads.yaml_spec import Number, Whole, check
from pinn.units import MICROSECOND

# Clients of a BLIS workload specification: their keys, and the requests that one sends.

#: Arrival, prompt, output, prefix group (-1 for none), prefix tokens and patience of requests.
Requests = tuple[np.ndarray, ...]
#: What a prefix group has where it says no length.
DEFAULT_PREFIX_TOKENS = 50


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class BlisArrival(_Strict):
    """Gaps between a client's requests: by ``cv``, or by ``shape`` and ``scale`` (us)."""

    process: str = "poisson"
    cv: Number = 1.0
    shape: Number | None = Field(default=None, gt=0)
    scale: Number | None = Field(default=None, gt=0)

    def gaps_s(
        self, rate_per_s: float, count: int, rng: np.random.Generator
    ) -> Float[np.ndarray, " count"]:
        """Seconds between requests.

        Raises:
            PinnError: If the process is unknown or lacks its second parameter.
        """
        if self.shape is None and self.scale is None:
            return draw_gaps(self.process, rate_per_s, count, rng, self.cv)
        if self.shape is None or self.process not in ("gamma", "weibull"):
            raise PinnError(
                f"arrival process {self.process}: scale needs a shape, and only gamma and weibull "
                "have them"
            )
        mean = self.shape if self.process == "gamma" else math.gamma(1 + 1 / self.shape)
        scale_s = 1 / (rate_per_s * mean) if self.scale is None else self.scale * MICROSECOND
        if self.process == "gamma":
            return rng.gamma(self.shape, scale_s, count)
        return rng.weibull(self.shape, count) * scale_s

    def faster(self, factor: float) -> BlisArrival:
        """The arrivals at so many times the rate."""
        scale = None if self.scale is None else self.scale / factor
        return self.model_copy(update={"scale": scale})


class BlisLengths(_Strict):
    """Lengths as ``pinn.simulator.workloads.arrivals`` draws them, or ``empirical`` weights."""

    type: str
    params: dict[str | Whole, Number] = Field(default_factory=dict)

    def draw(self, count: int, rng: np.random.Generator) -> Int[np.ndarray, " count"]:
        """Lengths of at least 1.

        Raises:
            PinnError: If the distribution is unknown or its parameters do not fit.
        """
        if self.type != "empirical":
            named = {str(name): value for name, value in self.params.items()}
            return draw_lengths(self.type, named, count, rng)
        weights = np.array(list(self.params.values()), np.float64)
        if not (len(weights) and (weights >= 0).all() and weights.sum() > 0):
            raise PinnError(f"an empirical distribution needs positive weights, got {self.params}")
        lengths = np.array([float(name) for name in self.params])
        return np.maximum(rng.choice(lengths, count, p=weights / weights.sum()), 1).astype(np.int64)


class _Window(_Strict):
    start_us: Number = Field(ge=0)
    end_us: Number
    trace_rate: Number | None = Field(default=None, gt=0)
    arrival: BlisArrival | None = None
    input_distribution: BlisLengths | None = None
    output_distribution: BlisLengths | None = None

    def faster(self, factor: float) -> _Window:
        """The window with so many times the rate."""
        rate = None if self.trace_rate is None else self.trace_rate * factor
        arrival = None if self.arrival is None else self.arrival.faster(factor)
        return self.model_copy(update={"trace_rate": rate, "arrival": arrival})


class _Lifecycle(_Strict):
    windows: list[_Window] = Field(default_factory=list)


class _Network(_Strict):
    rtt_ms: Number = 0.0
    bandwidth_mbps: Number = 0.0


class _Reasoning(_Strict):
    reason_ratio_distribution: dict[str, Any] | None = None
    multi_turn: None = None


class BlisClient(_Strict):
    """A client of BLIS's; what says nothing about the load of one server is read over."""

    id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    slo_target_us: Number | None = None
    model: str = ""
    adapter: str = ""
    streaming: bool = True
    network: _Network | None = None
    reasoning: _Reasoning | None = None
    multimodal: None = None
    closed_loop: bool | None = None
    rate_fraction: Number = 1.0
    concurrency: Whole | None = Field(default=None, ge=1)
    think_time_us: Number = 0.0
    arrival: BlisArrival = Field(default_factory=BlisArrival)
    input_distribution: BlisLengths
    output_distribution: BlisLengths
    prefix_group: str = ""
    prefix_length: Whole = Field(default=0, ge=0)
    lifecycle: _Lifecycle | None = None
    timeout: Number | None = Field(default=None, gt=0)

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the prefix; BLIS gives a group without a length one of its own."""
        return (self.prefix_length or DEFAULT_PREFIX_TOKENS) if self.prefix_group else 0

    def faster(self, factor: float) -> BlisClient:
        """The client with so many times the rate, whatever sets it."""
        windows = [window.faster(factor) for window in (self.lifecycle or _Lifecycle()).windows]
        lifecycle = None if self.lifecycle is None else _Lifecycle(windows=windows)
        return self.model_copy(
            update={"arrival": self.arrival.faster(factor), "lifecycle": lifecycle}
        )

    @property
    def timeout_s(self) -> float:
        """When the client hangs up; infinity where the file does not say."""
        return math.inf if self.timeout is None else self.timeout * MICROSECOND


def send(
    client: BlisClient,
    rate_per_s: Number,
    most: Whole | None,
    horizon_s: Number,
    groups: list[str],
    rng: np.random.Generator,
) -> Requests:
    """What one client sends.

    Args:
        client: The client.
        rate_per_s: Its share of the whole rate.
        most: Requests of all clients together, or None.
        horizon_s: No request arrives later.
        groups: Names of the prefix groups.
        rng: Source of randomness.
    """
    windows = client.lifecycle.windows if client.lifecycle else []
    if not windows:
        windows = [_Window(start_us=0, end_us=math.inf)]
    parts = [
        _window(client, window, rate_per_s, most, horizon_s, groups, rng) for window in windows
    ]
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _window(
    client: BlisClient,
    window: _Window,
    rate_per_s: Number,
    most: Whole | None,
    horizon_s: Number,
    groups: list[str],
    rng: np.random.Generator,
) -> Requests:
    """Requests of one window; one that draws its own lengths has no prefix, as in BLIS."""
    rate_per_s = window.trace_rate or rate_per_s
    start, end = window.start_us * MICROSECOND, min(window.end_us * MICROSECOND, horizon_s)
    span = max(end - start, 0.0)
    expected = rate_per_s * span
    count = most if most is not None and not expected < most else int(2 * expected + 100)
    arrival = start + np.cumsum((window.arrival or client.arrival).gaps_s(rate_per_s, count, rng))
    arrival = arrival[arrival <= end]
    n = len(arrival)
    own = window.input_distribution is not None or window.output_distribution is not None
    prefix = 0 if own else client.prefix_tokens
    group = groups.index(client.prefix_group) if prefix else -1
    return (
        arrival,
        prefix + (window.input_distribution or client.input_distribution).draw(n, rng),
        (window.output_distribution or client.output_distribution).draw(n, rng),
        np.full(n, group),
        np.full(n, prefix),
        np.full(n, client.timeout_s),
    )


_REMEDY = "remove it, or give the load as a CSV trace"
#: Keys of BLIS's that ask for what is not simulated here, at whatever depth.
_UNSERVED = {
    "servegen_data": "its files hold the load",
    "cohorts": "write their members as clients",
    "multimodal": "images, audio and video are not simulated; write their tokens as text",
    "multi_turn": "rounds do not wait for each other's end; give a TraceV2 recording",
    "enable_multi_turn_chat": "rounds do not wait for each other's end; give a TraceV2 recording",
    "think_time_us": "clients do not pause between an answer and the next request",
}


class _Stage(_Strict):
    rate: Number = Field(gt=0)
    duration: Number = Field(gt=0)


class _SharedPrefix(_Strict):
    num_unique_system_prompts: Whole = Field(default=1, ge=1)
    num_users_per_system_prompt: Whole = Field(default=1, ge=1)
    system_prompt_len: Whole = Field(default=0, ge=0)
    question_len: Whole = Field(ge=1)
    output_len: Whole = Field(ge=1)
    enable_multi_turn_chat: bool = False


class _InferencePerf(_Strict):
    stages: list[_Stage] = Field(min_length=1)
    shared_prefix: _SharedPrefix


class _Spec(_Strict):
    version: str | Whole = ""
    category: str = ""
    seed: Whole = 0
    aggregate_rate: Number | None = None
    num_requests: Whole | None = Field(default=None, ge=1)
    horizon: Number | None = Field(default=None, gt=0)
    goodput_slo_targets: dict[str, Any] = Field(default_factory=dict)
    clients: list[BlisClient] = Field(default_factory=list)
    inference_perf: _InferencePerf | None = None


def is_blis_spec(values: dict[str, Any]) -> bool:
    """Whether a YAML mapping looks like a BLIS workload specification."""
    return bool(
        {"clients", "aggregate_rate", "inference_perf", "cohorts", "servegen_data"} & set(values)
    )


def read_blis_spec(
    values: dict[str, Any], path: Path, seed: int | None = None, rate_per_s: float | None = None
) -> Workload:
    """The load of a BLIS workload specification, all clients merged in the order of arrival.

    Args:
        values: Contents of the file.
        path: Where they come from, for messages.
        seed: In place of the file's.
        rate_per_s: Mean rate, in place of the file's.

    Raises:
        PinnError: If a key is unknown or asks for what cannot be simulated, if a rate is not
            positive, or if nothing says how much is sent.
    """
    _check_served(values, str(path))
    spec = check(_Spec, values, path, _REMEDY)
    if rate_per_s is not None:
        spec = _at_rate(spec, path, rate_per_s)
    rng = random_draws(spec.seed if seed is None else seed)
    if (spec.inference_perf is None) == (not spec.clients):
        raise PinnError(f"{path}: give clients or inference_perf, one of the two")
    if spec.inference_perf is not None:
        parts = _stage_clients(spec.inference_perf, rng)
    elif spec.clients[0].concurrency is not None:
        return _closed_loop(spec, path, rng)
    else:
        parts = _open_clients(spec, path, rng)
    return _merged(parts, spec, path)


def _at_rate(spec: _Spec, path: Path, rate_per_s: float) -> _Spec:
    """The specification at a mean rate: as long as it was, with more or fewer requests."""
    load = spec.inference_perf
    if load is not None:
        rates = [(stage.rate, stage.duration) for stage in load.stages]
        stages = [
            _Stage(rate=stage.rate_per_s, duration=stage.duration_s)
            for stage in read_stages(rates, str(path), rate_per_s)
        ]
        return spec.model_copy(
            update={"inference_perf": load.model_copy(update={"stages": stages})}
        )
    if not (spec.aggregate_rate or 0) > 0:
        return spec  # a closed loop, or refused for having no rate
    factor = rate_per_s / (spec.aggregate_rate or rate_per_s)
    count = None if spec.num_requests is None else max(round(spec.num_requests * factor), 1)
    clients = [client.faster(factor) for client in spec.clients]
    return spec.model_copy(
        update={"aggregate_rate": rate_per_s, "num_requests": count, "clients": clients}
    )


def _check_served(values: Any, where: str) -> None:
    """Refuse keys of BLIS's that ask for what is not simulated."""
    items = values.items() if isinstance(values, dict) else ()
    for key, value in items:
        if key in _UNSERVED and value not in (None, False, 0, [], {}):
            raise PinnError(f"{where}: {key} cannot be simulated here: {_UNSERVED[key]}")
        for each in value if isinstance(value, list) else (value,):
            _check_served(each, f"{where}, {key}")


def _merged(parts: list[Requests], spec: _Spec, path: Path) -> Workload:
    """All clients' requests in the order of arrival."""
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    if spec.horizon is not None:
        kept = columns[0] <= spec.horizon * MICROSECOND
        columns = [column[kept] for column in columns]
    order = np.argsort(columns[0], kind="stable")[: spec.num_requests]
    arrival, prompt, output, group, prefix, timeout = (column[order] for column in columns)
    if len(arrival) == 0:
        raise PinnError(f"{path}: no request arrives: raise the rate or the horizon")
    donor, shared = share_prompts(group, prefix, np.full(len(order), -1), prompt)
    return Workload(
        path.stem,
        prompt,
        output,
        arrival,
        shares_with=donor,
        shared_tokens=shared,
        timeout_s=timeout,
    )


def _open_clients(spec: _Spec, path: Path, rng: np.random.Generator) -> list[Requests]:
    """Clients whose shares of the rate make the whole."""
    fractions = np.array([client.rate_fraction for client in spec.clients])
    if any(client.concurrency is not None for client in spec.clients):
        raise PinnError(f"{path}: concurrency of one client among several is not simulated")
    if not ((spec.aggregate_rate or 0) > 0 and (fractions > 0).all()):
        raise PinnError(
            f"{path}: aggregate_rate {spec.aggregate_rate} and the clients' rate_fraction must be "
            "positive"
        )
    if spec.num_requests is None and spec.horizon is None:
        raise PinnError(f"{path}: give num_requests or horizon (in microseconds)")
    names = sorted({client.prefix_group for client in spec.clients} - {""})
    rates = np.array(spec.aggregate_rate) * fractions / fractions.sum()
    horizon_s = np.inf if spec.horizon is None else _horizon_s(spec.horizon, path)
    drawn = spec.num_requests or 2 * float(rates.sum()) * horizon_s
    check_requests(drawn * (len(rates) if spec.num_requests else 1), str(path))
    return [
        send(client, float(rate), spec.num_requests, horizon_s, names, rng)
        for client, rate in zip(spec.clients, rates, strict=True)
    ]


def _closed_loop(spec: _Spec, path: Path, rng: np.random.Generator) -> Workload:
    """One client with so many requests in flight."""
    client = spec.clients[0]
    if len(spec.clients) > 1 or spec.num_requests is None:
        raise PinnError(f"{path}: concurrency is simulated for a single client with num_requests")
    n = spec.num_requests
    group = np.zeros(n, np.int64) if client.prefix_group else np.full(n, -1)
    prefix = np.full(n, client.prefix_tokens)
    prompt = prefix + client.input_distribution.draw(n, rng)
    donor, shared = share_prompts(group, prefix, np.full(n, -1), prompt)
    return Workload(
        path.stem,
        prompt,
        client.output_distribution.draw(n, rng),
        np.zeros(n),
        shares_with=donor,
        shared_tokens=shared,
        timeout_s=np.full(n, client.timeout_s),
        concurrency=client.concurrency,
    )


def _horizon_s(horizon: float, path: Path) -> float:
    if not horizon * MICROSECOND <= MOST_SECONDS:
        raise PinnError(
            f"{path}: horizon is {horizon:g} microseconds: it must be at most "
            f"{MOST_SECONDS / MICROSECOND:g}"
        )
    return horizon * MICROSECOND


def _stage_clients(load: _InferencePerf, rng: np.random.Generator) -> list[Requests]:
    """BLIS's version of inference-perf: a client for each user of each system prompt.

    Of several stages each is a Poisson process. In a single one every client sends as many requests
    and its gaps are stretched to end with the stage, so that all last requests come at once.
    """
    shared = load.shared_prefix
    users = shared.num_users_per_system_prompt
    clients = shared.num_unique_system_prompts * users
    check_requests(sum(stage.rate * stage.duration for stage in load.stages))
    starts = np.cumsum([0.0, *(stage.duration for stage in load.stages)])
    parts: list[Requests] = []
    for c in range(clients):
        if len(load.stages) == 1:
            stage = load.stages[0]
            total = int(stage.rate * stage.duration)
            gaps = rng.exponential(1.0, total // clients + (c < total % clients))
            arrival = np.cumsum(gaps) * (stage.duration / gaps.sum() if len(gaps) else 1.0)
        else:
            arrival = np.concatenate(
                [
                    start + np.sort(rng.uniform(0, stage.duration, rng.poisson(
                        stage.rate * stage.duration / clients
                    )))
                    for start, stage in zip(starts[:-1], load.stages, strict=True)
                ]
            )  # fmt: skip
        n = len(arrival)
        tokens = shared.system_prompt_len + shared.question_len
        parts.append(
            (
                arrival, np.full(n, tokens), np.full(n, shared.output_len),
                np.full(n, c // users), np.full(n, shared.system_prompt_len), np.full(n, np.inf),
            )
        )  # fmt: skip
    return parts
