"""What is said of a configuration's place: interpolating, extrapolating in what, or outside."""

import pytest
from calibrations import small_calibration

from pinn.uncertainty.distance import KernelDistance
from pinn.uncertainty.sentence import describe_distance


@pytest.fixture
def describe(tmp_path):
    """Describe a distance made of two operators."""
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(b"a network")
    calibration = small_calibration(path)

    def of(gemm, attention=0.0, outside=None):
        parts = {"gemm": gemm, "decode_attention": attention}
        return describe_distance(
            KernelDistance(gemm + attention, parts, 0.0), outside or {}, calibration
        )

    return of


def test_near_and_inside_is_interpolating(describe):
    found = describe(0.15)
    assert found["kind"] == "interpolating"
    assert found["kernel_distance"] == 0.15
    assert found["sentence"] == (
        "Interpolating: weighted by time, its kernels' sizes differ from measured ones by a "
        "factor of 1.16. Left-out deployments as far (100 rows of 5 models on GPUs) were off by "
        "7 % (median) and 15 % (9 in 10 below) in step time."
    )


def test_an_input_beyond_its_range_is_named(describe):
    found = describe(0.05, outside={"hidden_size": 1.25, "layers": -0.5})
    assert found["kind"] == "extrapolating"
    assert found["sentence"].startswith("Extrapolating in hidden_size (+1.2), layers (-0.5): ")
    assert "off by 5 % (median)" in found["sentence"]


def test_far_kernels_are_named_where_they_matter(describe):
    found = describe(0.1, attention=0.25)
    assert found["kind"] == "extrapolating"
    assert found["sentence"].startswith("Extrapolating in decode-attention kernels: ")
    assert "(100 rows of 6 models on GPUs)" in found["sentence"]


def test_at_most_four_inputs_are_named(describe):
    found = describe(0.05, outside={f"input{i}": 1.0 for i in range(9)})
    assert "input3 (+1.0): " in found["sentence"]
    assert "input4" not in found["sentence"]


def test_farther_than_anything_left_out_is_outside(describe):
    found = describe(1.2, outside={"experts": 2.0})
    assert found["kind"] == "outside"
    assert found["sentence"].startswith("Outside the data, in experts (+2.0), gemm kernels: ")
    assert found["sentence"].endswith(
        "No left-out deployment lay so far; the farthest 100 rows, up to a factor of 2.23, were "
        "off by 12 % (median) and 30 % (9 in 10 below) in step time: expect more."
    )
