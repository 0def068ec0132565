"""``import pinn``: each function gives what its command writes."""

import inspect
import json
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from benchmark_files import vllm_bench
from finished_plans import read_plan
from one_screen import assert_one_screen
from served_load import served
from served_traces import served_traces
from typer.testing import CliRunner

import pinn
from pinn.cli.main import app
from pinn.engines.engine_spec import EngineSpec
from pinn.memory.start_up import StartUp
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.batch import Batch
from pinn.specs.serving import ServingSpec
from pinn.surrogate.evidence import Evidence
from pinn.surrogate.prediction import Prediction

MODEL, GPU = LLAMA = ("meta-llama/Llama-3.1-8B", "H100")
NAMED = ("--model", MODEL, "--gpu", GPU)
DEPLOYED = {"model": MODEL, "gpu": GPU}
LOAD = {"prompt_tokens": 200, "output_tokens": 20, "concurrency": 4, "requests": 20}


@pytest.fixture(autouse=True)
def _small_network(monkeypatch, checkpoint_path):
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "load.yaml"
    path.write_text(json.dumps(LOAD))
    return path


def typed(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_prediction_is_what_the_command_writes(tmp_path):
    flags = {"tensor_parallel_size": 2, "quantization": "fp8"}
    p = pinn.predict(*LLAMA, **flags)
    options = ("--tensor-parallel-size", 2, "--quantization", "fp8", "--batch", "8 decode @ 700")
    printed = typed("coefficients", *NAMED, *options, "--json", tmp_path / "typed.json")
    p.save(tmp_path / "saved.json", "8 decode @ 700")
    saved = json.loads((tmp_path / "saved.json").read_text())
    assert saved == json.loads((tmp_path / "typed.json").read_text())
    assert p.beta == {name: entry["value"] for name, entry in saved["beta"].items()}
    (batch,) = saved["batches"]
    assert p.step_time("8 decode @ 700") == pytest.approx(1e-6 * batch["step_time_us"])
    assert p.floor(Batch.decode(8, 700)) == pytest.approx(1e-6 * batch["floor_us"])
    assert p.trust in " ".join(printed.split())
    again = pinn.predict(coefficients=tmp_path / "saved.json")
    assert np.array_equal(again.step_time(["8 decode @ 700"]), p.step_time(["8 decode @ 700"]))
    with pytest.raises(pinn.PinnError, match=r"no intervals: .*checkpoint"):
        p.interval("8 decode @ 700")


@pytest.mark.parametrize(
    ("name", "said"),
    [("none/p.json", "the folder .*none does not exist"), ("p.csv", r"unknown format: .* \.json")],
)
def test_a_prediction_is_saved_where_the_command_writes(name, said, tmp_path):
    with pytest.raises(pinn.PinnError, match=rf"^the file {tmp_path}/{name} .*{said}"):
        pinn.predict(*LLAMA).save(tmp_path / name)
    assert not any(tmp_path.iterdir())


def keys_of(tree):
    """Keys of a JSON document; below names of flags, coefficients and inputs there are others."""
    for key, value in tree.items():
        yield key
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict) and key not in ("serving", "precisions", "sampling", "sizes"):
                yield from keys_of(part)


def test_every_key_of_the_json_is_documented():
    tree = pinn.predict(*LLAMA, quantization="fp8").to_json()
    shown = Prediction.to_json.__doc__ + Evidence.__doc__ + StartUp.to_json.__doc__
    tree |= {part: {"entry": tree[part]["gemm" if part == "beta" else "completion.constant"]}
             for part in ("beta", "alpha")}  # fmt: skip
    tree["recipe"] = {"entry": tree["recipe"]["token_budget"]}
    tree["distance"] = dict.fromkeys(tree["distance"])
    tree["named"] = None
    assert {key for key in keys_of(tree) if f"``{key}``" not in shown} == {"entry"}


def test_a_prediction_shows_itself(capsys):
    found = pinn.predict(*LLAMA).at("8 decode @ 700")
    found.show()
    assert capsys.readouterr().out == str(found)
    assert repr(found) == str(found).rstrip("\n")
    (step,) = found.steps
    assert f"<td>{step.batch}</td>" in found._repr_html_()
    assert f"{step.tokens / step.seconds:,.0f}" in str(found)


