"""Commands take what people who use other command lines try first, and can be piped."""

import json
import re
import shlex
from importlib.metadata import version

import pandas as pd
import pytest
from typer.testing import CliRunner

from pinn.cli.main import COMMANDS, FIRST_STEPS, app
from pinn.common.files import file_sha256

LLAMA = ("--model", "Llama-3.1-8B", "--gpu", "H100")
LOAD = "prompt_tokens: 100\noutput_tokens: 10\nstages: [{rate: 2, duration: 5}]\n"
GROUPS = ("export", "ingest", "kernels")
EXAMPLES = re.findall(r"^  (pinn .*)", re.sub(r"\s*\\\n\s*", " ", FIRST_STEPS), re.MULTILINE)


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "load.yaml"
    path.write_text(LOAD)
    return path


def test_pinn_alone_shows_an_example_of_each_thing_to_do(run):
    result = run()
    assert result.exit_code == 0
    assert "pinn COMMAND --help" in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    joined = re.sub(r"\s*\\\n\s*", " ", result.stdout)
    assert EXAMPLES
    assert all(example in joined for example in EXAMPLES)


def test_the_examples_of_pinn_alone_run(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for example in "; ".join(EXAMPLES).split("; "):
        words = shlex.split(example)[1:]
        if words[0] in ("coefficients", "export", "models", "gpus"):
            result = run(*words)
        else:
            result = run(words[0], "-h")
            options = {word for word in words if word.startswith("--")}
            assert options <= set(re.findall(r"--[\w-]+", result.stdout)), example
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", [(), *((c.name,) for c in COMMANDS), ("ingest", "vllm")])
def test_h_explains_every_command(run, command):
    short, long = run(*command, "-h"), run(*command, "--help")
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert "-h, --help" in short.stdout


@pytest.mark.parametrize("command", GROUPS)
def test_a_group_alone_lists_its_commands_whole(run, command):
    result = run(command)
    assert result.exit_code == 2
    assert "Commands:" in result.stderr
    assert "error:" not in result.stderr
    assert "..." not in result.stderr.partition("Commands:")[2]


def test_the_version(run):
    assert run("--version").stdout == f"pinn {version('pinn-serving')}\n"


def test_no_option_name_is_broken_over_lines(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("simulate", "--help").stdout.splitlines()
    assert not [line for line in lines if line.endswith("-")]


def test_vllms_short_flags(run):
    flags = ("-tp", 4, "-pp", 1, "-dp", 2, "-ep", "-q", "fp8")
    result = run(
        "coefficients", "--model", "Qwen/Qwen3-30B-A3B", "--gpu", "H200", *flags, "--json", "-"
    )
    found = json.loads(result.stdout)
    serving = found["serving"]
    assert (serving["tensor_parallel_size"], serving["data_parallel_size"]) == (4, 2)
    assert serving["enable_expert_parallel"] is True
    assert found["precisions"]["experts"] == "fp8"


def test_short_names_are_keys_of_grids(run, tmp_path):
    grid = "model=Llama-3.1-8B gpu=H100 tp=1,2 q=fp8"
    assert run("coefficients", "--grid", grid, "--out", tmp_path / "grid.csv").exit_code == 0
    table = pd.read_csv(tmp_path / "grid.csv")
    assert table["tp"].tolist() == [1, 2]
    assert table["q"].tolist() == ["fp8", "fp8"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("coefficients", *LLAMA), dict),
        (("breakdown", *LLAMA, "--batch", "8 decode @ 100"), dict),
        (("models", "llama"), list),
        (("gpus", "--sources"), list),
    ],
)
def test_json_alone_on_standard_output(run, arguments, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), kind)
    assert list(tmp_path.iterdir()) == []
    run(*arguments, "--json", "file.json")
    assert (tmp_path / "file.json").read_text() == result.stdout


