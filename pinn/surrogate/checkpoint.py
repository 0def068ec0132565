"""File of a trained network: safetensors with a header, read without running code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from pinn.common import documents
from pinn.common.files import json_text, write_whole
from pinn.errors import PinnError, printable
from pinn.surrogate.architecture import NetworkSettings, NetworkWeights
from pinn.surrogate.featurizer import DESCRIPTORS, RATES
from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES

# The file is a safetensors file whose header describes the network. Reading it runs no code.

FORMAT_VERSION = 2
#: Array that checkpoints written before 2026-12 lack. In them, all deployments have one alpha.
_LATER = "alpha_head"


@dataclass(frozen=True)
class Checkpoint:
    """Trained network, with metadata on its training and the inputs of measured deployments.

    Attributes:
        network: Weights that are ready for prediction; ``CoefficientNetwork.from_weights`` converts
            them into a trainable network.
        metadata: Free-form metadata as JSON values: sources with hashes, metrics, date, command.
        anchors: Inputs (features of a deployment, then rates) of the measured deployments in the
            training data, ``[anchors, descriptors + rates]``.
        anchor_names: Names under which the measured deployments appear in output, ``MODEL on GPU``.
    """

    network: NetworkWeights
    metadata: dict[str, Any] = field(default_factory=dict)
    anchors: Float[np.ndarray, "anchors embedding"] = field(
        default_factory=lambda: np.zeros((0, len(DESCRIPTORS) + len(RATES)))
    )
    anchor_names: tuple[str, ...] = ()


def registry() -> dict[str, list[str]]:
    """Return the lists of feature names whose order is the order in a checkpoint's arrays."""
    return {
        "step_features": [f"{f.name} [{f.unit}]" for f in STEP_FEATURES.values()],
        "request_features": [f"{f.name} [{f.unit}]" for f in REQUEST_FEATURES.values()],
        "descriptors": list(DESCRIPTORS),
        "rates": list(RATES),
    }


def save_checkpoint(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write a checkpoint; the file is replaced atomically."""
    header = {
        "format_version": FORMAT_VERSION,
        "settings": asdict(checkpoint.network.settings),
        "registry": registry(),
        "anchor_names": list(checkpoint.anchor_names),
        "metadata": checkpoint.metadata,
    }
    arrays = {**checkpoint.network.arrays, "anchors": checkpoint.anchors}
    tensors = {k: np.ascontiguousarray(v, np.float64) for k, v in arrays.items()}
    write_whole(Path(path), save(tensors, metadata={"pinn": json_text(header)}))


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Return the checkpoint in a file.

    Raises:
        PinnError: If the file is missing, truncated or not a checkpoint, or if its format version
            or lists of features differ from this program's.
    """
    path = Path(path)
    if not path.is_file():
        raise PinnError(
            f"there is no checkpoint at {path}: train a checkpoint with 'python train.py', or give "
            "another path"
        )
    size, most = path.stat().st_size, documents.MOST_CHECKPOINT_BYTES
    documents.check_size(size, most, f"the size of {path} in bytes", "give a checkpoint")
    try:
        with safe_open(path, framework="numpy") as file:
            header = documents.parse_json((file.metadata() or {})["pinn"], str(path))
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, PinnError, OSError) as error:
        raise PinnError(
            f"{path} is not a readable checkpoint ({type(error).__name__}: {error}), perhaps "
            "because the file was cut off: copy the file again, or train a new checkpoint with "
            "'python train.py'"
        ) from error
    _check_header(header, path)
    try:
        anchors = _anchors(tensors, header)
        tensors.setdefault(_LATER, np.zeros((len(REQUEST_FEATURES), len(DESCRIPTORS))))
        network = NetworkWeights(NetworkSettings(**header["settings"]), tensors)
    except (ValueError, TypeError, KeyError) as error:
        fault = f"{path} does not contain the weights of this version's network ({error})"
        raise PinnError(f"{fault}: train a new checkpoint with 'python train.py'") from error
    names = tuple(map(printable, header["anchor_names"]))
    return Checkpoint(network, header["metadata"], anchors, names)


def _anchors(tensors: dict[str, np.ndarray], header: dict[str, Any]) -> np.ndarray:
    """Check and return the inputs of measured deployments, a row per ``anchor_names`` entry."""
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise ValueError(f"the array {name!r} has a number that is not finite")
    anchors, width = tensors.pop("anchors"), len(DESCRIPTORS) + len(RATES)
    if anchors.shape != (len(header["anchor_names"]), width):
        raise ValueError(
            f"the array 'anchors' has shape {list(anchors.shape)}, expected one row per name"
        )
    if not isinstance(header["metadata"], dict):
        raise ValueError("the checkpoint's metadata is not a JSON object")
    return anchors


def _check_header(header: Any, path: Path) -> None:
    version = header.get("format_version") if isinstance(header, dict) else None
    if version != FORMAT_VERSION:
        raise PinnError(
            f"{path} has the checkpoint format {version}, but this version of pinn reads "
            f"{FORMAT_VERSION}: use the release that wrote the checkpoint, or train a new "
            "checkpoint with 'python train.py'"
        )
    known = header.get("registry")
    for part, names in registry().items():
        found = known.get(part) if isinstance(known, dict) else None
        if found != names:
            listed = map(str, found) if isinstance(found, list) else ()
            unknown = sorted(set(listed) ^ set(names)) or ["the order"]
            raise PinnError(
                f"{path} has different {part.replace('_', ' ')} from this version "
                f"(in {', '.join(unknown)}): train a new checkpoint with 'python "
                "train.py'"
            )