def test_a_table_is_what_the_command_writes(tmp_path):
    asked = pd.DataFrame({"gpu": ["H100", "A100", "H100"], "tensor_parallel_size": [1, 2, None]})
    asked.to_csv(tmp_path / "asked.csv", index=False)
    options = ("--model", MODEL, "--configs", tmp_path / "asked.csv", "--batch", "8 decode @ 700")
    typed("coefficients", *options, "--out", tmp_path / "typed.parquet")
    found = pinn.predict_many(asked, "8 decode @ 700", model=MODEL)
    pd.testing.assert_frame_equal(found, pd.read_parquet(tmp_path / "typed.parquet"))


@pytest.mark.parametrize(
    "configurations",
    [
        {"gpu": ["H100", "A100"], "tensor_parallel_size": [1, 3]},
        "gpu=H100,A100 tensor_parallel_size=1,3",
        [{"gpu": gpu, "tp_size": n} for gpu in ("H100", "A100") for n in (1, 3)],
    ],
)
def test_refused_rows_keep_their_place_and_reason(configurations):
    with pytest.warns(UserWarning, match="2 of 4 configurations are invalid"):
        found = pinn.predict_many(configurations, "8 decode @ 700", model=MODEL, skip_invalid=True)
    assert found["verdict"].tolist() == ["starts", "invalid"] * 2
    assert found["starts"].tolist() == [True, False] * 2
    for name in ("fits", "fits_kv_cache: 8 decode @ 700"):
        assert found[name].tolist() == [True, pd.NA] * 2
    assert found["gpu"].tolist() == ["H100", "H100", "A100", "A100"]
    assert found["reason"].isna().tolist() == [True, False] * 2
    assert found["reason"][1].startswith("tensor_parallel_size=3 does not divide the 32")
    assert found["step_time_us: 8 decode @ 700"].notna().tolist() == [True, False] * 2
    row = r"configurations\[1\]" if isinstance(configurations, list) else "configuration 2"
    with pytest.raises(pinn.PinnError, match=rf"^{row}: tensor_parallel_size=3"):
        pinn.predict_many(configurations, model=MODEL)


def test_a_table_without_a_valid_row_has_all_columns():
    asked = {"gpu": ["H100", "H1OO"], "tensor_parallel_size": [3]}
    with pytest.warns(UserWarning, match="2 of 2 configurations are invalid"):
        found = pinn.predict_many(asked, "8 decode @ 700", model=MODEL, skip_invalid=True)
    assert found["verdict"].tolist() == ["invalid", "invalid"]
    assert found["reason"][1].startswith("the GPU 'H1OO' is unknown")
    valid = pinn.predict_many({"gpu": "H100", "tensor_parallel_size": 1}, "8 decode @ 700",
                              model=MODEL)  # fmt: skip
    assert list(found) == list(valid)


def test_a_table_joins_the_rows_from_which_it_was_predicted():
    asked = pd.DataFrame(
        {"request_id": ["a", "b", "c"], "tp": [1, 3, 2], "quantization": ["fp8", "fp8", None]},
        index=[7, 5, 9],
    )
    with pytest.warns(UserWarning, match="1 of 3 configurations"):
        found = pinn.predict_many(asked, model=MODEL, gpu="H100", skip_invalid=True)
    assert list(found)[:5] == ["request_id", "model", "gpu", "quantization", "tp"]
    pd.testing.assert_frame_equal(found[asked.columns], asked)
    sglang = [{"id": 4, "disable_radix_cache": True}, {"id": 5, "disable_radix_cache": False}]
    named = {"model": MODEL, "gpu": "H100", "quantization": "fp8"}
    found = pinn.predict_many(sglang, engine="sglang", **named)
    assert found[["id", "disable_radix_cache"]].to_dict("records") == sglang
    assert found["quantization"].tolist() == ["fp8", "fp8"]
    with pytest.raises(pinn.PinnError, match="did you mean tensor_parallel_size"):
        pinn.predict_many([{"tensor_paralel_size": 2}], **named)
    with pytest.raises(pinn.PinnError, match=r"'note' is unknown: drop .* name it 'note_id'"):
        pinn.predict_many(pd.DataFrame({"note": ["a"]}), **named)
    with pytest.raises(pinn.PinnError, match="the configuration key 'id' is unknown"):
        pinn.predict_many({"id": [1, 2]}, **named)


