"""Workload specification of the simulator BLIS, a YAML file that describes a load.

A file has either ``clients`` with ``aggregate_rate`` and ``num_requests`` or ``horizon``
(microseconds), or an ``inference_perf`` load of stages and shared prefixes. The models below list
all keys. A client's prompt is its prefix, of 50 tokens if its group specifies no length, followed
by random tokens, whose number follows its input distribution. Keys that do not affect the load of
one server are ignored: tenants, SLO classes and targets, names of models, streaming, the reasoning
share of an output, and the network, which has no effect in BLIS either. Other keys are rejected by
name, and so are keys whose load cannot be simulated.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from pydantic import Field

from pinn.common import Json
from pinn.common.documents import MOST_SECONDS
from pinn.errors import PinnError
from pinn.simulator.workloads import arrivals, workload
from pinn.simulator.workloads.yaml_spec import Number, Strict, Whole, check
from pinn.units import MICROSECOND

# Clients of a BLIS workload specification: their keys, and the requests that they send.

#: Columns of requests: arrival time in s, prompt tokens, output tokens, prefix group (-1 if none),
#: prefix tokens, client timeout in s.
Requests = tuple[np.ndarray, ...]
#: Number of prefix tokens of a prefix group that states no length.
DEFAULT_PREFIX_TOKENS = 50


class BlisArrival(Strict):
    """Gaps between a client's requests, set by ``cv``, or by ``shape`` and ``scale`` (in us)."""

    process: str = "poisson"
    cv: Number = 1.0
    shape: Number | None = Field(default=None, gt=0)
    scale: Number | None = Field(default=None, gt=0)

    def gaps_s(
        self, rate_per_s: float, count: int, rng: np.random.Generator, faster: float
    ) -> Float[np.ndarray, " count"]:
        """Return the gaps between a client's requests, in seconds.

        Gaps that the key ``scale`` sets are divided by ``faster``.

        Raises:
            PinnError: If the process is unknown or lacks its second parameter.
        """
        if self.shape is None and self.scale is None:
            return arrivals.draw_gaps(self.process, rate_per_s, count, rng, self.cv)
        if self.shape is None or self.process not in ("gamma", "weibull"):
            raise PinnError(
                f"scale and shape of the arrival process {self.process} must be given together, "
                "and only for gamma or weibull"
            )
        mean = self.shape if self.process == "gamma" else math.gamma(1 + 1 / self.shape)
        scale_s = 1 / (rate_per_s * mean)
        if self.scale is not None:
            scale_s = self.scale / faster * MICROSECOND
        if self.process == "gamma":
            return rng.gamma(self.shape, scale_s, count)
        return rng.weibull(self.shape, count) * scale_s


class BlisLengths(Strict):
    """Distribution of the lengths of prompts or outputs, in tokens.

    It is one of the distributions in ``arrivals``, or ``empirical`` with a weight for each length.
    """

    type: str
    params: dict[str | Whole, Number] = Field(default_factory=dict)

    def draw(self, count: int, rng: np.random.Generator) -> Int[np.ndarray, " count"]:
        """Return random lengths of at least 1.

        Raises:
            PinnError: If the distribution is unknown or its parameters do not fit.
        """
        if self.type != "empirical":
            named = {str(name): value for name, value in self.params.items()}
            return arrivals.draw_lengths(self.type, named, count, rng)
        weights = np.array(list(self.params.values()), np.float64)
        if not (len(weights) and (weights >= 0).all() and weights.sum() > 0):
            raise PinnError(
                "the weights of an empirical distribution must be 0 or more with a positive sum, "
                f"got {self.params}"
            )
        lengths = np.array([float(name) for name in self.params])
        return np.maximum(rng.choice(lengths, count, p=weights / weights.sum()), 1).astype(np.int64)


class _Window(Strict):
    start_us: Number = Field(ge=0)
    end_us: Number
    trace_rate: Number | None = Field(default=None, gt=0)
    arrival: BlisArrival | None = None
    input_distribution: BlisLengths | None = None
    output_distribution: BlisLengths | None = None


_ALWAYS = _Window(start_us=0, end_us=math.inf)


class _Lifecycle(Strict):
    windows: list[_Window] = Field(default_factory=list)


class _Network(Strict):
    rtt_ms: Number = 0.0
    bandwidth_mbps: Number = 0.0


class _Reasoning(Strict):
    reason_ratio_distribution: dict[str, object] | None = None
    multi_turn: None = None


class BlisClient(Strict):
    """Client of a BLIS specification; keys that do not affect one server's load are ignored."""

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
        """Number of tokens of the client's prefix: BLIS's default if its group has no length."""
        return (self.prefix_length or DEFAULT_PREFIX_TOKENS) if self.prefix_group else 0

    @property
    def windows(self) -> list[_Window]:
        """Time windows in which the client sends; one unlimited window by default."""
        return (self.lifecycle.windows if self.lifecycle else []) or [_ALWAYS]

    @property
    def timeout_s(self) -> float:
        """Client timeout in seconds; infinity by default."""
        return math.inf if self.timeout is None else self.timeout * MICROSECOND


