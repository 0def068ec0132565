"""Commands refuse names, paths and loads that are not what they should be."""

import json
from pathlib import Path

import pytest

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32000,
    "num_hidden_layers": 8, "num_attention_heads": 16, "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA = ("--model", "Llama-3.1-8B", "--gpu", "H100")
PLAIN = {"prompt_tokens": 100, "output_tokens": 10, "stages": [{"rate": 2, "duration": 5}]}


@pytest.fixture
def file(tmp_path):
    """Write a file and get its path."""

    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


def test_a_negative_seed_and_an_empty_file_of_runs(refused, file):
    load = file("load.yaml", PLAIN)
    assert "of 0 or more" in refused("simulate", *LLAMA, "--workload", load, "--seed", -1)
    runs = file("runs.csv", "")
    assert "not a CSV table" in refused("evaluate", "serving-runs", runs)
    assert "--seed" in refused("evaluate", "serving-runs", runs, "--seed", -1)


def test_control_characters_never_reach_the_terminal(run, refused, file, tmp_path):
    folder = tmp_path / "\x1b[31mred\x07 [x]"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    result = run("coefficients", "--model", folder, "--gpu", "H100")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("\\x1b[31mred\\x07 [x] on H100")
    gpu = file("gpu.json", {"\x1b[2J": {}, "b\u202e": {}})
    assert "\\x1b[2J, b\\u202e" in refused("coefficients", *LLAMA[:2], "--gpu", gpu)


def heading(result):
    """Return the text above the table, as one line."""
    return " ".join(result.stdout.partition("latency (ms)")[0].split())


def test_an_overloaded_simulation_says_so_first(run, file, tmp_path):
    heavy = PLAIN | {"prompt_tokens": 4000, "stages": [{"rate": 400, "duration": 1}]}
    out = tmp_path / "run.json"
    result = run("simulate", *LLAMA, "--workload", file("heavy.yaml", heavy), "--json", out)
    assert " per step, heavy, overloaded: " in heading(result)
    assert json.loads(out.read_text())["overloaded"].startswith("overloaded: ")
    result = run("simulate", *LLAMA, "--workload", file("light.yaml", PLAIN), "--json", out)
    assert " per step, light vllm 0.33.0, not measured: " in heading(result)
    assert json.loads(out.read_text())["overloaded"] is None


def test_no_folder_is_made_for_a_mistyped_path(refused, tmp_path):
    line = refused("coefficients", *LLAMA, "--json", tmp_path / "reslts" / "x.json")
    assert f"the folder {tmp_path / 'reslts'} does not exist: create the folder" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["config.json", "."])
def test_an_output_never_overwrites_an_input(refused, file, given):
    path = file("config.json", CONFIG)
    line = refused("coefficients", "--model", path.parent / given, "--gpu", "H100", "--json", path)
    assert "would overwrite the file given with --model" in line
    assert json.loads(path.read_text()) == CONFIG


@pytest.mark.parametrize("folder", [".", "", "/"])
def test_a_folder_is_no_file_to_write(refused, folder):
    line = refused("gpus", "--json", folder)
    assert f"--json {Path(folder)} is a folder, expected a file: give a file name" in line


def test_two_outputs_have_two_names(refused, tmp_path, file):
    both = ("--requests", tmp_path / "x", "--json", tmp_path / "x")
    line = refused("simulate", *LLAMA, "--workload", file("load.yaml", PLAIN), *both)
    assert "would overwrite the file given with" in line
