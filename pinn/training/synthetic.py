"""Deployments whose step times train the network: synthetic ones, and of catalog models."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from pinn.engines.deployment import Deployment
from pinn.engines.kernel_choice import AUTO, CUTLASS, TRITON, as_in_tables
from pinn.errors import PinnError
from pinn.physics.layer_work import dense_matmuls, expert_weights
from pinn.specs.catalog import list_models, load_model
from pinn.specs.gpu import GpuSpec
from pinn.specs.model import GREEDY, ModelSpec
from pinn.specs.model_variants import with_precision
from pinn.specs.serving import ServingSpec
from pinn.training.synthetic_models import synthetic_model

#: Maximum share of GPU memory for weights (an assumption; vLLM's default of 0.9 also includes the
#: KV cache).
WEIGHTS_SHARE = 0.85
#: Maximum log ratio of a synthetic GPU's rates to those of a real GPU. For comparison: according to
#: their datasheets, an H200 has 1.43 times the memory bandwidth of an H100, and equal peak FLOP/s.
OTHER_RATES = 0.4
#: Number of deployments on real GPUs per deployment on a synthetic GPU. On real GPUs, the network's
#: error relative to its training targets (step times composed from kernels) is 0.74 % with 3, and
#: 0.95 % with 1.
REAL_CARDS = 3
#: vLLM releases whose defaults the training deployments use: one that does not fuse all-reduces and
#: norms by default, and one that does.
TAUGHT_RELEASES = ("0.15.1", "0.20.1")


def synthetic_deployments(
    count: int,
    gpus: Sequence[GpuSpec],
    seed: int,
    allowed: Callable[[ModelSpec], bool] = lambda _: True,
) -> list[Deployment]:
    """Sample synthetic deployments; the same arguments give the same deployments.

    Args:
        count: Number of deployments.
        gpus: GPUs that about three in four deployments use; all others run on variants of these
            GPUs.
        seed: Random seed.
        allowed: Function that returns whether a model may be used; false for models of almost the
            same shape as a held-out model.

    Raises:
        PinnError: If ``gpus`` is empty.
    """
    if not gpus:
        raise PinnError("the list of GPUs for synthetic deployments is empty, expected a GPU")
    draw = np.random.default_rng(seed)
    gpus = [*gpus] * REAL_CARDS + [_like(draw, gpu) for gpu in gpus]
    found: list[Deployment] = []
    while len(found) < count:
        model = synthetic_model(draw, f"synthetic-{seed}-{len(found)}")
        placed = _place(draw, model, gpus) if allowed(model) else None
        if placed is not None:
            found += by_all_kernels(placed)
    return found[:count]


def _like(draw: np.random.Generator, gpu: GpuSpec) -> GpuSpec:
    """Return a variant of a GPU with different memory bandwidth, peak FLOP/s and link bandwidth."""
    memory, compute, link = np.exp(draw.uniform(-OTHER_RATES, OTHER_RATES, 3)).tolist()
    return replace(
        gpu,
        name=f"{gpu.name} like",
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * memory,
        peak_flop_per_s={kind: rate * compute for kind, rate in gpu.peak_flop_per_s.items()},
        link_bandwidth_bytes_per_s=gpu.link_bandwidth_bytes_per_s * link,
    )


def _place(
    draw: np.random.Generator, model: ModelSpec, gpus: Sequence[GpuSpec]
) -> Deployment | None:
    """Return a deployment of the model on one of ``gpus``, the first in random order that fits."""
    placed = (_split(draw, model, gpus[int(i)]) for i in draw.permutation(len(gpus)))
    return next(filter(None, placed), None)


def _split(draw: np.random.Generator, model: ModelSpec, gpu: GpuSpec) -> Deployment | None:
    """Return the model on GPUs of one type in random parallel sizes; None if it does not start."""
    serving = _flags(
        tensor_parallel_size=int(draw.choice([1, 2, 4, 8])),
        data_parallel_size=int(draw.choice([1, 1, 1, 1, 1, 1, 2, 4, 8])) if model.moe else 1,
        enable_expert_parallel=model.moe is not None and draw.random() < 0.35,
        kv_cache_dtype="fp8" if draw.random() < 0.35 else "auto",
        moe_backend=as_in_tables(gpu),
        engine_version=str(draw.choice(TAUGHT_RELEASES)),
    )
    return started(model, gpu, serving)


def started(model: ModelSpec, gpu: GpuSpec, serving: ServingSpec) -> Deployment | None:
    """Return the deployment of a model, with expert parallelism if experts cannot be split.

    The result is None if neither layout starts or the weights do not fit. Compatibility is checked
    against the newest engine release, because the defaults of ``TAUGHT_RELEASES`` are also used for
    models that those releases do not support.
    """
    room, ranks = WEIGHTS_SHARE * gpu.memory_bytes, serving.tensor_parallel_size
    if _weight_bytes(model, 1, 1, 1) > room * ranks * serving.data_parallel_size:
        return None  # this check rejects 3 of 4 samples; those below take 30 times as long
    spread = [_other(serving, enable_expert_parallel=True)] if model.moe is not None else []
    for flags in (serving, *spread):
        try:
            Deployment(model, gpu, _other(flags, engine_version=""))
        except PinnError:
            continue
        found = Deployment(model, gpu, flags, force=True)
        return found if weight_bytes(found) <= room else None
    return None


#: Cached constructors of engine flags and their variants, because few distinct flags occur and
#: validating them is slow.
_flags, _other = cache(ServingSpec), cache(replace)


def by_all_kernels(deployment: Deployment) -> Iterator[Deployment]:
    """Yield the deployment, and variants that use other kernels for experts.

    Only kernels that change step features are used. Marlin kernels of mxfp4 are skipped, because
    their features are the same as those of int4, which is sampled anyway.
    """
    yield deployment
    for kernels in (CUTLASS, TRITON):
        serving = _other(deployment.serving, moe_backend=kernels)
        other = replace(deployment, serving=serving)
        if other.expert_kernels != AUTO:
            yield other


def weight_bytes(deployment: Deployment) -> float:
    """Return the bytes of a deployment's weights on one GPU, without the input embedding."""
    recipe = deployment.recipe
    experts = recipe.expert_tensor_parallel_size, recipe.expert_parallel_size
    return _weight_bytes(deployment.model, recipe.tensor_parallel_size, *experts)


