"""Fit the shipped kernel surrogates: to all kernels, and without the kernels of each model.

    python scripts/fit_surrogates.py

Writes ``checkpoints/kernels/<exclusion>`` from the installed kernel tables. The models are the
models of the measured deployments. With these fits a leave-one-model-out run is quick. Surrogates
of other exclusions are fitted when a run needs them, and cached by the run.
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
    """Return the empty exclusion, followed by the exclusion of each measured model."""
    observations, _ = read_silicon()
    models = {d.model.name: d.model for d in observed_deployments(observations).values()}
    return [Exclusion(), *(Exclusion(models=(models[name],)) for name in sorted(models))]


def main(out: Path = Path("checkpoints/kernels"), cache: str = "cache") -> None:
    """Fit kernel surrogates and copy them to ``out``; fits are cached in ``cache`` by digest."""
    torch.set_num_threads(1)
    settings = KernelSettings(released=None, cache=cache)
    for exclusion in exclusions():
        folder = out / exclusion.slug()
        shutil.rmtree(folder, ignore_errors=True)
        fitted_surrogates(settings, exclusion).save(folder)
        print(folder)


if __name__ == "__main__":
    typer.run(main)
