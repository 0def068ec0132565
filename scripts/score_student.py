"""How closely the network follows the composed steps that taught it: every catalogued model.

    python scripts/score_student.py [--checkpoint FILE] [--kernels FOLDER]

Each model that is composed, on each GPU whose kernels were measured, at the fewest GPUs that hold
its weights and, beyond one, with all-reduces fused and not; forty batches of each that training did
not draw. An error is that of a step's time against the composed step under the checkpoint's own
scalars.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.coefficients.checkpoint import Checkpoint, load_checkpoint
from pinn.coefficients.surrogate import predict_coefficients
from pinn.errors import PinnError
from pinn.kernels.composition import compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.costs import step_costs
from pinn.physics.step import step_features
from pinn.specs.deployment import Deployment
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.model import ModelSpec
from pinn.specs.serving import ServingSpec
from pinn.training.teacher.batches import sample_batches
from pinn.training.teacher.breakdown import saved_scalars
from pinn.training.teacher.catalog_deployments import catalog_models
from pinn.training.teacher.synthetic import (
    TAUGHT_RELEASE,
    WEIGHTS_SHARE,
    started,
    weight_bytes,
)

ROOT = Path(__file__).parents[1] / "checkpoints"
GPUS = ("A100-SXM-80GB", "L40S", "H100-SXM", "H200-SXM", "B200-SXM", "B300-SXM", "GB200")
#: Beyond every seed that training draws batches with.
SEED = 10_000_000


def main(checkpoint: Checkpoint, kernels: KernelSurrogates) -> None:
    """Print errors by GPU, by kind of batch and of the models that are followed worst."""
    scalars = saved_scalars(checkpoint.metadata["scalars"])
    deployments = [d for m in catalog_models() for gpu in GPUS for d in _served(m, gpu)]
    batches = [sample_batches(SEED + i, 20, 8, 12) for i in range(len(deployments))]
    parts = np.array(compose_many(kernels, deployments, batches))
    costs = step_costs(deployments)
    features = np.stack(
        [
            step_features(costs.take(i), b.sums(d.model.window_tokens))
            for i, (d, b) in enumerate(zip(deployments, batches, strict=True))
        ]
    )
    betas = predict_coefficients(checkpoint.network, deployments).beta
    error = np.abs(
        np.einsum("mnf,mf->mn", features, betas) / scalars.step_seconds(parts, features) - 1
    )
    _print(deployments, 100 * error)


def _served(model: ModelSpec, gpu: str) -> list[Deployment]:
    """On the fewest GPUs that hold the weights, by both kinds of all-reduce beyond one."""
    chip = load_gpu(gpu)
    for tp in (1, 2, 4, 8):
        flags = [
            ServingSpec(tensor_parallel_size=tp, engine_version=TAUGHT_RELEASE, fuse_all_reduce=f)
            for f in ((False, True) if tp > 1 else (False,))
        ]
        found = [started(model, chip, one) for one in flags]
        fitting = [d for d in found if d and weight_bytes(d) <= WEIGHTS_SHARE * d.gpu.memory_bytes]
        if fitting:
            return fitting
    return []


def _print(deployments: list[Deployment], error: np.ndarray) -> None:
    print(f"{len(deployments)} deployments, {error.size} steps: {_figures(error)}")
    for name, part in (
        ("decodes", slice(0, 20)),
        ("prompts", slice(20, 28)),
        ("both", slice(28, None)),
    ):
        print(f"  {name}: {_figures(error[:, part])}")
    for gpu in GPUS:
        mine = [d.gpu.name == load_gpu(gpu).name for d in deployments]
        if any(mine):
            print(f"  {gpu}: {_figures(error[mine])}")
    medians = pd.Series(np.median(error, axis=1)).groupby([d.model.name for d in deployments])
    worst = medians.median().sort_values(ascending=False).head(8)
    print("  worst models: " + ", ".join(f"{n} {e:.1f}" for n, e in worst.items()))


def _figures(error: np.ndarray) -> str:
    return f"median {np.median(error):.2f} %, 90th percentile {np.percentile(error, 90):.2f} %"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "pinn.safetensors")
    parser.add_argument("--kernels", type=Path, default=ROOT / "kernels" / "all")
    options = parser.parse_args()
    try:
        main(load_checkpoint(options.checkpoint), KernelSurrogates.load(options.kernels))
    except PinnError as error:
        parser.exit(1, f"error: {error}\n")
