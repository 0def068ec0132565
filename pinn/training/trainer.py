"""The Lightning trainer every fit uses."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import lightning
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger


def make_trainer(
    *,
    max_epochs: int,
    folder: Path,
    accelerator: str = "cpu",
    devices: int | str = 1,
    strategy: str = "auto",
    progress: bool = True,
) -> lightning.Trainer:
    """A deterministic trainer that logs to CSV and TensorBoard and keeps its last state.

    Args:
        max_epochs: When to stop.
        folder: Of logs and of ``last.ckpt``, from which an interrupted fit goes on.
        accelerator: Lightning's name of the device kind.
        devices: How many of them.
        strategy: Lightning's strategy, such as ``ddp`` on several devices.
        progress: Whether to show a progress bar.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # One full batch per step: there is nothing for loader processes to do.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*IterableDataset.*__len__.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists.*")
    keep = ModelCheckpoint(dirpath=folder, save_last=True, save_top_k=0, every_n_epochs=1)
    return lightning.Trainer(
        max_epochs=max_epochs,
        accelerator=accelerator,
        devices=devices,
        strategy=strategy,
        deterministic=True,
        logger=[
            CSVLogger(folder, name="", version="csv"),
            TensorBoardLogger(folder, name="", version="tensorboard"),
        ],
        callbacks=[keep],
        enable_progress_bar=progress,
        enable_model_summary=False,
        log_every_n_steps=50,
    )
