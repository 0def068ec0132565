"""Synthetic models with random sizes, layers and number formats."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pinn.specs.model import (
    AttentionSpec,
    DenseFfnSpec,
    LatentAttentionSpec,
    LayerGroup,
    ModelSpec,
    MoeFfnSpec,
    Sampling,
    WeightPrecisions,
)
from pinn.specs.precision import precision
from pinn.training.synthetic_mixers import SHARES, STREAMS, compressed, hybrid

#: Share of synthetic models, and their number formats: of attention, of dense FFN and shared
#: experts, and of routed experts. The combinations occur in published checkpoints. All shares and
#: probabilities in this file are assumptions.
FORMATS: tuple[tuple[float, tuple[str, str, str]], ...] = (
    (0.18, ("bf16", "bf16", "bf16")),
    (0.10, ("fp8", "fp8", "fp8")),
    (0.10, ("fp8_static", "fp8_static", "fp8_static")),
    (0.14, ("fp8_block", "fp8_block", "fp8_block")),
    (0.06, ("bf16", "fp8", "fp8")),
    (0.10, ("nvfp4", "nvfp4", "nvfp4")),
    (0.08, ("bf16", "bf16", "nvfp4")),
    (0.03, ("bf16", "nvfp4", "nvfp4")),
    (0.06, ("bf16", "bf16", "mxfp4")),
    (0.06, ("bf16", "bf16", "mxfp4_mxfp8")),
    (0.03, ("fp8_block", "fp8_block", "mxfp4_mxfp8")),
    (0.03, ("int4_wo", "int4_wo", "int4_wo")),
    (0.03, ("bf16", "bf16", "int4_wo")),
)


#: Sampling parameters of synthetic models, with equal probability: greedy as in benchmarks, vLLM's
#: defaults, and parameters like those of published models.
SAMPLINGS: tuple[Sampling, ...] = (
    Sampling(temperature=0),
    Sampling(),
    Sampling(top_k=40),
    Sampling(top_p=0.9),
    Sampling(top_k=20, top_p=0.8, repetition_penalty=1.05),
)

#: Minimum and maximum widths, relative to the hidden size, of a dense FFN and of all active experts
#: of a token together. Catalog models have 2.3 to 8 and 1.6 to 7.
DENSE_WIDTHS, ACTIVE_WIDTHS = (2, 8), (1, 8)
#: Share of synthetic mixtures of experts whose router is in fp32.
FP32_ROUTERS = 0.15


def synthetic_model(draw: np.random.Generator, name: str) -> ModelSpec:
    """Sample a synthetic model's sizes, layers and number formats."""
    hidden = _multiple(draw, 1024, 16384, 256)
    layers = int(np.clip(round(2.9 * hidden**0.33 * np.exp(draw.normal(0, 0.35))), 8, 128))
    attention = _attention(draw, hidden)
    ffns = _ffns(draw, hidden, layers)
    index = draw.choice(len(FORMATS), p=np.array([p for p, _ in FORMATS]))
    attention_format, dense_format, expert_format = (precision(f) for f in FORMATS[index][1])
    if expert_format.name == "fp8_block":
        ffns = [(count, _in_blocks(ffn)) for count, ffn in ffns]
    groups, streams = _layers(draw, hidden, attention, ffns)
    return ModelSpec(
        name=name,
        model_type="synthetic",
        hidden_size=hidden,
        vocab_size=_multiple(draw, 32_000, 262_144, 64),
        layer_groups=tuple(groups),
        streams=streams,
        precisions=WeightPrecisions(
            attention_format, dense_format, expert_format, dense_format, precision("bf16")
        ),
        max_position=131_072,
        sampling=SAMPLINGS[int(draw.integers(len(SAMPLINGS)))],
    )


def _layers(
    draw: np.random.Generator,
    hidden: int,
    attention: AttentionSpec | LatentAttentionSpec,
    ffns: list[tuple[int, DenseFfnSpec | MoeFfnSpec]],
) -> tuple[list[LayerGroup], int]:
    """Sample a model's layers and number of residual streams (0: plain residual connection)."""
    kinds = [None, *(kind for _, kind in SHARES)]
    shares = [share for share, _ in SHARES]
    kind = kinds[int(draw.choice(len(kinds), p=[1 - sum(shares), *shares]))]
    if kind is None:
        return list(_groups(draw, attention, ffns)), 0
    if kind is hybrid:
        return hybrid(draw, hidden, ffns, attention), 0
    return kind(draw, ffns), STREAMS * (kind is compressed)


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
    """Sample feed-forward parts with their numbers of layers: dense, MoE, or dense before MoE."""
    gated = draw.random() < 0.95
    dense = DenseFfnSpec(
        _multiple(draw, DENSE_WIDTHS[0] * hidden, DENSE_WIDTHS[1] * hidden, 256), gated
    )
    if draw.random() < 0.45:
        return [(layers, dense)]
    experts = int(draw.choice([8, 16, 32, 64, 96, 128, 128, 160, 256, 256, 384, 512]))
    top_k = int(draw.choice([k for k in (1, 2, 4, 6, 8, 8, 10) if k <= experts // 4]))
    least, most = (side * hidden / top_k for side in ACTIVE_WIDTHS)
    width = _multiple(draw, max(least, 256), max(most, 512), 64)
    shared = int(width * draw.choice([1, 1, 2])) if draw.random() < 0.4 else 0
    fp32_router = draw.random() < FP32_ROUTERS
    moe = MoeFfnSpec(experts, top_k, width, shared, gated, fp32_router=fp32_router)
    first = int(draw.choice([1, 1, 2, 3])) if draw.random() < 0.3 else 0
    if draw.random() < 0.1:
        first = layers // 2
    return [(first, dense), (layers - first, moe)] if first else [(layers, moe)]


def _in_blocks(ffn: DenseFfnSpec | MoeFfnSpec) -> DenseFfnSpec | MoeFfnSpec:
    """Return the feed-forward part with widths that can be split between 128-wide scale blocks.

    Dense layers can then be split over eight GPUs, experts over two.
    """
    if isinstance(ffn, DenseFfnSpec):
        return replace(ffn, width=-(-ffn.width // 1024) * 1024)
    shared = -(-ffn.shared_width // 1024) * 1024
    return replace(ffn, width=-(-ffn.width // 256) * 256, shared_width=shared)


def _groups(
    draw: np.random.Generator,
    attention: AttentionSpec | LatentAttentionSpec,
    ffns: list[tuple[int, DenseFfnSpec | MoeFfnSpec]],
) -> Iterator[LayerGroup]:
    """Yield groups of identical layers; a fifth of the models has sliding windows.

    Models with latent attention have none.
    """
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
    """Sample a size log-uniformly from low to high, rounded to a multiple of ``unit``."""
    value = np.exp(draw.uniform(np.log(low), np.log(high)))
    return max(round(float(value) / unit), 1) * unit
