"""A checkpoint on well-known deployments: coefficients beside their priors, breakdowns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from pinn.coefficients.configurations import canonical, make_deployment
from pinn.coefficients.surrogate import Surrogate, batch_work
from pinn.kernels.search import find_kernels
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.request import REQUEST_FEATURES
from pinn.physics.step import STEP_FEATURES, step_features
from pinn.specs.batch import parse_batch
from pinn.specs.deployment import Deployment
from pinn.training.teacher.breakdown import breakdown, saved_scalars
from pinn.training.teacher.scalars import prior_scalars
from pinn.training.teacher.teacher import Teacher

#: Model, GPU and tensor-parallel size of the deployments that are shown.
SHOWN = (
    ("meta-llama/Llama-3.1-8B", "A100", 1),
    ("meta-llama/Llama-3.1-8B", "H100", 1),
    ("meta-llama/Llama-3.1-8B", "B200", 1),
    ("meta-llama/Llama-3.1-70B", "A100", 4),
    ("meta-llama/Llama-3.1-70B", "H100", 4),
    ("meta-llama/Llama-3.1-70B", "B200", 4),
    ("Qwen/Qwen3-30B-A3B", "A100", 2),
    ("Qwen/Qwen3-30B-A3B", "H100", 2),
    ("Qwen/Qwen3-30B-A3B", "B200", 2),
    ("openai/gpt-oss-120b", "H100", 2),
    ("openai/gpt-oss-120b", "B200", 2),
    ("deepseek-ai/DeepSeek-V3", "H200", 8),
    ("deepseek-ai/DeepSeek-V3", "B200", 8),
)

#: Steps that are accounted for.
BATCHES = ("64 decode @ 1000", "1 prefill 2048 @ 0", "1 prefill 512 @ 0 + 64 decode @ 1000")


def shown_deployments() -> dict[str, Deployment]:
    """Label -> deployment of everything that is shown."""
    found = {}
    for model, gpu, size in SHOWN:
        given = canonical({"model": model, "gpu": gpu, "tensor_parallel_size": size})
        found[f"{model.split('/')[-1]}, {size} x {gpu}"] = make_deployment(given)
    return found


def coefficient_rows(checkpoint: Path) -> pd.DataFrame:
    """Coefficients and priors of the deployments that are shown.

    Returns:
        Columns ``deployment``, ``part`` (beta or alpha), ``name``, ``unit``, ``value``, ``prior``
        and ``used``, whether one of ``BATCHES`` takes longer for it; SI units.
    """
    shown = shown_deployments()
    found = Surrogate.load(checkpoint).coefficients(list(shown.values()))
    batches = [parse_batch(text) for text in BATCHES]
    rows: list[tuple[Any, ...]] = []
    for label, deployment, beta, alpha in zip(
        shown, shown.values(), found.beta, found.alpha, strict=True
    ):
        used = (step_features(*batch_work(deployment, batches)) > 0).max(axis=0).tolist()
        rows += [
            (label, "beta", f.name, f.unit, float(value), f.prior, some)
            for f, value, some in zip(STEP_FEATURES.values(), beta, used, strict=True)
        ]
        rows += [
            (label, "alpha", f.name, f.unit, float(value), f.prior, True)
            for f, value in zip(REQUEST_FEATURES.values(), alpha, strict=True)
        ]
    columns = ["deployment", "part", "name", "unit", "value", "prior", "used"]
    return pd.DataFrame(rows, columns=columns)


def anatomy_rows(checkpoint: Path) -> pd.DataFrame:
    """Where the time of well-known steps goes.

    Returns:
        Columns ``deployment``, ``batch``, ``part``, ``network_s``, ``composed_s`` (NaN without
        kernel surrogates) and ``floor_s`` of the whole step.
    """
    surrogate, kernels = Surrogate.load(checkpoint), find_kernels(None, checkpoint)
    saved = surrogate.checkpoint.metadata.get("scalars")
    scalars = saved_scalars(saved) if saved else prior_scalars()
    teacher = None if kernels is None else Teacher(KernelSurrogates.load(kernels), scalars)
    rows = []
    for label, deployment in shown_deployments().items():
        beta = surrogate.coefficients([deployment]).beta[0]
        for batch in BATCHES:
            found = breakdown(deployment, batch, beta, teacher)
            for part, seconds in found.network.items():
                composed = float("nan") if found.composed is None else found.composed[part]
                rows.append((label, batch, part, seconds, composed, found.floor))
    columns = ["deployment", "batch", "part", "network_s", "composed_s", "floor_s"]
    return pd.DataFrame(rows, columns=columns)
