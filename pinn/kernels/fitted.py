"""The surrogates of an exclusion, fitted to the installed kernel tables or found again."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.kernels.tables.tables import KernelTables, read_kernel_tables
from pinn.specs.files.store import remembered_folder


@lru_cache(maxsize=1)
def kernel_tables() -> KernelTables:
    """The measured kernels, read once per process."""
    return read_kernel_tables()


def surrogates_without(
    exclude: Exclusion, seed: int, root: Path, progress: Callable[[str], None] = lambda _: None
) -> KernelSurrogates:
    """Surrogates without the excluded kernels.

    Args:
        exclude: Held-out models and GPUs.
        seed: Of all random choices.
        root: Where they are remembered.
        progress: Called with the name of what is fitted, where nothing was remembered.
    """
    aside = {"shared": root, "progress": progress}
    return KernelSurrogates.load(
        remembered_folder(fit_surrogates, exclude, seed, root=root, aside=aside)
    )


def fit_surrogates(
    folder: Path,
    exclude: Exclusion,
    seed: int,
    *,
    shared: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Fit surrogates into a folder; see :meth:`KernelSurrogates.fit`."""
    progress(f"fitting kernel surrogates: {exclude.slug()}")
    KernelSurrogates.fit(
        kernel_tables(), exclude=exclude, seed=seed, shared=shared, progress=progress
    ).save(folder)
