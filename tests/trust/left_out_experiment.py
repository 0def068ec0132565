"""Folder of a leave-one-model-out experiment, made up of four measurements."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from observation_row import observation_row

from pinn.common.files import ReadReport
from pinn.measurements.deployments.observations import write_observations
from pinn.training.data.splits import leave_one_out, write_splits

KIND = "leave-one-model-out"

_MEASURED = (
    ("meta-llama/Meta-Llama-3.1-8B", 1, 4),
    ("meta-llama/Meta-Llama-3.1-8B", 2, 8),
    ("mistralai/Mixtral-8x7B-v0.1", 4, 4),
    ("Qwen/Qwen3-32B", 2, 16),
)


def observations() -> pd.DataFrame:
    """Return four measurements of three models on H100."""
    rows = [
        observation_row(
            row_id=f"row {i}",
            model=model,
            precision="bf16",
            tensor_parallel_size=tp,
            concurrency=concurrency,
            prompt_tokens=256,
            output_tokens=32,
            ttft_s=0.05,
        )
        for i, (model, tp, concurrency) in enumerate(_MEASURED)
    ]
    return pd.DataFrame(rows)


def write_experiment(folder: Path) -> Path:
    """Write observations, splits and predictions: TPOT 10 % too long, TTFT half of the measured."""
    rows = observations()
    report = ReadReport("made up", "1", "", len(rows), len(rows))
    write_observations(rows, folder / "observations" / "silicon.parquet", report)
    write_splits(leave_one_out("model", rows), folder / "splits" / f"{KIND}.json")
    of_network = pd.DataFrame(
        {
            "split": KIND,
            "held_out": rows["model"],
            "row_id": rows["row_id"],
            "method": "network",
            "tpot_s": 1.1 * rows["tpot_s"],
            "ttft_s": 0.5 * rows["ttft_s"],
            "tpot_measured_s": rows["tpot_s"],
            "ttft_measured_s": rows["ttft_s"],
        }
    )
    roofline = of_network.assign(method="roofline", tpot_s=0.001)
    pd.concat([roofline, of_network]).to_csv(folder / "predictions.csv", index=False)
    return folder
