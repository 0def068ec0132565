from dataclasses import replace

import numpy as np
import pytest

from pinn.engines.deployment import Deployment
from pinn.kernels.all_reduce import SIZES_BYTES, AllReduce
from pinn.kernels.composition import COMPOSED_PARTS, NORM_SECONDS, compose, compose_many
from pinn.physics.batch_sums import UniformBatches, sample_batches
from pinn.physics.cost_facts import sampler_time
from pinn.physics.costs import step_costs
from pinn.physics.step_values import floor_seconds
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.model import GREEDY
from pinn.specs.model_variants import with_precision
from pinn.specs.precision import FP32_PRODUCT
from pinn.specs.serving import ServingSpec

DENSE, MOE, LATENT = "meta-llama/Llama-3.1-8B", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3"
FP32_ROUTER = "MiniMaxAI/MiniMax-M2.5"
COMPRESSED = "sgl-project/DeepSeek-V4-Flash-FP8"


def on_h100(name: str, **serving) -> Deployment:
    return Deployment(load_model(name), load_gpu("H100"), ServingSpec(**serving))


def one(decodes=0, context=0, chunks=0, tokens=0, cached=0) -> UniformBatches:
    return UniformBatches(
        *(np.array([float(x)]) for x in (decodes, context, chunks, tokens, cached))
    )


def part(parts, name: str) -> np.ndarray:
    return parts[..., list(COMPOSED_PARTS).index(name)]


@pytest.mark.parametrize("name", [DENSE, MOE, LATENT, COMPRESSED])
def test_composed_steps_stay_above_the_floor(h100_kernels, name):
    deployment = on_h100(name, tensor_parallel_size=4)
    batches = sample_batches(0)
    seconds = compose(h100_kernels, deployment, batches).sum(-1)
    sums = batches.sums(deployment.model.window_tokens)
    assert (seconds >= floor_seconds(step_costs([deployment]), sums) * (1 - 1e-9)).all()


def test_a_mixed_step_reads_its_weights_once(h100_kernels):
    deployment = on_h100(DENSE)
    decode, prefill, mixed = (
        part(compose(h100_kernels, deployment, batch), "gemm")[0]
        for batch in (one(8, 500), one(chunks=1, tokens=64), one(8, 500, 1, 64))
    )
    assert mixed < 0.75 * (decode + prefill)


def test_a_router_in_fp32_takes_its_arithmetic_outside_the_tensor_cores(h100_kernels):
    router, batch = FP32_PRODUCT, one(chunks=1, tokens=8192)
    slow, fast = (
        on_h100(FP32_ROUTER, tensor_parallel_size=4, float32_matmul_precision=name)
        for name in ("highest", "high")
    )
    more = part(compose(h100_kernels, slow, batch) - compose(h100_kernels, fast, batch), "gemm")
    rate = slow.gpu.matmul_flop_per_s(router)
    arithmetic = 62 * 2 * 8192 * 3072 * 256 / rate
    assert 0.6 * arithmetic < more[0] < arithmetic  # a 16-bit product takes the rest
    decode = [part(compose(h100_kernels, each, one(1, 500)), "gemm")[0] for each in (slow, fast)]
    assert decode[0] == pytest.approx(decode[1], rel=0.05)


def test_attention_of_a_mixed_step_is_that_of_both_phases(h100_kernels):
    deployment = on_h100(DENSE)
    mixed = compose(h100_kernels, deployment, one(8, 500, 1, 64, 128))
    assert part(mixed, "decode_attention") == pytest.approx(
        part(compose(h100_kernels, deployment, one(8, 500)), "decode_attention")
    )
    assert part(mixed, "prefill_attention") == pytest.approx(
        part(
            compose(h100_kernels, deployment, one(chunks=1, tokens=64, cached=128)),
            "prefill_attention",
        )
    )


