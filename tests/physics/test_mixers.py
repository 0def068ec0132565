"""Laws of mixers other than attention over all keys."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.engines.deployment import Deployment
from pinn.physics.batch_sums import uniform_sums
from pinn.physics.costs import step_costs
from pinn.physics.step_values import decode_attention, floor_seconds, kv_read
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.mixers import LinearMixerSpec
from pinn.specs.model import LatentAttentionSpec, LayerGroup
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import STEP_FEATURES, step_features

QWEN = "Qwen/Qwen3-Next-80B-A3B-Instruct"
HYBRIDS = [
    QWEN,
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "MiniMaxAI/MiniMax-Text-01",
    "nvidia/Nemotron-H-8B-Base-8K",
    "ai21labs/Jamba-v0.1",
    "tiiuae/Falcon-H1-7B-Instruct",
    "ibm-granite/granite-4.0-h-small",
    "tiiuae/falcon-mamba-7b-instruct",
]
SPARSE = ["deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5"]
models = st.sampled_from([*HYBRIDS, *SPARSE, "google/gemma-3n-E4B-it"])
tokens = st.integers(1, 200_000)
requests = st.integers(1, 512)


@cache
def deployed(name, tp=1):
    return Deployment(load_model(name), load_gpu("H200"), ServingSpec(tensor_parallel_size=tp))


def sums_of(deployment, **batch):
    arrays = {name: np.array([float(value)]) for name, value in batch.items()}
    return uniform_sums(**arrays, window=deployment.model.window_tokens)


def features(deployment, **batch):
    return step_features(step_costs([deployment]), sums_of(deployment, **batch))[0]


def alone_with(deployment, kind):
    """Return the deployment with only the mixers of one kind."""
    groups = tuple(
        replace(g, attention=g.attention if isinstance(g.attention, kind) else None)
        for g in deployment.model.layer_groups
    )
    return replace(deployment, model=replace(deployment.model, layer_groups=groups))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(HYBRIDS), tokens, tokens, requests)
def test_a_recurrent_layer_does_not_grow_with_the_context(name, one, other, count):
    alone = alone_with(deployed(name), LinearMixerSpec)
    near = features(alone, decode_requests=count, decode_context=one)
    far = features(alone, decode_requests=count, decode_context=other)
    assert np.array_equal(near, far)


@pytest.mark.parametrize("context", [2047, 8191, 100_000])
def test_hand_count_of_what_compressed_attention_reads(context):
    """DeepSeek-V4-Flash, one GPU: windows, 512 keys of 4 tokens, all of 128; index keys, scores."""
    deployment = deployed("sgl-project/DeepSeek-V4-Flash-FP8")
    costs, keys = step_costs([deployment]), context + 1
    read_s = kv_read(costs, sums_of(deployment, decode_requests=1, decode_context=context))
    attended = 43 * 128 + 21 * 512 + 20 * keys / 128
    expected = attended * 584 + 21 * keys / 4 * (132 + 8)
    assert read_s.item() * 4.8e12 == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2046), requests)
def test_short_contexts_never_count_more_keys_than_there_are(context, count):
    deployment = deployed("sgl-project/DeepSeek-V4-Flash-FP8")
    sums = sums_of(deployment, decode_requests=count, decode_context=context)
    keys = context + 1
    there = 43 * min(keys, 128) + 21 * keys / 4 + 20 * keys / 128
    most = count * (there * 584 + 21 * keys / 4 * (132 + 8)) / 4.8e12
    assert kv_read(step_costs([deployment]), sums).item() <= most * (1 + 1e-12)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(SPARSE), tokens, requests)
def test_sparse_attention_never_reads_more_than_dense_but_its_own_index(name, context, count):
    sparse = alone_with(deployed(name, 8), LatentAttentionSpec)
    groups = tuple(
        LayerGroup(g.count, replace(g.attention, indexer=None), g.ffn)
        for g in sparse.model.layer_groups
    )
    dense = replace(sparse, model=replace(sparse.model, layer_groups=groups))
    indexers = [(g.count, g.attention.indexer) for g in sparse.model.layer_groups]
    index_bytes = sum(n * (i.key_bytes + i.score_bytes) for n, i in indexers)
    index_s = index_bytes / sparse.gpu.memory_bandwidth_bytes_per_s * count * (context + 1)
    batch = {"decode_requests": count, "decode_context": context}
    read = [kv_read(step_costs([d]), sums_of(d, **batch)).item() for d in (sparse, dense)]
    assert read[0] - index_s <= read[1] * (1 + 1e-12)
    if context >= 2048:  # beyond, the number of chosen keys is constant
        longer = {**batch, "decode_context": context + 1000}
        more = kv_read(step_costs([sparse]), sums_of(sparse, **longer)).item()
        grown = index_s * 1000 / (context + 1)
        assert more - read[0] == pytest.approx(grown, rel=1e-6)


@settings(max_examples=40, deadline=None)
@given(models, requests, tokens, tokens, st.integers(0, 4), st.integers(1, 8192))
def test_features_grow_with_requests_context_and_prompts(name, count, context, more, chunks, new):
    deployment = deployed(name, 1 if "gemma" in name or "amba" in name else 2)
    batch = {
        "decode_requests": count,
        "decode_context": context,
        "prefill_requests": chunks,
        "prefill_tokens": new,
        "prefill_cached": 100,
    }
    before = features(deployment, **batch)
    for change in (
        {"decode_requests": count + 1},
        {"decode_context": context + more},
        {"prefill_requests": chunks + 1},
        {"prefill_tokens": new + 17},
    ):
        assert (features(deployment, **(batch | change)) >= before * (1 - 1e-12)).all()


@settings(max_examples=30, deadline=None)
@given(models, requests, tokens, st.integers(0, 4), st.integers(1, 8192))
def test_roofline_features_are_at_least_the_floor(name, count, context, chunks, new):
    deployment = deployed(name)
    sums = sums_of(
        deployment,
        decode_requests=count,
        decode_context=context,
        prefill_requests=chunks,
        prefill_tokens=new,
    )
    costs = step_costs([deployment])
    floored = np.array([f.lower_bound for f in STEP_FEATURES.values()])
    assert (step_features(costs, sums)[0] @ floored) >= floor_seconds(costs, sums)[0] * (1 - 1e-12)


def test_state_bytes_by_hand():
    """36 layers have 32 16-bit states of 128 x 128 and 3 tokens of 8192 channels, both ways."""
    costs = step_costs([deployed(QWEN)])
    state = 36 * 2 * (32 * 128 * 128 * 2 + 3 * 8192 * 2)
    assert costs.windowed_kv_read_s[0] == pytest.approx(state / 4.8e12, rel=1e-3)
    sums = sums_of(deployed(QWEN), decode_requests=64, decode_context=1000)
    keys = 12 * 2 * 2 * 256 * 2 * 1001 / 4.8e12
    read = decode_attention(costs, sums).item()
    assert read == pytest.approx(64 * (state / 4.8e12 + keys), rel=1e-3)


def test_text_does_not_pass_cross_attention():
    vision = deployed("meta-llama/Llama-3.2-11B-Vision-Instruct")
    text = deployed("meta-llama/Meta-Llama-3.1-8B")
    served = replace(vision.model, sampling=text.model.sampling)
    vision = replace(vision, model=served)
    batch = {"decode_requests": 8, "decode_context": 500}
    np.testing.assert_allclose(features(vision, **batch), features(text, **batch), rtol=1e-12)
