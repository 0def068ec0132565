"""Experts' kernels that the engine would not pick by itself: their rows, fit and steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pinn.engines.deployment import Deployment
from pinn.engines.kernel_choice import CUTLASS, MARLIN_FORMAT, TRITON, as_in_tables
from pinn.kernels.composition import COMPOSED_PARTS, compose
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogate import OtherExperts
from pinn.kernels.surrogates import KernelSurrogates
from pinn.kernels.tables.gemm import read_other_experts
from pinn.physics.batch_sums import UniformBatches
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.precision import precision
from pinn.specs.serving import ServingSpec

MINIMAX = load_model("MiniMaxAI/MiniMax-M2.5")
SHAPE = (3072, 1536, 256, 8)
TOKENS = np.array([1.0, 8, 64, 256, 257, 1024, 16384, 1e6])
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def shipped() -> KernelSurrogates:
    """Return the surrogates of the repository."""
    return KernelSurrogates.load(ROOT / "checkpoints" / "kernels" / "all")


@pytest.fixture(scope="module")
def timed() -> pd.DataFrame:
    """Return the rows of CUTLASS's experts on the H100."""
    return read_other_experts({"h100_sxm": load_gpu("H100")})[0]


def extra(fits: OtherExperts, gpu: str, kernels: str) -> np.ndarray:
    return fits.extra_seconds(load_gpu(gpu), "fp8_block", kernels, TOKENS, *SHAPE, 1, 1, 3)


BLOCK = "fp8_block"
BLACKWELL = ("B200-SXM", "B300-SXM", "GB200", "GB300")


def test_a_fit_finds_the_weights_that_rows_were_made_of(shipped, timed):
    gpus = {"H100-SXM": load_gpu("H100")}
    own = shipped.moe.seconds_as_measured(timed, gpus)
    alone = OtherExperts.fit(timed.assign(seconds=own), gpus, shipped.moe)
    np.testing.assert_allclose(alone.weights["H100-SXM", CUTLASS, BLOCK], 0, atol=1e-9)
    launches = OtherExperts.fit(timed.assign(seconds=own + 5e-5), gpus, shipped.moe)
    expected = np.array([5.0, 0, 0, 0, 0, 0, 0])  # launches of 10 us
    np.testing.assert_allclose(launches.weights["H100-SXM", CUTLASS, BLOCK], expected, atol=1e-6)
    assert OtherExperts.fit(timed.iloc[:0], gpus, shipped.moe).weights == {}


def test_every_chip_that_was_timed_has_weights_and_none_is_negative(shipped):
    found = shipped.other_experts.weights
    assert set(found) == {
        *((chip, CUTLASS, BLOCK) for chip in ("*", "H100-SXM", "H200-SXM")),
        *((chip, TRITON, BLOCK) for chip in ("*", *BLACKWELL)),
        *((chip, CUTLASS, "nvfp4") for chip in ("*", *BLACKWELL)),
    }
    assert all((weights >= 0).all() and weights.any() for weights in found.values())


def test_a_chip_that_was_not_timed_takes_the_pool_and_without_a_pool_nothing_is_added(shipped):
    fits = shipped.other_experts
    pooled = OtherExperts({key: fits.weights[key] for key in fits.weights if key[0] == "*"})
    np.testing.assert_array_equal(extra(fits, "H800", CUTLASS), extra(pooled, "H800", CUTLASS))
    assert (extra(fits, "H100", CUTLASS) != extra(pooled, "H100", CUTLASS)).any()
    assert (extra(OtherExperts(), "H100", CUTLASS) == 0).all()


@pytest.mark.parametrize(
    ("gpu", "kernels", "form"),
    [("H100", CUTLASS, BLOCK), ("B200", TRITON, BLOCK), ("GB300", CUTLASS, "nvfp4")],
)
@pytest.mark.parametrize("ranks", [(1, 1), (8, 1), (1, 8)])
def test_other_kernels_take_no_less_and_never_get_cheaper_with_tokens(
    shipped, gpu, kernels, form, ranks
):
    chip, tokens = load_gpu(gpu), np.array([0, *TOKENS])
    own = shipped.moe.seconds(chip, form, tokens, *SHAPE, *ranks, 3)
    other = shipped.other_experts_seconds(chip, form, kernels, tokens, *SHAPE, *ranks, 3)
    assert (other >= own).all()
    assert (np.diff(other) > 0).all()
    assert other[0] == 0


