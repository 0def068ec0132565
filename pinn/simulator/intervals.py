"""Prediction intervals of a run's metrics, from one faster and one slower simulation.

All metrics rise with the step time, so each bound of an interval needs one run. Below saturation a
metric is proportional to the step time. Where queues grow, the metric changes more.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

import numpy as np

from pinn.common import Json, JsonObject
from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import cache_ends, kv_layout
from pinn.memory.kv_layout import tokens_beyond
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import Run
from pinn.simulator.simulate import Job, map_runs
from pinn.simulator.statistics import run_statistics
from pinn.surrogate.encoder_time import HALF_WIDTH

#: Log change of the step time, up and down, from which :func:`gains` estimates the changes of
#: metrics.
NUDGE = math.log(1.1)

#: Means of a run's latencies, in any unit of time, by metric name.
Figures = dict[str, float]


def scaled(
    latency: LinearLatency, step: float, request: float, encoder: float = 0.0
) -> LinearLatency:
    """Return a latency model whose step times and request times are scaled by log factors.

    Args:
        latency: Latency model to scale.
        step: Log factor of the step time.
        request: Log factor of the times of a request outside the steps.
        encoder: Log half-width of the vision encoder's time, added in quadrature to ``step``.
    """
    beta, alpha = latency.beta * math.exp(step), latency.alpha * math.exp(request)
    changed = replace(latency, beta=beta, alpha=alpha)
    if latency.encoder is None:
        return changed
    log_factor = math.copysign(math.hypot(step, encoder), step)
    return replace(changed, encoder=latency.encoder.scaled(log_factor))


def end_figures(
    job: Job,
    step: float,
    request: float,
    figures: Callable[[Run], Figures],
    memory: tuple[EngineSpec | None, EngineSpec | None] | None = None,
    encoder: float = 0.0,
) -> tuple[Figures, Figures]:
    """Return the metrics of two runs: one with all times shorter, one with all times longer.

    Args:
        job: Run at the predicted times.
        step: Log half-width of the step time's interval.
        request: Log half-width of the interval of a request's times outside the steps.
        figures: Function that returns the metrics of a run.
        memory: Engine settings of the two runs, with different KV cache sizes; by default the
            settings of the job.
        encoder: Log half-width of the vision encoder's time, added in quadrature to ``step``.
    """
    engines = memory or (job.engine, job.engine)
    jobs = [
        replace(job, latency=scaled(job.latency, way * step, way * request, encoder), engine=engine)
        for way, engine in zip((-1, 1), engines, strict=True)
    ]
    fast, slow = map_runs(lambda _, run: figures(run), jobs)
    return fast, slow


def figure_ends(
    value: Figures, fast: Figures, slow: Figures, ttft_half: float
) -> dict[str, tuple[float, float]]:
    """Return the (lower, upper) bounds of each metric's interval, for means or one percentile.

    TTFT is given the wider of its simulated interval and its interval below saturation. If this
    shifts a bound of TTFT, the same bound of E2E shifts by the same time.

    Args:
        value: Predicted metrics: ``ttft``, ``e2e`` and any other metrics that rise with step time.
        fast: Metrics of the run with shorter times.
        slow: Metrics of the run with longer times. If no request was served, they are NaN, and the
            intervals have no upper bound.
        ttft_half: Log half-width of TTFT below saturation.
    """
    found = {name: ends(value[name], fast[name], slow[name]) for name in value}
    (low, high), ttft = found["ttft"], value["ttft"]
    wider = min(low, ttft * math.exp(-ttft_half)), max(high, ttft * math.exp(ttft_half))
    # If the upper end of TTFT is infinite, that of E2E is already infinite.
    beyond = wider[1] - high if math.isfinite(high) else 0.0
    shortest, longest = found["e2e"]
    # E2E moves with TTFT, because no answer ends before its first token; ITL does not change.
    return found | {"ttft": wider, "e2e": (max(shortest - (low - wider[0]), 0.0), longest + beyond)}


def ends(value: float, fast: float, slow: float) -> tuple[float, float]:
    """Return the (lower, upper) bounds of a metric's interval, from its values in three runs.

    The upper bound is infinite if the metric is undefined in the run with longer times.
    """
    known = [x for x in (value, fast, slow) if not math.isnan(x)]
    return min(known), math.inf if math.isnan(slow) else max(known)


def standing_step(run: Run) -> str:
    """Return the mean decode step of a run as a string: ``32 decode @ 1024`` (context tokens)."""
    r = run.requests
    steps = max(len(run.steps), 1)
    requests = max(round(float(run.steps["requests"].sum()) / steps), 1)
    tokens = float(r.prompt_tokens.sum()) + float(r.output_tokens.sum()) / 2
    return f"{requests} decode @ {max(round(tokens / max(len(r), 1)), 1)}"


def gains(job: Job, figures: Callable[[Run], Figures], value: Figures) -> Figures:
    """Return each metric's relative change per relative change of the step time, at least 0.

    This gain is 1 if a metric is proportional to the step time, and above 1 if queues amplify it.
    """
    fast, slow = end_figures(job, NUDGE, 0.0, figures)
    return {name: max(float(np.log(slow[name] / fast[name])) / (2 * NUDGE), 0.0) for name in value}


#: Latencies with an interval, by statistic.
_TAILS = {"mean": ("e2e", "ttft", "tpot", "itl", "step"), "p99": ("e2e", "ttft", "tpot", "itl")}
#: Metrics that are rates, which decrease when times increase.
_RATES = ("responses_per_sec", "tokens_per_sec")
#: Metrics with an interval.
BOUNDED = (*_RATES, *(f"{name}_{tail}_ms" for tail, names in _TAILS.items() for name in names))
_UNSERVED = "unserved"


@dataclass(frozen=True)
class Intervals:
    """Prediction intervals of a simulation's metrics, and the evidence for their widths.

    Attributes:
        level: Nominal coverage: share of measurements that the intervals should contain.
        figures: Metric -> (lower, upper) bounds; the upper bound is None if the run with longer
            times serves no request.
        slow_end_unserved: Share of requests that do not finish in the run with longer times.
        distance: Evidence for the widths: a ``sentence`` and, for a network's prediction, its
            errors on similar held-out data.
        missing: Reason why there are no intervals; empty if there are.
        kv_blocks: Interval of the KV cache size of one replica, in blocks.
    """

    level: float = 0.0
    figures: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    slow_end_unserved: float = 0.0
    distance: Mapping[str, Json] = field(default_factory=dict)
    missing: str = ""
    kv_blocks: tuple[int, int] | None = None

    def to_json(self) -> JsonObject:
        """Return the object under the key ``intervals`` of the JSON output."""
        if self.missing:
            return {"missing": self.missing}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "missing"}


def simulated_intervals(
    job: Job,
    run: Run,
    half_widths: tuple[float, float],
    level: float,
    distance: Mapping[str, Json],
    tails: Mapping[str, float] = MappingProxyType({}),
) -> Intervals:
    """Simulate a run twice more, with all times at the lower and upper bounds of their intervals.

    The run with shorter times uses the largest likely KV cache, the other run the smallest.
    Percentiles are assumed to have the relative error of the means, unless ``tails`` is larger.

    Args:
        job: Simulation at the predicted times.
        run: Run of this simulation.
        half_widths: Log half-widths of the step time and of TTFT below saturation.
        level: Nominal coverage: share of measurements that the intervals should contain.
        distance: Evidence for the widths, see :class:`Intervals`.
        tails: Minimum log half-width of a metric's 99th percentile, by metric.
    """
    step, ttft = half_widths
    longest = int((job.workload.prompt_tokens + job.workload.generated_tokens).max())
    longest += tokens_beyond(job.deployment)
    caches = cache_ends(job.deployment, job.engine, longest)
    most, least = (kv_layout(job.deployment, engine).blocks for engine in caches)
    value = _figures(run)
    fast, slow = end_figures(job, step, ttft, _figures, caches, HALF_WIDTH)
    found = {name: ends(value[name], fast[name], slow[name]) for name in _RATES}
    for tail, names in _TAILS.items():
        # ITL is undefined if all outputs have one token.
        keys = {n: k for n in names if not math.isnan(value[k := f"{n}_{tail}_ms"])}
        one, quick, late = ({n: of[k] for n, k in keys.items()} for of in (value, fast, slow))
        of_tail = figure_ends(one, quick, late, ttft)
        found |= {keys[name]: pair for name, pair in of_tail.items()}
    for metric, half in tails.items():
        key = f"{metric}_p99_ms"
        if key in found:
            (low, high), middle = found[key], value[key]
            found[key] = min(low, middle * math.exp(-half)), max(high, middle * math.exp(half))
    known = {n: (low, high if math.isfinite(high) else None) for n, (low, high) in found.items()}
    return Intervals(level, known, slow[_UNSERVED], distance, kv_blocks=(least, most))


def _figures(run: Run) -> Figures:
    """Return a run's metrics that have intervals, and its share of unfinished requests."""
    metrics = run_statistics(run)
    found = {name: float(metrics[name]) for name in BOUNDED}
    return found | {_UNSERVED: 1 - float(run.requests.finished.mean())}
