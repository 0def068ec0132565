"""The coefficients of a deployment for a simulation: from a file, or from a checkpoint.

A checkpoint's answer is remembered on disk, because loading the network takes longer than the
simulation. What is remembered belongs to one checkpoint, deployment and state of the code.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np

from pinn.coefficients.coefficient_set import read_coefficient_set
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.deployment import Deployment

#: Packages whose code decides what a checkpoint says of a deployment.
_CODE = ("specs", "physics", "features", "embedding", "network", "coefficients", "latency")


def latency_from_json(deployment: Deployment, path: Path) -> LinearLatency:
    """Coefficients of a file of ``pinn coefficients --json`` or ``pinn calibrate``.

    Raises:
        PinnError: If the file cannot be used, or belongs to another deployment.
    """
    found = read_coefficient_set(path)
    found.check_deployment(deployment, str(path))
    return LinearLatency(deployment, found.beta, found.alpha)


def latency_from_checkpoint(deployment: Deployment, checkpoint: Path) -> LinearLatency:
    """Coefficients that a checkpoint gives a deployment.

    Raises:
        PinnError: If the checkpoint cannot be used.
    """
    remembered = _folder() / f"{_key(deployment, checkpoint)}.json"
    try:
        found = json.loads(remembered.read_text())
        return LinearLatency(deployment, np.array(found["beta"]), np.array(found["alpha"]))
    except (OSError, ValueError, KeyError):
        pass
    from pinn.latency.surrogate import Surrogate  # imports torch

    coefficients = Surrogate.load(checkpoint).coefficients([deployment])
    latency = LinearLatency(deployment, coefficients.beta[0], coefficients.alpha[0])
    _remember(latency, remembered)
    return latency


def _remember(latency: LinearLatency, path: Path) -> None:
    text = json.dumps({"beta": latency.beta.tolist(), "alpha": latency.alpha.tolist()})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(text)
        part.replace(path)
    except OSError:
        return  # a cache that cannot be written is only slower


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pinn/coefficients"


def _key(deployment: Deployment, checkpoint: Path) -> str:
    digest = hashlib.sha256(repr(deployment).encode())
    digest.update(checkpoint.read_bytes())
    root = Path(__file__).resolve().parents[1]
    for package in _CODE:
        for path in sorted((root / package).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
