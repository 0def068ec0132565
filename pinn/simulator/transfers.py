"""Transfers of a second KV tier, and their metrics."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from pinn.memory.host_tier import BY_NODE, HostTier
from pinn.simulator import state
from pinn.simulator.engine import TIER_COUNTS

if TYPE_CHECKING:
    from pinn.simulator.run import Run


@dataclass(frozen=True)
class TransferRecords:
    """Transfers between GPU and host, ordered by their begin.

    Attributes:
        request: Request whose keys and values are transferred, the last one of several; -1 for a
            node that is stored when the GPU evicts it.
        replica: Data-parallel replica.
        load: Whether the transfer goes from host to GPU.
        blocks: KV blocks transferred, as the GPU counts them.
        planned_s: When the transfer was submitted.
        start_s: When the transfer began.
        end_s: When the transfer ended.
    """

    request: Int[np.ndarray, " transfers"]
    replica: Int[np.ndarray, " transfers"]
    load: Bool[np.ndarray, " transfers"]
    blocks: Int[np.ndarray, " transfers"]
    planned_s: Float[np.ndarray, " transfers"]
    start_s: Float[np.ndarray, " transfers"]
    end_s: Float[np.ndarray, " transfers"]

    @classmethod
    def of(cls, records: Shaped[np.ndarray, " transfers"]) -> TransferRecords:
        """Return the transfers from the records of an engine."""
        names = {f.name for f in fields(cls)} - {"load"}
        return cls(load=records["kind"] == state.LOAD, **{name: records[name] for name in names})

    def __len__(self) -> int:
        return len(self.request)


#: Transfers of a run without a second tier.
NO_TRANSFERS = TransferRecords.of(np.zeros(0, state.TRANSFER))


@dataclass(frozen=True)
class TierUse:
    """State of a second KV tier at the end of a run, over all replicas.

    Attributes:
        chunks: Capacity in chunks.
        resident: Chunks stored in the tier.
        stored: Chunks that were stored.
        evicted: Chunks that were evicted.
        full_stores: Stores that were skipped because the tier was full.
        chunk_tokens: Tokens of a chunk.
        block_bytes: Bytes of a block of the GPU's cache, on all GPUs of a replica.
        chunk_blocks: Blocks of the GPU's cache in a chunk.
        both_ways: Whether loads and stores can overlap on the link.
    """

    chunks: int
    resident: int
    stored: int
    evicted: int
    full_stores: int
    chunk_tokens: int
    block_bytes: float
    chunk_blocks: int
    both_ways: bool = False

    @property
    def chunk_bytes(self) -> float:
        """Return the bytes of a chunk."""
        return self.block_bytes * self.chunk_blocks


def tier_use(tier: HostTier, replicas: Any, block_tokens: int) -> TierUse:
    """Return the state of a second tier at the end of a run from its replicas' records."""
    stored, evicted, full = (int(replicas[name].sum()) for name in TIER_COUNTS)
    return TierUse(
        chunks=tier.chunks * len(replicas),
        resident=stored - evicted,
        stored=stored,
        evicted=evicted,
        full_stores=full,
        chunk_tokens=tier.chunk_blocks * block_tokens,
        block_bytes=tier.block_bytes * tier.gpus,
        chunk_blocks=tier.chunk_blocks,
        both_ways=tier.kind == BY_NODE,
    )


def with_tier(run: Run, tier: HostTier | None, replicas: Any, block_tokens: int) -> Run:
    """Return a run with the state of its second tier added; ``replicas`` are its engine's."""
    return run if tier is None else replace(run, tier=tier_use(tier, replicas, block_tokens))


def tier_statistics(run: Run) -> dict[str, float]:
    """Return hits, loads, stores and evictions of a second tier; empty without one."""
    use, moved, r = run.tier, run.transfers, run.requests
    if use is None:
        return {}
    prompt, loaded = int(r.prompt_tokens.sum()), int(r.loaded_tokens.sum())
    sizes, seconds = moved.blocks * use.block_bytes, moved.end_s - moved.start_s
    span = float(r.finish_s.max() - r.arrival_s.min()) * run.replicas
    ways = [float(seconds[way].sum()) for way in (moved.load, ~moved.load)]
    busy_s = max(ways) if use.both_ways else sum(ways)
    return {
        "host_hit_tokens": loaded,
        "host_hit_rate": loaded / prompt if prompt else float("nan"),
        "host_loads": int(moved.load.sum()),
        "host_loaded_bytes": float(sizes[moved.load].sum()),
        "host_stores": int((~moved.load).sum()),
        "host_stored_bytes": use.stored * use.chunk_bytes,
        "host_evicted_bytes": use.evicted * use.chunk_bytes,
        "host_resident_bytes": use.resident * use.chunk_bytes,
        "host_capacity_bytes": use.chunks * use.chunk_bytes,
        "host_full_stores": use.full_stores,
        "host_link_busy_share": busy_s / span if span else float("nan"),
    }
