"""``--serve``, ``--force`` and an engine's other flags on the commands that time deployments."""

import json

import pytest

import pinn
from pinn.engines.launch_line import read_launch
from pinn.errors import PinnError, RefusedError

COMMAND = "vllm serve Qwen/Qwen3-30B-A3B -tp 2 --port 8000 --enable-dbo --max-model-len 8k"
FP8 = ("--model", "Qwen/Qwen3-30B-A3B-FP8", "--gpu", "H100", "--engine-version", "0.15.1")


def test_a_pasted_command_is_the_configuration(run, tmp_path):
    result = run("coefficients", "--serve", COMMAND, "--gpu", "H100", "--max-num-seqs", 64,
                 "--json", tmp_path / "a.json")  # fmt: skip
    assert result.exit_code == 0, result.output
    serving = json.loads((tmp_path / "a.json").read_text())["serving"]
    assert (serving["tensor_parallel_size"], serving["max_model_len"]) == (2, 8000)
    assert serving["max_num_seqs"] == 64
    for text in ("no effect on predictions: --port 8000", "not modelled: --enable-dbo"):
        assert text in result.output


def test_what_stands_beside_the_command_goes_first(run, tmp_path):
    run("coefficients", "--serve", COMMAND, "--model", "Qwen/Qwen3-8B", "-tp", 1, "--gpu", "H100",
        "--json", tmp_path / "a.json")  # fmt: skip
    report = json.loads((tmp_path / "a.json").read_text())
    assert (report["model"], report["serving"]["tensor_parallel_size"]) == ("Qwen/Qwen3-8B", 1)


def test_an_engines_other_flags_are_named(run, tmp_path):
    result = run("coefficients", *FP8, "--dtype", "half", "--trust-remote-code", "--quantization",
                 "compressed-tensors", "--max_num_seqs", 32, "--kv-cache-dtype", "bfloat16",
                 "--json", tmp_path / "a.json")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "no effect on predictions: --dtype half, --trust-remote-code" in result.output
    serving = json.loads((tmp_path / "a.json").read_text())["serving"]
    assert (serving["max_num_seqs"], serving["kv_cache_dtype"]) == (32, "bf16")


def test_engine_and_release_beside_the_command_are_its_own(run, tmp_path):
    sglang = "docker run lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server --model-path a/b"
    refused = run("coefficients", "--serve", sglang, "--engine", "vllm", "--gpu", "H100")
    assert {"sglang,", "--engine"} <= set(refused.output.split())
    path = tmp_path / "a.json"
    # Before 0.12 the level of -O was that of compilation, and 0 turned no graphs off.
    run("coefficients", "--serve", "vllm serve Qwen/Qwen3-8B -O0", "--engine-version", "0.11.0",
        "--gpu", "H100", "--json", path)  # fmt: skip
    assert not json.loads(path.read_text())["serving"]["enforce_eager"]
    for engine in (("--engine=sglang",), ("--serve", sglang.replace("a/b", "Qwen/Qwen3-8B"))):
        words = () if engine[0] == "--serve" else ("--model", "Qwen/Qwen3-8B")
        result = run("coefficients", *engine, *words, "--gpu", "H100", "--enable-mixed-chunk")
        assert result.exit_code == 0, result.output
        assert "--enable-mixed-chunk" in result.output


def test_a_release_that_was_not_read_is_named_each_time():
    for _ in range(2):
        with pytest.warns(UserWarning, match="vLLM 9.9.9 is unknown: using"):
            pinn.predict("Qwen/Qwen3-8B", "H100", engine_version="9.9.9")


def test_what_is_refused_is_timed_by_force_and_keeps_it(run, tmp_path):
    refused = run("coefficients", *FP8, "-tp", 8)
    assert refused.exit_code == 1
    assert "768 / 8 = 96 columns on a GPU" in refused.output
    path = tmp_path / "a.json"
    assert run("coefficients", *FP8, "-tp", 8, "--force", "--json", path).exit_code == 0
    again = run("coefficients", "--coefficients", path)
    assert again.exit_code == 0, again.output


