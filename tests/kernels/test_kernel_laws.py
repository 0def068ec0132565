"""Laws that every kernel surrogate obeys, inside and far outside its training data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.errors import PinnError
from pinn.kernels.hardware import Coded
from pinn.specs.gpu import load_gpu

GPUS = st.sampled_from(["H100", "A100", "L4", "B200"]).map(load_gpu)
FORMATS = st.sampled_from(["bf16", "fp8", "int4_wo", "nvfp4", "mxfp4", "mxfp4_mxfp8", "fp8_block"])
CACHES = st.sampled_from(["bf16", "fp8"])
SIZE = st.floats(1, 2e5)
HEADS = st.sampled_from([(8, 1, 128), (64, 8, 64), (12, 12, 64), (28, 4, 128), (16, 2, 256)])
SHAPE = (4096, 1536, 128, 8)
LAW = settings(max_examples=40)
ROUNDING = 1 + 1e-12


def rising(low, factor):
    return np.array([low, low * factor])


@LAW
@given(gpu=GPUS, form=FORMATS, sizes=st.tuples(SIZE, SIZE, SIZE), axis=st.integers(0, 2),
       factor=st.floats(1, 50))  # fmt: skip
def test_multiplications_never_get_cheaper_with_size(kernels, gpu, form, sizes, axis, factor):
    arguments = [rising(s, factor) if i == axis else s for i, s in enumerate(sizes)]
    low, high = kernels.gemm.seconds(gpu, form, *arguments)
    assert 0 < low <= high * ROUNDING


@LAW
@given(gpu=GPUS, cache=CACHES, heads=HEADS, sequences=st.floats(1, 5000), context=SIZE,
       axis=st.integers(0, 1), factor=st.floats(1, 50),
       window=st.sampled_from([0, 128, 4096]))  # fmt: skip
def test_attention_never_gets_cheaper_with_sequences_or_tokens(
    kernels, gpu, cache, heads, sequences, context, axis, factor, window
):
    sizes = [rising(s, factor) if i == axis else s for i, s in enumerate((sequences, context))]
    for method in (kernels.decode_attention.seconds, kernels.prefill_attention.seconds):
        low, high = method(gpu, cache, *sizes, *heads, window)
        assert 0 < low <= high * ROUNDING


@LAW
@given(gpu=GPUS, form=FORMATS, tokens=SIZE, factor=st.floats(1, 50),
       shape=st.sampled_from([(4096, 1536, 128, 8), (7168, 2048, 384, 8), (4096, 14336, 8, 2)]),
       ranks=st.sampled_from([(1, 1), (8, 1), (1, 8)]))  # fmt: skip
def test_experts_never_get_cheaper_with_tokens(kernels, gpu, form, tokens, factor, shape, ranks):
    low, high = kernels.moe.seconds(gpu, form, rising(tokens, factor), *shape, *ranks, 3)
    assert 0 < low <= high * ROUNDING


@LAW
@given(gpu=GPUS, size=st.floats(1, 1e11), factor=st.floats(1, 50),
       ranks=st.sampled_from([2, 3, 4, 6, 8, 16]))  # fmt: skip
def test_communication_never_gets_cheaper_with_bytes(kernels, gpu, size, factor, ranks):
    for kernel in (kernels.all_reduce, kernels.fused_all_reduce):
        low, high = kernel.seconds(gpu, ranks, rising(size, factor))
        assert 0 < low <= high * ROUNDING


@LAW
@given(gpu=GPUS, cache=CACHES, sequences=st.floats(1, 2000), context=SIZE, axis=st.integers(0, 1),
       factor=st.floats(1, 50), heads=st.sampled_from([8, 16, 64, 128]))  # fmt: skip
def test_latent_attention_never_gets_cheaper(
    kernels, gpu, cache, sequences, context, axis, factor, heads
):
    sizes = [rising(s, factor) if i == axis else s for i, s in enumerate((sequences, context))]
    low, high = kernels.latent_decode_attention_seconds(gpu, cache, *sizes, heads, 512, 64)
    assert 0 < low <= high * ROUNDING


@LAW
@given(gpu=GPUS, sizes=st.tuples(st.floats(1, 2000), SIZE, st.floats(0, 2e5)),
       axis=st.integers(0, 2), factor=st.floats(1, 50),
       heads=st.sampled_from([8, 16, 64, 128]))  # fmt: skip
def test_latent_attention_of_prompts_never_gets_cheaper_or_beats_twice_the_bf16_rate(
    kernels, gpu, sizes, axis, factor, heads
):
    sequences, tokens, cached = (rising(s, factor if i == axis else 1) for i, s in enumerate(sizes))
    low, high = found = kernels.latent_prefill_attention_seconds(
        gpu, sequences, tokens, cached, heads, 192, 128
    )
    assert 0 < low <= high * ROUNDING
    flop = 2 * heads * (192 + 128) * sequences * (tokens * (tokens + 1) / 2 + tokens * cached)
    assert (found >= flop / (2 * gpu.peak_flop_per_s["bf16"])).all()


@LAW
@given(gpu=GPUS, form=st.sampled_from(["bf16", "int4_wo"]), m=SIZE, n=SIZE, k=SIZE)
def test_no_time_beats_the_datasheet(kernels, gpu, form, m, n, k):
    bytes_per_weight = {"bf16": 2.0, "int4_wo": 0.5}[form]
    floor = max(
        n * k * bytes_per_weight / gpu.memory_bandwidth_bytes_per_s,
        2 * m * n * k / gpu.peak_flop_per_s["bf16"],
    )
    assert kernels.gemm.seconds(gpu, form, m, n, k) >= floor * (1 - 1e-12)


def test_no_work_takes_no_time(kernels):
    gpu = load_gpu("H100")
    assert kernels.gemm.seconds(gpu, "bf16", 0, 4096, 4096) == 0
    assert kernels.decode_attention.seconds(gpu, "bf16", 0, 100, 8, 1, 128, 0) == 0
    assert kernels.prefill_attention.seconds(gpu, "bf16", 1, 0, 8, 1, 128, 0) == 0
    assert kernels.moe.seconds(gpu, "bf16", 0, 4096, 1536, 128, 8, 1, 1, 3) == 0
    assert kernels.all_reduce.seconds(gpu, 1, 1e6) == 0
    assert kernels.all_reduce.seconds(gpu, 8, 0) == 0
    assert kernels.fused_all_reduce.seconds(gpu, 1, 1e6) == 0
    assert kernels.fused_all_reduce.seconds(gpu, 8, 0) == 0
    assert kernels.exchange.seconds(gpu, 1, 1e6) == 0
    assert kernels.exchange.seconds(gpu, 8, 0) == 0
    assert kernels.latent_decode_attention_seconds(gpu, "bf16", 0, 100, 16, 512, 64) == 0
    assert kernels.latent_prefill_attention_seconds(gpu, 0, 100, 0, 16, 192, 128) == 0
    assert kernels.latent_prefill_attention_seconds(gpu, 1, 0, 100, 16, 192, 128) == 0


def test_arguments_broadcast_and_rows_do_not_depend_on_one_another(kernels):
    chips = Coded((load_gpu("H100"), load_gpu("A100")), np.array([[0], [1]]))
    both = kernels.moe.seconds(chips, "bf16", np.array([1, 64, 9000]), *SHAPE, 1, 1, 3)
    assert both.shape == (2, 3)
    assert both.dtype == np.float64
    alone = [kernels.moe.seconds(g, "bf16", 64, *SHAPE, 1, 1, 3) for g in chips.options]
    np.testing.assert_allclose(both[:, 1], alone, rtol=1e-12)
    assert kernels.gemm.seconds(load_gpu("H100"), "bf16", np.zeros((0, 2)), 64, 64).shape == (0, 2)


def test_random_routing_costs_less_than_even_routing_where_it_hits_fewer_experts(kernels, tables):
    """32 tokens with 4 of 128 experts hit all if distributed evenly, but 82 of them at random."""
    rows = tables.moe.query(
        "gpu == 'H100-SXM' and precision == 'bf16' and hidden == 6144 and width == 3072 and "
        "tokens == 32 and tensor_parallel == 1 and expert_parallel == 1"
    )
    served = kernels.moe.seconds(load_gpu("H100"), "bf16", 32, 6144, 3072, 128, 4, 1, 1, 3)
    assert served < 0.8 * rows["seconds"].iloc[0]


def test_wrong_sizes_and_formats_are_refused(kernels):
    gpu = load_gpu("H100")
    with pytest.raises(PinnError, match="m must be 0 or more"):
        kernels.gemm.seconds(gpu, "bf16", -1, 64, 64)
    with pytest.raises(PinnError, match="the number format 'fp7' is unknown"):
        kernels.gemm.seconds(gpu, "fp7", 1, 64, 64)
