"""Small tables in the layout of aiconfigurator-core, for the readers' tests."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pinn.specs.gpu import GpuSpec

GPU = GpuSpec(
    name="H-TEST",
    memory_bandwidth_bytes_per_s=1e12,
    memory_bytes=80e9,
    peak_flop_per_s={"bf16": 1e15, "fp8": 2e15},
    sm_count=100,
    l2_bytes=55e6,
    compute_capability=9.0,
    link_bandwidth_bytes_per_s=1e11,
    pcie_bandwidth_bytes_per_s=5e10,
    has_nvlink=True,
    source="test",
)


def write_table(
    root: Path, kind: str, file: str, rows: list[dict], version="0.24.0", **constants
) -> Path:
    """Write one vLLM table of the H100 below ``root`` and return its path."""
    folder = root / "data" / "h100_sxm" / kind / "vllm" / version
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file}.parquet"
    pd.DataFrame([{**constants, **row} for row in rows]).to_parquet(path)
    return path
