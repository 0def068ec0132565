"""Arguments of functions: merged with a launch command, read in their types, checked once."""

import pickle

import pytest
from typer.testing import CliRunner

import pinn
from pinn.api import plans
from pinn.api.arguments import read_request
from pinn.api.requests import (
    BreakdownRequest,
    CalibrationRequest,
    ExploreRequest,
    MeasureRequest,
    PredictionRequest,
    SimulationRequest,
)
from pinn.cli.main import app
from pinn.errors import PinnError
from pinn.planning.plan import PlanRequest
from pinn.specs.serving import ServingSpec

LLAMA = ("meta-llama/Llama-3.1-8B", "H100")
SERVE = "vllm serve Qwen/Qwen3-8B -tp 2"
NEEDED = {PlanRequest: {"slo": "p99 ttft<=1s"}, MeasureRequest: {"model": "Qwen/Qwen3-8B"}}
TP = "tensor_parallel_size"


def read(request, **given):
    return read_request(request, NEEDED.get(request, {}) | given, ServingSpec)


@pytest.mark.parametrize(
    "request_",
    [PredictionRequest, BreakdownRequest, SimulationRequest, PlanRequest, ExploreRequest,
     CalibrationRequest],
)  # fmt: skip
def test_an_explicit_model_goes_before_that_of_the_launch_command(request_):
    for model, found in ((None, "Qwen/Qwen3-8B"), ("Llama-3.1-8B", "Llama-3.1-8B")):
        asked, flags = read(request_, serve=SERVE, model=model, gpu="H100")
        assert asked.model == found
        assert flags[TP] in (2, [2])
        assert "model" not in flags


def test_flags_beside_the_launch_command_go_first():
    command = f"{SERVE} --quantization fp8 --max-model-len 8k"
    _, flags = read(PredictionRequest, serve=command, tp_size=4, quantization="none")
    assert flags == {"engine": "vllm", TP: 4, "max_model_len": 8000}


@pytest.mark.parametrize("request_", [PlanRequest, ExploreRequest])
@pytest.mark.parametrize("sizes", ["1,2", [1, 2], (1, 2), ["1", 2.0, 1]])
@pytest.mark.parametrize("formats", ["bf16,fp8", ["bf16", "fp8"]])
def test_several_values_are_one_list_however_they_are_given(request_, sizes, formats):
    _, flags = read(request_, tensor_parallel_size=sizes, quantization=formats)
    assert flags == {TP: [1, 2], "precision": ["bf16", "fp8"]}


@pytest.mark.parametrize("request_", [PlanRequest, ExploreRequest])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({TP: [1, 0]}, "must be a positive whole number, got 0"),
        ({TP: 0}, "must be a positive whole number, got 0"),
        ({TP: []}, f"{TP} has no value: give one or more"),
        ({TP: "1,x"}, f"{TP} must be a whole number, got 'x'"),
        ({"quantization": "bf16,foo"}, "the number format 'foo' is unknown"),
        ({"quantization": ["foo"]}, "the number format 'foo' is unknown"),
        ({"quantization": "FP8"}, "the number format 'FP8' is unknown: did you mean fp8?"),
        ({"quantization": ()}, "quantization has no value"),
    ],
)
def test_every_value_of_a_list_is_checked(request_, given, said):
    with pytest.raises(PinnError, match=said):
        read(request_, **given)


def test_a_flag_of_one_value_takes_no_list():
    with pytest.raises(PinnError, match=rf"{TP} must be a whole number, got \[1, 2\]"):
        read(PredictionRequest, tensor_parallel_size=[1, 2])


def test_a_none_among_formats_is_the_checkpoints_own():
    _, flags = read(ExploreRequest, quantization="none,fp8")
    assert flags["precision"] == [None, "fp8"]


@pytest.mark.parametrize("engines", ["vllm,sglang", "sglang,vllm", ["sglang", "vllm"]])
def test_the_engine_of_a_launch_command_is_among_several_in_any_order(engines):
    _, flags = read(PlanRequest, serve=SERVE, engine=engines)
    assert sorted(flags["engine"]) == ["sglang", "vllm"]
    with pytest.raises(PinnError, match="--serve starts vllm, but --engine is sglang, trtllm"):
        read(PlanRequest, serve=SERVE, engine="sglang,trtllm")


