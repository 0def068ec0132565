import math

import numpy as np
import pytest
from batch_work import batch_work

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.composition import COMPOSED_PARTS, compose
from pinn.kernels.evidence import kernels_used
from pinn.physics.batch_sums import alike
from pinn.physics.costs import UNCOMPILED
from pinn.specs.batch import Batch, parse_batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import STEP_FEATURES, step_features, step_time
from pinn.training.breakdown import (
    PART_OF_FEATURE,
    PART_OF_OPERATOR,
    PARTS,
    breakdown,
)
from pinn.training.teacher import Teacher, prior_scalars, saved_scalars

DENSE, MOE, LATENT = "meta-llama/Llama-3.1-8B", "openai/gpt-oss-20b", "deepseek-ai/DeepSeek-V3"
MIXED = "1 prefill 512 @ 100 + 16 decode @ 600"
PRIORS = np.array([f.prior for f in STEP_FEATURES.values()])


def on_h100(name: str, **serving) -> Deployment:
    return Deployment(load_model(name), load_gpu("H100"), ServingSpec(**serving))


def test_every_feature_and_operator_belongs_to_a_part_in_their_order():
    assert list(PART_OF_FEATURE) == list(STEP_FEATURES)
    assert list(PART_OF_OPERATOR) == list(COMPOSED_PARTS)
    assert set(PART_OF_FEATURE.values()) == set(PARTS) - {"weights", "matmul_arithmetic"} | {
        "gemm",
        "weights",
    }


@pytest.mark.parametrize("name", [DENSE, MOE, LATENT])
@pytest.mark.parametrize("batch", ["64 decode @ 2000", MIXED])
@pytest.mark.parametrize("eager", [False, True])
def test_parts_add_up_to_the_step(h100_kernels, name, batch, eager):
    ranks = 8 if name == LATENT else 2
    deployment = on_h100(name, tensor_parallel_size=ranks, enforce_eager=eager)
    teacher = Teacher(h100_kernels, prior_scalars())
    found = breakdown(deployment, batch, PRIORS, teacher)
    features = step_features(*batch_work(deployment, [parse_batch(batch)]))
    whole = step_time(features, PRIORS).item()
    assert sum(found.network.values()) == pytest.approx(whole)
    assert sum(found.features.values()) == pytest.approx(whole)
    parts = compose(h100_kernels, deployment, alike([parse_batch(batch)]))
    expected = teacher.scalars.step_seconds(parts, features).item()
    assert sum(found.composed.values()) == pytest.approx(expected)
    for values in (found.network, found.composed):
        assert list(values) == list(PARTS)
        assert min(values.values()) >= -1e-15
    assert found.floor <= sum(found.network.values())


def test_one_token_is_all_weights_and_more_tokens_only_add_arithmetic(h100_kernels):
    deployment, teacher = on_h100(DENSE), Teacher(h100_kernels, prior_scalars())
    one, many = (
        breakdown(deployment, batch, PRIORS, teacher)
        for batch in ("1 decode @ 0", "1 prefill 4096 @ 0")
    )
    for side in ("network", "composed"):
        alone, together = getattr(one, side), getattr(many, side)
        assert alone["matmul_arithmetic"] == 0
        assert together["weights"] == pytest.approx(alone["weights"])
        assert together["matmul_arithmetic"] > together["weights"]


def test_launching_counts_where_the_gpu_waits_for_it(h100_kernels):
    """A decode of a small model, launched one by one; a prompt so long that launching hides."""
    deployment = on_h100(DENSE, enforce_eager=True)
    teacher = Teacher(h100_kernels, prior_scalars())
    short, long = (
        breakdown(deployment, batch, PRIORS, teacher)
        for batch in ("1 decode @ 0", "1 prefill 8192 @ 0")
    )
    launched = UNCOMPILED * 32 * STEP_FEATURES["launched_layer"].prior
    for values in (short.network, short.composed):
        assert sum(values.values()) - values["host"] == pytest.approx(launched)
        assert values["launching"] > 0
    assert short.features["launched_layer"] == short.network["launching"]
    assert long.network["launching"] == long.composed["launching"] == 0


def test_parts_that_a_step_does_not_have_take_no_time(h100_kernels):
    teacher = Teacher(h100_kernels, prior_scalars())
    found = breakdown(on_h100(DENSE), "8 decode @ 500", PRIORS, teacher)
    for values in (found.network, found.composed):
        for part in ("experts", "prefill_attention", "communication"):
            assert values[part] == 0


def test_without_kernels_the_network_accounts_alone():
    found = breakdown(on_h100(DENSE), MIXED, PRIORS)
    assert found.composed is None
    assert found.kernels == ()
    with pytest.raises(PinnError, match="is empty"):
        breakdown(on_h100(DENSE), "0 decode @ 5", PRIORS)


