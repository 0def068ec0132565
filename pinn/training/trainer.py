"""Lightning trainer with which all networks are trained."""

import logging
import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import lightning
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from pinn.errors import PinnError

#: File name, without suffix, of the saved state from which an interrupted training resumes.
_LAST = "last"


@dataclass(frozen=True)
class TrainerSettings:
    """Devices on which a network is trained, as arguments of Lightning's trainer.

    Attributes:
        accelerator: Device type, such as ``cpu`` or ``gpu``.
        devices: Number of devices.
        strategy: Lightning strategy, such as ``ddp`` on several devices.
        progress: Whether to show a progress bar on stderr.
    """

    accelerator: str = "cpu"
    devices: int | str = 1
    strategy: str = "auto"
    progress: bool = True

    def check(self) -> None:
        """Check that this machine has the requested devices.

        Raises:
            PinnError: If a device is missing; the message includes Lightning's reason.
        """
        _silence_lightning()
        try:
            lightning.Trainer(
                accelerator=self.accelerator,
                devices=self.devices,
                strategy=self.strategy,
                logger=False,
                enable_checkpointing=False,
            )
        except (MisconfigurationException, ValueError, ImportError, RuntimeError) as error:
            given = f"trainer.accelerator={self.accelerator} trainer.devices={self.devices}"
            reason = str(error).partition("\n")[0].rstrip(".!")
            remedy = "use trainer.accelerator=cpu trainer.devices=1 trainer.strategy=auto"
            given += f" trainer.strategy={self.strategy}"
            raise PinnError(f"training cannot start with {given} ({reason}): {remedy}") from error


#: Function that returns a Lightning trainer, given ``max_epochs`` and ``folder``.
TrainerFactory = Callable[..., lightning.Trainer]


def make_trainer(settings: TrainerSettings, *, max_epochs: int, folder: Path) -> lightning.Trainer:
    """Return a deterministic trainer that logs to CSV and TensorBoard and saves each epoch's state.

    Args:
        settings: Devices, and whether to show a progress bar. Worker processes show none.
        max_epochs: Number of epochs.
        folder: Folder for logs and the state from which to resume (:func:`last_state`).
    """
    _silence_lightning()
    shown = settings.progress and multiprocessing.parent_process() is None
    callbacks: list[lightning.Callback] = [
        ModelCheckpoint(
            folder, filename=_LAST, enable_version_counter=False, save_on_train_epoch_end=True
        )
    ]
    if shown:
        callbacks.append(RichProgressBar(console_kwargs={"stderr": True}))
    return lightning.Trainer(
        max_epochs=max_epochs,
        accelerator=settings.accelerator,
        devices=settings.devices,
        strategy=settings.strategy,
        deterministic=True,
        logger=[
            CSVLogger(folder, name="", version="csv"),
            TensorBoardLogger(folder, name="", version="tensorboard"),
        ],
        callbacks=callbacks,
        enable_progress_bar=shown,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=50,
    )


def last_state(folder: Path) -> Path | None:
    """Return the saved state to resume from; None before the end of the first epoch."""
    path = folder / f"{_LAST}{ModelCheckpoint.FILE_EXTENSION}"
    return path if path.is_file() else None


def _silence_lightning() -> None:
    """Silence Lightning's hints about settings that this package intends."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    for hint in (
        # Data-loading workers would not help, because a batch is a slice of tensors in memory.
        "does not have many workers",
        "IterableDataset.*__len__",
        "LeafSpec",
        "Experiment logs directory",  # a resumed fit logs into a folder that already has logs
        "Checkpoint directory",
    ):
        warnings.filterwarnings("ignore", message=f".*{hint}.*")
