"""Arrival times of requests, and distributions of their lengths."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pinn.common.documents import (
    MOST_REQUEST_TOKENS,
    MOST_REQUESTS,
    MOST_SECONDS,
    MOST_SEED,
    check_size,
    written,
)
from pinn.errors import PinnError

# Arrival times: gaps between requests, and load stages with a mean rate.

PROCESSES = ("poisson", "gamma", "weibull", "constant")
#: Range of the coefficient of variation for which the equation of Weibull's shape can be solved.
_LEAST_CV, _MOST_CV = 0.02, 50.0


@dataclass(frozen=True)
class Stage:
    """A load stage with a mean request rate.

    Attributes:
        rate_per_s: Mean requests per second.
        duration_s: Duration in seconds. The number of requests is rate x duration, rounded down.
    """

    rate_per_s: float
    duration_s: float

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < math.inf:
            raise PinnError(
                f"the rate of a load stage must be positive and finite, got {self.rate_per_s} "
                "requests/s"
            )
        if not 0 < self.duration_s <= MOST_SECONDS:
            raise PinnError(
                f"the duration of a load stage must be above 0 and at most {MOST_SECONDS:g} s, got "
                f"{self.duration_s} s"
            )
        if self.requests < 1:
            load = f"{self.rate_per_s} requests/s over {self.duration_s} s"
            raise PinnError(
                f"a load stage of {load} sends no request: raise the rate or the duration"
            )

    @property
    def requests(self) -> int:
        """Number of requests sent in the stage."""
        product = self.rate_per_s * self.duration_s
        return int(product + 1e-9) if math.isfinite(product) else 0


def check_requests(count: float, where: str = "the workload") -> None:
    """Check that a load does not have too many requests, before any of them is sampled.

    Raises:
        PinnError: If there are more than ``MOST_REQUESTS`` requests.
    """
    what = f"the number of requests in {where}"
    check_size(count, MOST_REQUESTS, what, "lower the rate or the duration")


def random_draws(seed: int) -> np.random.Generator:
    """Return the random number generator of a workload with a given seed.

    Raises:
        PinnError: If the seed is negative.
    """
    if not 0 <= seed <= MOST_SEED:
        raise PinnError(f"the seed must be a whole number of 0 or more, got {written(seed)}")
    return np.random.default_rng(seed)


def read_stages(
    stages: Sequence[tuple[float, float]], where: str, mean_rate_per_s: float | None = None
) -> list[Stage]:
    """Return load stages from a file's pairs (requests per second, seconds).

    Args:
        stages: Pairs (requests per second, seconds) of the file.
        where: Name of the file, for error messages.
        mean_rate_per_s: Mean rate of all stages, to which their rates are scaled at unchanged
            durations. None for the file's own rates.

    Raises:
        PinnError: If a stage sends no request; the message includes the stage's number, from 0.
    """
    found = _stages(stages, where)
    if mean_rate_per_s is None:
        return found
    seconds = sum(stage.duration_s for stage in found)
    sent = f"{where}, {mean_rate_per_s:g} requests/s over {seconds:g} s,"
    check_requests(mean_rate_per_s * seconds, sent)
    factor = mean_rate_per_s * seconds / sum(s.rate_per_s * s.duration_s for s in found)
    return _stages([(stage.rate_per_s * factor, stage.duration_s) for stage in found], where)


def _stages(stages: Sequence[tuple[float, float]], where: str) -> list[Stage]:
    found = []
    for i, stage in enumerate(stages):
        try:
            found.append(Stage(*stage))
        except PinnError as error:
            raise PinnError(f"{where}, stage {i}: {error}") from error
    return found


def draw_gaps(
    process: str, rate_per_s: float, count: int, rng: np.random.Generator, cv: float = 1.0
) -> Float[np.ndarray, " count"]:
    """Return random gaps between arrivals, with mean 1 / rate.

    Args:
        process: ``poisson`` (exponential gaps), ``gamma`` or ``weibull`` with a coefficient of
            variation, or ``constant``.
        rate_per_s: Mean rate in requests per second.
        count: Number of gaps.
        rng: Random number generator.
        cv: Coefficient of variation (standard deviation / mean) of the gaps, for ``gamma`` and
            ``weibull``.

    Raises:
        PinnError: If the process is unknown, or rate, cv or count out of range.

    >>> draw_gaps("constant", 4.0, 2, np.random.default_rng(0))
    array([0.25, 0.25])
    """
    if not rate_per_s > 0:
        raise PinnError(f"the rate of arrivals must be positive, got {rate_per_s} requests/s")
    if not _LEAST_CV <= cv <= _MOST_CV:
        raise PinnError(
            f"the coefficient of variation (cv) of the gaps between arrivals must be {_LEAST_CV} "
            f"to {_MOST_CV}, got {cv}"
        )
    check_requests(count)
    mean = 1.0 / rate_per_s
    if process == "poisson":
        return rng.exponential(mean, count)
    if process == "gamma":
        return rng.gamma(1 / cv**2, mean * cv**2, count)
    if process == "weibull":
        shape = weibull_shape(cv)
        return rng.weibull(shape, count) * mean / math.gamma(1 + 1 / shape)
    if process == "constant":
        return np.full(count, mean)
    known = ", ".join(PROCESSES)
    raise PinnError(f"the arrival process {process!r} is unknown: use one of {known}")


def weibull_shape(cv: float) -> float:
    """Return the shape of the Weibull distribution with a coefficient of variation from 0.02 to 50.

    >>> round(weibull_shape(1.0), 6)
    1.0
    """
    from scipy.optimize import brentq  # imported here because the import is slow

    def excess(shape: float) -> float:
        second, first = math.gamma(1 + 2 / shape), math.gamma(1 + 1 / shape)
        return float(second / first**2 - 1 - cv**2)

    return float(brentq(excess, 0.15, 100.0))


@dataclass(frozen=True)
class Gaps:
    """Distribution of gaps between arrivals: process name and coefficient of variation."""

    process: str = "poisson"
    cv: float = 1.0


#: Gaps of a Poisson process, as between the requests of independent clients.
POISSON = Gaps()


def stage_arrivals(
    stages: Sequence[Stage], gaps: Gaps, rng: np.random.Generator
) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Return each request's offset in seconds from the start of its stage, and its stage number."""
    if not stages:
        raise PinnError("the load has no stages, expected at least one")
    check_requests(sum(stage.requests for stage in stages))
    offsets = [
        np.cumsum(draw_gaps(gaps.process, stage.rate_per_s, stage.requests, rng, gaps.cv))
        for stage in stages
    ]
    return np.concatenate(offsets), np.repeat(np.arange(len(stages)), [len(o) for o in offsets])


