"""Deployments that nobody measured, to compose steps of."""

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
from pinn.specs.model import (
    GREEDY,
    AttentionSpec,
    DenseFfnSpec,
    LatentAttentionSpec,
    LayerGroup,
    ModelSpec,
    MoeFfnSpec,
    Sampling,
    WeightPrecisions,
)
from pinn.specs.model_variants import with_precision
from pinn.specs.precision import precision
from pinn.specs.serving import ServingSpec

# Synthetic deployments: models that could exist, on GPUs that do and cards like them, split anyhow.

#: Share of the GPU memory that weights may fill. An assumption: vLLM uses 0.9 and keeps keys there.
WEIGHTS_SHARE = 0.85
#: By what rates of a card that could exist differ from a real one's at most, in log units: an
#: H200's memory is 1.43 times as fast as an H100's, its arithmetic the same (their datasheets).
OTHER_RATES = 0.4
#: How many deployments run on real cards for one on a card that could exist. With as many of one as
#: of the other the network repeats its teacher less well on real ones (0.95 % off for 0.74 %).
REAL_CARDS = 3
#: The release of vLLM whose defaults composed steps have: no all-reduce is fused with a norm, as in
#: the tables that they are composed of.
TAUGHT_RELEASE = "0.15.1"

#: Number formats of (attention, dense FFN and shared experts, routed experts), with the share of
#: synthetic models that have them; the mixtures are those of published checkpoints, the shares, as
#: all chances of this file, assumptions.
FORMATS: tuple[tuple[float, tuple[str, str, str]], ...] = (
    (0.20, ("bf16", "bf16", "bf16")),
    (0.10, ("fp8", "fp8", "fp8")),
    (0.10, ("fp8_static", "fp8_static", "fp8_static")),
    (0.14, ("fp8_block", "fp8_block", "fp8_block")),
    (0.06, ("bf16", "fp8", "fp8")),
    (0.10, ("nvfp4", "nvfp4", "nvfp4")),
    (0.08, ("bf16", "bf16", "nvfp4")),
    (0.03, ("bf16", "nvfp4", "nvfp4")),
    (0.06, ("bf16", "bf16", "mxfp4")),
    (0.07, ("bf16", "bf16", "mxfp4_mxfp8")),
    (0.03, ("int4_wo", "int4_wo", "int4_wo")),
    (0.03, ("bf16", "bf16", "int4_wo")),
)


#: How requests sample, equally often: as benchmarks do, as vLLM by itself, and as models ask for.
SAMPLINGS: tuple[Sampling, ...] = (
    Sampling(temperature=0),
    Sampling(),
    Sampling(top_k=40),
    Sampling(top_p=0.9),
    Sampling(top_k=20, top_p=0.8, repetition_penalty=1.05),
)

#: Share of synthetic models without experts. Where a network never saw the model, what it gets
#: wrong of a step is mostly the experts' part.
DENSE_SHARE = 0.25
#: Widths beside the hidden size, least and most: of a dense FFN, and of all experts that a token
#: is routed to. Published models of the catalogue have 2.3 to 8 and 1.6 to 7.
DENSE_WIDTHS, ACTIVE_WIDTHS = (2, 8), (1, 8)


def synthetic_deployments(
    count: int,
    gpus: Sequence[GpuSpec],
    seed: int,
    allowed: Callable[[ModelSpec], bool] = lambda _: True,
) -> list[Deployment]:
    """Draw deployments; the same arguments give the same ones.

    Args:
        count: How many.
        gpus: Where three of four run; the others run on cards that could exist, one like each.
        seed: Of the draw.
        allowed: Whether a model may occur; false for near copies of a held-out one.

    Raises:
        PinnError: If there is no GPU.
    """
    if not gpus:
        raise PinnError("synthetic deployments need at least one GPU")
    draw = np.random.default_rng(seed)
    gpus = [*gpus] * REAL_CARDS + [_like(draw, gpu) for gpu in gpus]
    found: list[Deployment] = []
    while len(found) < count:
        model = _model(draw, f"synthetic-{seed}-{len(found)}")
        placed = _place(draw, model, gpus) if allowed(model) else None
        if placed is not None:
            found += by_all_kernels(placed)
    return found[:count]


