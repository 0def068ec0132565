"""Loads given as mappings or tables to functions, instead of as files."""

import json

import pandas as pd
import pytest

import pinn

LLAMA = ("meta-llama/Llama-3.1-8B", "H100")
LOAD = {"prompt_tokens": 256, "output_tokens": 16, "stages": [{"rate": 4, "duration": 20}]}


@pytest.fixture(autouse=True)
def _small_network(monkeypatch, checkpoint_path):
    monkeypatch.setenv("PINN_CHECKPOINT", str(checkpoint_path))


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text("gpus_per_machine: 8\ngrid: {tensor_parallel_size: [1], max_num_seqs: [64]}\n")
    return path


def table(count=80):
    arrivals = [i / 4 for i in range(count)]
    return pd.DataFrame({"arrival_s": arrivals, "prompt_tokens": 256, "output_tokens": 16})


@pytest.mark.parametrize(
    ("load", "name"),
    [(LOAD, "workload.yaml"), (table(), "workload.csv"),
     (table().to_dict("records"), "workload.csv")],
    ids=["mapping", "table", "list"],
)  # fmt: skip
def test_a_plan_has_a_load_without_a_file(load, name, grid, tmp_path):
    def planned(workload):
        return pinn.plan(workload, "p99 ttft<=1s", *LLAMA, candidates=grid, rate=4, time_budget=600)

    found, file = planned(load), tmp_path / name
    file.write_text(json.dumps(load)) if load is LOAD else table().to_csv(file, index=False)
    by_file = planned(file)
    assert found.table()["gpus"].tolist() == by_file.table()["gpus"].tolist()
    assert found.plan.choices[0].at_rate == by_file.plan.choices[0].at_rate
    assert found.plan.ask.workload == name
    text = json.dumps(found.to_json())
    assert f"--workload {name}" in text
    assert "/pinn-load-" not in text + str(found)
    found.save(tmp_path / "plan")
    assert found.to_json() == json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert (tmp_path / "plan" / name).read_text() == file.read_text()
    assert by_file.load is None


def test_the_json_of_a_simulation_has_no_temporary_path():
    found = pinn.simulate(LOAD, *LLAMA).to_json()
    assert found["workload"]["path"] == "workload.yaml"


def test_a_model_in_the_place_of_the_load_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    for given in (tmp_path, tmp_path / "config.json"):
        for function, other in ((pinn.simulate, "H100"), (pinn.plan, "p99 ttft<=1s")):
            with pytest.raises(pinn.PinnError, match="is a model: give the load first"):
                function(given, other)


def test_a_load_without_a_file_and_a_model_that_does_not_fit():
    with pytest.raises(pinn.PinnError, match=r"does not fit.*: raise tensor_parallel_size or"):
        pinn.simulate(LOAD, "meta-llama/Llama-3.1-70B", "L4")


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({"prompt_token": 9, "output_tokens": 2},
         r"with the keys prompt_token, output_tokens \(did you mean prompt_tokens\?\) is unknown"),
        (table()[["arrival_s", "prompt_tokens"]],
         "lacks the column of the output length: expected a column output_tokens, got arrival_s"),
        (table().assign(prompt_tokens=[None, *table()["prompt_tokens"][1:]]).rename({0: "first"}),
         "^workload, row with index first: prompt_tokens is missing"),
        (table().assign(output_tokens=[None, *table()["output_tokens"][1:]]).to_dict("records"),
         r"^workload\[0\]: output_tokens is missing"),
        (LLAMA[0], f"file {LLAMA[0]} does not exist: give the load first, then the model"),
    ],
)  # fmt: skip
def test_a_wrong_load_is_refused_by_its_names(load, said):
    with pytest.raises(pinn.PinnError, match=said):
        pinn.simulate(load, *LLAMA)


def test_a_plan_has_a_grid_of_configurations():
    grid = f"model={LLAMA[0]} gpu=H100 tensor_parallel_size=1,2"
    found = pinn.plan(LOAD, "p99 ttft<=2s", configs=grid, rate=4, top=2).table()
    assert sorted(found["tensor_parallel_size"]) == [1, 2]
    assert "or a grid, such as" in pinn.plan.__doc__