def test_grids_count_what_is_refused(run, tmp_path):
    grid = ("--grid", "tensor_parallel_size=1,4,8", "--out", tmp_path / "a.csv", "--skip-invalid")
    result = run("coefficients", *FP8, *grid)
    assert result.stdout.count("1 refused: an expert of Qwen/Qwen3-30B-A3B-FP8 has 768 / ") == 2
    assert "3 configurations written" in result.stdout
    assert "refused" not in run("coefficients", *FP8, *grid, "--force").stdout


def test_in_python():
    found = pinn.predict(gpu="H100", serve=COMMAND.replace("--enable-dbo", ""), max_num_seqs=8)
    assert found.deployment.serving.max_model_len == 8000
    assert found.deployment.serving.max_num_seqs == 8
    with pytest.warns(UserWarning, match="not modelled: --enable-dbo"):
        pinn.predict(gpu="H100", serve=COMMAND)
    with pytest.raises(RefusedError, match="no multiple of the 128"):
        pinn.predict(*FP8[1:4:2], tensor_parallel_size=8, engine_version="0.15.1")
    assert pinn.predict("Llama-3.1-8B", "H100", tensor_parallel_size=3, force=True).beta
    with pytest.raises(PinnError, match="did you mean --port"):
        pinn.predict(gpu="H100", serve="vllm serve a --prt 1")


@pytest.mark.parametrize("word", ["awq_marlin", "bitsandbytes", "fp8_per_tensor"])
def test_python_and_the_command_line_read_the_same_words(word, run, tmp_path):
    by_argument = pinn.predict("Qwen/Qwen3-8B", "H100", quantization=word).to_json()
    path = tmp_path / "a.json"
    result = run("coefficients", "--model", "Qwen/Qwen3-8B", "--gpu", "H100", "-q", word,
                 "--json", path)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert json.loads(path.read_text())["precisions"] == by_argument["precisions"]


def test_a_method_in_a_command_needs_a_quantized_checkpoint(run):
    command = "vllm serve Qwen/Qwen3-8B --quantization modelopt"
    for words in (("--serve", command), ("--model", "Qwen/Qwen3-8B", "-q", "modelopt")):
        result = run("coefficients", *words, "--gpu", "H100")
        assert result.exit_code == 1
        assert "give a model with a quantized checkpoint" in " ".join(result.output.split())
    with pytest.raises(PinnError, match="give a model with a quantized checkpoint"):
        pinn.predict("Qwen/Qwen3-8B", "H100", quantization="modelopt")


@pytest.mark.parametrize(
    "command",
    [
        '["vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2", "--max-num-seqs", 64]',
        "- serve\n- Qwen/Qwen3-8B\n- --tensor-parallel-size=2\n- --max-num-seqs=64\n",
        "args:\n  - --model\n  - Qwen/Qwen3-8B\n  - -tp\n  - '2'\n  - --max-num-seqs\n  - '64'\n",
        "command: [/bin/sh, -c]\nargs:\n- vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 64\n",
        "name: server\nimage: vllm/vllm-openai:v0.15.1\n"
        "args: [--model=Qwen/Qwen3-8B, -tp=2, --max-num-seqs=64]\n"
        "env:\n- name: VLLM_USE_V1\n  value: '1'\n- name: TOKEN\n  valueFrom: {}\n",
        "- name: server\n  command: [python3, -m, vllm.entrypoints.openai.api_server]\n"
        "  args: [--model, Qwen/Qwen3-8B, -tp, 2, --max-num-seqs, 64]\n",
    ],
)
def test_lists_and_kubernetes_say_what_a_shell_line_says(command):
    line = "vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 64"
    found, typed = read_launch(command).configuration, read_launch(line).configuration
    assert found.pop("engine_version", "v0.15.1") == "v0.15.1"
    assert found == typed


@pytest.mark.parametrize("command", ["[]", "{a: 1}", "args: [[1]]", "[", "- {a: [1]}", "args: 5"])
def test_lists_of_something_else_are_refused(command):
    with pytest.raises(PinnError, match="--serve"):
        read_launch(command)
