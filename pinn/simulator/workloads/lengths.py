"""Prompt and output lengths drawn from a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Int

from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import check_requests
from pinn.specs.limits import MOST_REQUEST_TOKENS, check_size, written

_SHORTER = "shorten it"
#: Parameters that are scales or shapes, and the largest values of those that are exponents.
_NOT_NEGATIVE = frozenset({"std_dev", "sigma", "alpha", "xm", "mix_weight"})
_MOST = {"mu": 50.0, "sigma": 50.0, "mean": 1e12, "std_dev": 1e12, "value": 1e12, "max": 1e12}

Draw = Callable[[Mapping[str, float], int, np.random.Generator], np.ndarray]


def _pareto_lognormal(p: Mapping[str, float], count: int, rng: np.random.Generator) -> np.ndarray:
    """A Pareto tail with probability ``mix_weight``, else lognormal."""
    tail = p["xm"] * (1 + rng.pareto(p["alpha"], count))
    body = rng.lognormal(p["mu"], p["sigma"], count)
    return np.where(rng.random(count) < p["mix_weight"], tail, body)


#: Name -> (parameters that it needs, how to draw).
DISTRIBUTIONS: dict[str, tuple[tuple[str, ...], Draw]] = {
    "constant": (("value",), lambda p, n, _rng: np.full(n, float(p["value"]))),
    "uniform": (("min", "max"), lambda p, n, rng: rng.uniform(p["min"], p["max"], n)),
    "gaussian": (("mean", "std_dev"), lambda p, n, rng: rng.normal(p["mean"], p["std_dev"], n)),
    "exponential": (("mean",), lambda p, n, rng: rng.exponential(p["mean"], n)),
    "lognormal": (("mu", "sigma"), lambda p, n, rng: rng.lognormal(p["mu"], p["sigma"], n)),
    "pareto_lognormal": (("alpha", "xm", "mu", "sigma", "mix_weight"), _pareto_lognormal),
}


def draw_lengths(
    distribution: str, parameters: Mapping[str, float], count: int, rng: np.random.Generator
) -> Int[np.ndarray, " count"]:
    """Whole lengths of at least 1, kept between the parameters ``min`` and ``max`` if given.

    Raises:
        PinnError: If the distribution is unknown or lacks a parameter.

    >>> draw_lengths("constant", {"value": 547}, 2, np.random.default_rng(0))
    array([547, 547])
    """
    if distribution not in DISTRIBUTIONS:
        raise PinnError(
            f"unknown length distribution {distribution!r}: use one of {', '.join(DISTRIBUTIONS)}"
        )
    needed, draw = DISTRIBUTIONS[distribution]
    missing = [name for name in needed if name not in parameters]
    if missing:
        raise PinnError(f"length distribution {distribution} needs {', '.join(missing)}")
    check_requests(count)
    _check_parameters(distribution, parameters, needed)
    lengths = draw(parameters, count, rng)
    low, high = parameters.get("min", 1.0), parameters.get("max", np.inf)
    if not 1 <= high >= low:
        raise PinnError(f"lengths between {low} and {high}: there are none")
    whole = np.maximum(np.rint(np.clip(lengths, low, high)), 1)
    check_size(float(whole.max(initial=1)), MOST_REQUEST_TOKENS, "tokens of a request", _SHORTER)
    return whole.astype(np.int64)


def _check_parameters(
    distribution: str, parameters: Mapping[str, float], needed: tuple[str, ...]
) -> None:
    """Refuse numbers that the distribution cannot have; a mean or location may be anything."""
    for name in needed:
        value = parameters[name]
        if not math.isfinite(value) or (name in _NOT_NEGATIVE and value < 0):
            raise PinnError(f"length distribution {distribution}: {name} cannot be {value}")
    for name, most in _MOST.items():
        if name in needed:
            check_size(parameters[name], most, f"length distribution {distribution}: {name}", "")
    if distribution == "uniform" and parameters["max"] < parameters["min"]:
        raise PinnError(
            f"lengths between {parameters['min']} and {parameters['max']}: there are none"
        )
    if distribution == "pareto_lognormal" and not parameters["alpha"] > 0:
        raise PinnError(f"length distribution {distribution}: alpha must be positive")


def draw_range(
    nominal: int, share: tuple[float, float], count: int, rng: np.random.Generator
) -> Int[np.ndarray, " count"]:
    """Lengths uniform between two shares of a nominal one, as load generators draw them.

    Raises:
        PinnError: If the nominal length is below 1 or the shares are not in order.

    >>> draw_range(1000, (0.8, 1.0), 3, np.random.default_rng(0)).min() >= 800
    np.True_
    """
    low, high = share
    check_requests(count)
    if nominal < 1:
        raise PinnError(f"a length must be at least 1 token, got {written(nominal)}")
    if not 0 < low <= high:
        raise PinnError(f"a length range needs 0 < low <= high, got {low} and {high}")
    check_size(nominal, MOST_REQUEST_TOKENS, "tokens of a request", _SHORTER)
    check_size(nominal * high, MOST_REQUEST_TOKENS, "tokens of a request", _SHORTER)
    if low == high:
        return np.full(count, max(round(nominal * low), 1), np.int64)
    first, last = max(int(np.ceil(nominal * low)), 1), max(int(np.floor(nominal * high)), 1)
    return rng.integers(first, last + 1, count)
