"""Fit the shipped kernel surrogates: to all kernels, and without each measured model's kernels.

    python scripts/fit_surrogates.py

Kernel surrogates are fits to measured kernel times. The script writes them to
``checkpoints/kernels/<exclusion>``, where the exclusion is the model whose kernels are excluded
from the fit; there is one for each measured model. These fits speed up leave-one-model-out runs.
Other fits are computed and cached when a run needs them.
"""

import shutil
from pathlib import Path

import torch
import typer

from pinn.kernels.exclusion import Exclusion
from pinn.measurements.deployments.measured import observed_deployments
from pinn.training.data.silicon import read_silicon
from pinn.training.kernel_data import KernelSettings, fitted_surrogates


def exclusions() -> list[Exclusion]:
    """Return an empty exclusion, then one for each measured model."""
    observations, _ = read_silicon()
    models = {d.model.name: d.model for d in observed_deployments(observations).values()}
    return [Exclusion(), *(Exclusion(models=(models[name],)) for name in sorted(models))]


def main(out: Path = Path("checkpoints/kernels"), cache: str = "cache") -> None:
    """Fit kernel surrogates and copy them to ``out``; ``cache`` keeps fits for later runs."""
    torch.set_num_threads(1)
    settings = KernelSettings(released=None, cache=cache)
    for exclusion in exclusions():
        folder = out / exclusion.slug()
        shutil.rmtree(folder, ignore_errors=True)
        fitted_surrogates(settings, exclusion).save(folder)
        print(folder)


if __name__ == "__main__":
    typer.run(main)
