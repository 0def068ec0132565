"""BLIS's workload specification: the subset of its YAML that says what is sent.

Read: ``seed``, ``aggregate_rate``, ``num_requests`` or ``horizon`` (microseconds), and per client
``id``, ``rate_fraction``, ``arrival`` (process poisson, gamma, weibull or constant; cv),
``input_distribution`` and ``output_distribution`` (type and params, see ``lengths.py``),
``prefix_group`` and ``prefix_length``. A client's prompt is its prefix followed by a draw of the
input distribution. Keys that say nothing about the load of one server (tenant, SLO class, model,
streaming, category, version) are read over; any other key is refused by its name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import check_requests, draw_gaps, random_draws
from pinn.simulator.workloads.lengths import draw_lengths
from pinn.simulator.workloads.sharing import share_prompts
from pinn.simulator.workloads.workload import Workload
from pinn.simulator.workloads.yaml_file import Number, Whole, check
from pinn.specs.limits import MOST_SECONDS
from pinn.units import MICROSECOND

_REMEDY = "remove it, or give the load as a CSV trace"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Arrival(_Strict):
    process: str = "poisson"
    cv: Number = 1.0


class _Lengths(_Strict):
    type: str
    params: dict[str, Number] = Field(default_factory=dict)


class _Client(_Strict):
    id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    model: str = ""
    streaming: bool = True
    rate_fraction: Number = 1.0
    arrival: _Arrival = Field(default_factory=_Arrival)
    input_distribution: _Lengths
    output_distribution: _Lengths
    prefix_group: str = ""
    prefix_length: Whole = 0


class _Spec(_Strict):
    version: str | Whole = ""
    category: str = ""
    seed: Whole = 0
    aggregate_rate: Number
    num_requests: Whole | None = None
    horizon: Number | None = None
    clients: list[_Client] = Field(min_length=1)


def is_blis_spec(values: dict[str, Any]) -> bool:
    """Whether a YAML mapping looks like a BLIS workload specification."""
    return "clients" in values or "aggregate_rate" in values


def read_blis_spec(values: dict[str, Any], path: Path, seed: int | None = None) -> Workload:
    """The load of a BLIS workload specification, all clients merged in the order of arrival.

    Args:
        values: Contents of the file.
        path: Where they come from, for messages.
        seed: In place of the file's.

    Raises:
        PinnError: If a key is unknown, a rate is not positive or neither the number of requests
            nor the horizon is given.
    """
    spec = check(_Spec, values, path, _REMEDY)
    rng = random_draws(spec.seed if seed is None else seed)
    if spec.num_requests is None and spec.horizon is None:
        raise PinnError(f"{path}: give num_requests or horizon (in microseconds)")
    if spec.num_requests is not None and spec.num_requests < 1:
        raise PinnError(f"{path}: num_requests is {spec.num_requests}: it must be at least 1")
    fractions = np.array([client.rate_fraction for client in spec.clients])
    if not (0 < spec.aggregate_rate < np.inf and (fractions > 0).all() and sum(fractions) < np.inf):
        raise PinnError(
            f"{path}: aggregate_rate {spec.aggregate_rate} and the clients' rate_fraction must be "
            "positive"
        )
    if spec.horizon is not None and not 0 < spec.horizon * MICROSECOND <= MOST_SECONDS:
        raise PinnError(
            f"{path}: horizon is {spec.horizon:g} microseconds: it must be positive and at most "
            f"{MOST_SECONDS / MICROSECOND:g}"
        )
    rates = spec.aggregate_rate * fractions / fractions.sum()
    check_requests(sum(_drawn(rate, spec) for rate in rates.tolist()), str(path))
    names = sorted({client.prefix_group for client in spec.clients} - {""})
    parts = [
        _send(client, rate, spec, names, rng)
        for client, rate in zip(spec.clients, rates, strict=True)
    ]
    arrival, prompt, output, group, prefix = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    order = np.argsort(arrival, kind="stable")[: spec.num_requests]
    unique = np.full(len(order), -1)
    donor, shared = share_prompts(group[order], prefix[order], unique, prompt[order])
    return Workload(
        path.stem,
        prompt[order],
        output[order],
        arrival[order],
        shares_with=donor,
        shared_tokens=shared,
    )


def _drawn(rate_per_s: float, spec: _Spec) -> int:
    """Requests drawn of a client, of which those within the horizon are sent."""
    return spec.num_requests or int(2 * rate_per_s * (spec.horizon or 0.0) * MICROSECOND + 100)


def _send(
    client: _Client, rate_per_s: float, spec: _Spec, groups: list[str], rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """(arrival, prompt, output, group, prefix length) of one client's requests."""
    count = _drawn(rate_per_s, spec)
    arrival = np.cumsum(
        draw_gaps(client.arrival.process, rate_per_s, count, rng, client.arrival.cv)
    )
    horizon_s = np.inf if spec.horizon is None else spec.horizon * MICROSECOND
    arrival = arrival[arrival <= horizon_s]
    n = len(arrival)
    prompt = client.prefix_length + draw_lengths(
        client.input_distribution.type, client.input_distribution.params, n, rng
    )
    output = draw_lengths(
        client.output_distribution.type, client.output_distribution.params, n, rng
    )
    group = groups.index(client.prefix_group) if client.prefix_group else -1
    return arrival, prompt, output, np.full(n, group), np.full(n, client.prefix_length)
