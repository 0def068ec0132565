"""Small evaluation folder: made-up predictions of made-up measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from observation_row import observation_row

from pinn.common.files import ReadReport
from pinn.evaluation.comparison import rank
from pinn.evaluation.decisions import decide, decision_table
from pinn.evaluation.metrics import METRICS, summarize, with_correlation
from pinn.measurements.deployments.observations import write_observations
from pinn.surrogate.uncertainty.interval_fit import coverage_table

MODELS = ("meta-llama/Meta-Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-32B")
GPUS = ("h100_sxm", "b200_sxm")
METHODS = {
    "network": 0.05, "global vector": 0.12, "teacher": 0.04,
}  # fmt: skip


def observations() -> pd.DataFrame:
    """Return two loads of every model on every GPU at two parallelisms."""
    rows = [
        observation_row(
            row_id=f"{model} {gpu} {tp} {concurrency}",
            model=model,
            gpu=gpu,
            precision="bf16",
            tensor_parallel_size=tp,
            concurrency=concurrency,
            prompt_tokens=256,
            output_tokens=32,
            ttft_s=0.05,
            tpot_s=0.005 * (1 + concurrency / 8),
        )
        for model in MODELS
        for gpu in GPUS
        for tp in (2, 4)
        for concurrency in (4, 16)
    ]
    return pd.DataFrame(rows)


def predictions(rows: pd.DataFrame) -> pd.DataFrame:
    """Return every method in two kinds of split, with errors of the method's own spread."""
    draw = np.random.default_rng(0)
    tables = [
        pd.DataFrame(
            {
                "split": split,
                "held_out": rows[column],
                "row_id": rows["row_id"],
                "method": method,
                "tpot_s": rows["tpot_s"] * np.exp(draw.normal(0, spread, len(rows))),
                "ttft_s": rows["ttft_s"] * np.exp(draw.normal(0, 2 * spread, len(rows))),
                "tpot_measured_s": rows["tpot_s"],
                "ttft_measured_s": rows["ttft_s"],
            }
        )
        for split, column in (("leave-one-model-out", "model"), ("leave-one-gpu-out", "gpu"))
        for method, spread in METHODS.items()
    ]
    return pd.concat(tables, ignore_index=True)


def write_evaluation(folder: Path) -> Path:
    """Write all tables that a report reads, except a checkpoint's own."""
    rows = observations()
    report = ReadReport("made up", "1", "", len(rows), len(rows))
    write_observations(rows, folder / "observations" / "silicon.parquet", report)
    made = predictions(rows)
    made.to_parquet(folder / "predictions.parquet", index=False)
    results = with_correlation(summarize(made, {}), made)
    results.to_csv(folder / "results.csv", index=False)
    groups = rows.set_index("row_id")["model"]
    rank(made, groups, METRICS, draws=20).to_csv(folder / "ranking.csv", index=False)
    decision_table(decide(made, rows)).to_csv(folder / "decisions.csv", index=False)
    coverage = [coverage_table(rows_inside(level)).assign(level=level) for level in (0.5, 0.9)]
    pd.concat(coverage).to_csv(folder / "coverage.csv", index=False)
    return folder


def rows_inside(level: float) -> pd.DataFrame:
    """Return twenty rows of each model and metric, inside or outside an interval of a level."""
    inside = np.arange(20) < 20 * level
    rows = [
        pd.DataFrame({"half": 0.15, "covered": inside, "error": np.where(inside, 0.1, 0.2)}).assign(
            split="leave-one-model-out", metric=metric, model=model, gpu="H100-SXM"
        )
        for metric in ("tpot", "ttft", "e2e")
        for model in MODELS
    ]
    return pd.concat(rows, ignore_index=True)
