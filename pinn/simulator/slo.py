"""Service-level objective (SLO): limits on latencies, such as ``p99 ttft<=2s``.

A limit applies to a statistic over all requests (``p99 ttft<=2s``, ``mean e2e<=10s``), for ITL over
all ITL gaps, or to each request: ``... for 95 %`` requires that 95 % of the requests meet all
limits on each request at once. The share of requests that meet them is the "SLO attainment" of
DistServe (Zhong et al. 2024, arXiv:2401.09670), and underlies vLLM's ``benchmark_serving
--goodput``. That tool's notation ``ttft:1000 tpot:50``, in milliseconds, is also accepted. Requests
that are not served meet no limit.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from pinn.errors import PinnError
from pinn.simulator.statistics import statistic

#: Metrics that can have limits: time to first token, time per output token of each request,
#: inter-token latency, end-to-end latency.
METRICS = ("ttft", "tpot", "itl", "e2e")

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
_EXAMPLE = "write 'ttft<=1s, tpot<=40ms for 95 %', 'p99 ttft<=2s' or 'mean e2e<=20s'"
_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_CLAUSE = re.compile(
    r"^(?:(?P<before>mean|p\d+(?:\.\d+)?)\s+)?(?P<metric>[a-z0-9]+)"
    r"(?:\s+(?P<after>mean|p\d+(?:\.\d+)?))?"
    rf"\s*(?P<sign><=|<|≤|:|=)\s*(?P<value>{_NUMBER}(?:e-?\d+)?)\s*(?P<unit>[a-zµ]*)$"
)
#: Pattern of a value and the spaces before the next pair, in the notation of ``vllm 0.33.0
#: vllm/benchmarks/serve.py: parse_goodput``.
_PAIRS = re.compile(
    rf"([:=]\s*{_NUMBER}(?:e-?\d+)?(?:\s*(?!mean\b)[a-zµ]+)?)\s+(?=[a-z0-9.\s]+[:=])"
)
_JOINED = re.compile(r",|\sand\s")
_OTHER_NAMES = {"e2el": "e2e"}
_SHARE = re.compile(rf"\s+for\s+(?P<share>{_NUMBER})\s*%\s*$")

#: Latencies of each request in seconds, by metric; NaN if the metric is undefined for a request.
Latencies = Mapping[str, Float[np.ndarray, " requests"]]


@dataclass(frozen=True)
class StatisticLimit:
    """Limit on a statistic of a latency over all requests.

    Attributes:
        metric: ``ttft``, ``tpot``, ``itl`` or ``e2e``.
        name: ``mean`` or a percentile, such as ``p99``.
        seconds: Maximum allowed value, in seconds.
    """

    metric: str
    name: str
    seconds: float

    @property
    def what(self) -> str:
        """Name of the limited statistic, such as ``p99 TTFT``."""
        return f"{self.name} {self.metric.upper()}"

    @property
    def bound(self) -> str:
        """Maximum allowed value as a string, with its unit."""
        return f"<= {written_s(self.seconds)}"

    def __str__(self) -> str:
        return f"{self.what} {self.bound}"


@dataclass(frozen=True)
class GoodputLimit:
    """Limits on each request, and the share of requests that has to meet all of them.

    Attributes:
        share: Required share of requests; 0 if the SLO requires no share and only reports it.
        seconds: Maximum allowed value in seconds, by metric.
    """

    share: float
    seconds: Mapping[str, float]

    @property
    def what(self) -> str:
        """Share of requests that has to meet the limits, as a string."""
        return f"{100 * self.share:g} % of requests"

    @property
    def bound(self) -> str:
        """Limits on a request, as a string."""
        return " and ".join(f"{k.upper()} <= {written_s(v)}" for k, v in self.seconds.items())

    def __str__(self) -> str:
        return f"{100 * self.share:g} % of the requests: {self.bound}"

    def needed(self, requests: int) -> int:
        """Return how many of ``requests`` requests must meet the limits."""
        return max(math.ceil(round(self.share * requests, 6)), 1)

    def excess(self, latencies: Latencies) -> Float[np.ndarray, " requests"]:
        """Return each request's largest ratio of a latency to its limit; 0 if none is defined."""
        ratios = [latencies[k] / limit for k, limit in self.seconds.items()]
        return np.max(np.where(np.isnan(ratios), 0.0, ratios), axis=0)


