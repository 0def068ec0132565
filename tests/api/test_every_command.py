"""Every command has a function with the same arguments and a typed result."""

import inspect
import json
from typing import get_type_hints

import numpy as np
import pytest
import typer
from benchmark_files import vllm_bench
from served_load import served
from typer.testing import CliRunner

import pinn
from pinn.api import (
    breakdown,
    calibration,
    evaluating,
    exports,
    ingestion,
    many_simulations,
    measuring,
    names,
    plans,
    prediction,
    scores,
    serving,
    simulation,
)
from pinn.cli.main import app
from pinn.simulator.linear_latency import LinearLatency

MODULES = (
    breakdown, calibration, evaluating, exports, ingestion, many_simulations, measuring, names,
    plans, prediction, scores, serving, simulation,
)  # fmt: skip
#: Commands whose functions have other names than theirs, or that have two.
FUNCTIONS = {
    "coefficients": ("predict", "predict_many"),
    "simulate": ("simulate", "simulate_fleet", "simulate_many", "simulate_pools", "sweep"),
}
#: Options that choose what is printed or written -> what the result has in their place.
ON_RESULT = {
    "coefficients": {
        "recipe": "show", "betas": "show", "memory": "show", "json_path": "to_json", "out": "to_csv"
    },
    "breakdown": {"explain": "show", "plot": "draw", "json_path": "to_json"},
    "simulate": {
        "json_path": "to_json", "requests": "write_requests", "timeline": "timeline",
        "plot": "plot",
    },
    "plan": {"out": "save", "manifest": "manifest", "manifest_row": "manifest"},
    "evaluate serving-runs": {"out": "save", "json_path": "to_json"},
    **{f"evaluate {name}": {"out": "save"}
       for name in ("decisions", "engines", "coefficients", "panel", "speculation")},
    "compare": {"details": "show", "json_path": "to_json"},
    "calibrate": {"details": "print_report", "out": "save"},
    "results": {"markdown": "show", "models_only": "show", "json_path": "to_json"},
    "kernels score": {"out": "save"},
    "models": {"mixers": "mixers", "json_path": "to_json"},
    "gpus": {"sources": "show", "json_path": "to_json"},
}  # fmt: skip
#: Options that another argument of the function stands for.
SPELLED = {
    # Files and grids are one argument in Python.
    "coefficients": {"configs": "configurations", "grid": "configurations"},
    "export table": {"configs": "configurations"},
    "export blis": {"configs": "configurations"},
    "export llm-d": {"configs": "configurations"},
    # More limits behind --slo.
    "simulate": {"more": "slo"},
    # A second way to say --benchmarks.
    "calibrate": {"more": "benchmarks"},
}
#: Arguments that no option of the command has, and why.
OF_PYTHON = {
    "measure": {"say"},  # the command prints each note
    "simulate": {"configurations", "intervals"},  # the command simulates one, with intervals
    "evaluate serving-runs": {"intervals"},  # the command has them where it writes figures
}
#: Other spellings that every command and function knows.
EVERYWHERE = {"precision": "quantization", "engine_words": "serve"}


def commands(command, path=()):
    """Every command that does something, with its options."""
    context = typer.Context(command)
    listed = command.list_commands(context) if hasattr(command, "list_commands") else []
    if path and not (listed and command.no_args_is_help):
        options = [p for p in command.params if p.name not in ("help", "context")]
        yield " ".join(path), [option.name for option in options]
    for name in listed:
        group = command if path else ROOT
        _, loaded, _ = group.resolve_command(context, [name])
        yield from commands(loaded, (*path, name))


ROOT = typer.main.get_command(app)
COMMANDS = dict(commands(ROOT))


def functions(command):
    usual = (command.replace(" ", "_").replace("-", "_"),)
    return [getattr(pinn, name) for name in FUNCTIONS.get(command, usual)]


def result_types(command):
    """Return the classes that the functions of a command return."""
    import pandas as pd

    from pinn.evaluation.sides import Comparison

    found = []
    for function in functions(command):
        module = inspect.getmodule(inspect.unwrap(function))
        known = vars(module) | {"pd": pd, "Comparison": Comparison}
        found.append(eval(inspect.get_annotations(function)["return"], known)
                     if isinstance(function.__annotations__["return"], str)
                     else get_type_hints(function)["return"])  # fmt: skip
    return found


