"""Keep an experiment's checkpoint: ``python scripts/release.py results/moe_ep``.

Copies the checkpoint and the held-out results of the same run into ``checkpoints/``, where every
command finds them by default.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pinn.errors import PinnError
from pinn.network.checkpoint import load_checkpoint

CHECKPOINTS = Path(__file__).resolve().parents[1] / "checkpoints"


def main(folder: Path) -> None:
    source, results = folder / "checkpoint.safetensors", folder / "results.csv"
    checkpoint = load_checkpoint(source)
    if not results.is_file():
        raise PinnError(f"no {results}: run the experiment with its evaluation first")
    if not checkpoint.metadata.get("held_out_results"):
        raise PinnError(f"{source} carries no held-out results: it was fitted without evaluation")
    shutil.copyfile(source, CHECKPOINTS / "pinn.safetensors")
    shutil.copyfile(results, CHECKPOINTS / "pinn.results.csv")
    print(f"kept {source} of {checkpoint.metadata['date']} as {CHECKPOINTS / 'pinn.safetensors'}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/release.py RESULTS_FOLDER")
    try:
        main(Path(sys.argv[1]))
    except PinnError as error:
        sys.exit(f"error: {error}")
