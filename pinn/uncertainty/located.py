"""Distances for commands: the surrogates that belong to a checkpoint, answers kept on disk.

Loading what knows the measured kernels takes longer than a simulation, so its answer is remembered
for each deployment, batch and set of surrogates.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from pinn.errors import PinnError
from pinn.kernels.search import find_kernels
from pinn.specs.deployment import Deployment
from pinn.uncertainty.distance import REFERENCE_BATCH, KernelDistance

#: Packages whose code decides how far a deployment lies.
_CODE = ("specs", "physics", "kernels", "uncertainty")


def locate(
    checkpoint: Path, deployment: Deployment, batch: str = REFERENCE_BATCH
) -> KernelDistance:
    """How far a step of a deployment lies from the kernels that a checkpoint learned from.

    Raises:
        PinnError: If there are no kernel surrogates, or the batch cannot be read.
    """
    folder = find_kernels(None, checkpoint)
    if folder is None:
        raise PinnError(
            "no kernel surrogates beside the checkpoint, so its distance from the data is unknown: "
            "fit them with 'python train.py kernels=on'"
        )
    remembered = _cache() / f"{_key(folder, deployment, batch)}.json"
    try:
        return KernelDistance(**json.loads(remembered.read_text()))
    except (OSError, ValueError, TypeError):
        pass
    from pinn.kernels.surrogates import KernelSurrogates  # imports torch
    from pinn.uncertainty.kernel_distance import kernel_distance

    found = kernel_distance(KernelSurrogates.load(folder), deployment, batch)
    try:
        remembered.parent.mkdir(parents=True, exist_ok=True)
        part = remembered.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(vars(found)))
        part.replace(remembered)
    except OSError:
        pass  # a cache that cannot be written is only slower
    return found


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pinn/distances"


def _key(folder: Path, deployment: Deployment, batch: str) -> str:
    digest = hashlib.sha256(f"{deployment!r} {batch}".encode())
    digest.update((folder / "kernels.json").read_bytes())
    root = Path(__file__).resolve().parents[1]
    for package in _CODE:
        for path in sorted((root / package).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