def _sent(
    client: BlisClient, window: _Window, moments: np.ndarray, group: int, rng: np.random.Generator
) -> Requests:
    """Return the requests that a client sends at ``moments`` (s) within one time window.

    A window with its own length distributions has no prefix.
    """
    n = len(moments)
    own = window.input_distribution is not None or window.output_distribution is not None
    prefix = 0 if own else client.prefix_tokens
    return (
        moments,
        prefix + (window.input_distribution or client.input_distribution).draw(n, rng),
        (window.output_distribution or client.output_distribution).draw(n, rng),
        np.full(n, group if prefix else -1),
        np.full(n, prefix),
        np.full(n, client.timeout_s),
    )


_REMEDY = "remove the key, or give the load as a CSV trace"
#: Reasons and remedies for BLIS files whose load cannot be simulated, by a key that may occur at
#: any depth of the file.
_UNSERVED = {
    "servegen_data": "give the load as a CSV trace, since pinn does not read its files",
    "cohorts": "list the members of cohorts as clients",
    "multimodal": "count the tokens of images, audio and video as prompt tokens",
    "multi_turn": "describe the conversation in a YAML load of pinn, with the keys turns, "
    "turn_tokens and think_time_s",
    "enable_multi_turn_chat": "describe the conversation in a YAML load of pinn, with the keys "
    "turns and think_time_s",
    "think_time_us": "describe the conversation in a YAML load of pinn, with the keys turns and "
    "think_time_s",
}


class _Stage(Strict):
    rate: Number = Field(gt=0)
    duration: Number = Field(gt=0)


class _SharedPrefix(Strict):
    num_unique_system_prompts: Whole = Field(default=1, ge=1)
    num_users_per_system_prompt: Whole = Field(default=1, ge=1)
    system_prompt_len: Whole = Field(default=0, ge=0)
    question_len: Whole = Field(ge=1)
    output_len: Whole = Field(ge=1)
    enable_multi_turn_chat: bool = False


class _InferencePerf(Strict):
    stages: list[_Stage] = Field(min_length=1)
    shared_prefix: _SharedPrefix


class _Spec(Strict):
    version: str | Whole = ""
    category: str = ""
    seed: Whole = 0
    aggregate_rate: Number | None = None
    num_requests: Whole | None = Field(default=None, ge=1)
    horizon: Number | None = Field(default=None, gt=0)
    goodput_slo_targets: dict[str, object] = Field(default_factory=dict)
    clients: list[BlisClient] = Field(default_factory=list)
    inference_perf: _InferencePerf | None = None

    @property
    def horizon_s(self) -> float:
        """Time in seconds after which no request arrives."""
        return math.inf if self.horizon is None else self.horizon * MICROSECOND


#: Keys that identify a YAML mapping as a BLIS workload specification.
OWN_KEYS = {"clients", "aggregate_rate", "inference_perf", "cohorts", "servegen_data"}


def read_blis_spec(
    values: Mapping[str, Json], path: Path, seed: int | None = None, rate_per_s: float | None = None
) -> workload.Workload:
    """Return the load of a BLIS workload specification, with all clients merged by arrival.

    Args:
        values: Contents of the file.
        path: Path of the file, for error messages.
        seed: Seed that replaces the seed in the file; None keeps the file's seed.
        rate_per_s: Mean rate in requests/s that replaces the file's rate; None keeps the file's
            rate.

    Raises:
        PinnError: If a key is unknown or its load cannot be simulated, if a rate is not positive,
            or if neither a number of requests nor a horizon is given.
    """
    _check_served(values, str(path))
    spec = check(_Spec, values, path, _REMEDY)
    rng = arrivals.random_draws(spec.seed if seed is None else seed)
    if (spec.inference_perf is None) == (not spec.clients):
        raise PinnError(
            f"{path} must have exactly one of the keys clients and inference_perf: add or remove "
            "one of the keys"
        )
    if spec.inference_perf is not None:
        return _merged(_stage_clients(spec.inference_perf, path, rate_per_s, rng), spec, path)
    if spec.clients[0].concurrency is not None:
        if len(spec.clients) > 1 or spec.num_requests is None:
            fault = "concurrency is supported only for a single client with num_requests"
            raise PinnError(f"{path}: {fault}: add num_requests, or remove the other clients")
        arrival = np.zeros(spec.num_requests)
        return _merged([_sent(spec.clients[0], _ALWAYS, arrival, 0, rng)], spec, path)
    faster = 1.0
    if rate_per_s is not None and (spec.aggregate_rate or 0) > 0:
        faster = rate_per_s / (spec.aggregate_rate or rate_per_s)
        count = None if spec.num_requests is None else max(round(spec.num_requests * faster), 1)
        spec = spec.model_copy(update={"aggregate_rate": rate_per_s, "num_requests": count})
    return _merged(_clients(spec, path, faster, rng), spec, path)


def _check_served(values: object, where: str) -> None:
    """Raise an error for any key that describes a load which cannot be simulated."""
    for key, value in values.items() if isinstance(values, dict) else ():
        if key in _UNSERVED and value not in (None, False, 0, [], {}):
            raise PinnError(f"{where}: the key {key} is not simulated: {_UNSERVED[key]}")
        for each in value if isinstance(value, list) else (value,):
            _check_served(each, f"{where}, {key}")


