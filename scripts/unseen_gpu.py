"""Steps on a GPU composed of other GPUs' kernels, against those composed of its own.

    python scripts/unseen_gpu.py --gpus A100-SXM-80GB L40S H100-SXM H200-SXM B200-SXM

For known models on each GPU: the median, mean and 90 % quantile of the absolute relative
difference of whole steps, and the median signed one, when every kernel of the GPU is left out.

    python scripts/unseen_gpu.py --margin --gpus A100-SXM-80GB L40S RTX-PRO-6000-Server

asks whether a margin would help GPUs of a generation that nobody timed, which these three are once
left out: steps of each, times the factor that would have put the median of the others right (their
geometric mean).
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import torch

from pinn.kernels.composition import compose_many
from pinn.kernels.exclusion import Exclusion
from pinn.specs.gpu_catalog import load_gpu
from pinn.training.kernel_learner import KernelSettings, fitted_surrogates
from pinn.training.teacher.batches import sample_batches
from pinn.training.teacher.catalog_deployments import catalog_deployments


def differences(gpu: str, settings: KernelSettings, draws: int) -> np.ndarray:
    """Relative differences of composed steps, ``[deployments x batches]``."""
    deployments = catalog_deployments(draws, [load_gpu(gpu)], settings.seed, lambda _: True)
    batches = [sample_batches(i) for i in range(len(deployments))]
    own, others = (
        compose_many(fitted_surrogates(settings, exclude), deployments, batches).sum(axis=-1)
        for exclude in (Exclusion(), Exclusion(gpus=(gpu,)))
    )
    return (others / own - 1).ravel()


def figures(found: np.ndarray) -> tuple[float, ...]:
    """Median, mean and 90 % quantile of the absolute difference, and the median one; percent."""
    size = np.abs(found)
    return tuple(
        100 * float(x)
        for x in (np.median(size), size.mean(), np.quantile(size, 0.9), np.median(found))
    )


def margins(found: dict[str, np.ndarray]) -> dict[str, float]:
    """For each GPU the factor that the others' steps ask for."""
    wanted = {gpu: -np.log1p(np.median(values)) for gpu, values in found.items()}
    return {
        gpu: float(np.exp(np.mean([w for name, w in wanted.items() if name != gpu])))
        for gpu in found
    }


def main() -> None:
    """Print one row per GPU, and with ``--margin`` a second one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", nargs="+", default=["A100-SXM-80GB", "L40S"])
    parser.add_argument("--draws", type=int, default=300, help="deployments of known models")
    parser.add_argument("--released", default="checkpoints/kernels")
    parser.add_argument("--cache", default="cache")
    parser.add_argument("--margin", action="store_true", help="try a margin from the others")
    arguments = parser.parse_args()
    if arguments.margin and len(arguments.gpus) < 2:
        parser.error("--margin needs two --gpus or more: each takes its margin from the others")
    torch.set_num_threads(1)
    settings = KernelSettings(released=arguments.released, cache=arguments.cache, gpus=())
    found = {gpu: differences(gpu, settings, arguments.draws) for gpu in arguments.gpus}
    table = [(gpu, "", len(values), *figures(values)) for gpu, values in found.items()]
    if arguments.margin:
        for gpu, margin in margins(found).items():
            after = (1 + found[gpu]) * margin - 1
            table.append((gpu, f"{margin:.3f}", len(after), *figures(after)))
    columns = ["gpu", "margin", "steps", "median %", "mean %", "p90 %", "bias %"]
    print(pd.DataFrame(table, columns=columns).round(1).to_string(index=False))


if __name__ == "__main__":
    main()
