"""Metrics of each server, for several servers behind a router or a load balancer."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from pinn.common.numbers import number
from pinn.common.screen import Grid
from pinn.simulator.run import Run
from pinn.simulator.statistics import Metrics, latency_statistics

#: Maximum number of servers in a printed table; JSON output lists all servers.
_SHOWN = 8


def server_statistics(
    run: Run, percentiles: Sequence[float] = (), *, single: bool = False
) -> list[Metrics]:
    """Return the metrics of each server's requests and steps.

    The list is empty for a single server, unless ``single`` is true.

    Warm-up requests are not counted. ``busy_share`` is relative to the time from the first arrival
    to the end of the last response.

    Args:
        run: Run of all servers.
        percentiles: Latency percentiles in addition to the default ones, 0 to 100.
        single: Whether to return metrics even if there is only one server.
    """
    if run.copies == 1 and not single:
        return []
    return [_statistics(run, server, percentiles) for server in range(run.copies)]


def server_of_requests(run: Run) -> Int[np.ndarray, " requests"]:
    """Return the index of the server that each request was sent to."""
    return run.requests.replica // (run.replicas // run.copies)


def _statistics(run: Run, server: int, percentiles: Sequence[float]) -> Metrics:
    r, steps = run.requests, run.steps
    mine = r.of_stage(None) & (server_of_requests(run) == server)
    done = mine & r.finished
    prompt = int(r.prompt_tokens[mine].sum())
    tpot_s = r.mean_itl_s[done]
    span_s = float(r.finish_s.max(initial=-np.inf) - r.arrival_s.min(initial=np.inf))
    own = steps["group"] // (run.groups // run.copies) == server
    duration_s = steps["duration_s"][own]
    busy_s = float(duration_s.sum())
    used = steps["used_blocks"][own] / run.step_blocks
    found: Metrics = {
        "requests": int(mine.sum()),
        "completed_requests": int(done.sum()),
        "output_tokens": int(r.output_tokens[mine].sum()),
        "cache_hit_rate": int(r.cached_tokens[mine].sum()) / prompt if prompt else float("nan"),
        "preemption_count": int(r.preemptions[mine].sum()),
        "busy_share": busy_s / (span_s * (run.groups // run.copies)) if span_s > 0 else 0.0,
        "waiting_max": int(steps["waiting"][own].max(initial=0)),
        "running_max": int(steps["running"][own].max(initial=0)),
        "kv_usage_mean": float(used @ duration_s) / busy_s if busy_s else 0.0,
        "kv_usage_max": float(used.max(initial=0.0)),
    }
    for name, seconds in (
        ("ttft", r.ttft_s[done]),
        ("tpot", tpot_s[~np.isnan(tpot_s)]),
        ("e2e", r.e2e_s[done]),
    ):
        found |= latency_statistics(name, seconds, None, percentiles)
    return found


def server_table(servers: Sequence[Metrics], names: Sequence[str] = ()) -> Grid:
    """Return a table of metrics with one row per server.

    Of more than eight servers, only the four with the fewest and the four with the most requests
    have a row.

    Args:
        servers: Metrics of each server.
        names: Names of the servers; their numbers if empty.
    """
    table = Grid.of(
        "server", "requests", "TTFT (ms)", "p99", "TPOT (ms)", "prefix hits", "max KV", "busy"
    )
    order = list(range(len(servers)))
    if len(servers) > _SHOWN:
        by_load = sorted(order, key=lambda i: servers[i]["requests"])
        order = sorted({*by_load[: _SHOWN // 2], *by_load[-_SHOWN // 2 :]})
    for place in order:
        found = servers[place]
        times = (found[f"{name}_ms"] for name in _TIMES)
        shares = (found[name] for name in ("cache_hit_rate", "kv_usage_max", "busy_share"))
        table.add(
            names[place] if names else str(place),
            f"{found['requests']:,}",
            *map(number, times),
            *("-" if np.isnan(share) else f"{100 * share:.0f} %" for share in shares),
        )
    return table


_TIMES = ("ttft_mean", "ttft_p99", "tpot_mean")
