"""Times of composed steps, and tables of them."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from pinn.common.files import (
    file_sha256,
    json_text,
    replace_atomically,
    sorted_json,
    write_json_file,
    write_whole,
)
from pinn.common.store import code_digest, remembered_folder
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.composition import COMPOSED_PARTS, compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import UniformBatches, sample_batches
from pinn.training.synthetic import WEIGHTS_SHARE, weight_bytes

# Kernel-composed observations: steps of many deployments, part by part, in shards on disk.

SHARD_DEPLOYMENTS = 250
#: What shards are made of, written first, and the same with their digests, written last.
RECIPE, MANIFEST = "recipe.json", "manifest.json"
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


def compose_all(
    kernels: KernelSurrogates,
    deployments: Sequence[Deployment],
    folder: Path,
    *,
    seed: int = 0,
    workers: int = 1,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ComposedSteps:
    """Compose the steps of deployments; shards that are there already are kept.

    The files are the same to the bit however often the work was interrupted. Shards of another
    recipe, or of other code, are made anew.

    Args:
        kernels: Fitted operator surrogates.
        deployments: Whose steps.
        folder: Of the shards and of ``manifest.json``.
        seed: Batches of the i-th deployment are drawn with ``seed + i``.
        workers: Processes; the result does not depend on their number.
        about: More facts for the manifest, JSON-ready.
        progress: Called with the number of finished and of all shards.
    """
    _claim(folder, kernels, deployments, seed, about or {})
    compose_shards(folder, kernels, deployments, seed, workers=workers, progress=progress)
    _finish_manifest(folder, range(0, len(deployments), SHARD_DEPLOYMENTS))
    return read_composed(folder, deployments)


def remembered_steps(
    kernels: KernelSurrogates,
    deployments: Sequence[Deployment],
    seed: int,
    root: Path,
    *,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> ComposedSteps:
    """As :func:`compose_all`, in a folder under ``root`` of its own for each recipe and code."""
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
    """Write the shards that a folder lacks; arguments are those of :func:`compose_all`."""
    starts = range(0, len(deployments), SHARD_DEPLOYMENTS)
    todo = [i for i in starts if not _shard_path(folder, i).is_file()]
    jobs = [(deployments[i : i + SHARD_DEPLOYMENTS], i, seed, folder) for i in todo]
    done = len(starts) - len(todo)
    if workers > 1 and len(jobs) > 1:
        initial = (kernels, torch.get_num_threads())
        spawn = multiprocessing.get_context("spawn")
        with spawn.Pool(workers, initializer=_start_worker, initargs=initial) as pool:
            for _ in pool.imap_unordered(_work, jobs):
                done += 1
                progress(done, len(starts))
    else:
        for job in jobs:
            _compose_shard(kernels, *job)
            done += 1
            progress(done, len(starts))


def read_composed(folder: Path, deployments: Sequence[Deployment]) -> ComposedSteps:
    """Read the shards of the same deployments back."""
    tables = [
        pd.read_parquet(_shard_path(folder, i))
        for i in range(0, len(deployments), SHARD_DEPLOYMENTS)
    ]
    table = pd.concat(tables, ignore_index=True)
    per_deployment = len(table) // len(deployments)
    values = {name: table[name].to_numpy().reshape(-1, per_deployment) for name in table.columns}
    batches = tuple(
        UniformBatches(*(values[name][i] for name in BATCH_COLUMNS))
        for i in range(len(deployments))
    )
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
    kernels: KernelSurrogates,
    deployments: Sequence[Deployment],
    start: int,
    seed: int,
    folder: Path,
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
    path = _shard_path(folder, start)
    replace_atomically(path, lambda target: table.to_parquet(target, index=False))


def _shard_path(folder: Path, start: int) -> Path:
    return folder / f"steps-{start:06d}.parquet"


def _claim(
    folder: Path,
    kernels: KernelSurrogates,
    deployments: Sequence[Deployment],
    seed: int,
    about: Mapping[str, Any],
) -> None:
    """Write what the shards are made of; if that was something else before, they go."""
    text = "\n".join(repr(d) for d in deployments)
    recipe = {
        "deployments": len(deployments),
        "deployments_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "kernels": kernels.digest(),
        "kernels_metadata": dict(kernels.metadata),
        "seed": seed,
        "operators": list(COMPOSED_PARTS),
        "code": code_digest(compose_shards),
        **about,
    }
    path = folder / RECIPE
    text = json_text(recipe, indent=2) + "\n"
    if path.is_file() and path.read_text() == text:
        return
    for other in (path, folder / MANIFEST, *folder.glob("steps-*.parquet")):
        other.unlink(missing_ok=True)
    write_whole(path, text)


def _finish_manifest(folder: Path, starts: Sequence[int]) -> None:
    shards = {_shard_path(folder, i).name: file_sha256(_shard_path(folder, i)) for i in starts}
    manifest = json.loads((folder / RECIPE).read_text()) | {"shards_sha256": shards}
    write_json_file(folder / MANIFEST, manifest)


# Kernel-composed observations on disk: which deployments, and the parts of their steps.

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
                "model_json": sorted_json(d.model),
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
    table, path = deployment_table(deployments), folder / DEPLOYMENTS_FILE
    replace_atomically(path, lambda target: table.to_parquet(target, index=False))
    facts = {**(about or {}), "deployments_file_sha256": file_sha256(path)}
    return compose_all(
        kernels, deployments, folder, seed=seed, workers=workers, about=facts, progress=progress
    )
