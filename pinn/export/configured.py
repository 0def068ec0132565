"""Content of exported files: configurations, coefficients, intervals and provenance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float

import pinn
from pinn.common import JsonObject
from pinn.common.files import file_sha256
from pinn.engines.configurations import Values
from pinn.engines.deployment import Deployment
from pinn.engines.recipe import served_release
from pinn.errors import PinnError
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set
from pinn.surrogate.coefficients import NAMES, Coefficients
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.surrogate import Surrogate
from pinn.surrogate.uncertainty import intervals
from pinn.surrogate.uncertainty.distance import gpu_is_known
from pinn.surrogate.uncertainty.training_space import Distances, training_space

# Provenance of coefficients: their origin, which every exported file states.


def checkpoint_provenance(path: Path, metadata: Mapping[str, object]) -> JsonObject:
    """Return the hash and sources of a checkpoint, and the version of this program (provenance).

    Args:
        path: Checkpoint file, whose hash is computed.
        metadata: Metadata of the checkpoint.
    """
    return {
        "source": "network",
        "checkpoint_sha256": file_sha256(path),
        "checkpoint_date": str(metadata.get("date", "")),
        "exporter": f"pinn {pinn.__version__}",
    }


def engine_release(deployment: Deployment) -> str:
    """Return the engine release for which step times are exported, such as ``vllm 0.29.0``."""
    serving = deployment.serving
    return f"{serving.engine} {served_release(serving.engine, serving.engine_version)}"


# Configurations with their coefficients, the input of every export.


@dataclass(frozen=True)
class Configured:
    """``n`` configurations with their deployments and coefficients.

    Attributes:
        configurations: Configurations as the user wrote them, with keys of
            ``pinn.engines.configurations.KEYS``.
        deployments: Deployments of the configurations, checked for incompatible settings.
        coefficients: Coefficients of the deployments.
        sources: Source of each configuration's coefficients: ``network`` or the name of a file.
        distances: Distance of each configuration from the checkpoint's training data, in standard
            deviations.
        nearest: Nearest measured deployment of each configuration; None if the checkpoint has none.
        provenance: Provenance of the file to be written.
    """

    configurations: Sequence[Values]
    deployments: list[Deployment]
    coefficients: Coefficients
    sources: list[str]
    distances: Distances
    nearest: list[str | None]
    provenance: JsonObject = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.deployments)


def from_checkpoint(
    path: Path, configurations: Sequence[Values], deployments: Sequence[Deployment]
) -> Configured:
    """Return configurations with the coefficients that a checkpoint predicts.

    Raises:
        PinnError: If the checkpoint is missing or invalid.
    """
    surrogate = Surrogate.load(path)
    space = training_space(surrogate.checkpoint)
    distances = space.locate(deployments)
    return Configured(
        list(configurations),
        list(deployments),
        surrogate.coefficients(deployments),
        ["network"] * len(deployments),
        distances,
        [space.names[i] if i >= 0 else None for i in distances.nearest],
        checkpoint_provenance(path, surrogate.checkpoint.metadata),
    )


def with_coefficient_files(configured: Configured, paths: Sequence[Path]) -> Configured:
    """Replace coefficients with those from files for the same deployment, such as calibrated ones.

    Args:
        configured: Configurations with the network's coefficients.
        paths: Files of ``pinn coefficients --json`` or ``pinn calibrate``.

    Raises:
        PinnError: If a file is invalid or belongs to no configuration, or two files belong to the
            same configuration.
    """
    beta, alpha = configured.coefficients.beta.copy(), configured.coefficients.alpha.copy()
    sources, files = list(configured.sources), {}
    for path in paths:
        found = read_coefficient_set(path)
        for row in _rows(found, path, configured):
            if sources[row] != "network":
                raise PinnError(
                    f"{path} and {sources[row]} have coefficients of the same configuration: give "
                    "one of the two files"
                )
            beta[row], alpha[row], sources[row] = found.beta, found.alpha, path.name
        files[path.name] = file_sha256(path)
    added: JsonObject = {
        "source": ", ".join(dict.fromkeys(sources)),
        "coefficient_files": files,
    }
    return replace(
        configured,
        coefficients=Coefficients(beta, alpha),
        sources=sources,
        provenance=configured.provenance | (added if files else {}),
    )


def _rows(found: CoefficientSet, path: Path, configured: Configured) -> np.ndarray:
    """Return the rows of the configurations to which a coefficient file applies."""
    reasons, rows = [], []
    for row, deployment in enumerate(configured.deployments):
        try:
            found.check_deployment(deployment, str(path))
        except PinnError as error:
            reasons.append(error)
        else:
            rows.append(row)
    if not rows:
        raise reasons[0]
    return np.array(rows)


# Intervals of exported coefficients, if the checkpoint is calibrated.


def find_intervals(
    configured: Configured, checkpoint: Path
) -> Float[np.ndarray, "2 n coefficients"]:
    """Return the lower and the upper bounds of all coefficients' intervals.

    Coefficients are those of step times (beta), then those of requests (alpha). A bound is NaN if
    the interval is unknown: for coefficients from a file instead of the network, and for alphas
    without training data.

    Args:
        configured: Configurations with coefficients.
        checkpoint: File of the network; its intervals are in the same folder.

    Raises:
        PinnError: If the checkpoint's folder has no intervals for this checkpoint.
    """
    calibration = intervals.read_calibration(checkpoint)
    taught = np.append([True] * len(STEP_FEATURES), Surrogate.load(checkpoint).taught_alphas())
    values = configured.coefficients.values
    ends = np.full((2, *values.shape), np.nan)
    for row, deployment in enumerate(configured.deployments):
        if configured.sources[row] == "network":
            asked = {NAMES[i]: float(values[row, i]) for i in np.flatnonzero(taught)}
            known = gpu_is_known(checkpoint, deployment)
            halves = calibration.log_half_widths(deployment, known)
            found = calibration.coefficient_intervals(asked, halves)
            ends[:, row, taught] = np.transpose(list(found.values()))
    return ends
