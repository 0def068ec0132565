"""Steady state of a load: the time from which a run no longer depends on its empty start.

The truncation rule is MSER-5 (K. P. White, "An effective truncation heuristic for bias reduction in
simulation output", SIMULATION 69(6), 1997). It drops values at the beginning of a series such that
sum (y - mean)^2 / n^2 over the n remaining values y is minimal, as ``pymser 1.0.22 pymser.py:
calculate_MSEm`` does. Each value is the mean of five samples. If at least half of the series would
be dropped, no steady state was reached.

A sample is the number of requests in flight. Samples are taken from the first to the last request,
or conversation, that a stage begins, since the server drains afterwards.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import Float

from pinn.common import JsonObject
from pinn.simulator.run import Run

#: ``_BATCH``: number of samples per mean. ``_MEANS``: number of means per series. ``_LAST``: number
#: of final means that are never dropped as warm-up.
_BATCH, _MEANS, _LAST = 5, 200, 5
#: Minimum number of requests, or conversations, for a stage to reach a steady state.
_LEAST = 2 * _BATCH * _LAST


@dataclass(frozen=True)
class SteadyState:
    """Time span in which a load stage is in a steady state.

    Attributes:
        stage: Index of the load stage.
        begin_s: Start of the steady state, in seconds since the start of the load; None if not
            reached.
        end_s: Time when the stage's last request is sent, or its last conversation begins.
        in_flight: Mean number of requests in flight in the steady state; None if not reached.
        output_tokens_per_s: Mean output rate in the steady state; None if not reached.
    """

    stage: int
    begin_s: float | None
    end_s: float
    in_flight: float | None = None
    output_tokens_per_s: float | None = None

    def to_json(self) -> JsonObject:
        """Return one entry of the key ``steady_state`` of the JSON output."""
        return asdict(self)

    def __str__(self) -> str:
        if self.begin_s is None:
            return "not reached: too few requests, or no stable number of requests in flight"
        return (
            f"from {self.begin_s:,.1f} s to the last arrival at {self.end_s:,.1f} s: "
            f"{self.in_flight:,.1f} requests in flight, {self.output_tokens_per_s:,.0f} output "
            "tokens/s"
        )


def steady_states(run: Run) -> list[SteadyState]:
    """Return the steady state of each stage that sends its requests over a span of time."""
    r = run.requests
    found = []
    for stage in range(run.workload.stages):
        sent_s = r.arrival_s[(r.stage == stage) & run.workload.starts]
        begin_s, end_s = float(sent_s.min()), float(sent_s.max())
        if end_s > begin_s:
            enough = len(sent_s) >= _LEAST
            found.append(
                _of_span(run, stage, begin_s, end_s) if enough else SteadyState(stage, None, end_s)
            )
    return found


def _of_span(run: Run, stage: int, begin_s: float, end_s: float) -> SteadyState:
    edges = np.linspace(begin_s, end_s, _BATCH * _MEANS + 1)
    moments = (edges[1:] + edges[:-1]) / 2
    r = run.requests
    begun, ended = (
        np.searchsorted(np.sort(each), moments, "right") for each in (r.arrival_s, r.finish_s)
    )
    series = (begun - ended).reshape(-1, _BATCH).mean(axis=1)
    left_out = truncation(series)
    if 2 * left_out >= _MEANS:
        return SteadyState(stage, None, end_s)
    from_s = float(edges[left_out * _BATCH])
    tokens_per_s = output_tokens_between(run, from_s, end_s) / (end_s - from_s)
    return SteadyState(stage, from_s, end_s, float(series[left_out:].mean()), tokens_per_s)


def truncation(series: Float[np.ndarray, " n"]) -> int:
    """Return how many values the MSER rule drops at the beginning of a series.

    >>> truncation(np.array([0.0, 3.0, 5.0, *[6.0, 7.0] * 10]))
    3
    """
    series = series - series.mean()
    left = np.arange(len(series), 0, -1)
    sums, squares = (np.cumsum(each[::-1])[::-1] for each in (series, series**2))
    spread = np.maximum(squares - sums**2 / left, 0.0) / left**2
    return int(np.argmin(np.round(spread, 12)[: max(len(series) - _LAST, 1)]))


def steady_words(found: Sequence[SteadyState]) -> str:
    """Return a sentence about when each load stage reached a steady state, if at all."""
    if len(found) == 1:
        return str(found[0])
    begins = ["not reached" if s.begin_s is None else f"from {s.begin_s:,.1f} s" for s in found]
    return ", ".join(f"stage {s.stage} {text}" for s, text in zip(found, begins, strict=True))


def output_tokens_between(run: Run, begin_s: float, end_s: float) -> float:
    """Return the number of output tokens that all requests receive in a time span (seconds).

    Each request's tokens are assumed to be spread evenly between its first and its last token.
    """
    r = run.requests
    first, last = r.first_token_s, r.last_token_s
    known = ~np.isnan(first)
    first, last, tokens = first[known], last[known], r.output_tokens[known]
    length = np.maximum(last - first, 1e-9)
    done = [tokens * np.clip((moment - first) / length, 0, 1) for moment in (begin_s, end_s)]
    return float((done[1] - done[0]).sum())
