"""What the left-out networks say of the measured vLLM rows as they are labelled now.

python scripts/score_left_out.py

Simulates every row with the network of ``checkpoints/left_out`` that never saw its model, writes
``predictions.csv`` there and prints errors beside those that the checkpoint's own experiment kept,
which had the labels of its day: median / mean absolute error (median bias) in %. No network learns.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from pinn.coefficients.surrogate import predict_coefficients
from pinn.common.files import find_checkpoint
from pinn.common.tables import write_frame
from pinn.laboratory.engines import networks
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, map_runs
from pinn.training.data.deployments import measured_deployment
from pinn.training.data.silicon import read_silicon

_METRICS = ("tpot", "ttft")


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """``row_id``, ``tpot_s`` and ``ttft_s`` of every row, its model left out."""
    left_out = networks()[1]
    jobs = []
    for _, row in rows.iterrows():
        one = measured_deployment(row)
        found = predict_coefficients(left_out[one.deployment.model.name], [one.deployment])
        latency = LinearLatency(one.served, found.beta[0], found.alpha[0])
        jobs.append(Job(one.served, one.workload, latency))
    means = np.array(
        map_runs(lambda _, run: (run.requests.mean_itl_s.mean(), run.requests.ttft_s.mean()), jobs)
    )
    return pd.DataFrame({"row_id": rows["row_id"], "tpot_s": means[:, 0], "ttft_s": means[:, 1]})


def lines(rows: pd.DataFrame, now: pd.DataFrame, before: pd.DataFrame) -> list[str]:
    """A Markdown table by model: rows that both have, with both labels, then all of now."""
    both = rows.merge(now, on="row_id", suffixes=("_measured", ""))
    both = both.merge(before, on="row_id", how="left", suffixes=("", "_before"))
    metrics = [f"{when} {metric.upper()}" for metric in _METRICS for when in ("old", "new", "all")]
    found = [
        "| model | rows of both / all | " + " | ".join(metrics) + " |",
        "|---|---:|" + "---:|" * 6,
    ]
    parts = [*both.groupby("model"), ("all", both)]
    for name, part in parts:
        kept = part[part["tpot_s_before"].notna()]
        cells = [
            _cell(rows_of[f"{metric}_s{when}"] / rows_of[f"{metric}_s_measured"])
            for metric in _METRICS
            for rows_of, when in ((kept, "_before"), (kept, ""), (part, ""))
        ]
        found.append(f"| {name} | {len(kept)} / {len(part)} | {' | '.join(cells)} |")
    return found


def _cell(ratio: pd.Series) -> str:
    error = 100 * (ratio - 1)
    return f"{error.abs().median():.1f} / {error.abs().mean():.1f} ({error.median():+.1f})"


def kept_before() -> pd.DataFrame:
    """What the checkpoint's own experiment kept of left-out models."""
    kept = pd.read_csv(find_checkpoint().with_suffix(".predictions.csv"))
    kept = kept[(kept["split"] == "leave-one-model-out") & (kept["method"] == "network")]
    return kept[["row_id", "tpot_s", "ttft_s"]]


if __name__ == "__main__":
    rows = read_silicon()[0]
    now = scored(rows)
    folder = find_checkpoint().parent / "left_out"
    write_frame(now, folder / "predictions.csv", float_format="%.8g")
    print("\n".join(lines(rows, now, kept_before())))
