"""Where the files that come with the project lie: in the checkout, or installed beside it."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from pinn.errors import PinnError

CHECKPOINT_VARIABLE = "PINN_CHECKPOINT"
_CHECKPOINT = Path("checkpoints") / "pinn.safetensors"


def data_folder(name: str) -> Path:
    """The folder ``data/<name>`` of the project.

    A checkout (also one installed in editable mode) has it at its root; an installed wheel puts
    it at ``share/pinn/<name>`` of the environment (``data-files`` in pyproject.toml).

    Raises:
        PinnError: If neither exists.
    """
    places = (
        Path(__file__).resolve().parents[2] / "data" / name,
        Path(sysconfig.get_path("data")) / "share" / "pinn" / name,
    )
    for place in places:
        if place.is_dir():
            return place
    raise PinnError(
        f"the data folder {name} is in neither {places[0]} nor {places[1]}: reinstall pinn"
    )


def conf_file(name: str) -> Path:
    """The file ``conf/<name>``, in the checkout or installed like the data.

    Raises:
        PinnError: If it is in neither.
    """
    places = (
        Path(__file__).resolve().parents[2] / "conf" / name,
        Path(sysconfig.get_path("data")) / "share" / "pinn" / "conf" / name,
    )
    for place in places:
        if place.is_file():
            return place
    raise PinnError(f"{name} is in neither {places[0]} nor {places[1]}: reinstall pinn")


def find_checkpoint(given: Path | str | None = None) -> Path:
    """The checkpoint to use.

    In this order: the one given, that of the environment variable ``PINN_CHECKPOINT``,
    ``checkpoints/pinn.safetensors`` in the working directory, then in the checkout that pinn runs
    from, then the installed one.

    Raises:
        PinnError: If the one named is not there, or none is found.
    """
    for named, how in ((given, "--checkpoint"), (os.environ.get(CHECKPOINT_VARIABLE), "")):
        if named:
            path = Path(named).expanduser()
            if not path.is_file():
                raise PinnError(
                    f"no checkpoint at {path} ({how or CHECKPOINT_VARIABLE}): give the path of "
                    "one, or train it with 'python train.py'"
                )
            return path
    places = [
        _CHECKPOINT,
        Path(__file__).resolve().parents[2] / _CHECKPOINT,
        Path(sysconfig.get_path("data")) / "share" / "pinn" / _CHECKPOINT,
    ]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise PinnError(
            f"no checkpoint found at {', '.join(map(str, places))}: name one with --checkpoint, or "
            "train it with 'python train.py'"
        )
    return found