@dataclass(frozen=True)
class LimitOutcome:
    """Value of a run for one limit of an SLO, and whether the limit is met.

    Attributes:
        limit: Limit as a sentence, such as ``p95 TTFT <= 1 s``.
        what: Limited statistic, such as ``p95 TTFT``; for limits on each request, the share that
            has to meet them, such as ``95 % of requests``.
        bound: Maximum allowed value, such as ``<= 1 s``.
        seconds: Value of the statistic in seconds; None if it is infinite or undefined, or if the
            limit is on a share.
        share: Share of all sent requests that meet the limits on each request; None for a
            statistic.
        met: Whether the limit is met.
        excess: Largest ratio of a latency to its limit; None if the ratio is infinite.
    """

    limit: str
    what: str
    bound: str
    seconds: float | None
    share: float | None
    met: bool
    excess: float | None

    @property
    def value_s(self) -> float:
        """Statistic in seconds; infinite if requests were not served, NaN if undefined."""
        return (math.nan if self.met else math.inf) if self.seconds is None else self.seconds

    @property
    def value(self) -> str:
        """Value of the statistic or share as a string with its unit."""
        if self.share is not None:
            return f"{100 * self.share:.1f} %"
        return "-" if self.seconds is None else written_s(self.seconds)


Gaps = tuple[Float[np.ndarray, " gaps"], Int[np.ndarray, " gaps"]]


