"""Sentence about a prediction: errors of held-out rows of its kind, and what is different."""

import re

import pytest
from calibrations import small_calibration, widened

from pinn.engines.deployment import Deployment
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.uncertainty.distance import KernelDistance
from pinn.surrogate.uncertainty.kinds import Situation
from pinn.surrogate.uncertainty.network_evidence import describe_trust


def numbers(found):
    """Return every number in the sentence."""
    return {float(number) for number in re.findall(r"[+-]?\d+\.?\d*", found["sentence"])}


@pytest.fixture
def describe(tmp_path):
    """Return a function that describes the trust in a deployment."""
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(b"a network")
    plain = small_calibration(path)

    def of(
        model="meta-llama/Llama-3.1-8B", stretch=0.0, known=True, outside=None, engine="vllm",
        calibration=plain,
    ):  # fmt: skip
        deployment = Deployment(load_model(model), load_gpu("H100"), ServingSpec(engine=engine))
        distance = KernelDistance(stretch, {"gemm": stretch}, 0.0)
        return describe_trust(Situation(deployment, distance, known), outside or {}, calibration)

    return of


def test_left_out_rows_of_the_same_kind_are_quoted(describe):
    found = describe("openai/gpt-oss-120b")
    assert (found["kind"], found["place"]) == ("4-bit experts", "a measured GPU")
    assert {277, 2, 8, 19, 1.00} <= numbers(found)  # rows, models, median, P90, distance


def test_where_no_row_was_of_the_kind_the_nearest_is_named(describe):
    found = describe("openai/gpt-oss-120b", known=False)
    assert {500, 2, 9, 21} <= numbers(found)  # rows of other GPUs, models, median, P90
    assert {650, 5} <= numbers(describe("Qwen/Qwen3-30B-A3B"))


def test_inputs_beyond_their_range_are_named_the_first_four(describe):
    found = describe(outside={f"input{i}": 1.25 for i in range(9)})
    assert re.findall(r"(input\d) \(\+1\.2\)", found["sentence"]) == [f"input{i}" for i in range(4)]
    assert found["sentence"].endswith("5 more.")


def test_farther_than_anything_left_out_is_outside_the_data(describe):
    assert not describe(stretch=1.9)["beyond_left_out"]
    found = describe(stretch=2.1)
    assert found["beyond_left_out"]
    assert {8.17, 7.39} <= numbers(found)  # its distance, and the largest of held-out rows


def test_what_widens_intervals_is_named_with_its_factor(describe, tmp_path):
    calibration = widened(tmp_path / "pinn.safetensors")
    both = describe("Qwen/Qwen3-30B-A3B", engine="sglang", known=False, calibration=calibration)
    assert (
        " Intervals are widened: 2.0x for an engine other than vLLM, 1.3x for a GPU without "
        "serving data."
    ) in both["sentence"]
    one = describe(engine="trtllm", calibration=calibration)
    assert one["sentence"].endswith("Intervals are widened: 2.0x for an engine other than vLLM.")
    # Narrow layers widen too little to be named; a plain deployment has no trait that widens.
    for model in ("Qwen/Qwen3-30B-A3B", "meta-llama/Llama-3.1-8B"):
        assert "widened" not in describe(model, calibration=calibration)["sentence"]
    assert "widened" not in describe(engine="sglang")["sentence"]
