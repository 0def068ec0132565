"""What clients see of two pools, and what went from the one to the other."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float, Int, Shaped

from pinn.coefficients.protocol import LatencyModel
from pinn.simulator.engine import Engine
from pinn.simulator.records import read_records
from pinn.simulator.run import RequestRecords
from pinn.simulator.state import REJECTED, TIMED_OUT, UNSENT


@dataclass(frozen=True)
class Transfers:
    """Keys and values that went over the network, per request; NaN or 0 where none did.

    Attributes:
        left_s: When the prefill server had answered and the request went to a decode server.
        loading_s: When the decode server had blocks for them.
        ready_s: When they were there.
        tokens: Tokens of theirs; fewer than the prompt's where the decode server had a prefix.
        link_s: Time that the slower end of the link took for them, its latency included.
        link_bytes: Bytes, over all GPUs of the decode worker.
    """

    left_s: Float[np.ndarray, " requests"]
    loading_s: Float[np.ndarray, " requests"]
    ready_s: Float[np.ndarray, " requests"]
    tokens: Int[np.ndarray, " requests"]
    link_s: Float[np.ndarray, " requests"]
    link_bytes: Float[np.ndarray, " requests"]

    def columns(self) -> dict[str, Shaped[np.ndarray, " requests"]]:
        """Per request, under names for a table."""
        return {f"transfer_{f.name}": getattr(self, f.name) for f in fields(self)}

    @property
    def waited_s(self) -> Float[np.ndarray, " requests"]:
        """From the prefill server's answer to the arrival, without the time on the link itself."""
        return self.ready_s - self.left_s - self.link_s


def client_records(
    ahead: Engine, behind: Engine, ahead_latency: LatencyModel, behind_latency: LatencyModel
) -> RequestRecords:
    """Records of whole requests: sent to the prefill pool, answered by the decode pool.

    ``replica``, ``first_token_s`` and what follows are the decode pool's, ``cached_tokens`` and
    ``reused_tokens`` the prefill pool's; tokens computed and preemptions are those of both.

    Raises:
        PinnError: If requests are left that a pool can never schedule.
    """
    begun = read_records(ahead, ahead_latency)
    status = ahead.arrays["requests"]["status"]
    answers = behind.arrays["requests"]
    lost = (answers["status"] == UNSENT) & np.isin(status, (TIMED_OUT, REJECTED))
    answers["status"][lost] = status[lost]
    ended = read_records(behind, behind_latency)
    came = begun.finished
    return replace(
        ended,
        finish_s=np.where(came, ended.finish_s, begun.finish_s),
        arrival_s=begun.arrival_s,
        handed_s=begun.handed_s,
        queued_s=begun.queued_s,
        scheduled_s=begun.scheduled_s,
        cached_tokens=begun.cached_tokens,
        reused_tokens=begun.reused_tokens,
        computed_tokens=begun.computed_tokens + ended.computed_tokens,
        preemptions=begun.preemptions + ended.preemptions,
        early_preemptions=begun.preemptions + ended.early_preemptions,
        recomputed_tokens=begun.recomputed_tokens + ended.recomputed_tokens,
        early_recomputed_tokens=begun.recomputed_tokens + ended.early_recomputed_tokens,
        arrival_state=begun.arrival_state,
        start_state=begun.start_state,
        handed_work=begun.handed_work,
    )


def read_transfers(behind: Engine, token_bytes: float) -> Transfers:
    """What the decode pool's engine knows of its transfers.

    Args:
        behind: After the run.
        token_bytes: Of a token, over all GPUs of a decode worker.
    """
    r, record = behind.arrays["requests"], behind.record[0]
    moved = r["moved"] > 0
    slower_s = max(record["transfer_token_s"], record["source_token_s"])
    tokens = r["moved"].astype(np.int64)
    return Transfers(
        left_s=np.where(moved, r["sent_s"], np.nan),
        loading_s=np.where(moved, r["loading_s"], np.nan),
        ready_s=np.where(moved, r["ready_s"], np.nan),
        tokens=tokens,
        link_s=np.where(moved, tokens * slower_s + record["transfer_latency_s"], np.nan),
        link_bytes=tokens * token_bytes,
    )
