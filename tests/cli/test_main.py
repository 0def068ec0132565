"""The command as a whole: help, completion, lists, and how fast it starts."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pinn.cli.main import COMMANDS, app
from pinn.common.files import file_sha256
from pinn.evaluation.folds import publish
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec


def test_help_lists_every_command_without_importing_torch():
    code = (
        "import sys; from typer.testing import CliRunner; "
        "from pinn.cli.main import app; "
        "result = CliRunner().invoke(app, ['--help']); "
        "print(result.stdout); print('torch' in sys.modules or 'pandas' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    *_, loaded = result.stdout.split()
    assert loaded == "False"
    assert "coefficients" in result.stdout


@pytest.mark.parametrize("command", [c.name for c in COMMANDS])
def test_every_command_explains_itself(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.stdout


@pytest.mark.parametrize(
    "command",
    [["coefficients"], ["breakdown"], ["simulate"], ["ingest", "vllm"], ["export", "table"]],
    ids=" ".join,
)
def test_options_are_shown_in_full_on_a_narrow_terminal(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [*command, "--help"]).stdout
    assert "…" not in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if line.startswith("  -"))
    for flag in flags_of(ServingSpec) if command[0] != "export" else ():
        switch = f" / --no-{flag.option[2:]}\n" if flag.kind == "bool" else " <"
        assert f"{flag.option}{switch}" in shown
        assert flag.help.split()[0] in shown


def test_the_installed_command_runs(checkpoint_path, tmp_path):
    command = [
        sys.executable, "-m", "pinn.cli.main", "coefficients",
        "--model", "Llama-3.1-8B", "--gpu", "H100",
        "--checkpoint", str(checkpoint_path), "--json", str(tmp_path / "x.json"),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not [line for line in result.stderr.splitlines() if not line.endswith(" s so far")]
    assert (tmp_path / "x.json").is_file()
    command[command.index("H100")] = "H9000"
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    *_, error = result.stderr.splitlines()
    assert error.startswith("error: the GPU 'H9000' is unknown")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_offers_commands_and_flags(monkeypatch, shell):
    """Asked as the function asks that ``pinn --show-completion`` prints in each shell."""
    for words, expected in (("pinn co", "coefficients"), ("pinn coefficients --tens", "--tensor-")):
        monkeypatch.setenv("_PINN_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", words)
        result = CliRunner().invoke(app, [], prog_name="pinn")
        assert result.stdout.startswith("_arguments") == (shell == "zsh")
        assert expected in result.stdout


def test_lists_of_models_and_gpus(run):
    models = run("models", "qwen3-3").stdout.splitlines()
    assert "Qwen/Qwen3-30B-A3B" in models
    assert "Qwen/Qwen3-32B" in models
    gpus = run("gpus").stdout
    assert "H100-SXM" in gpus
    assert "3.35" in gpus
    measured = {line.split()[0]: line[83:] for line in gpus.splitlines()}
    assert measured["H100-SXM"] == "kernels, servers"
    assert measured["L40S"] == "kernels"
    assert measured["RTX-4090"] == measured["T4"] == "-"
    assert "GH100 whitepaper" in run("gpus", "--sources").stdout


RESULTS = """split,held_out,method,metric,n,median,mean,p90,bias
leave-one-model-out,all,network,tpot,30,9.84,11.7,20,1
leave-one-model-out,org/b,network,tpot,20,8,9,10,1
leave-one-model-out,org/b,peer,tpot,19,7,8,9,1
leave-one-model-out,dense,network,tpot,20,8,9,10,1
leave-one-model-out,all,network,ttft,30,16,21,40,1
"""


def test_results_are_shown_per_held_out_part_and_method(run, tmp_path):
    (tmp_path / "results.csv").write_text(RESULTS)
    whole = ("results", tmp_path / "results.csv", "--markdown")
    lines = run(*whole).stdout.splitlines()
    assert lines[2:] == [
        "| held out | rows | network | peer |",
        "|---|---:|---:|---:|",
        "| org/b | 20 | 8.0 / 9.0 | 7.0 / 8.0 |",
        "| dense | 20 | 8.0 / 9.0 | - |",
        "| all | 30 | 9.8 / 11.7 | - |",
        "",
    ]
    assert "dense" not in run(*whole, "--models-only").stdout
    assert "| all | 30 | 16.0 / 21.0 |" in run(*whole, "--metric", "ttft").stdout
    screen = run("results", tmp_path / "results.csv").stdout.splitlines()
    assert [line.split() for line in screen[2:5]] == [
        ["held", "out", "rows", "network"],
        ["org/b", "20", "8.0", "/", "9.0"],
        ["all", "30", "9.8", "/", "11.7"],
    ]


def test_a_table_beside_a_checkpoint_has_to_be_its_own(run, refused, tmp_path, monkeypatch):
    source = tmp_path / "trained" / "checkpoint.safetensors"
    source.parent.mkdir()
    source.write_bytes(b"a network")
    (source.parent / "results.csv").write_text(RESULTS)
    kept = publish(source, tmp_path / "kept")
    monkeypatch.setenv("PINN_CHECKPOINT", str(kept))
    assert "| all | 30 | 9.8 / 11.7 | - |" in run("results", "--markdown").stdout
    kept.write_bytes(b"another network")
    for arguments in ([], [kept.with_suffix(".results.csv")]):
        line = refused("results", *arguments)
        assert f"it has the SHA-256 {file_sha256(source)[:12]}" in line
        assert f"expected {file_sha256(kept)[:12]}" in line
        assert "python train.py +experiment=release" in line
    kept.with_suffix(".results.csv").write_text(RESULTS)
    assert "it has the SHA-256 no checkpoint" in refused("results")
    # The table of an experiment lies beside no checkpoint of that name.
    assert run("results", source.parent / "results.csv").exit_code == 0


def test_what_is_no_results_table_is_refused(refused, tmp_path):
    (tmp_path / "other.csv").write_text("a\n1\n")
    assert "is no results table" in refused("results", tmp_path / "other.csv")
    assert "run an experiment first" in refused("results", tmp_path / "none.csv")
    (tmp_path / "results.csv").write_text(RESULTS)
    line = refused("results", tmp_path / "results.csv", "--metric", "speed")
    assert "give one of tpot, ttft as metric (--metric)" in line


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_option_says_what_it_does(name):
    (listed,) = (command for command in COMMANDS if command.name == name)
    commands = [listed.load()]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
        assert [p.name for p in options if not p.help] == []
