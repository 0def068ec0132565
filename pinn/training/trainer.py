"""The Lightning trainer every fit uses."""

import logging
import warnings
from pathlib import Path

import lightning
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from pinn.common.progress import doing

#: The state that an interrupted fit goes on from.
LAST = "last.ckpt"


class KeepLast(lightning.Callback):
    """Saves the whole state after every epoch; the file is always that of a finished epoch.

    Lightning's own ``ModelCheckpoint`` without a top-k saves only when the fit ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_epoch_end(self, trainer: lightning.Trainer, _module: object) -> None:
        """Write beside the old state, then take its place."""
        partial = self.path.with_suffix(".partial")
        trainer.save_checkpoint(partial)
        if trainer.is_global_zero:
            partial.replace(self.path)


class TellEpoch(lightning.Callback):
    """Says which epoch is being learned: lines of a log, no bar."""

    def on_train_epoch_start(self, trainer: lightning.Trainer, _module: object) -> None:
        """Tell it."""
        doing(f"learning, epoch {trainer.current_epoch + 1:,} of {trainer.max_epochs:,}")


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
        progress: Whether to tell the epoch to whoever asks how far the work is.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # One full batch per step: there is nothing for loader processes to do.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*IterableDataset.*__len__.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    # A fit that goes on writes into the folder that it wrote into before.
    warnings.filterwarnings("ignore", message=".*Experiment logs directory.*")
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
        callbacks=[KeepLast(folder / LAST), *([TellEpoch()] if progress else [])],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=50,
    )
