"""Distances for commands: the surrogates that belong to a checkpoint, answers kept on disk.

Loading what knows the measured kernels takes longer than a simulation, so its answer is remembered
for each deployment, batch and set of surrogates.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pinn.errors import PinnError
from pinn.kernels.search import find_kernels
from pinn.specs.deployment import Deployment
from pinn.uncertainty.distance import REFERENCE_BATCH, KernelDistance

#: Packages whose code decides how far a deployment lies.
_CODE = ("specs", "physics", "kernels", "embedding", "coefficients", "uncertainty")


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

    def find() -> dict[str, Any]:
        from pinn.kernels.surrogates import KernelSurrogates  # imports torch
        from pinn.uncertainty.kernel_distance import kernel_distance

        return vars(kernel_distance(KernelSurrogates.load(folder), deployment, batch))

    return KernelDistance(**_remembered(_key(folder / "kernels.json", deployment, batch), find))


def outside_inputs(checkpoint: Path, deployment: Deployment) -> dict[str, float]:
    """Inputs beyond a checkpoint's training range, in standard deviations, farthest first.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """

    def find() -> dict[str, Any]:
        from pinn.coefficients.distance import training_space  # imports torch
        from pinn.network.checkpoint import load_checkpoint

        space = training_space(load_checkpoint(checkpoint))
        return space.locate([deployment]).outside_names(0)

    return _remembered(_key(checkpoint, deployment, "inputs"), find)


def _remembered(key: str, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was found before, else what is found now."""
    path = _cache() / f"{key}.json"
    try:
        known = json.loads(path.read_text())
        if isinstance(known, dict):
            return known
    except (OSError, ValueError):
        pass
    found = find()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(found))
        part.replace(path)
    except OSError:
        pass  # a cache that cannot be written is only slower
    return found


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pinn/distances"


def _key(source: Path, deployment: Deployment, what: str) -> str:
    digest = hashlib.sha256(f"{deployment!r} {what}".encode())
    digest.update(source.read_bytes())
    root = Path(__file__).resolve().parents[1]
    for package in _CODE:
        for path in sorted((root / package).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