def _merged(parts: list[Requests], spec: _Spec, path: Path) -> workload.Workload:
    """Merge the requests of all clients into one workload, in order of arrival."""
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    kept = columns[0] <= spec.horizon_s
    columns = [column[kept] for column in columns]
    order = np.argsort(columns[0], kind="stable")[: spec.num_requests]
    arrival, prompt, output, group, prefix, timeout = (column[order] for column in columns)
    if len(arrival) == 0:
        raise PinnError(
            f"{path}: no request arrives within the horizon: raise the rate or the horizon"
        )
    sharing = workload.share_prompts(group, prefix)
    at_once = spec.clients[0].concurrency if spec.clients else None
    return workload.Workload(
        path.stem, prompt, output, arrival, **sharing, timeout_s=timeout, concurrency=at_once
    )


def _rates_per_s(spec: _Spec, path: Path) -> list[float]:
    """Return each client's request rate, in requests per second.

    It is the client's share of the total rate.
    """
    fractions = np.array([client.rate_fraction for client in spec.clients])
    if any(client.concurrency is not None for client in spec.clients):
        raise PinnError(
            f"{path}: a client has concurrency, which is simulated only for a single client: give "
            "rate_fraction instead, or split the file"
        )
    if not ((spec.aggregate_rate or 0) > 0 and (fractions > 0).all()):
        raise PinnError(
            f"{path}: aggregate_rate {spec.aggregate_rate} and the clients' rate_fraction must be "
            "positive"
        )
    if spec.num_requests is None and spec.horizon is None:
        raise PinnError(
            f"{path} has neither num_requests nor horizon: add one of the two (horizon in "
            "microseconds)"
        )
    if spec.horizon is not None and not spec.horizon_s <= MOST_SECONDS:
        limit = f"{MOST_SECONDS / MICROSECOND:g}"
        raise PinnError(
            f"{path}: horizon must be at most {limit} microseconds, got {spec.horizon:g}"
        )
    rates = np.array(spec.aggregate_rate) * fractions / fractions.sum()
    drawn = spec.num_requests or 2 * float(rates.sum()) * spec.horizon_s
    arrivals.check_requests(drawn * (len(rates) if spec.num_requests else 1), str(path))
    return rates.tolist()


def _clients(spec: _Spec, path: Path, faster: float, rng: np.random.Generator) -> list[Requests]:
    """Return each client's requests at its share of the total rate."""
    groups = sorted({client.prefix_group for client in spec.clients})
    parts = []
    for client, share_per_s in zip(spec.clients, _rates_per_s(spec, path), strict=True):
        for window in client.windows:
            rate_per_s = window.trace_rate * faster if window.trace_rate else share_per_s
            start = window.start_us * MICROSECOND
            end = min(window.end_us * MICROSECOND, spec.horizon_s)
            expected, most = rate_per_s * max(end - start, 0.0), spec.num_requests
            count = most if most is not None and not expected < most else int(2 * expected + 100)
            process = window.arrival or client.arrival
            arrival = start + np.cumsum(process.gaps_s(rate_per_s, count, rng, faster))
            group = groups.index(client.prefix_group)
            parts.append(_sent(client, window, arrival[arrival <= end], group, rng))
    return parts


def _stage_clients(
    load: _InferencePerf, path: Path, rate_per_s: float | None, rng: np.random.Generator
) -> list[Requests]:
    """Return the requests of an inference-perf load, with one client per system prompt and user.

    As in BLIS, each of several stages is a Poisson process. In a single stage, all clients send
    equal numbers of requests, and the gaps of each client are stretched to end with the stage, so
    that the last requests of all clients arrive simultaneously.
    """
    shared = load.shared_prefix
    users, tokens = shared.num_users_per_system_prompt, shared.system_prompt_len
    clients = shared.num_unique_system_prompts * users
    stages = [(stage.rate, stage.duration) for stage in load.stages]
    if rate_per_s is not None:
        scaled = arrivals.read_stages(stages, str(path), rate_per_s)
        stages = [(stage.rate_per_s, stage.duration_s) for stage in scaled]
    arrivals.check_requests(sum(rate * duration for rate, duration in stages))
    starts = np.cumsum([0.0, *(duration for _, duration in stages)])
    parts: list[Requests] = []
    (rate, duration), *later = stages
    total = int(rate * duration)
    for c in range(clients):
        if not later:
            gaps = rng.exponential(1.0, total // clients + (c < total % clients))
            arrival = np.cumsum(gaps) * (duration / gaps.sum() if len(gaps) else 1.0)
        else:
            moments = [
                start + np.sort(rng.uniform(0, duration, rng.poisson(rate * duration / clients)))
                for start, (rate, duration) in zip(starts[:-1], stages, strict=True)
            ]
            arrival = np.concatenate(moments)
        alike = (tokens + shared.question_len, shared.output_len, c // users, tokens, np.inf)
        parts.append((arrival, *(np.full(len(arrival), value) for value in alike)))
    return parts
