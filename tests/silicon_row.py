"""A row of the public benchmark's file, as it is there."""

from __future__ import annotations

from typing import Any


def raw_row(**changes: Any) -> dict[str, Any]:
    """The row with other values in some columns."""
    row = {
        "id": "a",
        "silicon_data_source": "x.csv; silicon_concurrency=64; measured=2026-04-03T02:34:55Z",
        "backend": "vllm",
        "backend_version": "0.19.0",
        "model_path": "MiniMaxAI/MiniMax-M2.5",
        "system": "b200_sxm",
        "precision": "fp8",
        "mode": "agg",
        "isl": 1024,
        "osl": 8192,
        "tp_size": 2.0,
        "attention_dp_size": 1.0,
        "moe_tp_size": 2.0,
        "moe_ep_size": 1.0,
        "silicon_ttft_ms": 250.0,
        "silicon_tpot_ms": 20.0,
    }
    return row | changes
