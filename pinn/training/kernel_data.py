"""Kernel surrogates, and step times summed from kernels, on which a network is trained."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.kernels.heldout import surrogates_without
from pinn.kernels.surrogates import KernelSurrogates
from pinn.specs.gpu import GpuSpec, load_gpu
from pinn.specs.model import ModelSpec
from pinn.training.composed import ComposedSteps, remembered_steps
from pinn.training.synthetic import catalog_deployments, synthetic_deployments


@dataclass(frozen=True)
class KernelSettings:
    """Sources of kernel measurements, and the deployments whose step times are computed from them.

    Attributes:
        released: Folder of fitted surrogates released with the project, with a subfolder per
            exclusion; None to fit new surrogates.
        cache: Folder of cached surrogates and step times.
        gpus: Names of the GPUs of the deployments.
        synthetic: Number of synthetic deployments.
        catalog: Number of random deployments of models in the catalog to sample.
        validation: Number of additional synthetic deployments for the validation error; they are
            never trained on.
        seed: Random seed for surrogates, deployments and batches.
        tables: Folder of newer kernel tables (``make kernel-tables``) to fit surrogates to; empty
            for the tables of the installed package.
    """

    released: str | None = "checkpoints/kernels"
    cache: str = "cache"
    gpus: list[str] = field(default_factory=list)
    synthetic: int = 32000
    catalog: int = 6000
    validation: int = 500
    seed: int = 0
    tables: str = ""


def fitted_surrogates(settings: KernelSettings, exclude: Exclusion) -> KernelSurrogates:
    """Return kernel surrogates fitted without the excluded kernels: released, cached or new ones.

    The metadata of released surrogates names the code version that fitted them. Other code versions
    also use the released surrogates.
    """
    if settings.released is not None:
        folder = Path(settings.released) / exclude.slug()
        if (folder / "kernels.json").is_file():
            surrogates = KernelSurrogates.load(folder)
            found = surrogates.metadata.get("excluded")
            if found != exclude.describe():
                raise PinnError(
                    f"the kernel surrogates in {folder} were fitted without {found}, "
                    f"expected without {exclude.describe()}: delete the folder, or "
                    "give another folder"
                )
            return surrogates
    systems = Path(settings.tables) if settings.tables else None
    if systems is not None and not (systems / "data").is_dir():
        remedy = "run 'make kernel-tables', or set PINN_KERNEL_TABLES to a systems folder"
        raise PinnError(f"the folder {systems} has no kernel tables: {remedy}")
    return surrogates_without(exclude, settings.seed, Path(settings.cache), systems)


def composed_steps(
    settings: KernelSettings, surrogates: KernelSurrogates, exclude: Exclusion
) -> ComposedSteps:
    """Compute the step times to train on, for :func:`training_deployments`."""
    deployments = training_deployments(settings, exclude)
    return remembered_steps(surrogates, deployments, settings.seed, Path(settings.cache))


def validation_steps(
    settings: KernelSettings, surrogates: KernelSurrogates, exclude: Exclusion
) -> ComposedSteps | None:
    """Compute step times of additional synthetic deployments for validation; None without any.

    Validation deployments are sampled with a separate seed, so that the training data does not
    depend on their number.
    """
    if settings.validation == 0:
        return None
    gpus, seed = _gpus(settings, exclude), settings.seed + _VALIDATION_SEED
    deployments = synthetic_deployments(settings.validation, gpus, seed, _allowed(exclude))
    return remembered_steps(surrogates, deployments, seed, Path(settings.cache))


def training_deployments(settings: KernelSettings, exclude: Exclusion) -> list[Deployment]:
    """Sample training deployments, without held-out GPUs, held-out models and similar models.

    Models are similar if they have almost the same shape.
    """
    gpus, allowed = _gpus(settings, exclude), _allowed(exclude)
    synthetic = synthetic_deployments(settings.synthetic, gpus, settings.seed + 1, allowed)
    return synthetic + catalog_deployments(settings.catalog, gpus, settings.seed + 2, allowed)


#: Number added to the random seed for validation deployments and their batches.
_VALIDATION_SEED = 1_000_000


def _gpus(settings: KernelSettings, exclude: Exclusion) -> list[GpuSpec]:
    return [gpu for gpu in map(load_gpu, settings.gpus) if gpu.name not in exclude.gpus]


def _allowed(exclude: Exclusion) -> Callable[[ModelSpec], bool]:
    return lambda model: not any(is_near_copy(model, held_out) for held_out in exclude.models)
