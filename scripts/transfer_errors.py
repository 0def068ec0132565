"""How well the network repeats its teacher, and betas a composed step, where neither was trained.

    python scripts/transfer_errors.py --synthetic 400
    python scripts/transfer_errors.py --catalog

Draws synthetic deployments that training did not, or takes every catalogued model on the fewest of
each GPU that hold its weights; composes steps of measured kernels for them, in batches that
training did not draw, and prints absolute relative errors of whole steps:

- basis: betas projected for each deployment, against the composed step;
- network: the checkpoint's betas, against the teacher's (projected betas and scalars);
- both together: the checkpoint's betas, against the composed step with its overheads.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import typer

from pinn.coefficients.trained_network import load_checkpoint
from pinn.engines.deployment import Deployment
from pinn.kernels.composition import compose_many
from pinn.kernels.exclusion import Exclusion
from pinn.physics.batch_sums import sample_batches
from pinn.physics.costs import step_costs
from pinn.physics.descriptors import embed
from pinn.physics.step import step_features
from pinn.specs.gpu import GpuSpec, load_gpu
from pinn.specs.model import ModelSpec
from pinn.specs.serving import ServingSpec
from pinn.training.kernel_learner import KernelSettings, fitted_surrogates
from pinn.training.synthetic import (
    TAUGHT_RELEASE,
    WEIGHTS_SHARE,
    catalog_models,
    started,
    synthetic_deployments,
    weight_bytes,
)
from pinn.training.teacher import projected_parts, saved_scalars

#: Deployments and batches of training are drawn with small seeds.
SEED = 1_000_003


def catalogued(gpus: Sequence[str]) -> list[Deployment]:
    """Every model whose steps are composed, by itself on the fewest of each GPU, where any do."""
    found = (_smallest(model, load_gpu(gpu)) for model in catalog_models() for gpu in gpus)
    return [deployment for deployment in found if deployment is not None]


def _smallest(model: ModelSpec, gpu: GpuSpec) -> Deployment | None:
    for ranks in (1, 2, 4, 8):
        flags = ServingSpec(tensor_parallel_size=ranks, engine_version=TAUGHT_RELEASE)
        found = started(model, gpu, flags)
        if found is not None and weight_bytes(found) <= WEIGHTS_SHARE * gpu.memory_bytes:
            return found
    return None


def errors(
    checkpoint_path: Path, released: Path, deployments: Sequence[Deployment]
) -> pd.DataFrame:
    """Median, mean and 90 % quantile in percent, one row per comparison."""
    checkpoint = load_checkpoint(checkpoint_path)
    scalars = saved_scalars(checkpoint.metadata["scalars"])
    settings = KernelSettings(released=str(released), cache="cache", gpus=())
    kernels = fitted_surrogates(settings, Exclusion())
    count = len(deployments)
    batches = [sample_batches(SEED + i) for i in range(count)]
    costs = step_costs(deployments)
    features = np.stack(
        [
            step_features(costs.take(i), b.sums(d.model.window_tokens))
            for i, (d, b) in enumerate(zip(deployments, batches, strict=True))
        ]
    )
    parts = compose_many(kernels, deployments, batches)
    projected = projected_parts(kernels, deployments, SEED + count)
    betas, _ = checkpoint.network.coefficients(*embed(deployments))
    network = np.einsum("mnf,mf->mn", features, betas)
    teacher = np.einsum("mnf,mf->mn", features, scalars.betas(projected))
    basis = np.einsum("mnf,mof->mn", features, projected)
    composed = scalars.step_seconds(parts, features)
    compared = {
        "basis against composed kernels": basis / parts.sum(axis=-1),
        "network against teacher": network / teacher,
        "network against composed steps": network / composed,
    }
    sizes = {name: 100 * np.abs(ratio - 1).ravel() for name, ratio in compared.items()}
    table = [(n, s.size, np.median(s), s.mean(), np.quantile(s, 0.9)) for n, s in sizes.items()]
    return pd.DataFrame(table, columns=["", "steps", "median %", "mean %", "p90 %"])


def main(
    checkpoint: Path = Path("checkpoints/pinn.safetensors"),
    released: Path = Path("checkpoints/kernels"),
    synthetic: int = 400,
    catalog: bool = False,
    gpus: str = "H100-SXM H200-SXM B200-SXM",
) -> None:
    """Print the table: of so many synthetic deployments, or of every known model instead."""
    torch.set_num_threads(1)
    if catalog:
        deployments = catalogued(gpus.split())
    else:
        chips = [load_gpu(name) for name in gpus.split()]
        deployments = synthetic_deployments(synthetic, chips, SEED)
    print(errors(checkpoint, released, deployments).round(2).to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
