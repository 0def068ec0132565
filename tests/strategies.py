"""Random models, GPUs, configurations, batches and networks for the laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from pinn.engines.deployment import Deployment
from pinn.specs.batch import Batch
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
from pinn.specs.precision import PRECISIONS
from pinn.specs.serving import ServingSpec
from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.featurizer import DESCRIPTORS, MIN_SCALE, RATES, InputScale
from pinn.surrogate.network import CoefficientNetwork

FORMATS = st.sampled_from([p for name, p in PRECISIONS.items() if name != "fp32"])


@st.composite
def attentions(draw) -> AttentionSpec | LatentAttentionSpec:
    if draw(st.integers(0, 3)) == 0:
        return LatentAttentionSpec(
            heads=draw(st.sampled_from([16, 64, 128])),
            q_lora_rank=draw(st.sampled_from([None, 768, 1536])),
            kv_lora_rank=draw(st.sampled_from([256, 512])),
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        )
    kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    return AttentionSpec(
        heads=kv_heads * draw(st.sampled_from([1, 2, 4, 7, 8])),
        kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([64, 80, 128, 256])),
        qk_norm_full_width=draw(st.booleans()),
    )


@st.composite
def ffns(draw) -> DenseFfnSpec | MoeFfnSpec:
    width, gated = draw(st.integers(64, 30000)), draw(st.booleans())
    if draw(st.booleans()):
        return DenseFfnSpec(width, gated)
    experts = draw(st.integers(1, 384))
    return MoeFfnSpec(
        experts=experts,
        top_k=draw(st.integers(1, min(experts, 8))),
        width=draw(st.integers(64, 8192)),
        shared_width=draw(st.sampled_from([0, 2048])),
        gated=gated,
    )


@st.composite
def models(draw) -> ModelSpec:
    attention, ffn = draw(attentions()), draw(ffns())
    groups = [LayerGroup(draw(st.integers(1, 80)), attention, ffn)]
    if draw(st.booleans()):
        windowed = type(attention)(
            **{**vars(attention), "window_tokens": draw(st.integers(1, 9000))}
        )
        groups.append(LayerGroup(draw(st.integers(1, 40)), windowed, ffn))
    if draw(st.booleans()):
        groups.append(LayerGroup(draw(st.integers(1, 4)), attention, DenseFfnSpec(4096)))
    kinds = ("attention", "dense_ffn", "experts", "shared_experts", "lm_head")
    return ModelSpec(
        name="random",
        model_type="random",
        hidden_size=draw(st.integers(1, 128)) * 128,
        vocab_size=draw(st.integers(1000, 260000)),
        layer_groups=tuple(groups),
        precisions=WeightPrecisions(**{kind: draw(FORMATS) for kind in kinds}),
        kv_cache_precision=draw(FORMATS),
    )


def _rates(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(np.log(low), np.log(high)).map(lambda x: float(np.exp(x)))


@st.composite
def gpus(draw) -> GpuSpec:
    optional = {kind: draw(_rates(5e13, 2e16)) for kind in draw(st.sets(
        st.sampled_from(["fp8", "int8", "fp4"])
    ))}  # fmt: skip
    return GpuSpec(
        name="random",
        memory_bandwidth_bytes_per_s=draw(_rates(1e11, 3e13)),
        memory_bytes=draw(_rates(1e10, 1e12)),
        peak_flop_per_s={"bf16": draw(_rates(5e13, 1e16)), **dict(sorted(optional.items()))},
        sm_count=draw(st.integers(16, 320)),
        l2_bytes=draw(_rates(1e6, 3e8)),
        compute_capability=draw(st.sampled_from([8.0, 8.9, 9.0, 10.0, 12.0])),
        link_bandwidth_bytes_per_s=draw(_rates(1e10, 2e12)),
        pcie_bandwidth_bytes_per_s=draw(_rates(1e10, 3e11)),
        has_nvlink=draw(st.booleans()),
        source="drawn",
    )


@st.composite
def deployments(draw, one_gpu: bool = False) -> Deployment:
    """Configurations that a ``Deployment`` accepts."""
    model, gpu = draw(models()), draw(gpus())
    if model.precisions.experts.name == "mxfp4_mxfp8":
        gpu = replace(gpu, compute_capability=10.0)  # kernels exist there alone
    experts = model.moe.experts if model.moe else 10**9
    sizes = {"tensor_parallel_size": 1, "data_parallel_size": 1, "pipeline_parallel_size": 1}
    spread = draw(st.booleans()) and model.moe is not None
    if not one_gpu:
        tp = draw(st.sampled_from([n for n in (1, 2, 4, 8, 16) if _fits(model, n)]))
        spread = spread and tp <= experts
        dp = draw(st.sampled_from([n for n in (1, 2, 8) if not spread or n * tp <= experts]))
        pp = draw(st.integers(1, min(model.layers, 4)))
        sizes = dict(zip(sizes, (tp, dp, pp), strict=True))
    serving = ServingSpec(
        **sizes,
        enable_expert_parallel=spread,
        enforce_eager=draw(st.booleans()),
        cpu_offload_gb=draw(st.sampled_from([0.0, 0.0, 0.5, 40.0])),
        kv_cache_dtype=draw(st.sampled_from(["auto", "fp8", "bf16"])),
        override_generation_config=draw(st.sampled_from(["", GREEDY, '{"top_p": 0.9}'])),
    )
    return Deployment(model, gpu, serving, force=True)


@st.composite
def samplings(draw: st.DrawFn) -> Sampling:
    """Settings with which a sampler does more or less."""
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 0.6, 1.0])),
        top_k=draw(st.sampled_from([-1, 0, 20])),
        top_p=draw(st.sampled_from([0.8, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.1])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.05])),
    )


def _fits(model: ModelSpec, tp: int) -> bool:
    return all(
        g.attention.heads % tp == 0
        and (g.attention.kv_heads % tp == 0 or tp % g.attention.kv_heads == 0)
        for g in model.layer_groups
    )


def decodes() -> st.SearchStrategy[Batch]:
    return st.builds(Batch.decode, st.integers(1, 64), st.integers(0, 100_000))


def prefills() -> st.SearchStrategy[Batch]:
    return st.builds(
        Batch.prefill, st.integers(1, 8), st.integers(1, 16384), st.integers(0, 100_000)
    )


def batches() -> st.SearchStrategy[Batch]:
    """Batches with at least one request."""
    parts = st.lists(st.one_of(decodes(), prefills()), min_size=1, max_size=4)
    return parts.map(lambda found: sum(found, Batch()))


@st.composite
def networks(draw) -> CoefficientNetwork:
    """Networks with any weights: large ones saturate the bounds, small ones act near the prior."""
    size = draw(st.sampled_from([0.1, 1.0, 5.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    d, r = len(DESCRIPTORS), len(RATES)
    reach = draw(st.sampled_from([3.0, 100.0]))  # the wide box holds every deployment
    scale = InputScale(
        mean=rng.normal(5, 5, d),
        scale=rng.uniform(MIN_SCALE, 4, d),
        low=-reach * rng.uniform(0.5, 1, d),
        high=reach * rng.uniform(0.5, 1, d),
        rate_low=-rng.uniform(0, 3, r),
        rate_high=rng.uniform(0, 3, r),
    )
    settings = NetworkSettings(
        hidden=draw(st.sampled_from([1, 16])),
        depth=draw(st.integers(1, 2)),
        beta_bound=draw(st.sampled_from([0.5, 2.0])),
        corrected=draw(st.sampled_from([True, True, False])),
    )
    network = CoefficientNetwork(settings, scale).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.normal(0, size, tuple(parameter.shape))))
    return network.requires_grad_(False)
