"""Surrogates fitted in seconds on a few rows of two chips: to test laws, not accuracy."""

from __future__ import annotations

import pytest
from quick_plans import QUICK

from pinn.kernels.surrogates import KernelSurrogates
from pinn.kernels.tables.tables import KernelTables, read_kernel_tables
from pinn.specs.gpu import load_gpu


@pytest.fixture(scope="session")
def tables() -> KernelTables:
    """Return the measured kernels of A100 and H100."""
    return read_kernel_tables({name: load_gpu(name) for name in ("a100_sxm", "h100_sxm")})


@pytest.fixture(scope="session")
def kernels(tables: KernelTables) -> KernelSurrogates:
    """Return surrogates fitted to both chips."""
    return KernelSurrogates.fit(tables, plans=QUICK)