@dataclass(frozen=True)
class Slo:
    """Service-level objective: limits that must all be met.

    Attributes:
        text: Limits as the user wrote them.
        statistics: Limits on statistics over all requests.
        goodput: Limits on each request; None if there are none.
    """

    text: str
    statistics: Sequence[StatisticLimit]
    goodput: GoodputLimit | None

    @property
    def sentences(self) -> list[str]:
        """One sentence per limit."""
        return [str(limit) for limit in (*self.statistics, *self._shares)]

    @property
    def _shares(self) -> list[GoodputLimit]:
        """Limits on each request that a required share of requests has to meet."""
        return [] if self.goodput is None or self.goodput.share == 0 else [self.goodput]

    @property
    def on_gaps(self) -> list[StatisticLimit]:
        """Limits on statistics of ITL, which apply to all inter-token gaps."""
        return [limit for limit in self.statistics if limit.metric == "itl"]

    @property
    def each(self) -> list[tuple[str, str, float]]:
        """(Metric, name of the limited statistic, limit in seconds) of each limit."""
        found = [(limit.metric, limit.name, limit.seconds) for limit in self.statistics]
        for shares in self._shares:
            found += [(metric, shares.what, seconds) for metric, seconds in shares.seconds.items()]
        return found

    @property
    def bound_waits(self) -> bool:
        """Whether any limit is on a metric that includes queue time: TTFT or E2E."""
        return any(metric in ("ttft", "e2e") for metric, _, _ in self.each)

    @property
    def bounds_gaps(self) -> bool:
        """Whether any limit is on TPOT or ITL."""
        return any(metric in ("tpot", "itl") for metric, _, _ in self.each)

    @property
    def asked_statistics(self) -> list[str]:
        """Names of the limited statistics; for a share of requests, that share's percentile."""
        shares = [f"p{100 * shares.share:.10g}" for shares in self._shares]
        return [*(limit.name for limit in self.statistics), *shares]

    def check(self, output_tokens: Int[np.ndarray, " requests"]) -> None:
        """If TPOT or ITL is limited, check that a load has outputs of several tokens.

        Raises:
            PinnError: If a limit is on TPOT or ITL, and every output is shorter than two tokens.
        """
        limited = [limit.metric for limit in self.statistics]
        limited += [] if self.goodput is None else self.goodput.seconds
        for metric in limited:
            if metric in ("tpot", "itl") and output_tokens.max() < 2:
                raise PinnError(
                    f"--slo {self.text!r}: no request of the load generates two tokens, so there "
                    f"is no {metric.upper()}: limit ttft or e2e"
                )

    def excess(self, seconds: Latencies, gaps: Gaps) -> float:
        """Return the largest ratio of a latency to its limit; all limits are met at 1 or less.

        Args:
            seconds: Latencies per request in seconds, infinite for requests that were not served.
            gaps: Lengths of inter-token gaps in seconds, and the number of gaps of each length.
        """
        found = [each.excess for each in self.outcomes(seconds, gaps)]
        return max((math.inf if each is None else each for each in found), default=0.0)

    def outcomes(self, seconds: Latencies, gaps: Gaps) -> list[LimitOutcome]:
        """Return the value of each limit and whether the limit is met.

        Requests that were not served exceed any limit on gaps. A metric that is undefined for all
        requests, such as the TPOT of single tokens, exceeds no limit. The arguments are described
        in :meth:`excess`.
        """
        found = []
        for limit in self.statistics:
            value = self._statistic(limit, seconds, gaps)
            found.append(_outcome(limit, value / limit.seconds, seconds=value))
        for shares in self._shares:
            needed = shares.needed(len(seconds["ttft"]))
            excess = float(np.sort(shares.excess(seconds))[needed - 1])
            share = float(self.met(seconds).mean())
            found.append(_outcome(shares, excess, share=share))
        return found

    def _statistic(self, limit: StatisticLimit, seconds: Latencies, gaps: Gaps) -> float:
        if limit.metric != "itl":
            return statistic(*_known(seconds[limit.metric]), limit.name)
        return statistic(*gaps, limit.name) if np.isfinite(seconds["e2e"]).all() else math.inf

    def met(self, latencies: Latencies) -> Bool[np.ndarray, " requests"]:
        """Return a mask of the requests that are served within all limits on each request."""
        served = np.isfinite(latencies["e2e"])
        return served if self.goodput is None else served & (self.goodput.excess(latencies) <= 1)

    def is_missed(self, least: Latencies, requests: int) -> bool:
        """Return whether a limit is certain to be missed, regardless of the unfinished requests.

        Args:
            least: Lower bounds of each request's latencies in seconds: 0 where nothing is known,
                NaN where the metric is undefined.
            requests: Total number of requests in the load.
        """
        for limit in self.statistics:
            if limit.metric == "itl":
                continue
            values, _ = _known(least[limit.metric])
            if limit.name == "mean":
                missed = bool(values.sum() > limit.seconds * len(values))
            else:
                beyond = int(np.count_nonzero(values > limit.seconds))
                missed = beyond > (1 - float(limit.name[1:]) / 100) * (len(values) - 1) + 1
            if missed:
                return True
        if self.goodput is None:
            return False
        beyond = int(np.count_nonzero(self.goodput.excess(least) > 1))
        return beyond > requests - self.goodput.needed(requests)


def _outcome(
    limit: StatisticLimit | GoodputLimit,
    excess: float,
    *,
    seconds: float = math.nan,
    share: float | None = None,
) -> LimitOutcome:
    """Return the outcome of a limit; a NaN excess (undefined metric) counts as met."""
    excess = 0.0 if math.isnan(excess) else excess
    value, ratio = (each if math.isfinite(each) else None for each in (seconds, excess))
    return LimitOutcome(str(limit), limit.what, limit.bound, value, share, excess <= 1, ratio)


