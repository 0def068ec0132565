"""A chunk of a prompt lasts as long as one thread block takes to pass over all its keys."""

from itertools import pairwise

import numpy as np
import pytest
from batch_work import batch_work

from pinn.engines.deployment import Deployment
from pinn.kernels.tables.tables import read_kernel_tables
from pinn.physics.costs import step_costs
from pinn.specs.batch import Batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import STEP_FEATURES, step_features

QWEN_32B, WINDOWED, LATENT = "Qwen/Qwen3-32B", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3"


def deploy(name: str, gpu: str, tp: int = 8) -> Deployment:
    return Deployment(load_model(name), load_gpu(gpu), ServingSpec(tensor_parallel_size=tp))


def key_s(name: str, gpu: str, tp: int = 8) -> float:
    return float(step_costs([deploy(name, gpu, tp)]).prefill_key_s[0])


def attention_s(deployment: Deployment, *batches: Batch) -> np.ndarray:
    values = step_features(*batch_work(deployment, list(batches)))
    return values[:, list(STEP_FEATURES).index("prefill_attention")]


def test_a_key_of_a_block_by_hand():
    # B300: 148 multiprocessors, 2.25 PFLOP/s. A block has 256 queries of one head, whose keys and
    # values have 128 elements each: 4 x 128 FLOP a pair, in 64 layers. Alone it takes 0.8 times as
    # long. It does not depend on the number of heads, that is, on the tensor-parallel size.
    expected = 0.8 * 256 * 4 * 128 * 64 * 148 / load_gpu("B300").peak_flop_per_s["bf16"]
    for tp in (1, 2, 8):
        assert key_s(QWEN_32B, "B300", tp) == pytest.approx(expected)


def test_only_layers_over_all_keys_count():
    assert key_s(LATENT, "B300") == 0
    # Every second of gpt-oss's 36 layers has a window. Its heads have 64 elements.
    per_layer = key_s(QWEN_32B, "B300") / 64
    assert key_s(WINDOWED, "B300") == pytest.approx(18 * per_layer / 2)


def test_hopper_splits_keys_over_blocks():
    assert key_s(QWEN_32B, "H100") == key_s(QWEN_32B, "H200") == 0
    assert key_s(QWEN_32B, "A100") > 0


def test_a_short_chunk_after_many_cached_tokens_takes_one_pass():
    deployment = deploy(QWEN_32B, "B300")
    one, more, longer = attention_s(
        deployment, Batch.prefill(1, 4, 16000), Batch.prefill(1, 60, 16000),
        Batch.prefill(1, 4, 32000),
    )  # fmt: skip
    assert one == pytest.approx(key_s(QWEN_32B, "B300") * 16004)
    assert more == pytest.approx(one, rel=0.01)
    assert longer == pytest.approx(2 * one, rel=0.01)


def test_blocks_of_several_chunks_run_at_the_same_time():
    deployment, chunk = deploy(QWEN_32B, "B300"), Batch.prefill(1, 4, 16000)
    alone, several, with_shorter = attention_s(
        deployment, chunk, Batch.prefill(3, 4, 16000), chunk + Batch.prefill(2, 4, 1000)
    )
    assert alone == several == with_shorter


def test_long_chunks_are_bound_by_arithmetic():
    deployment = deploy(QWEN_32B, "B300", 1)
    (found,) = attention_s(deployment, Batch.prefill(1, 8192, 0))
    assert found == pytest.approx(step_costs([deployment]).prefill_pair_s[0] * 8192 * 8193 / 2)


@pytest.mark.parametrize(
    "gpu", ["a100_sxm", "l40s", "b200_sxm", "b300_sxm", "gb200", "gb300", "rtx_pro_6000_server"]
)
def test_the_pass_is_that_of_measured_prompts_with_one_head(gpu):
    """One head leaves most multiprocessors idle: its last block's pass is the kernel's time."""
    chip = load_gpu(gpu)
    tables = read_kernel_tables({gpu: chip})
    rows = tables.prefill_attention
    rows = rows.query("head_dim == 128 and window == 0 and kv_precision == 'bf16'")
    flop = 4.0 * 128 * rows["heads"] * rows["sequences"] * rows["tokens"] * (rows["tokens"] + 1) / 2
    share = flop / rows["seconds"] / chip.peak_flop_per_s["bf16"]
    full = share[(rows["tokens"] >= 4096) & (rows["sequences"] * rows["heads"] >= 64)].median()
    lone = rows[(rows["sequences"] * rows["heads"] == 1) & (rows["tokens"] == 8192)]
    measured = (lone["seconds"] / lone["tokens"]).median()
    per_key = key_s(QWEN_32B, gpu) / 64 / full  # at the rate that the kernel reaches in a full GPU
    assert per_key == pytest.approx(measured, rel=0.25)


def test_time_never_decreases_with_cached_tokens():
    for gpu in ("A100", "H100", "L40S", "B200"):
        chunks = [Batch.prefill(2, 256, cached) for cached in (0, 1, 100, 4096, 65536)]
        for less, more in pairwise(attention_s(deploy(QWEN_32B, gpu), *chunks)):
            assert less <= more
