"""Print step time errors of the network, and of betas projected for each deployment.

    python scripts/transfer_errors.py --synthetic 400
    python scripts/transfer_errors.py --catalog

Deployments are synthetic ones that were not used in training, or every model of the catalog on the
minimum number of GPUs of each type that fits its weights. Betas are coefficients of step features.
Projected betas are fitted to the deployment's own kernel times, whereas the network predicts betas
from the deployment's features. Composed step times are summed from fits to measured kernels, in
batches that were not used in training. The script prints absolute relative errors of whole steps:

- basis: betas projected for each deployment, against the composed step;
- network: the checkpoint's betas, against the projected betas with calibration factors;
- both together: the checkpoint's betas, against the composed step with its overheads.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import typer

from pinn.engines.deployment import Deployment
from pinn.kernels.composition import compose_many
from pinn.kernels.exclusion import Exclusion
from pinn.physics.batch_sums import sample_batches
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.surrogate.featurizer import featurize
from pinn.surrogate.step_features import step_time
from pinn.training.kernel_data import KernelSettings, fitted_surrogates
from pinn.training.synthetic import TAUGHT_RELEASES, catalog_models, started, synthetic_deployments
from pinn.training.teacher import features_of_batches, projected_parts, saved_scalars

#: Random seed for deployments and batches, larger than any training seed, so that they differ from
#: those of the training.
SEED = 1_000_003


def catalogued(gpus: Sequence[str]) -> list[Deployment]:
    """Return each model of the catalog on the fewest GPUs of each type on which it fits."""
    found = []
    for model, gpu in product(catalog_models(), map(load_gpu, gpus)):
        for ranks in (1, 2, 4, 8):
            flags = ServingSpec(tensor_parallel_size=ranks, engine_version=TAUGHT_RELEASES[0])
            if (placed := started(model, gpu, flags)) is not None:
                found.append(placed)
                break
    return found


def errors(
    checkpoint_path: Path, released: Path, deployments: Sequence[Deployment]
) -> pd.DataFrame:
    """Return median, mean and P90 of absolute step time errors in percent, per comparison."""
    checkpoint = load_checkpoint(checkpoint_path)
    scalars = saved_scalars(checkpoint.metadata["scalars"])
    settings = KernelSettings(released=str(released), cache="cache")
    kernels = fitted_surrogates(settings, Exclusion())
    batches = [sample_batches(SEED + i) for i in range(len(deployments))]
    features = features_of_batches(deployments, batches)
    parts = compose_many(kernels, deployments, batches)
    projected = projected_parts(kernels, deployments, SEED + len(deployments))
    betas, _ = checkpoint.network.coefficients(*featurize(deployments))
    network = step_time(features, betas[:, None])
    teacher = step_time(features, scalars.betas(projected)[:, None])
    basis = np.einsum("mnf,mof->mn", features, projected)
    compared = {
        "basis against composed kernels": basis / parts.sum(axis=-1),
        "network against teacher": network / teacher,
        "network against composed steps": network / scalars.step_seconds(parts, features),
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
    """Print the error table for synthetic deployments, or for every model of the catalog."""
    torch.set_num_threads(1)
    names = gpus.split()
    drawn = () if catalog else synthetic_deployments(synthetic, list(map(load_gpu, names)), SEED)
    deployments = catalogued(names) if catalog else drawn
    print(errors(checkpoint, released, deployments).round(2).to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
