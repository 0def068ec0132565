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
from pinn.units import MILLISECOND

ALL_REDUCE_COLUMNS = ("num_gpus", "message_size", "allreduce_dtype", "backend", "latency")
EXCHANGE_COLUMNS = ("op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
#: The tables count 16-bit elements: read as bytes, H100's NVLink would carry 170 of its 450 GB/s,
#: and the switch to NCCL would lie at 4 MiB, not at vLLM's 8 MiB.
ELEMENT_BYTES = 2
#: Where every GPU has a link of its own, a ring loads each link alike for any number of ranks
#: (Patarasuk and Yuan 2009), and switches that reduce in flight only help more ranks. Two flows on
#: one path halve what each of them gets.
SHARED_PATH_SHARE = 0.5
EXCHANGE_OPERATIONS = ("all_gather", "reduce_scatter")


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
    """All-gathers and reduce-scatters of one table of NCCL, inside one node.

    vLLM's default back end sends tokens to the experts by the one and their results back by the
    other (vllm/distributed/device_communicators/all2all.py: AgRsAll2AllManager).

    Returns:
        Columns gpu, gpus, bytes (of everyone's tokens), seconds (of both), source; and the report,
        which counts a pair once for each of the two.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(source, "comm", "nccl_perf", EXCHANGE_COLUMNS, systems)
    rows = pd.DataFrame(
        {
            "gpu": gpu.name,
            "gpus": table["num_gpus"],
            "bytes": table["message_size"] * ELEMENT_BYTES,
            "seconds": table["latency"] * MILLISECOND,
            "source": report.source,
            "operation": table["op_name"],
            "dtype": table["nccl_dtype"],
        }
    )
    rows, report = refuse(
        rows,
        report,
        [
            ("neither gathers nor scatters", lambda r: ~r["operation"].isin(EXCHANGE_OPERATIONS)),
            ("elements are not 16 bits wide", lambda r: r["dtype"] != "half"),
            ("no time", lambda r: ~(r["seconds"] > 0)),
            ("below the floor", lambda r: r["seconds"] < _all_reduce_floor(r, gpu)),
            ("one without the other", _alone),
        ],
    )
    pairs = rows.groupby(["gpu", "gpus", "bytes", "source"])["seconds"].sum()
    return pairs.reset_index(), report


def _alone(r: pd.DataFrame) -> np.ndarray:
    return (r.groupby(["gpus", "bytes"])["operation"].transform("nunique") < 2).to_numpy()


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
