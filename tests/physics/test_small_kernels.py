"""Elements that the kernels between the multiplications move."""

import pytest
from hypothesis import given, settings
from strategies import models

from pinn.physics.layer_work import small_kernel_elements
from pinn.specs.catalog import load_model
from pinn.specs.model_variants import with_precision

DENSE, MIXTURE = "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-30B-A3B"


def norms(model):
    """Return the elements of two norms per layer, which read and write two rows each."""
    return 2 * model.layers * 4 * model.hidden_size


@pytest.mark.parametrize("name", [DENSE, MIXTURE])
def test_tensor_parallelism_cuts_everything_but_the_norms(name):
    model = load_model(name)
    one, two, four = (small_kernel_elements(model, tp) - norms(model) for tp in (1, 2, 4))
    assert one == pytest.approx(2 * two) == pytest.approx(4 * four)
    assert four > 0


@given(models())
@settings(max_examples=25)
def test_something_is_moved_by_every_model(model):
    assert small_kernel_elements(model, 1) > 0


@pytest.mark.parametrize("name", [DENSE, MIXTURE])
def test_static_scales_move_less_than_dynamic_ones(name):
    model = load_model(name)
    static, dynamic = (with_precision(model, form) for form in ("fp8_static", "fp8"))
    assert small_kernel_elements(static, 4) < small_kernel_elements(dynamic, 4)
    assert small_kernel_elements(dynamic, 4) == small_kernel_elements(model, 4)


def test_experts_are_counted_apart():
    """In a layer of experts alone, the norms and the attention's outputs remain."""
    model = load_model(MIXTURE)
    heads = 32 + 2 * 4
    assert small_kernel_elements(model, 1) == norms(model) + 48 * 2 * heads * 128