@pytest.mark.parametrize(("gpu", "splits_keys"), [("A100", False), ("H100", True)])
def test_a_short_chunk_takes_as_long_as_a_block_that_passes_over_all_keys(
    h100_kernels, gpu, splits_keys
):
    deployment = replace(on_h100(DENSE, tensor_parallel_size=8), gpu=load_gpu(gpu))
    short, shorter, longer, several = (
        part(compose(h100_kernels, deployment, batch), "prefill_attention")[0]
        for batch in (
            one(chunks=1, tokens=16, cached=16_000), one(chunks=1, tokens=4, cached=16_000),
            one(chunks=1, tokens=16, cached=64_000), one(chunks=4, tokens=16, cached=16_000),
        )
    )  # fmt: skip
    seconds = h100_kernels.prefill_attention.seconds
    fresh = 32 * float(seconds(deployment.gpu, "bf16", 1, 4096, 1, 1, 128, 0))
    if splits_keys:
        assert short < 2 * fresh
    else:
        assert short == pytest.approx(shorter, rel=0.01)
        assert 2 * fresh < short < 4 * fresh  # four times the keys, one launch
        assert longer == pytest.approx(4 * short, rel=0.2)
        assert several == pytest.approx(short, rel=0.2)


def test_a_chunk_of_latent_attention_expands_and_attends_to_what_is_cached(h100_kernels):
    deployment = on_h100(LATENT, tensor_parallel_size=8)
    fresh, later, longer = (
        compose(h100_kernels, deployment, one(chunks=1, tokens=2048, cached=cached))
        for cached in (0, 8192, 65536)
    )
    layers, heads, rate = 61, 16, deployment.gpu.peak_flop_per_s["bf16"]
    pairs = 2048 * (65536 - 8192)
    least = layers * 2 * heads * (192 + 128) * pairs / (2 * rate)
    assert part(longer, "prefill_attention") - part(later, "prefill_attention") > least
    up = layers * 2 * 512 * heads * (128 + 128) * (65536 - 8192) / (2 * rate)
    assert part(longer, "gemm") - part(later, "gemm") > up
    assert part(later, "gemm") > part(fresh, "gemm")


def test_compressed_attention_takes_what_its_modules_took(h100_kernels):
    """Check one decode at 4,096 on an H100, TP 8: 92 us in 21 sparse layers, 49 in 22 (tables)."""
    deployment = on_h100(COMPRESSED, tensor_parallel_size=8)
    whole = compose(h100_kernels, deployment, one(1, 4096))
    groups = deployment.model.layer_groups
    bare = replace(deployment.model, layer_groups=tuple(replace(g, attention=None) for g in groups))
    without = compose(h100_kernels, replace(deployment, model=bare), one(1, 4096))
    modules = sum(part(whole, name) - part(without, name) for name in ("gemm", "decode_attention"))
    assert modules == pytest.approx((21 * 91.9 + 22 * 49.0) * 1e-6, rel=0.2)


def test_residual_streams_are_mixed_around_each_half_of_a_layer(h100_kernels):
    deployment = on_h100(COMPRESSED, tensor_parallel_size=8)
    single = replace(deployment, model=replace(deployment.model, streams=0))
    for tokens in (1, 64, 8192):
        batch = one(chunks=1, tokens=tokens)
        mixed, plain = (compose(h100_kernels, each, batch) for each in (deployment, single))
        added = part(mixed, "gemm") - part(plain, "gemm")
        assert (added > 43 * 1e-5).all()  # two launches of 5 us before, two after
        assert mixed.sum() - plain.sum() == pytest.approx(added.item())


def test_eight_bit_activations_make_mxfp4_experts_multiply_faster(h100_kernels):
    """Check times by the roofline bound alone: these surrogates are fitted to no such kernel."""
    bf16, mxfp8 = (
        Deployment(with_precision(load_model(MOE), label), load_gpu("B200"), ServingSpec())
        for label in ("bf16", "mxfp4_mxfp8")
    )
    batch = one(chunks=1, tokens=16384)
    slow, fast = compose_many(h100_kernels, [bf16, mxfp8], [batch, batch])
    assert part(fast, "experts") < part(slow, "experts")


def test_sampling_moves_the_logits_of_every_request(h100_kernels):
    for override, size, step in ((GREEDY, 14, 1.42e-5), ('{"top_p": 0.9}', 493.4, 2.349e-4)):
        deployment = on_h100(DENSE, generation_config="vllm", override_generation_config=override)
        seconds = part(compose(h100_kernels, deployment, one(8, 500)), "sampling")
        bandwidth = deployment.gpu.memory_bandwidth_bytes_per_s
        assert seconds == pytest.approx(step + 8 * 128256 * size / bandwidth, rel=1e-3)


