"""Near copies of a held-out model, named by hand, are in no training data."""

from dataclasses import replace

import pytest
from serving_cases import observations

from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.specs.catalog import load_model
from pinn.training.folds import without_model
from pinn.training.kernel_data import KernelSettings, training_deployments
from pinn.training.serving_rows import serving_rows

#: Pairs of published models whose widths differ by less than 5 %, and pairs of others.
NEAR = [
    ("Qwen/Qwen2.5-72B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),  # 29568 and 28672 wide
    ("Qwen/Qwen2.5-14B-Instruct", "mistralai/Mistral-Nemo-Base-2407"),  # 13824 and 14336
    ("Qwen/Qwen3-14B", "microsoft/phi-4"),  # 17408 and 17920
]
FAR = [
    ("Qwen/Qwen3-4B", "google/gemma-3-4b-it"),  # 9728 and 10240 wide: 5.26 % of the first
    ("Qwen/Qwen3-14B", "Qwen/Qwen2.5-14B-Instruct"),  # 17408 and 13824
]


@pytest.mark.parametrize(("one", "other"), NEAR)
def test_models_of_nearly_one_shape_are_near_copies(one, other):
    assert is_near_copy(load_model(one), load_model(other))
    assert is_near_copy(load_model(other), load_model(one))


@pytest.mark.parametrize(("held_out", "model"), FAR)
def test_models_of_other_widths_are_not(held_out, model):
    assert not is_near_copy(load_model(model), load_model(held_out))


@pytest.mark.parametrize(("share", "near"), [(1.04, True), (0.96, True), (1.06, False)])
def test_experts_of_nearly_one_width_are_near_copies(share, near):
    model = load_model("openai/gpt-oss-120b")
    groups = tuple(
        replace(g, ffn=replace(g.ffn, width=round(g.ffn.width * share))) for g in model.layer_groups
    )
    assert is_near_copy(replace(model, layer_groups=groups), model) is near


def test_no_catalogue_deployment_is_of_a_near_copy_of_a_held_out_model():
    held_out, copy = NEAR[0]
    settings = KernelSettings(None, "unused", ["H100-SXM"], synthetic=0, catalog=3000)
    drawn = {
        name: {d.model.name for d in training_deployments(settings, exclude)}
        for name, exclude in (
            ("all", Exclusion()),
            ("without", Exclusion(models=(load_model(held_out),))),
        )
    }
    assert {held_out, copy} <= drawn["all"]
    assert not {held_out, copy} & drawn["without"]


def test_rows_of_a_near_copy_leave_with_the_held_out_model():
    held_out, copy = NEAR[0]
    cases = [(held_out, "bf16", 8, False, 8), (copy, "bf16", 8, False, 8)]
    rows = serving_rows(observations([*cases, ("Qwen/Qwen3-14B", "bf16", 2, False, 8)]))
    left = without_model(rows, load_model(held_out))
    assert {d.model.name for d in left.deployments} == {"Qwen/Qwen3-14B"}