def test_the_walk_finds_every_command():
    assert len(COMMANDS) >= 27
    assert {"models", "export blis", "ingest vllm", "kernels mixers", "evaluate"} <= set(COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_option_is_an_argument_or_on_the_result(command):
    arguments = {name for f in functions(command) for name in inspect.signature(f).parameters}
    on_result, spelled = ON_RESULT.get(command, {}), EVERYWHERE | SPELLED.get(command, {})
    wanted = [spelled.get(o, o) for o in COMMANDS[command] if o not in on_result]
    assert [name for name in wanted if name not in arguments] == []
    for name in on_result.values():
        assert any(hasattr(each, name) for each in result_types(command)), name


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_argument_is_an_option(command):
    spelled = EVERYWHERE | SPELLED.get(command, {})
    options = {spelled.get(o, o) for o in COMMANDS[command]} | OF_PYTHON.get(command, set())
    for function in functions(command):
        taken = set(inspect.signature(function).parameters)
        assert taken <= options
        documented = [name for name in taken if f"\n    {name}: " not in function.__doc__]
        assert documented == []


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_result_is_of_a_type(command):
    for found in result_types(command):
        assert isinstance(found, type)
        assert found not in (object, type(None), dict)


def test_every_function_belongs_to_a_command():
    of_commands = {f.__name__ for command in COMMANDS for f in functions(command)}
    public = {name for name in pinn.__all__ if name[0].islower()}
    assert public == of_commands


QWEN = ("Qwen/Qwen3-32B", "H100")
BATCH = "32 decode @ 700"


@pytest.fixture
def small_network(monkeypatch, checkpoint_path):
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))