def test_results_as_json(run, tmp_path):
    lines = "split,held_out,method,metric,n,median,mean,p90,bias\ns,all,network,tpot,3,1,2,3,0\n"
    (tmp_path / "results.csv").write_text(lines)
    (row,) = json.loads(run("results", tmp_path / "results.csv", "--json", "-").stdout)
    assert (row["method"], row["median"]) == ("network", 1)


def test_a_simulation_says_what_was_simulated(run, load, checkpoint_path, tmp_path):
    flags = ("-tp", 2, "--max-num-batched-tokens", 4096, "--no-async-scheduling", "-q", "fp8")
    out = tmp_path / "run.json"
    result = run("simulate", *LLAMA, *flags, "--workload", load, "--seed", 3, "--json", out)
    heading = " ".join(result.stdout.partition("latency (ms)")[0].split())
    assert heading == (
        "Llama-3.1-8B on H100-SXM TP 2 fp8 with bf16 cache, "
        "up to 4,096 tokens and 1,024 requests per step, load "
        "vllm 0.33.0, not measured: trained on releases 0.10.2, 0.15.1 to 0.19.0"
    )
    found = json.loads(out.read_text())
    assert (found["model"], found["gpu"]) == ("meta-llama/Meta-Llama-3.1-8B", "H100-SXM")
    assert found["serving"]["max_num_batched_tokens"] == 4096
    assert found["serving"]["async_scheduling"] is False
    assert found["workload"] == {"path": str(load), "rate_per_s": None, "seed": 3}
    assert found["coefficients"]["sha256"] == file_sha256(checkpoint_path)
    assert found["simulated_by"] == f"pinn {version('pinn-serving')}"
    assert found["completed_requests"] > 0


@pytest.mark.parametrize(
    ("option", "name", "known"),
    [
        ("--json", "x.csv", ".json"),
        ("--requests", "x.csv", ".parquet"),
        ("--timeline", "x.pdf", ".png"),
    ],
)
def test_an_outputs_suffix_is_that_of_its_format(refused, load, tmp_path, option, name, known):
    line = refused("simulate", *LLAMA, "--workload", load, option, tmp_path / name)
    fault = f"{option} {tmp_path / name} has an unknown format"
    assert f"{fault}: give a name that ends in {known}" in line
    assert list(tmp_path.iterdir()) == [load]


def test_standard_output_is_for_json(refused):
    assert "only --json can write to standard output" in refused(
        "evaluate", "decisions", "--out", "-"
    )


def test_completion_in_zsh():
    environment = {
        "_PINN_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "pinn simulate --max-num-s",
    }  # fmt: skip
    result = CliRunner().invoke(app, [], prog_name="pinn", env=environment)
    assert "--max-num-seqs" in result.stdout


def test_whether_a_model_fits_is_said(run, tmp_path):
    model = ("--model", "Llama-3.1-70B", "--gpu", "H100")
    result = run("coefficients", *model)
    assert (
        "memory: the engine DOES NOT START; it starts with --tensor-parallel-size 4"
        in result.stdout
    )
    found = json.loads(run("coefficients", *model, "-tp", 8, "--json", "-").stdout)["memory"]
    assert found["fits"] is True
    assert found["smallest_tensor_parallel_size"] == 4
    grid = "gpu=H100 tp=2,4,8 enforce_eager=true,false max_model_len=4096,131072"
    out = tmp_path / "t.json"
    assert run("coefficients", *model[:2], "--grid", grid, "--out", out).exit_code == 0
    rows = json.loads(out.read_text())
    smallest = {4096: 2, 131072: 4}
    for row in rows:
        assert row["smallest_tensor_parallel_size"] == smallest[row["max_model_len"]]
        assert row["fits"] == (row["tp"] >= smallest[row["max_model_len"]])
        assert (row["kv_tokens"] is not None) == row["fits"]
    assert found["kv_tokens"] == next(
        r["kv_tokens"]
        for r in rows
        if r["tp"] == 8 and r["max_model_len"] == 131072 and not r["enforce_eager"]
    )