def _weight_bytes(model: ModelSpec, tensor: int, expert_tensor: int, expert_parallel: int) -> float:
    total = sum(m.weight_bytes for m in dense_matmuls(model, tensor))
    if model.moe is not None:
        each = expert_weights(model.moe, model.hidden_size, expert_tensor)
        experts = model.moe.experts / expert_parallel * model.moe_layers
        total += experts * each * model.precisions.experts.bytes_per_weight
    return total


_SCHEMES = ("native", "fp8", "nvfp4", "int4", "mxfp4_mxfp8")


@cache
def catalog_models() -> tuple[ModelSpec, ...]:
    """Return all published catalog models with measured kernels, sorted by name.

    Models with recurrent layers, or sparse or compressed attention are excluded, because synthetic
    models cover such layers (``pinn.training.synthetic_mixers``).
    """
    models = (load_model(name) for name in sorted(list_models()))
    return tuple(model for model in models if model.is_plain)


def catalog_deployments(
    count: int,
    gpus: Sequence[GpuSpec],
    seed: int,
    allowed: Callable[[ModelSpec], bool] = lambda _: True,
) -> list[Deployment]:
    """Sample deployments of catalog models; the same arguments give the same deployments.

    Args:
        count: Number of samples. Deployments that do not fit in memory or cannot be split are
            dropped.
        gpus: GPUs that deployments may run on.
        seed: Random seed.
        allowed: Function that returns whether a model may be used; false for models of almost the
            same shape as a held-out model.
    """
    models = [m for m in catalog_models() if allowed(m)]
    draw = np.random.default_rng(seed)
    found: list[Deployment] = []
    for _ in range(count):
        model, scheme = models[int(draw.integers(len(models)))], str(draw.choice(_SCHEMES))
        tp, spread = int(draw.choice([1, 2, 4, 8])), bool(draw.random() < 0.3)
        cache = "fp8" if draw.random() < 0.3 else "auto"
        override = GREEDY if draw.random() < 0.5 else ""
        release = str(draw.choice(TAUGHT_RELEASES))
        gpu = gpus[int(draw.integers(len(gpus)))]
        try:
            served = model if scheme == "native" else with_precision(model, scheme)
            serving = _flags(
                tensor_parallel_size=tp,
                enable_expert_parallel=spread and model.moe is not None,
                moe_backend=as_in_tables(gpu),
                engine_version=release,
                kv_cache_dtype=cache,
                override_generation_config=override,
            )
        except PinnError:
            continue
        deployment = started(served, gpu, serving)
        if deployment is not None:
            found += by_all_kernels(deployment)
    return found
