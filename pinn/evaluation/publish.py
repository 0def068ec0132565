"""Keeping a trained checkpoint and what belongs to it where every command looks for them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from pinn.specs.files.csv_cells import write_frame
from pinn.specs.files.read_report import file_sha256
from pinn.specs.files.write import write_whole

#: Tables that are kept beside a checkpoint: those of its own folds.
TABLES = ("results.csv", "serving_runs.csv", "predictions.csv")

#: Networks that never saw a model, by what they were fitted without.
LEFT_OUT_FOLDER = "left_out"

#: Column of a kept table: the checkpoint that it belongs to, by the SHA-256 of its file.
CHECKPOINT_COLUMN = "checkpoint_sha256"


def publish(path: Path, folder: Path) -> Path:
    """Copy a checkpoint, its intervals, the tables of its folds and their networks.

    Args:
        path: ``checkpoint.safetensors`` of an experiment.
        folder: Where commands look.

    Returns:
        The checkpoint that commands find from now on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "pinn.safetensors"
    mark = file_sha256(path)
    for name in TABLES:
        kept = target.with_suffix(f".{name}")
        source = path.with_name(name)
        if source.is_file():
            table = pd.read_csv(source, dtype={"stage": str}).assign(**{CHECKPOINT_COLUMN: mark})
            write_frame(table, kept, float_format="%.8g")
        else:
            kept.unlink(missing_ok=True)
    left_out = path.with_name(LEFT_OUT_FOLDER)
    if left_out.is_dir():
        shutil.rmtree(folder / LEFT_OUT_FOLDER, ignore_errors=True)
        shutil.copytree(left_out, folder / LEFT_OUT_FOLDER)
    intervals = path.with_suffix(".intervals.json")
    if intervals.is_file():
        write_whole(target.with_suffix(".intervals.json"), intervals.read_bytes())
    write_whole(target, path.read_bytes())
    return target