def stage_starts(
    least_s: Sequence[float], offset_s: Float[np.ndarray, " n"], stage: Int[np.ndarray, " n"]
) -> tuple[float, ...]:
    """Return the start times in seconds of stages that do not wait for earlier requests to end.

    A stage ends when its duration is over and its last request is sent. Since the number of
    requests is fixed, random gaps may extend a stage.

    >>> stage_starts([2.0, 1.0], np.array([0.5, 2.25, 1.0]), np.array([0, 0, 1]))
    (0.0, 2.25)
    """
    lasts = [max(least, float(offset_s[stage == i].max())) for i, least in enumerate(least_s)]
    return tuple(float(end) for end in np.cumsum([0.0, *lasts[:-1]]))


# Random prompt and output lengths from a distribution.

_TOKENS, _SHORTER = "the number of tokens of a request", "shorten the request"
#: Names of distribution parameters that must not be negative; and maximum values of parameters that
#: could cause an overflow.
_NOT_NEGATIVE = frozenset({"std_dev", "sigma", "alpha", "xm", "mix_weight"})
_MOST = {"mu": 50.0, "sigma": 50.0, "mean": 1e12, "std_dev": 1e12, "value": 1e12, "max": 1e12}

Draw = Callable[[Mapping[str, float], int, np.random.Generator], np.ndarray]


