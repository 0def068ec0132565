"""Plot measured against predicted TPOT of held-out data.

Usage: ``python scripts/draw_held_out.py [PNG]``. The data is
``checkpoints/left_out/predictions.csv``: every measured deployment is predicted by a network that
was trained without its model and kernels. The default file is docs/images/held-out.png.
"""

import sys
from pathlib import Path

import pandas as pd

from pinn.common.plots import png
from pinn.evaluation.report.figures import agreement_figure
from pinn.training.data.silicon import read_silicon

ROOT = Path(__file__).resolve().parents[1]
PREDICTIONS = ROOT / "checkpoints" / "left_out" / "predictions.csv"
OUT = ROOT / "docs" / "images" / "held-out.png"


def held_out_rows() -> pd.DataFrame:
    """Return the measured and predicted TPOT of every held-out row, in seconds."""
    measured = read_silicon()[0].rename(columns={"tpot_s": "tpot_measured_s"})
    kept = measured[["row_id", "model", "gpu", "tpot_measured_s"]]
    rows = kept.merge(pd.read_csv(PREDICTIONS), on="row_id", validate="one_to_one")
    if len(rows) != len(kept):
        raise SystemExit(
            f"{PREDICTIONS} lacks predictions of {len(kept) - len(rows)} of {len(kept)} measured "
            "rows: train the release again"
        )
    return rows.assign(held_out=rows["model"])


def main(out: Path = OUT) -> None:
    rows = held_out_rows()
    figure = agreement_figure(rows, "tpot")
    assert figure is not None
    out.write_bytes(png(figure))
    errors = 100 * (rows["tpot_s"] / rows["tpot_measured_s"] - 1).abs()
    print(
        f"{out.name}: {len(rows)} rows of {rows['model'].nunique()} models, median APE "
        f"{errors.median():.1f} %"
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
