"""Biases of the checkpoint's folds by model, by clients and by cell: which rows are off, which way.

    python scripts/left_out_bias.py [leave-one-gpu-and-its-kernels-out]

Reads the predictions that were published beside the checkpoint and the public measurements. A cell
is a model, GPU, format and release with at least ten rows. Median errors in %, plus is too slow.
"""

import sys

import pandas as pd

from pinn.common.files import find_checkpoint
from pinn.training.data.silicon import read_silicon

CELL = ["model", "gpu", "precision", "engine_version"]
LEAST_ROWS, FAR_PERCENT = 10, 10.0


def main(split: str = "leave-one-model-out") -> None:
    """Print the three tables."""
    kept = pd.read_csv(find_checkpoint().with_suffix(".predictions.csv"))
    kept = kept[(kept["split"] == split) & (kept["method"] == "network")]
    facts = read_silicon()[0][["row_id", "concurrency", *CELL]]
    rows = kept.merge(facts, on="row_id", validate="one_to_one")
    for name in ("tpot", "ttft"):
        rows[name] = 100 * (rows[f"{name}_s"] / rows[f"{name}_measured_s"] - 1)
    cells = biases(rows, CELL)
    far = (cells["rows"] >= LEAST_ROWS) & (cells["tpot"].abs() > FAR_PERCENT)
    for table in (biases(rows, ["model"]), biases(rows, ["concurrency"]), cells[far]):
        print(table.to_string(), end="\n\n")
    print(f"all {len(rows)} rows: TPOT {rows['tpot'].median():+.1f}, "
          f"TTFT {rows['ttft'].median():+.1f}")  # fmt: skip


def biases(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Rows, and the median errors of TPOT and TTFT in %, of each part."""
    parts = rows.groupby(by)
    return parts[["tpot", "ttft"]].median().round(1).assign(rows=parts.size())


if __name__ == "__main__":
    main(*sys.argv[1:])
