"""Arrays of public functions have shapes, and the tests of every package check them."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

import pinn
from pinn.calibration.prior import KnownSteps
from pinn.engines.configurations import make_deployment
from pinn.evaluation.formulas import Bases
from pinn.evaluation.metrics import error_summary
from pinn.export.blis_features import Timed
from pinn.kernels.operator import KernelCorrection
from pinn.measurements.traces.batches import knowledge_levels
from pinn.physics.batch_sums import BatchSums
from pinn.simulator.slo import parse_slo
from pinn.simulator.statistics import weighted_percentiles
from pinn.surrogate.network import log_huber
from pinn.surrogate.uncertainty.quantiles import weighted_quantile
from pinn.training.teacher import Scalars

ROOT = Path(pinn.__file__).parent
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))
_SHAPE = re.compile(r"\b(?:Bool|Float|Int|Real|Shaped|UInt8)\[[\w.]+, '[^']*'\]")
_ARRAY = re.compile(r"\b(?:ndarray|NDArray|ArrayLike|Tensor)\b")

ROW, TWO, THREE = np.ones((2, 3)), np.ones(2), np.ones(3)
LLAMA_8B = make_deployment({"model": "meta-llama/Llama-3.1-8B", "gpu": "H100"})
#: Where no function computes with arrays.
NO_CALLS = {"common", "cli", "api"}
#: Package -> a call whose arrays do not fit together, or have an axis too many.
WRONG = {
    "physics": lambda: BatchSums(*[TWO] * 8, THREE),
    "kernels": lambda: KernelCorrection(2, 4, 1, 1.0).predict(TWO),
    "surrogate": lambda: log_huber(torch.ones(2), torch.ones(3), torch.ones(2), 0.1),
    "simulator": lambda: weighted_percentiles(TWO, np.ones(3, int)),
    "measurements.traces": lambda: knowledge_levels(np.ones(2, bool), np.ones(3, bool)),
    "surrogate.uncertainty.intervals": lambda: weighted_quantile(TWO, THREE, 0.5),
    "calibration": lambda: KnownSteps(ROW, THREE),
    "training": lambda: Scalars(ROW, TWO),
    "evaluation.metrics": lambda: error_summary(TWO, THREE),
    "export": lambda: Timed(ROW, THREE),
    "planning": lambda: parse_slo("p50 itl<=1s").excess({}, (TWO, np.ones(3, int))),
    "evaluation": lambda: Bases({}, ROW, THREE),
}


def public(body, owner=""):
    """Public functions, and public fields and methods of public classes, of a module."""
    for node in body:
        name = getattr(node, "name", None)
        if isinstance(node, ast.ClassDef) and not name.startswith("_"):
            yield from public(node.body, f"{name}.")
        elif isinstance(node, ast.FunctionDef) and not name.startswith("_"):
            arguments = [a.annotation for a in (*node.args.args, *node.args.kwonlyargs)]
            yield f"{owner}{name}", [a for a in (*arguments, node.returns) if a is not None]
        elif isinstance(node, ast.AnnAssign) and owner:
            yield f"{owner}{ast.unparse(node.target)}", [node.annotation]


@pytest.mark.parametrize("package", sorted({path.parts[0] for path in MODULES if path.parts[1:]}))
def test_arrays_of_public_functions_have_shapes(package):
    shapeless = {
        f"{path}: {name}"
        for path in MODULES
        if path.parts[0] == package
        for name, hints in public(ast.parse((ROOT / path).read_text()).body)
        if any(_ARRAY.search(_SHAPE.sub("", ast.unparse(hint))) for hint in hints)
    }
    assert not shapeless


def test_every_package_that_makes_arrays_is_tried():
    named = {p.parts[0] for p in MODULES if "from jaxtyping import" in (ROOT / p).read_text()}
    assert {name.split(".")[0] for name in WRONG} == named - NO_CALLS


@pytest.mark.parametrize("package", WRONG)
def test_a_wrong_shape_is_caught(package):
    with pytest.raises(TypeCheckError):
        WRONG[package]()
