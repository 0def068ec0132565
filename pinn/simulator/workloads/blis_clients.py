"""Clients of a BLIS workload specification: their keys, and the requests that one sends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field

from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import draw_gaps
from pinn.simulator.workloads.lengths import draw_lengths
from pinn.simulator.workloads.yaml_file import Number, Whole
from pinn.units import MICROSECOND

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
    """Lengths as ``pinn.simulator.workloads.lengths`` draws them, or ``empirical`` weights."""

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
