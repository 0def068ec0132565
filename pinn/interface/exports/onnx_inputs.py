"""Inputs of the two ONNX graphs for a configuration and a batch, as the Go example reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pinn.common.files import write_json_file
from pinn.interface.exports.configured import Configured
from pinn.physics.batch_sums import sum_batches
from pinn.physics.descriptors import embed
from pinn.physics.speculation import deployment_features
from pinn.specs.batch import parse_batch
from pinn.units import MICROSECOND


def graph_inputs(configured: Configured, batch: str) -> dict[str, Any]:
    """What goes into both graphs, in the order of their registry, and what comes out.

    Args:
        configured: One configuration with the network's coefficients.
        batch: Such as ``32 decode @ 700``.

    Raises:
        PinnError: If the batch cannot be read.
    """
    (deployment,) = configured.deployments
    free, rates = embed([deployment])
    sums = sum_batches([parse_batch(batch)], deployment.model.window_tokens)
    features = deployment_features(deployment, sums)[0]
    seconds = float(features @ configured.coefficients.beta[0])
    return {
        "configuration": configured.configurations[0],
        "batch": batch,
        "descriptors": free[0].tolist(),
        "rates": rates[0].tolist(),
        "features": features.tolist(),
        "step_time_us": max(int(np.rint(seconds / MICROSECOND)), 1),
    }


def write_inputs(configured: Configured, batch: str, path: Path) -> dict[str, Any]:
    """Write them as JSON; the file appears whole or not at all."""
    found = graph_inputs(configured, batch)
    write_json_file(path, found, indent=1)
    return found
