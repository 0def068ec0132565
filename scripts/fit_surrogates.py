"""Fit the kernel surrogates that come with the project: of all kernels, and without each model.

    python scripts/fit_surrogates.py

Writes ``checkpoints/kernels/<exclusion>`` from the installed kernel tables. The models are those
that the measured deployments hold; with their fits at hand a leave-one-model-out run is quick.
Surrogates of other exclusions are fitted when a run needs them and kept in its cache.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from pinn.kernels.exclusion import Exclusion
from pinn.training.data.deployments import observed_deployments
from pinn.training.data.silicon import read_silicon
from pinn.training.kernel_learner import KernelSettings, fitted_surrogates


def exclusions() -> list[Exclusion]:
    """Nothing left out, then one measured model after the other."""
    observations, _ = read_silicon()
    models = {d.model.name: d.model for d in observed_deployments(observations).values()}
    return [Exclusion(), *(Exclusion(models=(models[name],)) for name in sorted(models))]


def main() -> None:
    """Fit, and copy what was fitted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("checkpoints/kernels"))
    parser.add_argument("--cache", default="cache", help="where fits are kept by digest")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = KernelSettings(released=None, cache=arguments.cache, gpus=())
    for exclusion in exclusions():
        folder = arguments.out / exclusion.slug()
        shutil.rmtree(folder, ignore_errors=True)
        fitted_surrogates(settings, exclusion).save(folder)
        print(folder)


if __name__ == "__main__":
    main()