def _known(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values that are not NaN, and an array of ones as their counts."""
    values = values[~np.isnan(values)]
    return values, np.ones(len(values), np.int64)


def parse_slo(text: str, *, shareless: bool = False) -> Slo:
    """Parse the limits of an SLO.

    Args:
        text: Limits as the user wrote them.
        shareless: Whether limits on each request may omit the share, which is then 0.

    Raises:
        PinnError: If a limit cannot be parsed, names neither a statistic nor a share of requests,
            or is on each request's ITL. The message has an example.

    >>> parse_slo("ttft<=1s, tpot<=40ms for 95 %; p99 e2e<=30s").sentences
    ['p99 E2E <= 30 s', '95 % of the requests: TTFT <= 1 s and TPOT <= 40 ms']
    >>> parse_slo("TTFT < 1 s and TPOT < 40 ms for 95%").sentences
    ['95 % of the requests: TTFT <= 1 s and TPOT <= 40 ms']
    """
    statistics: list[StatisticLimit] = []
    each: dict[str, float] = {}
    share: float | None = None
    for group in filter(None, (part.strip() for part in text.split(";"))):
        ending = _SHARE.search(group)
        clauses = group[: ending.start()] if ending else group
        alone = [_clause(each, text) for each in _JOINED.split(_PAIRS.sub(r"\1,", clauses.lower()))]
        statistics += [limit for limit in alone if limit.name]
        on_each = {limit.metric: limit.seconds for limit in alone if not limit.name}
        if bool(on_each) != bool(ending) and not (shareless and on_each):
            limits = ", ".join(on_each) or clauses.strip()
            fault = f"the limit of {limits} has both a statistic and a share of requests"
            if on_each:
                fault = f"the limit of {limits} has neither a statistic nor a share of requests"
            raise PinnError(f"--slo {text!r}: {fault}: {_EXAMPLE}")
        if on_each:
            if each:
                raise PinnError(
                    f"--slo {text!r} has two shares of requests, expected one: join the limits, "
                    f"and {_EXAMPLE}"
                )
            each, share = on_each, float(ending["share"]) / 100 if ending else 0.0
    if not statistics and not each:
        raise PinnError(f"--slo {text!r} has no limit: {_EXAMPLE}")
    if share is not None and not (0 < share <= 1 or (shareless and share == 0)):
        got = f"{100 * share:g} %"
        raise PinnError(
            f"--slo {text!r}: the share of requests must be above 0 and at most 100 %, got {got}"
        )
    if "itl" in each:
        raise PinnError(
            f"--slo {text!r}: ITL has many values per request: limit their mean with tpot, "
            "or the ITL of all requests with 'p99 itl<=100ms'"
        )
    return Slo(text, tuple(statistics), None if share is None else GoodputLimit(share, each))


def _clause(clause: str, text: str) -> StatisticLimit:
    """Parse one limit; its statistic's name is empty for a limit on each request."""
    found = _CLAUSE.match(clause.strip())
    if found is None or (found["before"] and found["after"]):
        raise PinnError(f"--slo {text!r} has the unreadable limit {clause.strip()!r}: {_EXAMPLE}")
    metric = _OTHER_NAMES.get(found["metric"], found["metric"])
    unit = found["unit"].replace("µ", "u") or ("ms" if found["sign"] in ":=" else "")
    if metric not in METRICS:
        known = ", ".join(METRICS)
        raise PinnError(f"--slo {text!r} has the unknown metric {metric!r}: use one of {known}")
    if unit not in _UNITS_S:
        raise PinnError(
            f"--slo {text!r}: the limit {clause.strip()!r} has no known unit: use one of "
            f"{', '.join(_UNITS_S)}"
        )
    seconds = float(found["value"]) * _UNITS_S[unit]
    if not 0 < seconds < math.inf:
        raise PinnError(f"--slo {text!r}: the limit {clause.strip()!r} must be above 0")
    name = found["before"] or found["after"] or ""
    if name.startswith("p"):
        percent = float(name[1:])
        if not 0 < percent <= 100:
            raise PinnError(
                f"--slo {text!r}: a percentile must be above 0 and at most 100, got p{percent:g}"
            )
        name = f"p{percent:.10g}"
    return StatisticLimit(metric, name, seconds)


def written_s(seconds: float) -> str:
    """Return a time given in seconds as a string with a suitable unit.

    >>> [written_s(s) for s in (0.04, 1.0, 90.0, 1118.2, math.inf, math.nan)]
    ['40 ms', '1 s', '90 s', '1,118 s', 'infinite', '-']
    """
    if not math.isfinite(seconds):
        return "-" if math.isnan(seconds) else "infinite"
    if seconds >= 1000:
        return f"{seconds:,.0f} s"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
