"""Step times of many deployments, summed from measured kernels and stored in shards on disk."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from pinn.common.files import replace_atomically
from pinn.common.progress import doing
from pinn.common.store import remembered_folder
from pinn.engines.deployment import Deployment
from pinn.kernels.composition import COMPOSED_PARTS, compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import UniformBatches, sample_batches

# Number of deployments per file (shard) of step times.

SHARD_DEPLOYMENTS = 250
BATCH_COLUMNS = tuple(f.name for f in fields(UniformBatches))


@dataclass(frozen=True)
class ComposedSteps:
    """Step times summed from kernels, for ``n`` batches of each of ``m`` deployments.

    Attributes:
        deployments: Deployments that run the steps.
        batches: Batches of each deployment.
        parts: Time in seconds of each operator in each step, ``[m, n, operators]``.
    """

    deployments: tuple[Deployment, ...]
    batches: tuple[UniformBatches, ...]
    parts: Float[np.ndarray, "m n operators"]


def remembered_steps(
    kernels: KernelSurrogates,
    deployments: Sequence[Deployment],
    seed: int,
    root: Path,
) -> ComposedSteps:
    """Return step times summed from kernels, cached under ``root`` by arguments.

    Existing files (shards) of step times are kept. A resumed computation writes files that are
    bit-identical to those of an uninterrupted one.

    Args:
        kernels: Fitted surrogates of operators' times.
        deployments: Deployments that run the steps.
        seed: Random seed for the batches; the batches of the i-th deployment use ``seed + i``.
        root: Folder of cached step times.
    """
    folder = remembered_folder(compose_shards, kernels, deployments, seed, root=root)
    return read_composed(folder, deployments)


def compose_shards(
    folder: Path, kernels: KernelSurrogates, deployments: Sequence[Deployment], seed: int
) -> None:
    """Write the files (shards) of step times that are missing; see :func:`remembered_steps`."""
    starts = range(0, len(deployments), SHARD_DEPLOYMENTS)
    todo = [i for i in starts if not _shard_path(folder, i).is_file()]
    for number, start in enumerate(todo, len(starts) - len(todo) + 1):
        some = deployments[start : start + SHARD_DEPLOYMENTS]
        table = _composed_table(kernels, some, start, seed)
        write = partial(table.to_parquet, index=False)
        replace_atomically(_shard_path(folder, start), write)
        doing(f"computing step times from kernels, shard {number} of {len(starts)}")


def read_composed(folder: Path, deployments: Sequence[Deployment]) -> ComposedSteps:
    """Read all step times in a folder of :func:`compose_shards`, given the same ``deployments``."""
    starts = range(0, len(deployments), SHARD_DEPLOYMENTS)
    shards = (pd.read_parquet(_shard_path(folder, start)) for start in starts)
    table = pd.concat(shards, ignore_index=True)
    per_deployment = len(table) // len(deployments)
    values = {name: table[name].to_numpy().reshape(-1, per_deployment) for name in table.columns}
    columns = zip(*(values[name] for name in BATCH_COLUMNS), strict=True)
    batches = tuple(UniformBatches(*of_deployment) for of_deployment in columns)
    parts = np.stack([values[f"{name}_s"] for name in COMPOSED_PARTS], axis=-1)
    return ComposedSteps(tuple(deployments), batches, parts)


def _composed_table(
    kernels: KernelSurrogates, deployments: Sequence[Deployment], start: int, seed: int
) -> pd.DataFrame:
    batches = [sample_batches(seed + start + i) for i in range(len(deployments))]
    parts = compose_many(kernels, deployments, batches)
    columns = {"deployment": np.repeat(start + np.arange(len(batches)), len(batches[0]))}
    for name in BATCH_COLUMNS:
        columns[name] = np.concatenate([getattr(of_one, name) for of_one in batches])
    for column, name in enumerate(COMPOSED_PARTS):
        columns[f"{name}_s"] = parts[:, :, column].ravel()
    return pd.DataFrame(columns)


def _shard_path(folder: Path, start: int) -> Path:
    return folder / f"steps-{start:06d}.parquet"
