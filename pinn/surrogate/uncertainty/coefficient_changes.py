"""Change of each coefficient when a held-out model or GPU is added to the training data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.surrogate import predict_coefficients
from pinn.surrogate.uncertainty.held_out import shape_of

# Changes in coefficients when the kernels and rows of a model or GPU are added to the training
# data.
#
# The networks of the cross-validation folds are an ensemble; each was trained without one model or
# GPU (a delete-group jackknife). For a held-out deployment, the network of its fold predicts the
# coefficients of an unseen deployment. The network trained on everything predicts the coefficients
# of a known deployment. A single coefficient cannot be measured, so its interval is calibrated on
# this difference. The difference includes the effect of held-out kernels and rows, but not the
# effect of anything that the features omit.


@dataclass(frozen=True)
class FoldNetwork:
    """Network of a cross-validation fold, with the deployments that the fold holds out.

    Attributes:
        split: Name of the split, such as ``leave-one-model-out``.
        left_out: Held-out deployments.
        checkpoint: File of the fold's network.
    """

    split: str
    left_out: tuple[Deployment, ...]
    checkpoint: Path


def coefficient_changes(checkpoint: Path, folds: Sequence[FoldNetwork]) -> pd.DataFrame:
    """Return the log change of deployments' coefficients when they are added to the training data.

    The change is from the fold's network, trained without the deployment, to the checkpoint's.

    Args:
        checkpoint: Checkpoint of the network that is trained on all data.
        folds: Networks of cross-validation folds, trained with the checkpoint's settings.

    Returns:
        Table with columns ``split``, ``model``, ``shape``, ``gpu`` and ``NAMES``, one row per split
        and deployment; coefficients of 0 have a change of 0.

    Raises:
        PinnError: If a fold's weights are missing.
    """
    network = load_checkpoint(checkpoint).network
    parts = []
    for fold in folds:
        if not fold.checkpoint.is_file():
            raise PinnError(
                f"{fold.checkpoint}, the network of a cross-validation fold, does not exist: run "
                "the experiment"
            )
        networks = load_checkpoint(fold.checkpoint).network, network
        before, after = (predict_coefficients(each, fold.left_out).values for each in networks)
        both = (before > 0) & (after > 0)
        changes = np.log(np.where(both, after, 1.0) / np.where(both, before, 1.0))
        about = [(fold.split, d.model.name, shape_of(d.model), d.gpu.name) for d in fold.left_out]
        of_fold = pd.DataFrame(about, columns=["split", "model", "shape", "gpu"])
        parts.append(pd.concat([of_fold, pd.DataFrame(changes, columns=list(NAMES))], axis=1))
    return pd.concat(parts, ignore_index=True)