def test_a_table_has_the_identifiers_of_its_dataframe():
    own = {
        "run_id": pd.to_datetime(["2026-01-01", None, "2026-01-03"]),
        "id": pd.Categorical(["a", "b", "a"]),
        "job_id": pd.array([1, None, 3], dtype="Int64"),
    }
    asked = pd.DataFrame({**own, "max_num_seqs": [64, 128, 256]}, index=["x", "y", "z"])
    found = pinn.predict_many(asked, **DEPLOYED)
    pd.testing.assert_frame_equal(found[list(own)], asked[list(own)])
    empty = pinn.predict_many(asked[:0], "8 decode @ 700", **DEPLOYED)
    assert len(empty) == 0
    assert list(empty) == list(pinn.predict_many(asked, "8 decode @ 700", **DEPLOYED))
    pd.testing.assert_frame_equal(empty[list(own)], asked[:0][list(own)])
    assert list(pinn.predict_many(pd.DataFrame()))[:2] == ["model", "gpu"]


def test_a_value_of_the_wrong_type_refuses_its_row():
    asked = pd.DataFrame({"tensor_parallel_size": [1, "two"]}, index=[7, 9])
    with pytest.warns(UserWarning, match="1 of 2 configurations is invalid"):
        found = pinn.predict_many(asked, skip_invalid=True, **DEPLOYED)
    assert found["tensor_parallel_size"].tolist() == ["1", "two"]
    assert found["verdict"].tolist() == ["starts", "invalid"]
    assert found["reason"][9].startswith("tensor_parallel_size must be a whole number, got 'two'")
    with pytest.raises(pinn.PinnError, match=r"^row with index 9: tensor_parallel_size must"):
        pinn.predict_many(asked, **DEPLOYED)
    with pytest.warns(UserWarning, match="1 of 2 configurations is invalid"):
        found = pinn.predict_many("max_num_seqs=64,many", skip_invalid=True, **DEPLOYED)
    assert found["max_num_seqs"].tolist() == ["64", "many"]


def test_a_table_names_inputs_outside_the_training_range():
    asked = {"model": [MODEL, "deepseek-ai/DeepSeek-V3"], "gpu": ["H100"]}
    found = pinn.predict_many(asked)["outside_training_range"].fillna("")
    for name, cell in zip(asked["model"], found, strict=True):
        away = pinn.predict(name, "H100").to_json()["distance"]["outside_training_range"]
        expected = [f"{key} ({by:+.1f})" for key, by in list(away.items())[:4]]
        assert cell.split(" and ")[0] == ", ".join(expected)
    assert found[1]


def test_predictions_are_compared_like_their_files(tmp_path):
    one = pinn.predict(*LLAMA)
    one.save(tmp_path / "one.json")
    files = pinn.compare(tmp_path / "one.json", tmp_path / "one.json")
    found = pinn.compare(one, tmp_path / "one.json")
    pd.testing.assert_frame_equal(found.coefficients, files.coefficients)
    pd.testing.assert_frame_equal(found.step_times, files.step_times)
    assert f"A: prediction of {MODEL} on H100-SXM" in str(found)
    with pytest.raises(pinn.PinnError, match="got a Prediction: write it to a file with"):
        pinn.predict(memory_log=one)


def test_a_table_tells_starts_that_fail_and_batches_beyond_the_cache():
    asked = [{"max_model_len": 8192}, {"max_model_len": 30_000}, {"gpu": "L4"}]
    batches = ["4 decode @ 700", "200 decode @ 7000"]
    found = pinn.predict_many(asked, batches, model="Qwen/Qwen3-32B", gpu="H100")
    assert found["verdict"].tolist() == ["starts", "may not start", "does not start"]
    assert found["starts"].tolist() == [True, False, False]
    assert found["fits"].tolist() == [True, True, False]
    assert found["reason"][1].endswith("at the lower bound of KV memory")
    assert found["reason"][2].startswith("Qwen/Qwen3-32B does not fit")
    assert found["fits_kv_cache: 4 decode @ 700"].tolist() == [True, True, pd.NA]
    assert not found["fits_kv_cache: 200 decode @ 7000"].any()
    # 7,001 tokens need 438 blocks of 16 tokens.
    (mark,) = (
        pinn.predict("Qwen/Qwen3-32B", "H100", max_model_len=8192).at(batches[1]).steps[0].marks
    )
    assert mark == found[f"marks: {batches[1]}"][0]
    assert mark.startswith("87,600 blocks of 16 tokens exceed the ")


