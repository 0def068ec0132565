"""BLIS's rules for a workload specification: known keys, what is required, and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from blis_engine.refused import RefusedError

_TOP = {
    "version", "seed", "category", "clients", "inference_perf", "servegen_data", "cohorts",
    "aggregate_rate", "horizon", "num_requests", "goodput_slo_targets",
}  # fmt: skip
_CLIENT = {
    "id", "tenant_id", "slo_class", "model", "adapter", "rate_fraction", "concurrency",
    "think_time_us", "arrival", "input_distribution", "output_distribution", "prefix_group",
    "prefix_length", "streaming", "network", "lifecycle", "multimodal", "reasoning", "timeout",
    "slo_target_us", "closed_loop",
}  # fmt: skip
_ARRIVAL = {"process", "cv", "shape", "scale"}
_PROCESSES = {"poisson", "constant", "gamma", "weibull"}
#: Distribution -> parameters that it needs, and others that it takes.
_DISTRIBUTIONS: dict[str, tuple[set[str], set[str]]] = {
    "constant": ({"value"}, set()),
    "gaussian": ({"mean", "std_dev"}, {"min", "max"}),
    "exponential": ({"mean"}, set()),
    "lognormal": ({"mu", "sigma"}, set()),
    "pareto_lognormal": ({"alpha", "xm", "mu", "sigma", "mix_weight"}, set()),
}


def read_specification(path: Path) -> Mapping[str, Any]:
    """Return a specification that BLIS accepts.

    Raises:
        RefusedError: If BLIS would refuse it; the message names the key.
    """
    spec = yaml.safe_load(path.read_text())
    _known("top level", spec, _TOP)
    if "inference_perf" in spec:
        perf = spec["inference_perf"]
        _known("inference_perf", perf, {"stages", "shared_prefix"})
        for stage in perf["stages"]:
            _known("stage", stage, {"rate", "duration"})
    clients = spec.get("clients") or []
    if not (clients or {"inference_perf", "servegen_data", "cohorts"} & set(spec)):
        raise RefusedError("no clients")
    if not {"horizon", "num_requests"} & set(spec):
        raise RefusedError("horizon or num_requests is required")
    rates = [client for client in clients if not client.get("concurrency")]
    if rates and not spec.get("aggregate_rate", 0) > 0:
        raise RefusedError("aggregate_rate must be positive")
    if len({bool(client.get("slo_class")) for client in clients}) > 1:
        raise RefusedError("slo_class: all clients or none")
    for i, client in enumerate(clients):
        _check_client(f"clients[{i}]", client)
    return spec


def _check_client(where: str, client: Mapping[str, Any]) -> None:
    _known(where, client, _CLIENT)
    if not (client.get("concurrency", 0) > 0 or client.get("rate_fraction", 0) > 0):
        raise RefusedError(f"{where}: rate_fraction must be positive")
    arrival = client.get("arrival") or {}
    _known(f"{where}.arrival", arrival, _ARRIVAL)
    if arrival.get("process") not in _PROCESSES and not client.get("concurrency"):
        raise RefusedError(f"{where}: unknown arrival process {arrival.get('process')!r}")
    for side in ("input_distribution", "output_distribution"):
        if side not in client:
            raise RefusedError(f"{where}: {side} is required")
        _check_lengths(f"{where}.{side}", client[side])


def _check_lengths(where: str, lengths: Mapping[str, Any]) -> None:
    _known(where, lengths, {"type", "params"})
    kind, params = lengths.get("type"), lengths.get("params") or {}
    if kind == "empirical":
        if not params or min(params.values()) < 0:
            raise RefusedError(f"{where}: weights")
        return
    if kind not in _DISTRIBUTIONS:
        raise RefusedError(f"{where}: unknown distribution {kind!r}")
    needed, more = _DISTRIBUTIONS[kind]
    if missing := needed - set(params):
        raise RefusedError(f"{where}: {kind} needs {sorted(missing)}")
    _known(f"{where}.params", params, needed | more)


def _known(where: str, values: Mapping[str, Any], names: set[str]) -> None:
    if unknown := set(values) - names:
        raise RefusedError(f"{where}: unknown keys {sorted(unknown)}")
