from dataclasses import replace

import numpy as np

from pinn.engines.kernel_choice import AUTO, CUTLASS, TRITON, as_in_tables
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.model import MoeFfnSpec, mixer_names
from pinn.specs.serving import ServingSpec
from pinn.training.kernel_data import KernelSettings, training_deployments
from pinn.training.synthetic import (
    OTHER_RATES,
    TAUGHT_RELEASES,
    by_all_kernels,
    catalog_deployments,
    catalog_models,
    synthetic_deployments,
    weight_bytes,
)
from pinn.training.synthetic_models import ACTIVE_WIDTHS, DENSE_WIDTHS

GPUS = [load_gpu("H100"), load_gpu("B200")]


def chip(deployment):
    """Return the name of a deployment's GPU, or of the GPU that its synthetic GPU is like."""
    return deployment.gpu.name.removesuffix(" like")


def test_the_same_seed_draws_the_same_deployments():
    assert synthetic_deployments(40, GPUS, 3) == synthetic_deployments(40, GPUS, 3)
    assert synthetic_deployments(40, GPUS, 3) != synthetic_deployments(40, GPUS, 4)


def test_more_deployments_keep_the_first_ones():
    assert synthetic_deployments(40, GPUS, 3)[:10] == synthetic_deployments(10, GPUS, 3)


def test_weights_fit_in_memory():
    """Check room for keys and values in vLLM's share of the memory."""
    for drawn in (synthetic_deployments(100, GPUS, 0), catalog_deployments(200, GPUS, 0)):
        room = [d.recipe.memory_share * d.gpu.memory_bytes for d in drawn]
        left = np.array(room) - [weight_bytes(d) for d in drawn]
        assert (left > 0.04 * np.array([d.gpu.memory_bytes for d in drawn])).all()
        # Large models are drawn, too: they fill a good part of the memory.
        assert (left / room < 0.4).any()


def test_no_split_of_a_model_holds_less_of_it_than_its_share():
    """Check that models skipped by a quick estimate of their share would not fit."""
    for d in synthetic_deployments(100, GPUS, 0):
        ranks = d.serving.tensor_parallel_size * d.serving.data_parallel_size
        whole = ServingSpec(engine_version=d.serving.engine_version)
        held = weight_bytes(replace(d, serving=whole, force=True)) / ranks
        assert held <= weight_bytes(d) * (1 + 1e-12)


def test_draws_span_experts_latent_attention_windows_and_parallelism():
    drawn = synthetic_deployments(300, GPUS, 0)
    assert {d.serving.tensor_parallel_size for d in drawn} == {1, 2, 4, 8}
    assert any(d.recipe.expert_parallel_size > 1 for d in drawn)
    assert {d.model.moe is None for d in drawn} == {True, False}
    assert {"latent" in mixer_names(d.model) for d in drawn} == {True, False}
    assert {d.model.window_tokens is None for d in drawn} == {True, False}


def test_draws_have_a_release_that_fuses_no_all_reduce_and_one_that_does():
    for drawn in (synthetic_deployments(300, GPUS, 0), catalog_deployments(300, GPUS, 0)):
        releases = [d.serving.engine_version for d in drawn]
        assert set(releases) == set(TAUGHT_RELEASES) == {"0.15.1", "0.20.1"}
        assert 0.4 < np.mean([release == "0.15.1" for release in releases]) < 0.6
        parallel = [d for d in drawn if d.serving.tensor_parallel_size > 1]
        fused = {d.serving.engine_version for d in parallel if d.recipe.fused_all_reduce_bytes}
        assert fused == {"0.20.1"}


def test_published_models_are_as_wide_as_drawn_ones():
    """Check widths: errors on MoE models beyond them (gpt-oss, 4 x hidden size) reached 24 %."""
    for model in catalog_models():
        for group in model.layer_groups:
            least, most = DENSE_WIDTHS
            width = getattr(group.ffn, "width", 0)
            if isinstance(group.ffn, MoeFfnSpec):
                (least, most), width = ACTIVE_WIDTHS, width * group.ffn.top_k
            assert least <= width / model.hidden_size <= most, model.name


