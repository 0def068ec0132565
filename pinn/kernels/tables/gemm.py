"""Measured matrix multiplications."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from pinn.kernels.tables.sources import PRIMARY, TableSource
from pinn.kernels.tables.table import (
    FORMATS,
    SPIKE,
    bytes_per_element,
    flop_rate,
    read_table,
    refuse,
    spikes,
)
from pinn.kernels.tables.work import gemm_work
from pinn.specs.files.read_report import ReadReport
from pinn.specs.gpu import GpuSpec
from pinn.units import MILLISECOND

COLUMNS = ("gemm_dtype", "m", "n", "k", "latency")
#: A chip's cache serves a timing loop whose matrices are this many times smaller: the loop cycles
#: through several copies. Seen on L40S and RTX PRO 6000, whose jumps lie at a sixth of the cache.
COPIES_IN_LOOP = 5.5


def read_gemm(
    gpu: GpuSpec, source: TableSource, systems: Path | None = None
) -> tuple[pd.DataFrame, ReadReport]:
    """GEMM rows of one table.

    Returns:
        Columns gpu, precision, m, n, k, seconds, source; and the report.

    Raises:
        PinnError: If the file or a column is missing.
    """
    table, report = read_table(source, "gemm", "gemm_perf", COLUMNS, systems)
    rows = pd.DataFrame(
        {
            "gpu": gpu.name,
            "precision": table["gemm_dtype"].map(FORMATS),
            "m": table["m"],
            "n": table["n"],
            "k": table["k"],
            "seconds": table["latency"] * MILLISECOND,
            "source": report.source,
        }
    )

    def unused(r: pd.DataFrame) -> np.ndarray:
        known = r["precision"].notna()
        if source.formats is not None:
            known &= r["precision"].isin([FORMATS[f] for f in source.formats])
        return ~known.to_numpy()

    def memory_seconds(r: pd.DataFrame) -> np.ndarray:
        work = gemm_work(r["m"], r["n"], r["k"], bytes_per_element(r["precision"]))
        return work.read_bytes / gpu.memory_bandwidth_bytes_per_s

    def warm(r: pd.DataFrame) -> np.ndarray:
        weights = (r["n"] * r["k"]).to_numpy() * bytes_per_element(r["precision"])
        fits = weights <= gpu.l2_bytes / COPIES_IN_LOOP
        return fits & (memory_seconds(r) > 0.55 * r["seconds"].to_numpy())

    def below_floor(r: pd.DataFrame) -> np.ndarray:
        work = gemm_work(r["m"], r["n"], r["k"], bytes_per_element(r["precision"]))
        compute = work.flop / flop_rate(gpu, r["precision"])
        return r["seconds"].to_numpy() < np.maximum(memory_seconds(r), compute)

    return refuse(
        rows,
        report,
        [
            ("format not used", unused),
            (
                "fp8_block is launch-bound (no row below 55 us): fp8 stands in",
                lambda r: r["precision"] == "fp8_block",
            ),
            ("no time", lambda r: ~(r["seconds"] > 0)),
            ("one row takes over 1.5 x as long as two: an odd kernel", _odd_single_row),
            # 3.6 % of B200's fp8 rows.
            (
                f"a spike: over {SPIKE} x as long as with fewer and with more rows",
                lambda r: spikes(r, ("precision", "n", "k"), "m"),
            ),
            ("read from a warm cache", warm),
            ("below the floor", below_floor),
        ],
    )


def _odd_single_row(rows: pd.DataFrame) -> np.ndarray:
    """Rows of m = 1 that padding to m = 2 would beat by far (fp8 on Blackwell: 2.5 x)."""
    shape = ["precision", "n", "k"]
    two = rows[rows["m"] == 2].groupby(shape)["seconds"].min().rename("two")
    beside = rows[[*shape, "m", "seconds"]].join(two, on=shape)
    return ((beside["m"] == 1) & (beside["seconds"] > 1.5 * beside["two"])).to_numpy()


def read_all_gemm(
    gpus: dict[str, GpuSpec], systems: Path | None = None
) -> tuple[pd.DataFrame, list[ReadReport]]:
    """GEMM rows of every declared table whose system is in ``gpus`` (keyed by system name)."""
    parts = [read_gemm(gpus[s.system], s, systems) for s in PRIMARY if s.system in gpus]
    return pd.concat([p[0] for p in parts], ignore_index=True), [p[1] for p in parts]