def test_a_simulation_is_what_the_command_writes(load, tmp_path):
    options = ("--workload", load, "--max-num-seqs", 2, "--replicas", 2)
    out = tmp_path / "run.json"
    printed = typed("simulate", *NAMED, *options, "--json", out)
    flags = {"max_num_seqs": 2, "replicas": 2}
    found = pinn.simulate(load, *LLAMA, **flags)
    written = json.loads(out.read_text())
    assert {name: written[name] for name in found.figures} == found.figures
    assert str(found).split() == printed.split()
    assert pinn.simulate(LOAD, *LLAMA, **flags).figures == found.figures
    assert len(found.requests()) == LOAD["requests"]
    trace = pd.DataFrame({"arrival_s": [0.0, 1.0], "prompt_tokens": 90, "output_tokens": [5, 7]})
    assert pinn.simulate(trace, *LLAMA).requests()["output_tokens"].tolist() == [5, 7]


def test_benchmarks_calibrate_as_the_command_does(tmp_path):
    before = pinn.predict(*LLAMA)
    slower = np.array(list(before.beta.values())) * 1.3
    alpha = np.array(list(before.alpha.values()))
    paths = []
    for clients in (4, 16):
        of = served(lambda d: LinearLatency(d, slower, alpha), clients, requests=40)
        paths.append(tmp_path / f"c{clients}.json")
        paths[-1].write_text(json.dumps(vllm_bench(of)))
    found = pinn.calibrate(paths, *LLAMA)
    printed = typed("calibrate", "--benchmarks", *paths, *NAMED, "-o", tmp_path / "typed.json")
    assert str(found).split() == printed.rsplit("\n", 2)[0].split()
    assert_one_screen(printed)
    assert found.kept
    found.save(tmp_path / "saved.json")
    assert (tmp_path / "saved.json").read_bytes() == (tmp_path / "typed.json").read_bytes()
    after = pinn.predict(coefficients=tmp_path / "saved.json")
    low, high = after.interval("16 decode @ 540")
    assert before.step_time("16 decode @ 540") < low < after.step_time("16 decode @ 540") < high


def test_a_calibration_that_is_no_better_is_not_saved(tmp_path):
    traces = served_traces(tmp_path, 120)
    first = pinn.calibrate(observations=traces)
    first.save(tmp_path / "first.json")
    again = pinn.calibrate(observations=traces, append=tmp_path / "first.json")
    assert again.appended
    assert not again.kept
    with pytest.raises(pinn.PinnError, match="does not reduce the held-out error"):
        again.save(tmp_path / "again.json")
    assert not (tmp_path / "again.json").exists()


def test_a_plan_is_what_the_command_writes(tmp_path):
    load, grid = tmp_path / "load.yaml", tmp_path / "grid.yaml"
    load.write_text("{prompt_tokens: 256, output_tokens: 16, stages: [{rate: 2, duration: 50}]}")
    grid.write_text("gpus_per_machine: 8\ngrid: {tensor_parallel_size: [1], max_num_seqs: [64]}\n")
    slo = "ttft<=300ms, tpot<=20ms for 90 %"
    asked = {"rate": 20, "candidates": grid, "time_budget": 600}
    found = pinn.plan(load, slo, *LLAMA, price={"H100": 2.0}, **asked)
    options = ("--slo", slo, "--rate", 20, "--candidates", grid, "--price", "H100=2")
    options += ("--time-budget", 600, "--workers")
    typed("plan", *NAMED, "--workload", load, *options, 1, "--out", tmp_path / "typed")
    assert found.table()["gpus"].tolist() == [choice.gpus for choice in found.plan.choices]
    found.save(tmp_path / "saved")
    saved, by_command = (
        {path.name: path for path in (tmp_path / who).iterdir()} for who in ("saved", "typed")
    )
    assert saved.keys() == by_command.keys()
    plans = [read_plan(each["plan.json"]) for each in (saved, by_command)]
    timed = {"seconds": 0.0, "spent_s": {}}
    assert replace(plans[0], **timed) == replace(plans[1], **timed)


