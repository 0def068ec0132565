"""What a run of two pools is reported by: what clients see, each pool and the link between."""

from __future__ import annotations

from typing import Any

import numpy as np

from pinn.simulator.pools import Pool, PoolsRun
from pinn.simulator.statistics import client_statistics, engine_statistics, latency_statistics


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
