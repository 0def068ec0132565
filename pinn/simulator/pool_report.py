"""Statistics of pools, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pinn.common.screen import Grid, page
from pinn.simulator.pools import Pool, PoolsRun
from pinn.simulator.run import Run
from pinn.simulator.statistics import (
    client_statistics,
    engine_statistics,
    latency_statistics,
    print_latencies,
    served_facts,
)

# What a run of two pools is reported by: what clients see, each pool and the link between.


def pools_statistics(
    found: PoolsRun, prefill: Pool, decode: Pool, stage: int | None = None
) -> dict[str, Any]:
    """Figures of the clients, and under ``pools`` and ``kv_transfer`` those of what serves them.

    ``tpot`` is over each request's mean gap between tokens. Of ``kv_transfer``, ``link`` is the
    time that keys and values were on the link, and ``wait`` the rest between the prefill server's
    answer and their arrival: for the decode server to take the request in, for blocks of its KV
    cache, and for transfers before it.

    Args:
        found: The run.
        prefill: Its prefill pool.
        decode: Its decode pool.
        stage: Only the clients of this stage.
    """
    r, run = found.decode.requests, found.decode
    mine = r.finished & r.of_stage(stage)
    tpot_s = r.mean_itl_s[mine]
    figures = client_statistics(run, stage)
    figures |= latency_statistics("tpot", tpot_s[~np.isnan(tpot_s)])
    if stage is not None:
        return figures
    pools = {"prefill": (prefill, found.prefill), "decode": (decode, found.decode)}
    figures["pools"] = {
        name: {"workers": pool.workers, "gpus": pool.gpus} | engine_statistics(of_pool)
        for name, (pool, of_pool) in pools.items()
    }
    return figures | {"kv_transfer": _transfer_statistics(found)}


def _transfer_statistics(found: PoolsRun) -> dict[str, Any]:
    transfers = found.transfers
    moved = transfers.tokens > 0
    figures: dict[str, Any] = {
        "transfers": int(moved.sum()),
        "link_bytes_per_s": found.link.bytes_per_s,
        "latency_s": found.link.latency_s,
        "gigabytes": float(transfers.link_bytes.sum()) / 1e9,
        "gigabytes_mean": float(transfers.link_bytes[moved].mean()) / 1e9 if moved.any() else 0.0,
    }
    figures |= latency_statistics("link", transfers.link_s[moved])
    return figures | latency_statistics("wait", transfers.waited_s[moved])


# The figures of two pools as tables for the terminal.

_LATENCIES = {
    "e2e": "end to end",
    "ttft": "time to first token",
    "tpot": "per output token",
    "itl": "between tokens",
    "scheduling_delay": "arrival to prefill",
    "wait": "wait before a transfer",
    "link": "on the link",
}


def print_pools(run: Run, figures: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Print latencies, the transfer and each pool.

    Args:
        run: Of the decode pool, with the requests as clients see them.
        figures: Of :func:`pinn.simulator.pool_report.pools_statistics`.
        labels: Pool -> what one of its servers is.
    """
    transfer, pools = figures["kv_transfer"], figures["pools"]
    print_latencies(run, figures | transfer, _LATENCIES, {})
    table = Grid.of("pool", *pools)
    for row, text in _POOL_ROWS.items():
        table.add(row, *(text(found, labels[name]) for name, found in pools.items()))
    page().print(table)
    moved = (
        f"{transfer['transfers']:,} prompts, {transfer['gigabytes_mean']:.3g} GB each on average, "
        f"at {transfer['link_bytes_per_s'] / 1e9:g} GB/s a GPU"
    )
    for name, words in (served_facts(figures) | {"KV transfer": moved}).items():
        page().print(f"{name:<12}  {words}")


_POOL_ROWS: Mapping[str, Callable[[Mapping[str, Any], str], str]] = {
    "servers": lambda found, label: f"{found['workers']} x {label}",
    "GPUs": lambda found, _: str(found["gpus"]),
    "busy": lambda found, _: f"{100 * found['busy_share']:.1f} % of the time",
    "waiting": lambda found, _: f"{found['waiting_mean']:.2f}, at most {found['waiting_max']:,}",
    "running": lambda found, _: f"at most {found['running_max']:,}",
    "KV cache": lambda found, _: (
        f"{100 * found['kv_usage_mean']:.1f} %, at most {100 * found['kv_usage_max']:.1f} %"
    ),
    "steps": lambda found, _: f"{found['steps']:,} of {found['tokens_per_step']:,.1f} tokens",
}
