"""Where the checkpoint is that commands use when none is named."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from pinn.errors import PinnError

ENVIRONMENT_VARIABLE = "PINN_CHECKPOINT"
_NAME = Path("checkpoints") / "pinn.safetensors"


def find_checkpoint(given: Path | str | None = None) -> Path:
    """The checkpoint to use.

    In this order: the one given, that of the environment variable ``PINN_CHECKPOINT``,
    ``checkpoints/pinn.safetensors`` in the working directory, then in the checkout that pinn runs
    from, then the installed one.

    Raises:
        PinnError: If the one named is not there, or none is found.
    """
    for named, how in ((given, "--checkpoint"), (os.environ.get(ENVIRONMENT_VARIABLE), "")):
        if named:
            path = Path(named).expanduser()
            if not path.is_file():
                raise PinnError(
                    f"no checkpoint at {path} ({how or ENVIRONMENT_VARIABLE}): give the path of "
                    "one, or train it with 'python train.py'"
                )
            return path
    places = [
        _NAME,
        Path(__file__).resolve().parents[2] / _NAME,
        Path(sysconfig.get_path("data")) / "share" / "pinn" / _NAME,
    ]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise PinnError(
            f"no checkpoint found at {', '.join(map(str, places))}: name one with --checkpoint, or "
            "train it with 'python train.py'"
        )
    return found
