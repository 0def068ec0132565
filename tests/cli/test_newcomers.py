"""A newcomer's first tries are taken, or refused in words of this field."""

import json
import re
import subprocess
import sys

import pandas as pd
import pytest
from one_screen import assert_one_screen

import pinn
from pinn.errors import PinnError
from pinn.specs.batch import parse_batch
from pinn.specs.gpu import load_gpu

LLAMA = ("meta-llama/Llama-3.1-8B", "H100")


def test_a_name_that_no_model_has(refused):
    assert "zzzz" in refused("models", "zzzz")
    assert "zzzz" in refused("gpus", "zzzz")


def test_gpus_takes_part_of_a_name(run):
    lines = run("gpus", "h100").stdout.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["gpu", "H100-NVL", "H100-PCIe", "H100-SXM"]
    assert lines[4].startswith("GiB, TB/s: memory size and bandwidth")


@pytest.mark.parametrize("text", ["64 decodes @ 1k", "64 Decode @ 1K", "64 decode @1000"])
def test_a_batch_as_people_write_it(text):
    assert parse_batch(text) == parse_batch("64 decode @ 1000")


def test_prefills_of_two_thousand():
    assert parse_batch("2 prefills 2k @ 0") == parse_batch("2 prefill 2000 @ 0")


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("memory_bandwidth_bytes_per_s", 3350, "in SI units (3.35 TB/s are 3.35e12), got 3,350"),
        ("memory_bytes", 80, "in SI units (80 GB are 8e10), got 80"),
        ("link_bandwidth_bytes_per_s", 450, "in SI units (450 GB/s are 4.5e11), got 450"),
        ("pcie_bandwidth_bytes_per_s", 64, "in SI units (64 GB/s are 6.4e10), got 64"),
        ("l2_bytes", 50, "in SI units (50 MiB are 52428800), got 50"),
        ("peak_flop_per_s", {"bf16": 989}, "1e+21 FLOP/s (989 TFLOP/s is 9.89e14), got 989"),
    ],
)
def test_a_datasheet_in_other_units(tmp_path, name, value, rule):
    path = tmp_path / "mine.json"
    sheet = vars(load_gpu("H100")) | {"name": "mine", name: value}
    path.write_text(json.dumps(sheet))
    with pytest.raises(PinnError, match=re.escape(rule)):
        load_gpu(str(path))


def test_a_load_in_a_dict_has_no_file():
    load = {"prompt_tokens": "many", "output_tokens": 3, "concurrency": 1, "requests": 1}
    with pytest.raises(PinnError) as error:
        pinn.simulate(load, *LLAMA)
    said = "workload: prompt_tokens: expected a whole number, got 'many': known keys are"
    assert str(error.value).startswith(said)


def test_a_request_before_the_clock():
    load = pd.DataFrame({"arrival_s": [0.0, -5.0], "prompt_tokens": 9, "output_tokens": 2})
    with pytest.raises(PinnError, match=r"^workload, line 3: arrival_s must be 0 or more, got -5$"):
        pinn.simulate(load, *LLAMA)


def test_a_number_is_no_batch():
    # In a process of its own: here types are checked before it can say so.
    code = "import pinn; pinn.predict('meta-llama/Llama-3.1-8B', 'H100').step_time(32)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "or a Batch, got 32" in found.stderr


def test_a_prediction_at_the_prompt_fits_a_screen():
    shown = repr(pinn.predict(*LLAMA, tensor_parallel_size=2))
    assert_one_screen(shown)
    assert "32 decode @ 700" in shown