@pytest.mark.parametrize(
    ("request_", "given", "said"),
    [
        (PlanRequest, {"top": 0}, "--top must be a positive whole number, got 0"),
        (PlanRequest, {"max_gpus": 0}, "--max-gpus must be a positive whole number, got 0"),
        (PlanRequest, {"seed": 1.5}, "--seed must be a whole number, got 1.5"),
        (MeasureRequest, {"minutes": 0}, "--minutes must be at least 0.1, got 0"),
        (MeasureRequest, {"minutes": "x"}, "minutes must be a number, got 'x'"),
        (MeasureRequest, {"port": 70000}, r"--port must be in \[0, 65535\], got 70000"),
        (MeasureRequest, {"serve": SERVE}, "serve must be true or false, got 'vllm serve"),
        (MeasureRequest, {"model": None}, "model is missing"),
        (SimulationRequest, {"num_warmups": -1}, "--num-warmups must be 0 or more, got -1"),
        (SimulationRequest, {"workload": 5}, "workload must be a path, got 5"),
        (CalibrationRequest, {"benchmarks": 5}, "benchmarks must be a path, got 5"),
        (SimulationRequest, {"rate": 1, "request_rate": 2}, "rate is given twice"),
        (PredictionRequest, {"tp_size": 1, TP: 2}, f"{TP} is given twice"),
    ],
)
def test_values_of_requests_are_refused_in_a_line(request_, given, said):
    with pytest.raises(PinnError, match=said):
        read(request_, **given)


def test_values_of_requests_are_read_in_their_types(tmp_path):
    asked, _ = read(MeasureRequest, minutes="2", port=8000.0, serve=1, load="4x9x9", out=tmp_path)
    assert (asked.minutes, asked.port, asked.serve) == (2.0, 8000, True)
    assert (asked.load, asked.out) == (["4x9x9"], tmp_path)
    assert read(SimulationRequest, rate=[1, 2.5])[0].rate == "1,2.5"


@pytest.mark.parametrize("words", [["plan", "--slo", "ttft<=1s", "--top", "0"],
                                   ["simulate", "--num-warmups", "-1"],
                                   ["measure", "--model", "a", "--minutes", "0"]])  # fmt: skip
def test_the_command_line_has_the_limits_of_the_functions(words):
    assert CliRunner().invoke(app, words).exit_code == 2


@pytest.mark.parametrize(
    ("function", "given", "nearest"),
    [
        ("predict", {"mdel": "x"}, "model"),
        ("plan", {"prices": "H100=2"}, "price"),
        ("plan", {"worker": 2}, "workers"),
        ("simulate", {"workloads": "x.yaml"}, "workload"),
        ("simulate_pools", {"prefil": "2x"}, "prefill"),
        ("calibrate", {"benchmark": "x.json"}, "benchmarks"),
        ("export_table", {"out": "t.json", "config": "x"}, "configurations"),
        ("explore", {"out": "p.html", "quantisation": "fp8"}, "quantization"),
    ],
)
def test_a_misspelled_argument_of_the_functions_own_is_named(function, given, nearest):
    with pytest.raises(PinnError, match=f"is unknown: did you mean {nearest}[?]"):
        getattr(pinn, function)(**given)


def test_a_warning_points_to_the_line_of_the_user(tmp_path, monkeypatch, checkpoint_path):
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))
    command = f"{SERVE} --enable-dbo"
    with pytest.warns(UserWarning, match="not modelled: --enable-dbo") as direct:
        pinn.predict(serve=command, gpu="H100")
    with pytest.warns(UserWarning, match="not modelled") as nested, pytest.raises(PinnError):
        pinn.ingest_steps(tmp_path / "none.csv", tmp_path / "out", serve=command, gpu="H100")
    assert {direct[0].filename, nested[0].filename} == {__file__}


def test_a_page_has_the_size_of_the_launch_command(monkeypatch):
    def page(model, gpus, flags, _):
        raise PinnError(f"{model} on {gpus}: {flags[TP]}")

    monkeypatch.setattr(plans, "explore_page", page)
    with pytest.raises(PinnError, match=r"Qwen/Qwen3-8B on \['H100', 'H200'\]: \[2\]"):
        pinn.explore("a.html", gpu=["H100", "H200"], serve=SERVE)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: pinn.predict(LLAMA[0]), "gpu is missing: give gpu, or add a column"),
        (lambda: pinn.predict(*LLAMA, max_model_len="1m"), "anyway with force=True"),
        (lambda: pinn.simulate(None, *LLAMA), "give input_len=1024 output_len=256 with concur"),
        (lambda: pinn.serve(port=-1), "^port must be in"),
    ],
)
def test_errors_of_functions_name_arguments(call, said):
    with pytest.raises(PinnError, match=said) as raised:
        call()
    assert "--" not in str(raised.value)


def test_errors_of_commands_name_options():
    said = CliRunner().invoke(app, ["coefficients", "--model", LLAMA[0]]).output
    assert "gpu is missing: give --gpu, or add a column" in " ".join(said.split())


def test_a_function_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(pinn.predict)) is pinn.predict


def test_help_keeps_quoted_commands():
    (line,) = [t for t in pinn.simulate.__doc__.splitlines() if t.startswith("    coefficients:")]
    assert "'pinn coefficients --json'" in line
    (line,) = [t for t in pinn.simulate.__doc__.splitlines() if t.startswith("    slo:")]
    assert "--" not in line
