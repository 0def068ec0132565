"""Where the fitted kernel surrogates are that commands use when none are named."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from pinn.errors import PinnError

_NAME = Path("checkpoints") / "kernels" / "all"
_FILE = "kernels.json"


def find_kernels(given: Path | None, checkpoint: Path | None = None) -> Path | None:
    """The folder of surrogates to use.

    In this order: the one given, ``kernels/all`` beside the checkpoint, ``checkpoints/kernels/all``
    in the working directory, then in the checkout that pinn runs from, then the installed one.

    Args:
        given: Folder that the user named; None to look for one.
        checkpoint: Checkpoint in use, if any.

    Returns:
        The folder; None where none was named and none is found.

    Raises:
        PinnError: If the folder named holds no surrogates.
    """
    if given is not None:
        if not (given / _FILE).is_file():
            raise PinnError(
                f"no kernel surrogates at {given}: give a folder with {_FILE}, such as "
                f"{_NAME}, or fit them with 'python train.py kernels=on'"
            )
        return given
    beside = [] if checkpoint is None else [checkpoint.parent / "kernels" / "all"]
    places = [
        *beside,
        _NAME,
        Path(__file__).resolve().parents[2] / _NAME,
        Path(sysconfig.get_path("data")) / "share" / "pinn" / _NAME,
    ]
    return next((place for place in places if (place / _FILE).is_file()), None)