def test_draws_fill_the_range_of_widths():
    moe = [d.model for d in synthetic_deployments(600, GPUS, 0) if d.model.moe is not None]
    wide = np.array([m.moe.width * m.moe.top_k / m.hidden_size for m in moe])
    low, high = np.quantile(wide, (0.1, 0.9))
    assert low < 2
    assert high > 5


def test_mxfp4_experts_have_eight_bit_activations_on_blackwell_alone():
    gpus = (load_gpu("H100"), load_gpu("B200"))
    for drawn in (synthetic_deployments(300, gpus, 0), catalog_deployments(300, gpus, 0)):
        chips = {
            chip(d)
            for d in drawn
            if d.model.moe is not None and d.model.precisions.experts.name == "mxfp4_mxfp8"
        }
        assert chips == {"B200-SXM"}


def test_other_kernels_of_the_experts_are_learned_from_beside_the_engines_own():
    drawn, named = synthetic_deployments(300, GPUS, 0), catalog_deployments(300, GPUS, 0)
    found = {(chip(d), d.expert_kernels) for d in drawn}
    assert found == {
        ("H100-SXM", AUTO), ("H100-SXM", CUTLASS),
        ("B200-SXM", AUTO), ("B200-SXM", TRITON), ("B200-SXM", CUTLASS),
    }  # fmt: skip
    for deployments in (drawn, named):
        others = [d for d in deployments if d.expert_kernels != AUTO]
        assert others
        for d in others:
            own = replace(d, serving=replace(d.serving, moe_backend=as_in_tables(d.gpu)))
            assert own in deployments
            assert list(by_all_kernels(own)) == [own, d]


def test_a_quarter_of_the_draws_run_on_cards_that_could_exist_one_beside_each_real_one():
    """Check one synthetic GPU of each chip, so that the network can interpolate between GPUs."""
    drawn = synthetic_deployments(600, GPUS, 0)
    cards = {d.gpu.name: d.gpu for d in drawn}
    assert set(cards) == {"H100-SXM", "H100-SXM like", "B200-SXM", "B200-SXM like"}
    share = np.mean(["like" in d.gpu.name for d in drawn])
    assert 0.2 < share < 0.3
    for real in GPUS:
        other = cards[f"{real.name} like"]
        memory = other.memory_bandwidth_bytes_per_s / real.memory_bandwidth_bytes_per_s
        compute = other.peak_flop_per_s["bf16"] / real.peak_flop_per_s["bf16"]
        assert memory != compute
        assert max(abs(np.log([memory, compute]))) < OTHER_RATES
        assert other.compute_capability == real.compute_capability


def test_near_copies_are_told_by_shapes_not_names():
    llama = load_model("meta-llama/Llama-3.1-70B")
    assert is_near_copy(load_model("meta-llama/Llama-2-70b-hf"), llama)
    assert not is_near_copy(load_model("meta-llama/Llama-3.1-8B"), llama)
    minimax = load_model("MiniMaxAI/MiniMax-M2.5")
    assert is_near_copy(load_model("MiniMaxAI/MiniMax-M2.7"), minimax)
    assert not is_near_copy(load_model("openai/gpt-oss-120b"), minimax)


def test_nothing_like_a_held_out_model_or_gpu_is_learned_from():
    held_out = load_model("MiniMaxAI/MiniMax-M2.5")
    settings = KernelSettings(None, "unused", ["H100-SXM", "B200-SXM"], synthetic=300, catalog=300)
    exclude = Exclusion(models=(held_out,), gpus=("B200-SXM",))
    everything = training_deployments(settings, Exclusion())
    allowed = training_deployments(settings, exclude)
    assert any(is_near_copy(d.model, held_out) for d in everything)
    assert not any(is_near_copy(d.model, held_out) for d in allowed)
    assert {chip(d) for d in allowed} == {"H100-SXM"}
