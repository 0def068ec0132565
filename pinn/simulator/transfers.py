"""Transfers between GPU and host memory for a second KV tier, and their metrics."""

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
    """Transfers between GPU and host memory, ordered by start time.

    Attributes:
        request: Request whose keys and values are transferred, or the last of several such
            requests; -1 for a node that is stored when the GPU evicts it.
        replica: Index of the data-parallel replica.
        load: Whether the transfer goes from host to GPU.
        blocks: Number of KV blocks transferred, in blocks of the GPU's cache.
        planned_s: Time when the transfer was submitted, in seconds.
        start_s: Time when the transfer began, in seconds.
        end_s: Time when the transfer completed, in seconds.
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
        """Build a run's table of KV transfers from the records of its engine."""
        names = {f.name for f in fields(cls)} - {"load"}
        return cls(load=records["kind"] == state.LOAD, **{name: records[name] for name in names})

    def __len__(self) -> int:
        return len(self.request)


#: Empty transfers of a run without a second KV tier.
NO_TRANSFERS = TransferRecords.of(np.zeros(0, state.TRANSFER))


@dataclass(frozen=True)
class TierUse:
    """State of a second KV tier at the end of a run, over all replicas.

    Attributes:
        chunks: Capacity of the tier in chunks.
        resident: Number of chunks in the tier at the end.
        stored: Number of chunks stored during the run.
        evicted: Number of chunks evicted during the run.
        full_stores: Number of stores skipped because the tier was full.
        chunk_tokens: Number of tokens per chunk.
        block_bytes: Bytes of a block of the GPU's cache, summed over all GPUs of a replica.
        chunk_blocks: Number of GPU cache blocks per chunk.
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
        """Size of a chunk in bytes."""
        return self.block_bytes * self.chunk_blocks


def tier_use(tier: HostTier, replicas: Any, block_tokens: int) -> TierUse:
    """Return the state of a second KV tier at the end of a run, from the replicas' records."""
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
    """Add the second tier's final state to a run; ``replicas`` are the engine's replica records."""
    return run if tier is None else replace(run, tier=tier_use(tier, replicas, block_tokens))


def tier_statistics(run: Run) -> dict[str, float]:
    """Return metrics of a second tier: hits, loads, stores and evictions; empty without a tier."""
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
