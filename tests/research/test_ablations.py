"""Surrogates of some of the measured kernels: whole shapes, more of them containing fewer."""

import pytest

from pinn.kernels.exclusion import Exclusion
from pinn.kernels.heldout import FOLDS
from pinn.kernels.surrogates import OPERATORS, KernelSurrogates
from pinn.kernels.tables.tables import read_kernel_tables
from pinn.research import ablations
from pinn.research.ablations import ComposedKernels
from pinn.specs.gpu_catalog import load_gpu
from pinn.training.kernel_learner import KernelSettings

SETTINGS = KernelSettings(None, "nowhere", ("H100-SXM",))


@pytest.fixture(scope="module")
def tables():
    return read_kernel_tables({"h100_sxm": load_gpu("H100")})


@pytest.fixture
def fitted_to(tables, monkeypatch):
    """The tables that surrogates are fitted to when so many folds are kept."""
    asked = []
    monkeypatch.setattr(ablations, "kernel_tables", lambda: tables)
    monkeypatch.setattr(ablations, "projected_parts", lambda *_: None)
    monkeypatch.setattr(KernelSurrogates, "fit", lambda kept, **_: asked.append(kept))

    def of(folds):
        ablations._few_kernels.cache_clear()
        ablations._parts.cache_clear()
        method = ComposedKernels("some kernels", SETTINGS, folds=folds)
        method._parts(Exclusion(), ())
        return asked[-1]

    return of


def test_shares_hold_whole_shapes_and_grow(tables, fitted_to):
    few, more = fitted_to(1), fitted_to(3)
    for operator in OPERATORS:
        whole = getattr(tables, operator.name)
        sizes = []
        for kept, folds in ((few, 1), (more, 3)):
            rows = getattr(kept, operator.name)
            shapes = set(map(tuple, rows[list(operator.group)].to_numpy()))
            all_shapes = list(map(tuple, whole[list(operator.group)].to_numpy()))
            assert sum(shape in shapes for shape in all_shapes) == len(rows)
            assert len(shapes) == pytest.approx(len(set(all_shapes)) * folds / FOLDS, abs=folds)
            sizes.append(set(rows.index))
        assert sizes[0] < sizes[1]
    assert few.all_reduce is tables.all_reduce
