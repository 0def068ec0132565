"""Latencies, throughput and backlog of a simulated run."""

import numpy as np
from jaxtyping import Float, Int, Shaped

from pinn.planning.plan import STATISTICS
from pinn.planning.slo import Latencies
from pinn.simulator.run import Run
from pinn.simulator.state import FINISHED, REJECTED, TIMED_OUT
from pinn.simulator.statistics import statistic

#: Throughput is measured from this share of the load on, when batches have filled.
_WARM_SHARE = 0.2
#: Of the load's time that a server may take longer for its last answers than for its first ones.
_DRAIN_SHARE = 0.05


def latencies_s(run: Run) -> Latencies:
    """Return metric -> seconds per request.

    Infinite where it was not served, NaN where there is no such time. TPOT is the mean gap between
    a request's tokens, (last - first) / (tokens - 1).
    """
    r = run.requests
    gaps = np.where(run.workload.output_tokens > 1, 1.0, np.nan)
    return {
        "ttft": np.where(r.finished, r.ttft_s, np.inf),
        "tpot": np.where(r.finished, r.mean_itl_s, np.inf) * gaps,
        "e2e": np.where(r.finished, r.e2e_s, np.inf),
    }


def backlog(run: Run) -> float:
    """Return how far a server falls behind; it keeps up at 1 or less.

    The time from the last request to the last answer, as a share of the longest answer in the first
    fifth of the load and a twentieth of the load's time.
    """
    r = run.requests
    arrival, served = r.arrival_s, r.finished
    if not served.any():
        return np.inf
    span = float(arrival.max() - arrival.min())
    early = served & (np.arange(len(r)) < max(len(r) * _WARM_SHARE, 1))
    usual = float(r.e2e_s[early].max()) if early.any() else 0.0
    drain = float(r.finish_s[served].max() - arrival.max())
    return drain / (usual + _DRAIN_SHARE * span)


def output_tokens_per_s(run: Run) -> float:
    """Return output tokens per second while the load is sent, without its first fifth.

    Each request's tokens are spread evenly from its first to its last.
    """
    r = run.requests
    begin, end = r.arrival_s.min(), r.arrival_s.max()
    begin += _WARM_SHARE * (end - begin)
    if not end > begin:
        return 0.0
    first, last = r.first_token_s, r.last_token_s
    known = ~np.isnan(first)
    first, last, tokens = first[known], last[known], r.output_tokens[known]
    length = np.maximum(last - first, 1e-9)
    done = [tokens * np.clip((moment - first) / length, 0, 1) for moment in (begin, end)]
    return float((done[1] - done[0]).sum() / (end - begin))


def percentiles(
    values: Float[np.ndarray, " n"], counts: Shaped[np.ndarray, " n"]
) -> dict[str, float | None]:
    """Return statistic -> seconds, of values that occur so often; None where it is infinite."""
    exist = ~np.isnan(values)
    values, counts = values[exist], counts[exist].astype(np.int64)
    found = {name: statistic(values, counts, name) for name in STATISTICS}
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


def latencies_so_far_s(
    requests: Shaped[np.ndarray, " requests"], tokens: Int[np.ndarray, " requests"], now_s: float
) -> Latencies:
    """Return lower bounds of every request's latencies in a run that goes on.

    Args:
        requests: The engine's records (``pinn.simulator.state.REQUEST``).
        tokens: Output tokens of each request.
        now_s: The engine's time.
    """
    status, sent = requests["status"], requests["sent_s"]
    finished, lost = status == FINISHED, (status == TIMED_OUT) | (status == REJECTED)
    waits = (status > 0) & ~finished & ~lost
    age = np.where(waits, np.maximum(now_s - sent, 0.0), 0.0)
    begun = requests["generated"] > 0
    ttft = np.where(begun, requests["first_sent_s"] - sent, age)
    e2e = np.where(finished, requests["last_sent_s"] - sent, age)
    gaps = np.where(tokens > 1, tokens - 1.0, np.nan)
    last = np.where(finished, requests["last_sent_s"], now_s)
    tpot = np.where(begun, np.maximum(last - requests["first_sent_s"], 0.0), 0.0) / gaps
    return {
        "ttft": np.where(lost, np.inf, ttft),
        "tpot": np.where(lost, np.where(np.isnan(gaps), np.nan, np.inf), tpot),
        "e2e": np.where(lost, np.inf, e2e),
    }
