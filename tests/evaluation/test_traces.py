"""Training on traces: the checkpoint it writes is another one than it started from, and says so."""

import pytest
from configurations import configure
from served_traces import served_traces

from pinn.coefficients.trained_network import Checkpoint, load_checkpoint, save_checkpoint
from pinn.common.files import file_sha256
from pinn.laboratory.traces import run_traces

STARTED = {
    "recipe_sha256": "a recipe",
    "data_sha256": "some data",
    "scalars": {"kept": 1},
    "held_out_results": [{"split": "leave-one-model-out", "median": 1.0}],
}


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    return served_traces(tmp_path_factory.mktemp("served"), 100)


def test_a_checkpoint_with_traces_names_them_and_no_results_of_its_start(
    traced, source, checkpoint_path, tmp_path
):
    start = tmp_path / "start.safetensors"
    save_checkpoint(Checkpoint(load_checkpoint(checkpoint_path).network, STARTED), start)
    summary = run_traces(
        configure(
            "+experiment=traces",
            f"data.source={source}",
            f"data.traces={traced}",
            f"start={start}",
            f"output_dir={tmp_path}/results",
            "fit.steps=100",
            "trainer.progress=false",
        )
    )
    found = load_checkpoint(tmp_path / "results" / "checkpoint.safetensors").metadata
    assert summary["checkpoint"] == str(tmp_path / "results" / "checkpoint.safetensors")
    assert {row["method"] for row in summary["errors"]} == {"start", "with traces"}
    assert found["started_from"] == file_sha256(start)
    assert found["traces"] == [traced.name]
    assert found["scalars"] == STARTED["scalars"]
    assert found["held_out_results"] == []
    for of_start in ("recipe_sha256", "data_sha256"):
        assert found[of_start] != STARTED[of_start]
    assert len(found["code_sha256"]) == 64
