"""Made-up measured deployments, as observations and as rows with given times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from observation_row import observation_row

from pinn.training.serving_rows import ServingRows

#: Cases: model, precision, tensor parallel, expert parallel, concurrency.
FIVE = (
    ("meta-llama/Meta-Llama-3.1-8B", "bf16", 1, False, 2),
    ("meta-llama/Meta-Llama-3.1-8B", "bf16", 1, False, 8),
    ("meta-llama/Meta-Llama-3.1-8B", "fp8", 2, False, 8),
    ("mistralai/Mixtral-8x7B-v0.1", "bf16", 4, False, 4),
    ("mistralai/Mixtral-8x7B-v0.1", "bf16", 4, True, 4),
)


def observations(cases=FIVE, gpu: str = "h100_sxm") -> pd.DataFrame:
    """Return made-up measurements, whose times are arbitrary."""
    rows = [
        observation_row(
            row_id=f"row {i}",
            model=model,
            gpu=gpu,
            precision=precision,
            tensor_parallel_size=tp,
            enable_expert_parallel=spread,
            concurrency=concurrency,
            prompt_tokens=256,
            output_tokens=32,
            ttft_s=1.0,
            tpot_s=1.0,
        )
        for i, (model, precision, tp, spread, concurrency) in enumerate(cases)
    ]
    return pd.DataFrame(rows)


def with_times(rows: ServingRows, tpot_s: np.ndarray, ttft_s: np.ndarray) -> ServingRows:
    """Return the rows with other measured times."""
    measured = tuple(
        replace(m, tpot_s=float(tpot), ttft_s=float(ttft))
        for m, tpot, ttft in zip(rows.measured, tpot_s, ttft_s, strict=True)
    )
    return replace(rows, measured=measured)
