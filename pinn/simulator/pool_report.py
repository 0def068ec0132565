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
    latency_table,
    stage_table,
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
    mine = r.finished if stage is None else r.finished & (r.stage == stage)
    tpot_s = r.mean_itl_s[mine]
    figures = client_statistics(run, stage)
    figures |= latency_statistics("tpot", tpot_s[~np.isnan(tpot_s)])
    if stage is not None:
        return figures
    return figures | {
        "pools": {
            "prefill": _pool_statistics(prefill) | engine_statistics(found.prefill),
            "decode": _pool_statistics(decode) | engine_statistics(found.decode),
        },
        "kv_transfer": _transfer_statistics(found),
    }


def _pool_statistics(pool: Pool) -> dict[str, Any]:
    return {"workers": pool.workers, "gpus": pool.gpus}


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
}
_TRANSFER = {"wait": "wait before a transfer", "link": "on the link"}


def print_pools(run: Run, figures: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Print latencies, the transfer and each pool.

    Args:
        run: Of the decode pool, with the requests as clients see them.
        figures: Of :func:`pinn.simulator.pool_report.pools_statistics`.
        labels: Pool -> what one of its servers is.
    """
    console = page()
    console.print(latency_table(figures | figures["kv_transfer"], _LATENCIES | _TRANSFER, {}))
    if run.workload.stages > 1:
        console.print(stage_table(run))
    console.print(_pool_table(figures["pools"], labels))
    lost = "".join(
        f", {figures[f'{how}_requests']:,} {how.replace('_', ' ')}"
        for how in ("timed_out", "rejected")
        if figures[f"{how}_requests"]
    )
    transfer = figures["kv_transfer"]
    rate = transfer["link_bytes_per_s"] / 1e9
    for name, text in {
        "requests": f"{figures['completed_requests']:,} of {figures['injected_requests']:,} "
        f"served{lost}",
        "throughput": f"{figures['responses_per_sec']:.2f} requests/s, "
        f"{figures['tokens_per_sec']:,.0f} output tokens/s over "
        f"{figures['vllm_estimated_duration_s']:,.1f} s",
        "KV transfer": f"{transfer['transfers']:,} prompts, {transfer['gigabytes_mean']:.3g} GB "
        f"each on average, at {rate:g} GB/s a GPU",
    }.items():
        console.print(f"{name:<12}  {text}")


def _pool_table(pools: Mapping[str, Mapping[str, Any]], labels: Mapping[str, str]) -> Grid:
    table = Grid.of("pool", *pools)
    for row, text in _POOL_ROWS.items():
        table.add(row, *(text(found, labels[name]) for name, found in pools.items()))
    return table


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
