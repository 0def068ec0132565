"""What is said of a prediction: what left-out rows of its kind showed, and what is different."""

import pytest
from calibrations import small_calibration

from pinn.specs.catalog import load_model
from pinn.specs.deployment import Deployment
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.trust.distance import KernelDistance
from pinn.trust.sentence import describe_trust
from pinn.trust.spread_parts import Situation


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
        return describe_trust(Situation(deployment, distance, 8, known), outside or {}, calibration)

    return of


def test_left_out_rows_of_the_same_kind_are_quoted(describe):
    found = describe("openai/gpt-oss-120b", experts=0.25)
    assert (found["kind"], found["place"]) == ("4-bit experts", "a measured GPU")
    assert found["sentence"] == (
        "4-bit experts on a measured GPU: step times of left-out rows of that kind (277 rows of 2 "
        "models) were off by 8 % in the median, by more than 19 % in one of ten. Its interval is "
        "as wide as that of a typical left-out row. Weighted by time, its kernels' sizes and GPUs "
        "differ from measured ones by a factor of 1.00."
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


def test_the_part_that_makes_the_difference_is_named(describe):
    # 0.1 + 0.2 x 0.25 at a typical row.
    found = describe(experts=0.0)
    assert (
        "Its interval is 33 % narrower than that of a typical left-out row; most of the difference "
        "comes from experts." in found["sentence"]
    )
    found = describe("openai/gpt-oss-120b", experts=1.0)
    assert (
        "Its interval is 100 % wider than that of a typical left-out row; most of the difference "
        "comes from experts." in found["sentence"]
    )
    assert found["spread"]["experts"] == pytest.approx(0.2)
    found = describe(experts=0.25, stretch=1.0)
    assert "most of the difference comes from sizes far from measured kernels." in found["sentence"]


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