def _pareto_lognormal(p: Mapping[str, float], count: int, rng: np.random.Generator) -> np.ndarray:
    """Sample from a Pareto distribution with probability ``mix_weight``, else from a lognormal."""
    tail = p["xm"] * (1 + rng.pareto(p["alpha"], count))
    body = rng.lognormal(p["mu"], p["sigma"], count)
    return np.where(rng.random(count) < p["mix_weight"], tail, body)


#: Required parameters of each distribution, and function that samples from it, by the
#: distribution's name.
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
    """Return random integer lengths, at least 1, clipped to the parameters ``min`` and ``max``.

    Raises:
        PinnError: If the distribution is unknown or lacks a parameter.

    >>> draw_lengths("constant", {"value": 547}, 2, np.random.default_rng(0))
    array([547, 547])
    """
    if distribution not in DISTRIBUTIONS:
        raise PinnError(
            f"the length distribution {distribution!r} is unknown: use one of "
            f"{', '.join(DISTRIBUTIONS)}"
        )
    needed, draw = DISTRIBUTIONS[distribution]
    missing = [name for name in needed if name not in parameters]
    if missing:
        names = ", ".join(missing)
        raise PinnError(f"the length distribution {distribution} lacks {names}: add {names}")
    check_requests(count)
    _check_parameters(distribution, parameters, needed)
    lengths = draw(parameters, count, rng)
    low, high = parameters.get("min", 1.0), parameters.get("max", np.inf)
    if not 1 <= high >= low:
        raise PinnError(
            f"no length lies between min {low} and max {high}: give a max of at least 1 and at "
            "least min"
        )
    whole = np.maximum(np.rint(np.clip(lengths, low, high)), 1)
    check_size(float(whole.max(initial=1)), MOST_REQUEST_TOKENS, _TOKENS, _SHORTER)
    return whole.astype(np.int64)


def _check_parameters(
    distribution: str, parameters: Mapping[str, float], needed: tuple[str, ...]
) -> None:
    """Check the parameters of a length distribution; a mean or a location may be negative."""
    for name in needed:
        value, where = parameters[name], f"{name} of the length distribution {distribution}"
        if not math.isfinite(value) or (name in _NOT_NEGATIVE and value < 0):
            limits = "finite and not negative" if name in _NOT_NEGATIVE else "finite"
            raise PinnError(f"{where} must be {limits}, got {value}")
        if name == "alpha" and value == 0:
            raise PinnError(f"{where} must be positive, got {value}")
        check_size(value, _MOST.get(name, math.inf), where, "lower the value")
    if distribution == "uniform" and parameters["max"] < parameters["min"]:
        raise PinnError(
            f"no length lies between min {parameters['min']} and max {parameters['max']}: give a "
            "max of at least min"
        )


def draw_range(
    nominal: int,
    share: tuple[float, float],
    count: int,
    rng: np.random.Generator,
    *,
    least: int = 1,
) -> Int[np.ndarray, " count"]:
    """Return random lengths, uniform between two multiples of a nominal length.

    Lengths are at least 1, unless the nominal length is 0.

    Raises:
        PinnError: If the nominal length is below ``least`` or the multiples are not in order.

    >>> draw_range(1000, (0.8, 1.0), 3, np.random.default_rng(0)).min() >= 800
    np.True_
    """
    low, high = share
    if nominal < least:
        unit = "token" if least == 1 else "tokens"
        raise PinnError(f"each length must be at least {least} {unit}, got {written(nominal)}")
    if not 0 < low <= high:
        raise PinnError(
            "the shares of a length range must be positive and in ascending order, got "
            f"{low} and {high}"
        )
    check_size(nominal, MOST_REQUEST_TOKENS, _TOKENS, _SHORTER)
    check_size(nominal * high, MOST_REQUEST_TOKENS, _TOKENS, _SHORTER)
    if nominal == 0:
        return np.zeros(count, np.int64)
    if low == high:
        return np.full(count, max(round(nominal * low), 1), np.int64)
    first, last = max(int(np.ceil(nominal * low)), 1), max(int(np.floor(nominal * high)), 1)
    return rng.integers(first, last + 1, count)
