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
from pinn.simulator.workloads.arrivals import draw_gaps
from pinn.simulator.workloads.lengths import draw_lengths
from pinn.simulator.workloads.sharing import share_prompts
from pinn.simulator.workloads.workload import Workload
from pinn.simulator.workloads.yaml_file import check
from pinn.units import MICROSECOND

_REMEDY = "remove it, or give the load as a CSV trace"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Arrival(_Strict):
    process: str = "poisson"
    cv: float = 1.0


class _Lengths(_Strict):
    type: str
    params: dict[str, float] = Field(default_factory=dict)


class _Client(_Strict):
    id: str = ""
    tenant_id: str = ""
    slo_class: str = ""
    model: str = ""
    streaming: bool = True
    rate_fraction: float = 1.0
    arrival: _Arrival = Field(default_factory=_Arrival)
    input_distribution: _Lengths
    output_distribution: _Lengths
    prefix_group: str = ""
    prefix_length: int = 0


class _Spec(_Strict):
    version: str | int = ""
    category: str = ""
    seed: int = 0
    aggregate_rate: float
    num_requests: int | None = None
    horizon: float | None = None
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
    rng = np.random.default_rng(spec.seed if seed is None else seed)
    if spec.num_requests is None and spec.horizon is None:
        raise PinnError(f"{path}: give num_requests or horizon (in microseconds)")
    if spec.num_requests is not None and spec.num_requests < 1:
        raise PinnError(f"{path}: num_requests is {spec.num_requests}: it must be at least 1")
    fractions = np.array([client.rate_fraction for client in spec.clients])
    if not (spec.aggregate_rate > 0 and (fractions > 0).all()):
        raise PinnError(
            f"{path}: aggregate_rate {spec.aggregate_rate} and the clients' rate_fraction must be "
            "positive"
        )
    names = sorted({client.prefix_group for client in spec.clients} - {""})
    parts = [
        _send(client, rate, spec, names, rng)
        for client, rate in zip(
            spec.clients, spec.aggregate_rate * fractions / fractions.sum(), strict=True
        )
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


def _send(
    client: _Client, rate_per_s: float, spec: _Spec, groups: list[str], rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """(arrival, prompt, output, group, prefix length) of one client's requests."""
    horizon_s = np.inf if spec.horizon is None else spec.horizon * MICROSECOND
    count = spec.num_requests or int(2 * rate_per_s * horizon_s + 100)
    arrival = np.cumsum(
        draw_gaps(client.arrival.process, rate_per_s, count, rng, client.arrival.cv)
    )
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