def test_a_page_is_what_the_command_writes(tmp_path):
    called, by_command = tmp_path / "called.html", tmp_path / "typed.html"
    sizes = {"tensor_parallel_size": (1, 2), "max_num_seqs": 2}
    assert pinn.explore(called, MODEL, ["H100"], **sizes) == 4
    typed(
        "explore", "--model", MODEL, "--gpu", "H100", "--tensor-parallel-size", "1,2",
        "--max-num-seqs", 2, "--out", by_command
    )  # fmt: skip
    assert called.read_text() == by_command.read_text()
    assert (
        pinn.explore(
            called, MODEL, ["H100"], quantization=["fp8"], tensor_parallel_size=2, max_num_seqs=1
        )
        == 1
    )
    with pytest.raises(pinn.PinnError, match="model and gpu are required"):
        pinn.explore(called, MODEL)


def test_exports_are_what_the_commands_write(tmp_path, capsys):
    grid = "model=Llama-3.1-8B gpu=H100,H200"
    pinn.export_table(tmp_path / "called.json", grid)
    pinn.export_onnx(tmp_path / "called", inputs=tmp_path / "called_inputs.json")
    assert capsys.readouterr().out == ""
    typed("export", "table", "--configs", grid, "--out", tmp_path / "typed.json")
    typed("export", "onnx", "--out", tmp_path / "onnx", "--inputs", tmp_path / "typed_inputs.json")
    for ending in (".json", "_inputs.json"):
        called, by_command = (tmp_path / f"{who}{ending}" for who in ("called", "typed"))
        assert called.read_bytes() == by_command.read_bytes()
    assert {p.name for p in (tmp_path / "called").iterdir()} == {
        "coefficients.onnx",
        "step_time.onnx",
    }


@pytest.mark.parametrize(
    ("function", "specifications"),
    [("predict", [ServingSpec]), ("predict_many", [ServingSpec]),
     ("simulate", [ServingSpec, EngineSpec]), ("plan", [ServingSpec, EngineSpec])],
)  # fmt: skip
def test_every_flag_is_a_documented_argument(function, specifications):
    found = getattr(pinn, function)
    names = [f.name for each in specifications for f in fields(each)]
    assert set(names) < set(inspect.signature(found).parameters)
    missing = [name for name in names if f"\n    {name}: " not in found.__doc__]
    assert not missing


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"tensor_paralel_size": 2}, "did you mean tensor_parallel_size"),
        ({"replica": 2}, "did you mean replicas"),
        ({"max_num_seqs": "many"}, "max_num_seqs must be a whole number, got 'many'"),
        ({"replicas": 0}, "^replicas must be a positive whole number"),
    ],
)
def test_flags_are_refused_by_name(load, flags, said):
    with pytest.raises(pinn.PinnError, match=said):
        pinn.simulate(load, *LLAMA, **flags)


@pytest.mark.parametrize(
    ("function", "given", "nearest"),
    [
        ("plan", {"slo": "p99 ttft<=1s", "candidate": "grid.yaml"}, "candidates"),
        ("calibrate", {"benchmarks": "results", "bugdet": 3}, "budget"),
        ("export_table", {"out": "t.json", "interval": False}, "intervals"),
        ("export_blis", {"out": "blis", "workload": ["load.yaml"]}, "workloads"),
        ("export_onnx", {"out": "onnx", "checkpont": "x"}, "checkpoint"),
        ("predict", {"coefficient": "x.json"}, "coefficients"),
        ("predict_many", {"configurations": [], "skip_invalids": True}, "skip_invalid"),
        ("explore", {"out": "page.html", "checkpont": "x"}, "checkpoint"),
    ],
)
def test_an_unknown_argument_is_refused_with_the_nearest(function, given, nearest):
    with pytest.raises(pinn.PinnError, match=f"is unknown: did you mean {nearest}[?]"):
        getattr(pinn, function)(**given)


def test_importing_pinn_loads_next_to_nothing():
    code = "import sys; before = set(sys.modules); import pinn; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.startswith("pinn")} == {
        "pinn",
        "pinn.errors",
    }
    assert not set(done.stdout.split()) & {"numpy", "typer", "rich", "pandas"}


def test_every_public_name_is_there():
    for name in pinn.__all__:
        assert getattr(pinn, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'prdict'"):
        pinn.prdict  # noqa: B018