def _like(draw: np.random.Generator, gpu: GpuSpec) -> GpuSpec:
    """A card of the same chip with other rates, so that the network can place one it never saw."""
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
    """The model on the first GPU kind, in random order, that has room and kernels for it."""
    placed = (_split(draw, model, gpus[int(i)]) for i in draw.permutation(len(gpus)))
    return next(filter(None, placed), None)


def _split(draw: np.random.Generator, model: ModelSpec, gpu: GpuSpec) -> Deployment | None:
    """The model on one GPU kind, split in a random way; None where that does not fit."""
    serving = _flags(
        tensor_parallel_size=int(draw.choice([1, 2, 4, 8])),
        data_parallel_size=int(draw.choice([1, 1, 1, 1, 1, 1, 2, 4, 8])) if model.moe else 1,
        enable_expert_parallel=model.moe is not None and draw.random() < 0.35,
        kv_cache_dtype="fp8" if draw.random() < 0.35 else "auto",
        moe_backend=as_in_tables(gpu),
        engine_version=TAUGHT_RELEASE,
    )
    return started(model, gpu, serving)


def started(model: ModelSpec, gpu: GpuSpec, serving: ServingSpec) -> Deployment | None:
    """The deployment, with whole experts where its own cannot be cut; None where neither starts.

    None, too, where its weights do not fit. The newest release is asked: ``TAUGHT_RELEASE`` sets
    defaults, and a later model has them too.
    """
    room, ranks = WEIGHTS_SHARE * gpu.memory_bytes, serving.tensor_parallel_size
    if _weight_bytes(model, 1, 1, 1) > room * ranks * serving.data_parallel_size:
        return None  # Three of four draws; what follows takes thirty times as long.
    spread = [_other(serving, enable_expert_parallel=True)] if model.moe is not None else []
    for flags in (serving, *spread):
        try:
            Deployment(model, gpu, _other(flags, engine_version=""))
        except PinnError:
            continue
        found = Deployment(model, gpu, flags, force=True)
        return found if weight_bytes(found) <= room else None
    return None


#: Flags, and some in place of others: they are few, and checking them takes long.
_flags, _other = cache(ServingSpec), cache(replace)


def by_all_kernels(deployment: Deployment) -> Iterator[Deployment]:
    """It, and the same by other kernels of the experts where those have a descriptor.

    mxfp4's by Marlin are embedded as int4's, which are drawn anyway.
    """
    yield deployment
    for kernels in (CUTLASS, TRITON):
        serving = _other(deployment.serving, moe_backend=kernels)
        other = replace(deployment, serving=serving)
        if other.expert_kernels != AUTO:
            yield other


def weight_bytes(deployment: Deployment) -> float:
    """Weights on one GPU, the input embedding left out."""
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


def _model(draw: np.random.Generator, name: str) -> ModelSpec:
    hidden = _multiple(draw, 1024, 16384, 256)
    layers = int(np.clip(round(2.9 * hidden**0.33 * np.exp(draw.normal(0, 0.35))), 8, 128))
    attention = _attention(draw, hidden)
    ffns = _ffns(draw, hidden, layers)
    index = draw.choice(len(FORMATS), p=np.array([p for p, _ in FORMATS]))
    attention_format, dense_format, expert_format = (precision(f) for f in FORMATS[index][1])
    if expert_format.name == "fp8_block":
        ffns = [(count, _in_blocks(ffn)) for count, ffn in ffns]
    return ModelSpec(
        name=name,
        model_type="synthetic",
        hidden_size=hidden,
        vocab_size=_multiple(draw, 32_000, 262_144, 64),
        layer_groups=tuple(_groups(draw, attention, ffns)),
        precisions=WeightPrecisions(
            attention_format, dense_format, expert_format, dense_format, precision("bf16")
        ),
        max_position=131_072,
        sampling=SAMPLINGS[int(draw.integers(len(SAMPLINGS)))],
    )


