"""What is said of a prediction: what left-out rows of its kind showed, and what is different."""

import pytest
from calibrations import small_calibration

from pinn.engines.deployment import Deployment
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.uncertainty.distance import KernelDistance
from pinn.surrogate.uncertainty.kinds import Situation
from pinn.surrogate.uncertainty.trust import describe_trust


@pytest.fixture
def describe(tmp_path):
    """Describe a model of which a share of the time is in experts."""
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(b"a network")
    calibration = small_calibration(path)

    def of(model="meta-llama/Llama-3.1-8B", experts=0.0, stretch=0.0, known=True, outside=None):
        deployment = Deployment(load_model(model), load_gpu("H100"), ServingSpec())
        shares = {"gemm": 1 - experts, "experts": experts}
        distance = KernelDistance(stretch, {"gemm": stretch}, 0.0, 0.0, shares)
        return describe_trust(Situation(deployment, distance, known), outside or {}, calibration)

    return of


def test_left_out_rows_of_the_same_kind_are_quoted(describe):
    found = describe("openai/gpt-oss-120b", experts=0.25)
    assert (found["kind"], found["place"]) == ("4-bit experts", "a measured GPU")
    assert found["sentence"] == (
        "4-bit experts on a measured GPU: step times of left-out rows of that kind (277 rows of 2 "
        "models) were off by 8 % in the median, by more than 19 % in one of ten. Weighted by time, "
        "its kernels' sizes and GPUs differ from measured ones by a factor of 1.00."
    )


def test_where_no_row_was_of_the_kind_the_nearest_is_named(describe):
    found = describe("openai/gpt-oss-120b", experts=0.25, known=False)
    assert found["sentence"].startswith(
        "4-bit experts on a GPU without serving data: no left-out row was of that kind; "
        "step times of 4-bit experts (500 rows of 2 models) were off by 9 % in the median, by more "
        "than 21 % in one of ten."
    )
    found = describe("Qwen/Qwen3-30B-A3B", experts=0.25)
    assert (
        "no left-out row was of that kind; step times of all (650 rows of 5 models)"
        in found["sentence"]
    )


def test_inputs_beyond_their_range_are_named_the_first_four(describe):
    found = describe(outside={f"input{i}": 1.25 for i in range(9)})
    assert found["sentence"].endswith(
        "Inputs beyond the training range, in standard deviations: input0 (+1.2), input1 (+1.2), "
        "input2 (+1.2), input3 (+1.2) and 5 more."
    )


def test_farther_than_anything_left_out_is_outside_the_data(describe):
    assert not describe(stretch=1.9)["beyond_left_out"]
    found = describe(stretch=2.1)
    assert found["beyond_left_out"]
    assert "Outside the data: weighted by time, its kernels'" in found["sentence"]
    assert "by a factor of 8.17, in left-out rows by 7.39 at most" in found["sentence"]