HYBRID, SPARSE, LIGHTNING = (
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "zai-org/GLM-5-FP8", "MiniMaxAI/MiniMax-Text-01"
)  # fmt: skip
COMPRESSED = "sgl-project/DeepSeek-V4-Flash-FP8"


@pytest.mark.parametrize(
    "name", [DENSE, MOE, LATENT, "MiniMaxAI/MiniMax-M2.5", HYBRID, SPARSE, LIGHTNING, COMPRESSED]
)
def test_the_kernels_used_add_up_to_the_composed_parts(h100_kernels, name):
    deployment = on_h100(
        name, tensor_parallel_size=4, data_parallel_size=2 if name == MOE else 1,
        enable_expert_parallel=name == MOE,
    )  # fmt: skip
    batch = alike([parse_batch(MIXED)])
    used = kernels_used(h100_kernels, deployment, batch)
    parts = compose(h100_kernels, deployment, batch)[0]
    for operator, seconds in zip(COMPOSED_PARTS, parts, strict=True):
        mine = [use.total_seconds for use in used if use.operator == operator]
        # Sampling was not measured.
        assert sum(mine) == pytest.approx(0.0 if operator == "sampling" else seconds)
    assert sorted(used, key=lambda use: -use.total_seconds) == used


def test_mixers_run_as_they_were_timed_and_at_the_datasheets_rates_where_nobody_timed_them(
    h100_kernels,
):
    batch = alike([parse_batch(MIXED)])
    forms = {}
    for name in (HYBRID, SPARSE, LIGHTNING, COMPRESSED):
        used = kernels_used(h100_kernels, on_h100(name, tensor_parallel_size=4), batch)
        forms |= {use.precision: use.nearest for use in used if "attention" in use.operator}
    timed = {"gated delta decode", "gated delta scan", "indexer scores", "sparse attention"}
    timed |= {"CSA decode", "CSA prompt", "HCA decode", "HCA prompt"}
    assert timed < set(forms)
    assert all(forms[name].gpu == "H100-SXM" for name in timed)
    assert forms["lightning"] is None


def test_a_hybrid_model_that_drafts_has_kernels_too(h100_kernels):
    flags = {"speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}'}
    drafting, plain = (on_h100(HYBRID, tensor_parallel_size=4, **more) for more in (flags, {}))
    batch = alike([parse_batch(MIXED)])
    assert kernels_used(h100_kernels, drafting, batch) == kernels_used(h100_kernels, plain, batch)


def test_the_nearest_kernel_and_its_stretch_come_with_each(h100_kernels):
    used = kernels_used(
        h100_kernels, on_h100(DENSE, tensor_parallel_size=2), alike([parse_batch(MIXED)])
    )
    for use in used:
        assert use.nearest.gpu == "H100-SXM"
        for size, near in use.nearest.shape.items():
            ratio = (use.sizes[size] + 1) / (near + 1)
            assert abs(math.log(ratio)) <= use.nearest.stretch + 1e-9
    head = next(use for use in used if use.sizes.get("n", 0) > 60_000)
    assert head.count == 1
    assert head.sizes["m"] == 17


def test_a_format_without_kernels_is_nearest_to_the_one_it_runs_as(h100_kernels):
    used = kernels_used(
        h100_kernels, on_h100(LATENT, tensor_parallel_size=8), alike([parse_batch(MIXED)])
    )
    blocks = [u for u in used if u.operator == "gemm" and u.precision == "fp8_block"]
    assert {u.nearest.precision for u in blocks} == {"fp8"}


def test_equal_requests_keep_tokens_and_pairs_of_unequal_ones():
    batch = parse_batch("1 prefill 512 @ 0 + 1 prefill 128 @ 3000 + 2 decode @ 10 + 2 decode @ 30")
    exact, equal = batch_work(on_h100(DENSE), [batch])[1], alike([batch]).sums()
    for name in ("tokens", "requests", "decode_context"):
        np.testing.assert_allclose(getattr(equal, name), getattr(exact, name))
    # Each chunk of p tokens also attends to itself: p / 2 pairs beside (p^2 + 2 p s) / 2.
    np.testing.assert_allclose(equal.prefill_pairs, exact.prefill_pairs)
    one = alike([Batch.decode(3, 7), Batch.prefill(2, 5, 9)])
    assert one.decode_context.tolist() == [7, 0]
    assert one.prefill_cached.tolist() == [0, 9]


def test_scalars_come_back_from_a_checkpoint():
    scalars = prior_scalars()
    again = saved_scalars(scalars.to_json())
    np.testing.assert_array_equal(again.multipliers, scalars.multipliers)
    np.testing.assert_array_equal(again.overheads, scalars.overheads)
    with pytest.raises(PinnError, match="train the checkpoint again"):
        saved_scalars({"multipliers": {"gemm": 1.0}, "overheads": {}})
