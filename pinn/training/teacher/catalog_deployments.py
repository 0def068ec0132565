"""Deployments of the models in the catalogue, on the GPUs whose kernels were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from pinn.errors import PinnError
from pinn.specs.catalog import list_models, load_model
from pinn.specs.deployment import Deployment
from pinn.specs.expert_kernels import as_in_tables
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import ModelSpec
from pinn.specs.precision_override import with_precision
from pinn.specs.sampling import GREEDY
from pinn.specs.serving import ServingSpec
from pinn.training.teacher.synthetic import (
    TAUGHT_RELEASE,
    WEIGHTS_SHARE,
    by_all_kernels,
    started,
    weight_bytes,
)

_SCHEMES = ("native", "fp8", "nvfp4", "int4", "mxfp4_mxfp8")


@cache
def catalog_models() -> tuple[ModelSpec, ...]:
    """Every model of the catalogue as published, in order of name, whose kernels are composed.

    Recurrent and sparse mixers are left out: the network learns attention over keys.
    """
    models = (load_model(name) for name in sorted(list_models()))
    return tuple(model for model in models if model.is_plain)


def catalog_deployments(
    count: int,
    gpus: Sequence[GpuSpec],
    seed: int,
    allowed: Callable[[ModelSpec], bool] = lambda _: True,
) -> list[Deployment]:
    """Draw deployments of known models; the same arguments give the same ones.

    Args:
        count: How many draws; those that do not fit in memory or do not divide are left out.
        gpus: Where they may run.
        seed: Of the draw.
        allowed: Whether a model may occur; false for near copies of a held-out one.
    """
    models = [m for m in catalog_models() if allowed(m)]
    draw = np.random.default_rng(seed)
    found: list[Deployment] = []
    for _ in range(count):
        model, scheme = models[int(draw.integers(len(models)))], str(draw.choice(_SCHEMES))
        tp, spread = int(draw.choice([1, 2, 4, 8])), bool(draw.random() < 0.3)
        cache = "fp8" if draw.random() < 0.3 else "auto"
        override = GREEDY if draw.random() < 0.5 else ""
        gpu = gpus[int(draw.integers(len(gpus)))]
        try:
            served = model if scheme == "native" else with_precision(model, scheme)
            serving = ServingSpec(
                tensor_parallel_size=tp,
                enable_expert_parallel=spread and model.moe is not None,
                moe_backend=as_in_tables(gpu),
                engine_version=TAUGHT_RELEASE,
                kv_cache_dtype=cache,
                override_generation_config=override,
            )
        except PinnError:
            continue
        deployment = started(served, gpu, serving)
        if deployment is not None and weight_bytes(deployment) <= WEIGHTS_SHARE * gpu.memory_bytes:
            found += by_all_kernels(deployment)
    return found
