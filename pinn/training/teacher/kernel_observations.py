"""Kernel-composed observations on disk: which deployments, and the parts of their steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from pinn.errors import PinnError
from pinn.kernels.surrogates import KernelSurrogates
from pinn.specs.deployment import Deployment
from pinn.specs.files.read_report import file_sha256
from pinn.specs.files.write import replace_atomically
from pinn.training.teacher.composed import ComposedSteps, compose_all
from pinn.training.teacher.synthetic import WEIGHTS_SHARE, weight_bytes

#: Beside the shards of steps; its row i is the deployment that they call i.
DEPLOYMENTS_FILE = "deployments.parquet"


def fits_in_memory(deployment: Deployment) -> bool:
    """Whether the weights leave room on the GPU for a cache and activations."""
    return weight_bytes(deployment) <= WEIGHTS_SHARE * deployment.gpu.memory_bytes


def deployment_table(deployments: Sequence[Deployment]) -> pd.DataFrame:
    """One row per deployment: names, flags, formats, and the whole model as JSON.

    A synthetic model exists nowhere else, so its shape has to be with the steps.
    """
    return pd.DataFrame(
        [
            {
                "deployment": i,
                "model": d.model.name,
                "gpu": d.gpu.name,
                **asdict(d.serving),
                **{f"{part}_format": p.name for part, p in vars(d.model.precisions).items()},
                "kv_cache_format": d.kv_cache_precision.name,
                "model_json": json.dumps(asdict(d.model), sort_keys=True),
            }
            for i, d in enumerate(deployments)
        ]
    )


def write_kernel_observations(
    kernels: KernelSurrogates,
    deployments: Sequence[Deployment],
    folder: Path,
    *,
    seed: int = 0,
    workers: int = 1,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ComposedSteps:
    """Compose steps of deployments into a folder; an interrupted run goes on where it was.

    Writes ``deployments.parquet``, shards ``steps-*.parquet`` with the batches and the seconds of
    each part, and ``manifest.json`` with the recipe and every file's SHA-256. The same arguments
    give the same bytes; observations of other ones, or of other code, are made anew.

    Args:
        kernels: Fitted operator surrogates.
        deployments: Whose steps; at least one.
        folder: Where to write.
        seed: Of the batches.
        workers: Processes.
        about: How the deployments were chosen, JSON-ready.
        progress: Called with the number of finished and of all shards.

    Raises:
        PinnError: If there is no deployment.
    """
    if not deployments:
        raise PinnError("no deployments to compose steps for: name models, or draw synthetic ones")
    folder.mkdir(parents=True, exist_ok=True)
    table, path = deployment_table(deployments), folder / DEPLOYMENTS_FILE
    replace_atomically(path, lambda target: table.to_parquet(target, index=False))
    facts = {**(about or {}), "deployments_file_sha256": file_sha256(path)}
    return compose_all(
        kernels, deployments, folder, seed=seed, workers=workers, about=facts, progress=progress
    )
