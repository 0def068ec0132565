"""Keep an experiment's checkpoint: ``python scripts/release.py results/moe_ep results/logo``.

Copies the checkpoint of the first experiment and its held-out results into ``checkpoints/``, where
every command finds them by default, and writes the intervals beside them, calibrated on what all
the experiments named left out. They have to be of the same settings and data.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pinn.errors import PinnError
from pinn.experiments.intervals import calibrate_experiments
from pinn.network.checkpoint import load_checkpoint
from pinn.uncertainty.calibration import calibration_path, write_calibration

CHECKPOINTS = Path(__file__).resolve().parents[1] / "checkpoints"


def main(folders: list[Path]) -> None:
    source, results = folders[0] / "checkpoint.safetensors", folders[0] / "results.csv"
    checkpoint = load_checkpoint(source)
    if not results.is_file():
        raise PinnError(f"no {results}: run the experiment with its evaluation first")
    if not checkpoint.metadata.get("held_out_results"):
        raise PinnError(f"{source} carries no held-out results: it was fitted without evaluation")
    intervals = calibrate_experiments(folders, source)
    target = CHECKPOINTS / "pinn.safetensors"
    shutil.copyfile(source, target)
    shutil.copyfile(results, CHECKPOINTS / "pinn.results.csv")
    write_calibration(intervals, calibration_path(target))
    print(f"kept {source} of {checkpoint.metadata['date']} as {target}")
    for row in intervals.coverage:
        if row["left_out"] == "all":
            print(
                f"{row['split']}, {row['metric']}: {100 * row['coverage']:.1f} % of {row['n']} "
                f"rows in nested {100 * intervals.level:.0f} % intervals, median width "
                f"{100 * row['width']:.0f} %"
            )
    print(f"AUROC of the distance for TPOT errors above 20 %: {intervals.auroc}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python scripts/release.py RESULTS_FOLDER [RESULTS_FOLDER ...]")
    try:
        main([Path(argument) for argument in sys.argv[1:]])
    except PinnError as error:
        sys.exit(f"error: {error}")
