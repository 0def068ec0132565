"""What measured kernels say of each step feature's beta, beside the registry's prior.

    python scripts/beta_priors.py --draws 400

Draws known and synthetic models on GPUs whose kernels were measured, composes their steps of the
released kernel surrogates alone (no overheads, multipliers 1) and projects them on the step
features. Of the betas, over the deployments in which the feature occurs: the quantiles, the share
of exact zeros (another feature explained the same), and the spread of those above 0: the root mean
square of log(beta / prior).

The priors are not set to these medians: they would know kernels that an experiment leaves out.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
import typer

from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import sample_batches
from pinn.physics.step import STEP_FEATURES
from pinn.specs.gpu import load_gpu
from pinn.training.synthetic import catalog_deployments, synthetic_deployments
from pinn.training.teacher import features_of_batches, projected_parts

SEED = 2_000_003
GPUS = "H100-SXM H200-SXM B200-SXM A100-SXM-80GB L40S"


def projected_betas(kernels: KernelSurrogates, gpus: list[str], draws: int) -> pd.DataFrame:
    """Figures of each feature's beta, one row per feature."""
    chips = [load_gpu(name) for name in gpus]
    deployments = catalog_deployments(draws, chips, SEED)
    deployments += synthetic_deployments(draws, chips, SEED)
    betas = projected_parts(kernels, deployments, SEED).sum(axis=1)
    batches = [sample_batches(SEED + i) for i in range(len(deployments))]
    occurs = features_of_batches(deployments, batches).any(axis=1)
    rows = []
    for feature, of_all, has in zip(STEP_FEATURES.values(), betas.T, occurs.T, strict=True):
        found = of_all[has]
        above = found[found > 0]
        quantiles = np.quantile(found, (0.05, 0.5, 0.95)) if len(found) else [np.nan] * 3
        spread = np.sqrt(np.mean(np.log(above / feature.prior) ** 2)) if len(above) else np.nan
        zeros = 1 - len(above) / len(found) if len(found) else np.nan
        rows.append((feature.name, len(found), feature.prior, *quantiles, zeros, spread))
    columns = ["feature", "deployments", "prior", "5 %", "median", "95 %", "zeros", "spread"]
    return pd.DataFrame(rows, columns=columns)


def main(
    kernels: Path = Path("checkpoints/kernels/all"), gpus: str = GPUS, draws: int = 400
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    table = projected_betas(KernelSurrogates.load(kernels), gpus.split(), draws)
    print(table.to_string(index=False, float_format=lambda v: f"{v:.3g}"))


if __name__ == "__main__":
    typer.run(main)