def typed(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"quantization": "awq"}, ["--quantization", "awq"]),
        ({"quantization": "bf16", "max_model_len": "32k"},
         ["--quantization", "bf16", "--max-model-len", "32k"]),
        ({"kv_cache_dtype": "fp8_e4m3"}, ["--kv-cache-dtype", "fp8_e4m3"]),
        ({"speculative_config": '{"method": "eagle3", "num_speculative_tokens": 3}'},
         ["--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}']),
        ({"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}},
         ["--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}']),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("small_network")
def test_python_takes_the_values_that_the_command_takes(given, words, tmp_path):
    names = ["--model", QWEN[0], "--gpu", QWEN[1]]
    typed("coefficients", *names, *words, "--batch", BATCH, "--json", tmp_path / "typed.json")
    found = pinn.predict(*QWEN, batch=BATCH, **given)
    assert found.to_json() == json.loads((tmp_path / "typed.json").read_text())


@pytest.mark.usefixtures("small_network")
def test_models_and_gpus_are_what_the_commands_list():
    assert str(pinn.models("qwen3-32b")) == typed("models", "qwen3-32b")
    assert "attention" in pinn.models("qwen3-32b").mixers()["Qwen/Qwen3-32B"]
    assert str(pinn.gpus("h100")) == typed("gpus", "h100")
    assert pinn.gpus("h100-sxm").table()["memory_bandwidth_bytes_per_s"].tolist() == [3.35e12]
    with pytest.raises(pinn.PinnError, match="no known name contains 'qwne'"):
        pinn.models("qwne")


@pytest.mark.usefixtures("small_network")
def test_a_breakdown_and_a_comparison_are_what_the_commands_write(tmp_path):
    names = ["--model", "Llama-3.1-8B", "--gpu", "H100"]
    typed("breakdown", *names, "--batch", BATCH, "--json", tmp_path / "typed.json")
    found = pinn.breakdown("Llama-3.1-8B", "H100", batch=[BATCH])
    assert found.to_json() == json.loads((tmp_path / "typed.json").read_text())
    for name, tokens in (("a", 2048), ("b", 8192)):
        p = pinn.predict("Llama-3.1-8B", "H100", max_num_batched_tokens=tokens)
        p.save(tmp_path / f"{name}.json")
    sides = tmp_path / "a.json", tmp_path / "b.json"
    assert str(pinn.compare(*sides)) == typed("compare", *sides)
    assert set(pinn.compare(*sides).to_json()) == {"step_times", "coefficients"}


def test_errors_are_what_the_commands_print():
    assert str(pinn.results(metric="ttft")) == typed("results", "--metric", "ttft")
    assert f"{pinn.kernels_errors()}\n" == typed("kernels", "errors")
    assert pinn.results(measured=True).table["rows"].sum() > 0


@pytest.mark.usefixtures("small_network")
def test_two_pools_are_what_the_command_writes(tmp_path):
    load = {"input_len": 512, "output_len": 16, "request_rate": 4, "num_prompts": 20}
    words = [w for name, value in load.items() for w in (f"--{name.replace('_', '-')}", value)]
    pools = {"prefill": "1x tp=1", "decode": "1x tp=2"}
    words += [w for name, value in pools.items() for w in (f"--{name}", value)]
    typed("simulate", "--model", "Llama-3.1-8B", "--gpu", "H100", *words,
          "--json", tmp_path / "typed.json")  # fmt: skip
    found = pinn.simulate_pools(model="Llama-3.1-8B", gpu="H100", **load, **pools)
    assert found.to_json() == json.loads((tmp_path / "typed.json").read_text())


@pytest.mark.usefixtures("small_network")
def test_a_fleet_is_what_the_command_writes(tmp_path):
    load = {"input_len": 512, "output_len": 16, "request_rate": 20, "num_prompts": 40}
    words = [w for name, value in load.items() for w in (f"--{name.replace('_', '-')}", value)]
    kinds = [{"gpu": "H200"}, {"replicas": 2, "max-num-seqs": 4}]
    fleet = {"kinds": kinds, "failures": [{"at_s": 1.0, "server": 1}]}
    (tmp_path / "fleet.yaml").write_text(json.dumps(fleet))
    typed("simulate", "--model", "Llama-3.1-8B", "--gpu", "H100", *words,
          "--fleet", tmp_path / "fleet.yaml", "--slo", "ttft<=1s",
          "--json", tmp_path / "typed.json", "--timeline", tmp_path / "day.png")  # fmt: skip
    found = pinn.simulate_fleet(
        model="Llama-3.1-8B", gpu="H100", fleet=fleet, slo="ttft<=1s", **load
    )
    assert found.to_json() == json.loads((tmp_path / "typed.json").read_text())
    assert found.metrics["completed_requests"] == 40
    assert found.metrics["gpus_max"] == 3
    assert [server["kind"] for server in found.servers] == [0, 1, 1]
    assert sum(server["requests"] for server in found.servers) == 40
    assert (tmp_path / "day.png").stat().st_size > 10_000


@pytest.mark.usefixtures("small_network")
def test_benchmarks_are_ingested_as_the_command_does(tmp_path):
    file = tmp_path / "run.json"
    of = pinn.predict("Llama-3.1-8B", "H100")
    beta, alpha = (np.array(list(each.values())) for each in (of.beta, of.alpha))
    load = served(lambda d: LinearLatency(d, beta, alpha), 4, requests=8)
    file.write_text(json.dumps(vllm_bench(load)))
    named = {"model": "Llama-3.1-8B", "gpu": "H100"}
    found = pinn.ingest_benchmarks(file, tmp_path / "called", **named)
    words = ["--model", "Llama-3.1-8B", "--gpu", "H100"]
    printed = typed("ingest", "benchmarks", file, "-o", tmp_path / "typed", *words)
    assert found.report == printed.split("\n\nwrote")[0]
    assert found.table("benchmarks")["served"].tolist() == [8]
    with pytest.raises(pinn.PinnError, match="only one of model and gpu is given"):
        pinn.ingest_vllm(file, tmp_path / "x", model="Llama-3.1-8B")


def test_a_measuring_program_is_written(tmp_path):
    script = tmp_path / "measure.py"
    found = pinn.measure("Llama-3.1-8B", gpu="H100", minutes=1, script=script)
    assert found.is_program
    compile(script.read_text(), "measure.py", "exec")
    assert str(script) in str(found)
