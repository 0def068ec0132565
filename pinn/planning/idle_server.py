"""Latencies of an idle server against the limits of an SLO: why no request rate meets the SLO."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pinn.simulator.slo import Gaps, Latencies, Slo


@dataclass(frozen=True)
class IdleServer:
    """Closest candidate on hardware with which no request rate meets the SLO.

    Attributes:
        label: Label of the candidate.
        missed: Limits that it misses while idle, as in :func:`missed_limits`; empty if it meets
            all limits while idle.
        excess: Largest ratio of a latency to its limit while idle.
    """

    label: str
    missed: Sequence[str]
    excess: float

    @property
    def reason(self) -> str:
        """Reason why no request rate meets the SLO, as a clause."""
        if not self.missed:
            return "does not meet the SLO at any rate"
        return f"infeasible: on an idle server of {self.label}, {', '.join(self.missed)}"


def missed_limits(slo: Slo, seconds: Latencies, gaps: Gaps, *, least: bool = False) -> list[str]:
    """Return each missed limit with its value, such as ``p95 TTFT is 303 ms (limit 200 ms)``.

    Args:
        slo: Limits.
        seconds: Latencies of each request in seconds, as for ``Slo.outcomes``.
        gaps: Lengths of inter-token gaps in seconds, and the number of gaps of each length.
        least: Whether the latencies are lower bounds.
    """
    found = []
    outcomes = slo.outcomes(seconds, gaps)
    for limit, outcome in zip(slo.statistics, outcomes, strict=False):
        if not outcome.met:
            found.append((limit.what, outcome.value_s, limit.seconds))
    shares = slo.goodput
    if shares is not None and not outcomes[-1].met:
        rank = shares.needed(len(seconds["ttft"])) - 1
        for metric, limit_s in shares.seconds.items():
            value_s = float(np.sort(np.nan_to_num(seconds[metric], nan=0.0, posinf=np.inf))[rank])
            if value_s > limit_s:
                found.append((f"{metric.upper()} of {shares.what}", value_s, limit_s))
        if not found:
            return [f"only {outcomes[-1].value} of the requests meet {shares.bound}"]
    word = "is at least" if least else "is"
    return [f"{what} {word} {_ms(value)} (limit {_ms(limit)})" for what, value, limit in found]


def _ms(seconds: float) -> str:
    """Return a time in milliseconds as a string, with four digits so that it differs from limits.

    >>> _ms(0.2), _ms(0.2004), _ms(1.25), _ms(12.5)
    ('200 ms', '200.4 ms', '1,250 ms', '12,500 ms')
    """
    milliseconds = 1000 * seconds
    return f"{milliseconds:,.0f} ms" if milliseconds >= 1000 else f"{milliseconds:.4g} ms"
