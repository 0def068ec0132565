"""Surrogates of one chip, fitted in seconds: for laws, not for accuracy."""

from dataclasses import replace

import pytest

from pinn.kernels.surrogates import OPERATORS, KernelSurrogates
from pinn.sources.kernels.tables import read_kernel_tables
from pinn.specs.gpu_catalog import load_gpu

PLANS = {o.name: replace(o.plan, rows=4000, epochs=4, batch=512, width=24) for o in OPERATORS}


@pytest.fixture(scope="session")
def h100_kernels() -> KernelSurrogates:
    """Surrogates of the H100 alone."""
    return KernelSurrogates.fit(read_kernel_tables({"h100_sxm": load_gpu("H100")}), plans=PLANS)