def test_sampling_grows_with_requests_and_vocabulary(h100_kernels):
    deployment = on_h100(DENSE)
    wider = replace(deployment, model=replace(deployment.model, vocab_size=256512))
    one_more, few, many = (
        part(compose(h100_kernels, deployment, one(n, 500)), "sampling") for n in (9, 8, 24)
    )
    assert many - few == pytest.approx(16 * (one_more - few))
    # A larger vocabulary lengthens all but the launches.
    twice = part(compose(h100_kernels, wider, one(8, 500)), "sampling")
    launches_s = sampler_time(deployment.sampling).launch_s
    assert twice - launches_s == pytest.approx(2 * (few - launches_s))


def made_all_reduces(kernels, ranks: int):
    """The surrogates with all-reduces of 100 us by vLLM's kernel and of 10 by the fused one."""
    flat = {
        name: AllReduce({("H100-SXM", ranks): np.full(len(SIZES_BYTES), seconds)})
        for name, seconds in (("all_reduce", 100e-6), ("fused_all_reduce", 10e-6))
    }
    return replace(kernels, **flat)


@pytest.mark.parametrize(("tp", "tokens"), [(4, 256), (8, 64)])
def test_a_message_that_is_fused_takes_the_fused_curve_and_a_larger_one_vllms_own(
    h100_kernels, tp, tokens
):
    """vLLM 0.19 fuses up to 2 MiB on 4 H100 and 0.5 on 8; Llama 8B sends 8 KiB per token."""
    flags = {"tensor_parallel_size": tp, "engine_version": "0.19.0"}
    made = made_all_reduces(h100_kernels, tp)
    for size, seconds in ((1, 10e-6), (tokens, 10e-6), (tokens + 1, 100e-6), (8 * tokens, 100e-6)):
        found = compose(made, on_h100(DENSE, **flags), one(size, 500))
        assert part(found, "all_reduce") == pytest.approx(65 * seconds)
        alone = compose(made, on_h100(DENSE, **flags, fuse_all_reduce=False), one(size, 500))
        assert part(alone, "all_reduce") == pytest.approx(65 * 100e-6)


def test_messages_of_full_width_norms_are_fused_with_nothing(h100_kernels):
    """MiniMax-M2.5: 125 messages of hidden states, and one of sums of squares in 62 layers."""
    deployment = on_h100(
        "MiniMaxAI/MiniMax-M2.5", tensor_parallel_size=4, engine_version="0.19.0",
    )  # fmt: skip
    found = compose(made_all_reduces(h100_kernels, 4), deployment, one(1, 500))
    norms = 62 * (100e-6 + NORM_SECONDS)
    assert part(found, "all_reduce") == pytest.approx(125 * 10e-6 + norms)


def test_another_engines_unfused_all_reduce_saves_its_share_of_vllms(h100_kernels):
    """SGLang's own takes 0.66 of vLLM's, and as TensorRT-LLM's kernel does where it is fused."""
    made = made_all_reduces(h100_kernels, 4)
    for fuse, seconds in ((False, 66e-6), (True, 10e-6)):
        flags = {"tensor_parallel_size": 4, "engine": "sglang", "fuse_all_reduce": fuse}
        found = compose(made, on_h100(DENSE, **flags), one(1, 500))
        assert part(found, "all_reduce") == pytest.approx(65 * seconds)


def test_one_gpu_communicates_nothing(h100_kernels):
    parts = compose(h100_kernels, on_h100(MOE), sample_batches(1))
    assert (part(parts, "all_reduce") == 0).all()
    assert (part(parts, "exchange") == 0).all()


def test_a_dense_model_has_no_experts(h100_kernels):
    assert (part(compose(h100_kernels, on_h100(DENSE), sample_batches(1)), "experts") == 0).all()


def test_many_deployments_together_are_each_alone(h100_kernels):
    deployments = [
        on_h100(DENSE, tensor_parallel_size=2),
        on_h100(MOE, tensor_parallel_size=2, data_parallel_size=2, enable_expert_parallel=True),
        on_h100(LATENT, tensor_parallel_size=8),
        on_h100("MiniMaxAI/MiniMax-M2.5", tensor_parallel_size=4, moe_backend="auto"),
        on_h100("MiniMaxAI/MiniMax-M2.5", tensor_parallel_size=4, moe_backend="cutlass"),
    ]
    batches = [sample_batches(i) for i in range(len(deployments))]
    together = compose_many(h100_kernels, deployments, batches)
    for parts, deployment, batch in zip(together, deployments, batches, strict=True):
        np.testing.assert_allclose(parts, compose(h100_kernels, deployment, batch), rtol=1e-12)
