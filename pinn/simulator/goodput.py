"""Goodput, and the share of a run's requests that meet an SLO.

As in ``sglang 0.5.23 sglang/benchmark/goodput.py: calculate_goodput``, attainment counts all sent
requests, and failed requests meet no limit. As in ``vllm 0.33.0 vllm/benchmarks/serve.py:
calculate_metrics``, a response of a single token meets any limit on TPOT.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from pinn.common import JsonObject
from pinn.common.numbers import fixed
from pinn.simulator.run import Run
from pinn.simulator.slo import GoodputLimit, Latencies, Slo, written_s
from pinn.simulator.statistics import left_behind


def latencies_s(run: Run) -> Latencies:
    """Return the latencies of each request in seconds, by metric.

    Latencies are infinite for requests that were not served, and NaN where a metric is undefined.
    TPOT is the mean gap between a request's tokens, (last - first) / (tokens - 1).
    """
    r = run.requests
    gaps = np.where(run.workload.output_tokens > 1, 1.0, np.nan)
    return {
        "ttft": np.where(r.finished, r.ttft_s, np.inf),
        "tpot": np.where(r.finished, r.mean_itl_s, np.inf) * gaps,
        "e2e": np.where(r.finished, r.e2e_s, np.inf),
    }


@dataclass(frozen=True)
class Goodput:
    """Number and share of the measured requests that meet an SLO.

    Attributes:
        limits: Limits as the user wrote them.
        requests: Measured requests, including those that were not served.
        met_requests: Measured requests that were served within all limits on each request.
        attainment: ``met_requests`` as a share of ``requests``.
        requests_per_s: Goodput: ``met_requests`` divided by the time from the first arrival to the
            end of the last response.
        attainment_by_metric: Share of the requests that meet a metric's limit, by metric.
        statistics_s: Value in seconds of each limited statistic, by limit; infinite where requests
            were not served, NaN where undefined.
        each: Limits on each request as a string; empty if there are none.
        limits_s: Limit on each request in seconds, by metric.
        met: Whether all limits are met and no queue remains when the load ends. None if the SLO
            limits each request, but states no share of requests that must meet the limits.
        left_behind: Sentence about requests still queued when the load ends, if no limit applies to
            queue time. Limits on ITL or TPOT would then be met only because the load ends.
    """

    limits: str
    requests: int
    met_requests: int
    attainment: float
    requests_per_s: float
    attainment_by_metric: Mapping[str, float]
    statistics_s: Mapping[str, float]
    each: str
    limits_s: Mapping[str, float]
    met: bool | None
    left_behind: str | None

    def to_json(self) -> JsonObject:
        """Return the object under the key ``slo`` of the JSON output."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        """Return a sentence on whether the run meets the SLO, with the numbers compared."""
        verdict = "" if self.met is None else "SLO met: " if self.met else "SLO missed: "
        share = f"{100 * self.attainment:.1f} % of {self.requests:,} requests meet {self.each}"
        alone = [f"{k.upper()} {100 * v:.1f} %" for k, v in self.attainment_by_metric.items()]
        if len(alone) > 1:
            share += f" (each limit alone: {', '.join(alone)})"
        parts = [f"{share}; goodput {fixed(self.requests_per_s)} requests/s"] if self.each else []
        parts += [f"{limit}: it was {written_s(v)}" for limit, v in self.statistics_s.items()]
        return verdict + "; ".join([*parts, *filter(None, [self.left_behind])])


def goodput(run: Run, slo: Slo) -> Goodput:
    """Count the measured requests of a run that meet an SLO."""
    r = run.requests
    mine = r.of_stage(None)
    found = {name: seconds[mine] for name, seconds in latencies_s(run).items()}
    meets, outcomes = slo.met(found), slo.outcomes(found, run.gaps.per_token)
    behind = None if slo.bound_waits or not outcomes else left_behind(run)
    span_s = float(r.finish_s[mine].max() - r.arrival_s[mine].min())
    return Goodput(
        limits=slo.text,
        requests=len(meets),
        met_requests=int(meets.sum()),
        attainment=float(meets.mean()),
        requests_per_s=float(meets.sum()) / span_s if span_s > 0 else float("nan"),
        attainment_by_metric=_alone(slo.goodput, found),
        statistics_s={each.limit: each.value_s for each in outcomes if each.share is None},
        each=slo.goodput.bound if slo.goodput else "",
        limits_s=slo.goodput.seconds if slo.goodput else {},
        met=behind is None and all(each.met for each in outcomes) if outcomes else None,
        left_behind=behind,
    )


def _alone(limits: GoodputLimit | None, found: Latencies) -> dict[str, float]:
    """Return the share of requests that meet the limit on each metric, by metric.

    Limits on the other metrics are ignored.
    """
    each = limits.seconds if limits else {}
    return {name: float((~(found[name] > limit)).mean()) for name, limit in each.items()}