def test_rows_of_a_held_out_model_or_gpu_are_left_out_of_the_fit(tables, timed):
    def like_minimax(rows: pd.DataFrame) -> pd.Series:
        return (rows["hidden"] == 3072) & (rows["width"] == 1536) & (rows["experts"] == 256)

    assert like_minimax(timed).any()
    kept = Exclusion(models=(MINIMAX,)).apply(tables).other_experts
    assert 0 < len(kept) < len(timed)
    assert not like_minimax(kept).any()
    assert len(Exclusion(gpus=("H100-SXM",)).apply(tables).other_experts) == 0


def test_mxfp4_experts_by_marlin_take_what_those_in_int4_take(shipped):
    gpt_oss, chip = load_model("openai/gpt-oss-120b"), load_gpu("H200")
    formats = replace(gpt_oss.precisions, experts=precision(MARLIN_FORMAT))
    asked = (
        (gpt_oss, ServingSpec(tensor_parallel_size=2, moe_backend="marlin")),
        (replace(gpt_oss, precisions=formats), ServingSpec(tensor_parallel_size=2)),
        (gpt_oss, ServingSpec(tensor_parallel_size=2)),
    )
    tokens = np.array([4.0, 128, 8192])
    none = np.zeros_like(tokens)
    batches = UniformBatches(none, none, none + 1, tokens, none)
    marlin, int4, own = (compose(shipped, Deployment(m, chip, s), batches) for m, s in asked)
    np.testing.assert_array_equal(marlin, int4)
    experts = list(COMPOSED_PARTS).index("experts")
    assert marlin[-1, experts] > 1.1 * own[-1, experts]


def test_cutlass_in_four_bits_takes_a_time_for_each_expert_of_a_rank(shipped):
    """TensorRT-LLM 1.3.0rc20 on GB300, one token: 61, 44 and 37 us with 256, 128 and 64 experts."""
    chip, one = load_gpu("GB300"), np.array([1.0])
    held = [
        shipped.other_experts_seconds(chip, "nvfp4", CUTLASS, one, *SHAPE, 1, spread, 3)[0]
        for spread in (1, 2, 4)
    ]
    np.testing.assert_allclose(held, [61.2e-6, 44.3e-6, 36.6e-6], rtol=0.3)
    own = [shipped.moe.seconds(chip, "nvfp4", one, *SHAPE, 1, n, 3)[0] for n in (1, 2, 4)]
    extra = np.subtract(held, own)
    assert extra[0] - extra[1] == pytest.approx(2 * (extra[1] - extra[2]), rel=0.05)


@pytest.mark.parametrize(("gpu", "kernels"), [("B200", TRITON), ("H200", CUTLASS)])
def test_a_step_by_other_kernels_is_longer_in_its_experts_alone(shipped, gpu, kernels):
    """This holds from 128 tokens on; with fewer, a step on B200 may take equally long."""
    chip = load_gpu(gpu)
    serving = ServingSpec(tensor_parallel_size=4, moe_backend=as_in_tables(chip))
    own = Deployment(MINIMAX, chip, serving)
    other = replace(own, serving=replace(own.serving, moe_backend=kernels))
    tokens = np.array([128.0, 512, 1024, 4096])
    none = np.zeros_like(tokens)
    batches = UniformBatches(none, none, none + 1, tokens, none)
    before, after = (compose(shipped, each, batches) for each in (own, other))
    experts = list(COMPOSED_PARTS).index("experts")
    assert (after[..., experts] > 1.1 * before[..., experts]).all()
    rest = [i for i in range(len(COMPOSED_PARTS)) if i != experts]
    np.testing.assert_array_equal(after[..., rest], before[..., rest])
