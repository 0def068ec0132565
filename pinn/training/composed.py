"""Times of composed steps."""

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from pinn.common.files import replace_atomically
from pinn.common.store import remembered_folder
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.composition import COMPOSED_PARTS, compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import UniformBatches, sample_batches

# Kernel-composed observations: steps of many deployments, part by part, in shards on disk.

SHARD_DEPLOYMENTS = 250
BATCH_COLUMNS = tuple(f.name for f in fields(UniformBatches))


@dataclass(frozen=True)
class ComposedSteps:
    """Steps of ``m`` deployments, ``n`` batches each.

    Attributes:
        deployments: The deployments.
        batches: The batches of each.
        parts: Seconds of each part.
    """

    deployments: tuple[Deployment, ...]
    batches: tuple[UniformBatches, ...]
    parts: Float[np.ndarray, "m n operators"]


def remembered_steps(
    kernels: KernelSurrogates,
    deployments: Sequence[Deployment],
    seed: int,
    root: Path,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ComposedSteps:
    """Compose the steps of deployments, in a folder under ``root`` of its own for each recipe.

    Shards that are there already are kept: the files are the same to the bit however often the work
    was interrupted.

    Args:
        kernels: Fitted operator surrogates.
        deployments: Whose steps.
        seed: Batches of the i-th deployment are drawn with ``seed + i``.
        root: Where steps are remembered.
        workers: Processes; the result does not depend on their number.
        progress: Called with the number of finished and of all shards.
    """
    aside = {"workers": workers, "progress": progress}
    folder = remembered_folder(compose_shards, kernels, deployments, seed, root=root, aside=aside)
    return read_composed(folder, deployments)


def compose_shards(
    folder: Path,
    kernels: KernelSurrogates,
    deployments: Sequence[Deployment],
    seed: int,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Write the shards that a folder lacks; arguments are those of :func:`remembered_steps`."""
    starts = range(0, len(deployments), SHARD_DEPLOYMENTS)
    todo = [i for i in starts if not _shard_path(folder, i).is_file()]
    jobs = [(deployments[i : i + SHARD_DEPLOYMENTS], i, seed, folder) for i in todo]
    done = len(starts) - len(todo)
    if workers > 1 and len(jobs) > 1:
        initial = (kernels, torch.get_num_threads())
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(workers, initializer=_start_worker, initargs=initial) as pool:
            for number, _ in enumerate(pool.imap_unordered(_work, jobs), done + 1):
                progress(number, len(starts))
    else:
        for number, job in enumerate(jobs, done + 1):
            _compose_shard(kernels, *job)
            progress(number, len(starts))


def read_composed(folder: Path, deployments: Sequence[Deployment]) -> ComposedSteps:
    """Read the shards of the same deployments back."""
    starts = range(0, len(deployments), SHARD_DEPLOYMENTS)
    shards = (pd.read_parquet(_shard_path(folder, start)) for start in starts)
    table = pd.concat(shards, ignore_index=True)
    per_deployment = len(table) // len(deployments)
    values = {name: table[name].to_numpy().reshape(-1, per_deployment) for name in table.columns}
    columns = zip(*(values[name] for name in BATCH_COLUMNS), strict=True)
    batches = tuple(UniformBatches(*of_deployment) for of_deployment in columns)
    parts = np.stack([values[f"{name}_s"] for name in COMPOSED_PARTS], axis=-1)
    return ComposedSteps(tuple(deployments), batches, parts)


#: A worker's surrogates: they remember what they looked up for earlier shards.
_worker_kernels: KernelSurrogates | None = None


def _start_worker(kernels: KernelSurrogates, threads: int) -> None:
    global _worker_kernels
    torch.set_num_threads(threads)
    _worker_kernels = kernels


def _work(job: tuple[Sequence[Deployment], int, int, Path]) -> None:
    if _worker_kernels is None:
        raise PinnError("a worker that composes steps was started without surrogates")
    _compose_shard(_worker_kernels, *job)


def _compose_shard(
    kernels: KernelSurrogates, deployments: Sequence[Deployment], start: int, seed: int, place: Path
) -> None:
    batches = [sample_batches(seed + start + i) for i in range(len(deployments))]
    parts = compose_many(kernels, deployments, batches)
    tables = []
    for i, batch in enumerate(batches):
        columns = {"deployment": np.full(len(batch), start + i)}
        columns |= {name: getattr(batch, name) for name in BATCH_COLUMNS}
        columns |= {f"{name}_s": parts[i, :, column] for column, name in enumerate(COMPOSED_PARTS)}
        tables.append(pd.DataFrame(columns))
    table = pd.concat(tables, ignore_index=True)
    path = _shard_path(place, start)
    replace_atomically(path, lambda target: table.to_parquet(target, index=False))


def _shard_path(folder: Path, start: int) -> Path:
    return folder / f"steps-{start:06d}.parquet"
