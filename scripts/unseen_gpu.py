"""Steps on a GPU composed of other GPUs' kernels, against those composed of its own.

    python scripts/unseen_gpu.py --gpus A100-SXM-80GB L40S H100-SXM H200-SXM B200-SXM

For known models on each GPU: the median, mean and 90 % quantile of the absolute relative
difference of whole steps, and the median signed one, when every kernel of the GPU is left out.
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch

from pinn.kernels.composition import compose_many
from pinn.kernels.exclusion import Exclusion
from pinn.specs.gpu_catalog import load_gpu
from pinn.teacher.batches import sample_batches
from pinn.teacher.catalog_deployments import catalog_deployments
from pinn.training.kernel_learner import KernelSettings, fitted_surrogates


def differences(gpu: str, settings: KernelSettings, draws: int) -> np.ndarray:
    """Relative differences of composed steps, ``[deployments x batches]``."""
    deployments = catalog_deployments(draws, [load_gpu(gpu)], settings.seed, lambda _: True)
    batches = [sample_batches(i) for i in range(len(deployments))]
    own, others = (
        compose_many(fitted_surrogates(settings, exclude), deployments, batches).sum(axis=-1)
        for exclude in (Exclusion(), Exclusion(gpus=(gpu,)))
    )
    return (others / own - 1).ravel()


def main() -> None:
    """Print one row per GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", nargs="+", default=["A100-SXM-80GB", "L40S"])
    parser.add_argument("--draws", type=int, default=300, help="deployments of known models")
    parser.add_argument("--released", default="checkpoints/kernels")
    parser.add_argument("--cache", default="cache")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = KernelSettings(released=arguments.released, cache=arguments.cache, gpus=())
    table = []
    for gpu in arguments.gpus:
        found = 100 * differences(gpu, settings, arguments.draws)
        size = np.abs(found)
        figures = (np.median(size), size.mean(), np.quantile(size, 0.9), np.median(found))
        table.append((gpu, len(found), *figures))
    columns = ["gpu", "steps", "median %", "mean %", "p90 %", "bias %"]
    print(pd.DataFrame(table, columns=columns).round(1).to_string(index=False))


if __name__ == "__main__":
    main()
