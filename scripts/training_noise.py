"""How far a recipe's panel moves with its seed: ``checkpoints/training_noise.csv``.

From what ``pinn evaluate panel --checkpoint ... --out PANEL.csv`` wrote of checkpoints of one
recipe that were trained with seeds of their own (``kernels.settings.seed=0`` beside ``seed=1``
keeps their synthetic models the same)::

    python scripts/training_noise.py PANEL.csv PANEL.csv PANEL.csv
"""

from pathlib import Path

import typer

from pinn.common.files import find_checkpoint
from pinn.common.tables import read_frame, write_frame
from pinn.laboratory.panel import NOISE_FILE, training_noise


def main(panels: list[Path]) -> None:
    """Write the deviations of the shipped recipe's groups over its seeds."""
    noise = training_noise([read_frame(path, "pinn evaluate panel --out") for path in panels])
    table = noise.rename("score").rename_axis("group").reset_index()
    write_frame(table, find_checkpoint().with_name(NOISE_FILE), float_format="%.4g")
    print(table.to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
