"""Measured communication: all-reduce among tensor-parallel ranks, exchange among experts' ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.common.files import ReadReport
from pinn.kernels.tables.table import (
    ALL_REDUCE,
    EXCHANGE,
    SPIKE,
    TableSource,
    read_table,
    refuse,
    spikes,
)
from pinn.specs.gpu import GpuSpec
from pinn.units import MICROSECOND, MILLISECOND

ALL_REDUCE_COLUMNS = ("num_gpus", "message_size", "allreduce_dtype", "backend", "latency")
EXCHANGE_COLUMNS = (
    "comm_backend",
    "phase",
    "ep_size",
    "node_num",
    "hidden_size",
    "topk",
    "num_experts",
    "num_tokens",
    "latency",
)
#: The tables count 16-bit elements: read as bytes, H100's NVLink would carry 170 of its 450 GB/s,
#: and the switch to NCCL would lie at 4 MiB, not at vLLM's 8 MiB.
ELEMENT_BYTES = 2
#: Where every GPU has a link of its own, a ring loads each link alike for any number of ranks
#: (Patarasuk and Yuan 2009), and switches that reduce in flight only help more ranks. Two flows on
#: one path halve what each of them gets.
SHARED_PATH_SHARE = 0.5


def read_all_reduce(
    gpu: GpuSpec, source: TableSource, systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """All-reduce rows of one table, launched from a CUDA graph as a serving step does.

    Returns:
        Columns gpu, gpus, bytes, seconds, source; and the report.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(source, "comm", "custom_allreduce_perf", ALL_REDUCE_COLUMNS, systems)
    rows = pd.DataFrame(
        {
            "gpu": gpu.name,
            "gpus": table["num_gpus"],
            "bytes": table["message_size"] * ELEMENT_BYTES,
            "seconds": table["latency"] * MILLISECOND,
            "source": report.source,
            "backend": table["backend"],
            "dtype": table["allreduce_dtype"],
        }
    )
    rows, report = refuse(
        rows,
        report,
        [
            ("elements are not 16 bits wide", lambda r: r["dtype"] != "bfloat16"),
            (
                "launched one by one, not from a graph",
                lambda r: ~r["backend"].str.endswith("_graph"),
            ),
            ("no time", lambda r: ~(r["seconds"] > 0)),
            ("below the floor", lambda r: r["seconds"] < _all_reduce_floor(r, gpu)),
            (
                f"a spike: over {SPIKE} x as long as with fewer and with more bytes",
                lambda r: spikes(r, ("gpus",), "bytes"),
            ),
            (
                "ranks share a path: under half of the bandwidth that another number of them has; "
                "true of that machine, not of the GPU",
                _shared_path,
            ),
        ],
    )
    return rows.drop(columns=["backend", "dtype"]), report


def _shared_path(r: pd.DataFrame) -> np.ndarray:
    """Rows of numbers of ranks whose largest message moves far more slowly than with others.

    Bandwidth is that of each link under a ring, 2 (n - 1) / n of the message over the time.
    """
    largest = r.loc[r.groupby("gpus")["bytes"].idxmax()].set_index("gpus")
    ranks = largest.index.to_numpy(dtype=np.float64)
    ring = 2 * (ranks - 1) / ranks * largest["bytes"] / largest["seconds"]
    slow = ring.index[ring < SHARED_PATH_SHARE * ring.max()]
    return r["gpus"].isin(slow).to_numpy()


def _all_reduce_floor(r: pd.DataFrame, gpu: GpuSpec) -> pd.Series:
    """Each rank must receive at least its share once: (n - 1) / n of the message over its link."""
    return r["bytes"] * (r["gpus"] - 1) / r["gpus"] / gpu.link_bandwidth_bytes_per_s


def read_exchange(
    gpu: GpuSpec, source: TableSource, systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """Expert dispatch and combine rows of one table (DeepEP), inside one node.

    Returns:
        Columns gpu, library, phase (``dispatch`` or ``combine``), expert_parallel, hidden, top_k,
        experts, tokens (per rank), seconds, source; and the report.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(source, "comm", "moe_a2a_perf", EXCHANGE_COLUMNS, systems)
    rows = pd.DataFrame(
        {
            "gpu": gpu.name,
            "library": table["comm_backend"],
            "phase": table["phase"],
            "expert_parallel": table["ep_size"],
            "hidden": table["hidden_size"],
            "top_k": table["topk"],
            "experts": table["num_experts"],
            "tokens": table["num_tokens"],
            # Unlike every other table of the package, this one is in microseconds.
            "seconds": table["latency"] * MICROSECOND,
            "source": report.source,
            "nodes": table["node_num"],
        }
    )
    rows, report = refuse(
        rows,
        report,
        [
            ("library other than DeepEP", lambda r: ~r["library"].isin(["deepep_ht", "deepep_ll"])),
            ("no time", lambda r: ~(r["seconds"] > 0)),
            ("across nodes", lambda r: r["nodes"] > 1),
        ],
    )
    return rows.drop(columns="nodes"), report


def _read_all_reduces(
    gpus: dict[str, GpuSpec], systems: Path | None
) -> list[tuple[pd.DataFrame, ReadReport]]:
    """All-reduce rows by table; each (GPU, number of ranks) comes from the first that has it."""
    found: list[tuple[pd.DataFrame, ReadReport]] = []
    taken: set[tuple[str, int]] = set()
    for source in ALL_REDUCE:
        if source.system not in gpus:
            continue
        gpu = gpus[source.system]
        earlier = partial(_of_ranks, ranks=[n for name, n in taken if name == gpu.name])
        rows, report = refuse(
            *read_all_reduce(gpu, source, systems),
            [("as many ranks as an earlier table has", earlier)],
        )
        taken |= {(gpu.name, int(n)) for n in rows["gpus"].unique()}
        found.append((rows, report))
    return found


def _of_ranks(r: pd.DataFrame, ranks: list[int]) -> np.ndarray:
    return r["gpus"].isin(ranks).to_numpy()


def read_all_communication(
    gpus: dict[str, GpuSpec], systems: Path | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, list[ReadReport]]:
    """All-reduce and exchange rows of every declared table whose system is in ``gpus``."""
    reduce = _read_all_reduces(gpus, systems)
    swap = [read_exchange(gpus[s.system], s, systems) for s in EXCHANGE if s.system in gpus]
    return (
        pd.concat([p[0] for p in reduce], ignore_index=True),
        pd.concat([p[0] for p in swap], ignore_index=True) if swap else pd.DataFrame(),
        [p[1] for p in (*reduce, *swap)],
    )