def _attention(draw: np.random.Generator, hidden: int) -> AttentionSpec | LatentAttentionSpec:
    if draw.random() < 0.15:
        heads = int(draw.choice([16, 32, 64, 96, 128]))
        query_rank = None if draw.random() < 0.2 else int(draw.choice([768, 1024, 1536, 2048]))
        return LatentAttentionSpec(heads, query_rank, 512, 128, 64, 128)
    head_dim = int(draw.choice([64, 96, 128, 128, 128, 128, 192, 256]))
    most = hidden * float(np.exp(draw.normal(0.25, 0.4))) / head_dim
    heads = int(2 ** np.clip(np.round(np.log2(most)), 3, 7))
    if draw.random() < 0.4:
        heads = int(max(heads * draw.choice([0.75, 1.25, 1.5, 0.625]), 4) // 4 * 4)
    kv_choices = [k for k in (1, 2, 4, 8, 8, 8, 8, 16, heads) if k <= heads and heads % k == 0]
    full_width_norm = draw.random() < 0.08
    return AttentionSpec(heads, int(draw.choice(kv_choices)), head_dim, None, full_width_norm)


def _ffns(
    draw: np.random.Generator, hidden: int, layers: int
) -> list[tuple[int, DenseFfnSpec | MoeFfnSpec]]:
    """(layers, feed-forward part): dense, experts, or some dense layers before the experts."""
    gated = draw.random() < 0.95
    dense = DenseFfnSpec(
        _multiple(draw, DENSE_WIDTHS[0] * hidden, DENSE_WIDTHS[1] * hidden, 256), gated
    )
    if draw.random() < DENSE_SHARE:
        return [(layers, dense)]
    experts = int(draw.choice([8, 16, 32, 64, 96, 128, 128, 160, 256, 256, 384, 512]))
    top_k = int(draw.choice([k for k in (1, 2, 4, 6, 8, 8, 10) if k <= experts // 4]))
    least, most = (side * hidden / top_k for side in ACTIVE_WIDTHS)
    width = _multiple(draw, max(least, 256), max(most, 512), 64)
    shared = int(width * draw.choice([1, 1, 2])) if draw.random() < 0.4 else 0
    moe = MoeFfnSpec(experts, top_k, width, shared, gated)
    first = int(draw.choice([1, 1, 2, 3])) if draw.random() < 0.3 else 0
    if draw.random() < 0.1:
        first = layers // 2
    return [(first, dense), (layers - first, moe)] if first else [(layers, moe)]


def _in_blocks(ffn: DenseFfnSpec | MoeFfnSpec) -> DenseFfnSpec | MoeFfnSpec:
    """The layer with widths that eight GPUs, of experts two, cut between blocks of 128 scales."""
    if isinstance(ffn, DenseFfnSpec):
        return replace(ffn, width=-(-ffn.width // 1024) * 1024)
    shared = -(-ffn.shared_width // 1024) * 1024
    return replace(ffn, width=-(-ffn.width // 256) * 256, shared_width=shared)


def _groups(
    draw: np.random.Generator,
    attention: AttentionSpec | LatentAttentionSpec,
    ffns: list[tuple[int, DenseFfnSpec | MoeFfnSpec]],
) -> Iterator[LayerGroup]:
    """Layers by shape; one model in five has windows in some or all of its layers."""
    if isinstance(attention, LatentAttentionSpec) or draw.random() > 0.2:
        yield from (LayerGroup(count, attention, ffn) for count, ffn in ffns)
        return
    window = int(draw.choice([128, 512, 1024, 4096, 8192]))
    narrow = replace(attention, window_tokens=window)
    share = draw.choice([0.5, 0.5, 0.75, 0.833, 1.0])
    for count, ffn in ffns:
        windowed = round(count * share)
        if windowed:
            yield LayerGroup(windowed, narrow, ffn)
        if count > windowed:
            yield LayerGroup(count - windowed, attention, ffn)


def _multiple(draw: np.random.Generator, low: float, high: float, unit: int) -> int:
    """Log-uniform between two sizes, rounded to a multiple of a unit."""
    value = np.exp(draw.uniform(np.log(low), np.log(high)))
    return max(round(value / unit), 1) * unit


# Deployments of the models in the catalogue, on the GPUs whose kernels were measured.

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
            serving = _flags(
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
        if deployment is not None:
            found += by_all_kernels(deployment)
    return found
