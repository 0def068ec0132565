"""A whole experiment on a handful of made-up measurements, without kernels."""

import json
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from configurations import configure
from pages import command_on
from typer.testing import CliRunner

from pinn.cli.main import app
from pinn.common.files import file_sha256
from pinn.evaluation.experiment import run_experiment
from pinn.evaluation.folds import CHECKPOINT_COLUMN, experiment_splits
from pinn.evaluation.measured import read_measured, recipe_sha256
from pinn.surrogate.checkpoint import load_checkpoint


def small(source, folder, *overrides):
    return configure(
        "kernels=off",
        f"data.source={source}",
        f"output_dir={folder}",
        "runs.path=null",
        "fit.steps=100",
        "trainer.progress=false",
        f"publish={folder}/kept",
        *overrides,
    )


@pytest.fixture(scope="module")
def done(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    return run_experiment(small(source, folder)), folder


def test_make_train_in_small(source, tmp_path):
    """Check the command of README, in the small setting that docs/training.md states."""
    assert command_on("README.md", "make train")[0] == ["make", "train"]
    root = Path(__file__).parents[2]
    recipe = (root / "Makefile").read_text().split("\ntrain: ", 1)[1].split("\n\n", 1)[0]
    overrides = shlex.split(recipe.split("train.py", 1)[1])
    assert overrides == ["+experiment=moe_ep"]
    page = (root / "docs" / "training.md").read_text()
    (stated,) = re.findall(r"train\.py (\S+ .*) data\.source=FEW_ROWS\.csv`", page)
    few = (f"data.source={source}", f"output_dir={tmp_path}", "runs.path=null")
    summary = run_experiment(configure(*stated.split(), *few, "trainer.progress=false"))
    assert stated.split()[0] == overrides[0]
    assert Path(summary["checkpoint"]).is_file()


def test_everything_is_on_disk_and_named_in_the_summary(done):
    summary, folder = done
    assert json.loads(json.dumps(summary)) == summary
    assert summary["serving_runs"] == 0
    predictions = pd.read_csv(folder / "predictions.csv")
    assert len(predictions) == 4 * predictions["method"].nunique()
    assert {"roofline", "global vector"} <= set(predictions["method"])
    assert Path(summary["published"]).is_file()


def test_a_checkpoint_names_its_recipe_data_and_code(done, source):
    summary, folder = done
    metadata = load_checkpoint(Path(summary["checkpoint"])).metadata
    assert {"recipe_sha256", "data_sha256", "code_sha256", "command", "date"} <= metadata.keys()
    assert metadata["recipe_sha256"] == recipe_sha256(small(source, folder))
    results = pd.read_csv(folder / "results.csv")
    carried = pd.DataFrame(metadata["held_out_results"])
    pd.testing.assert_frame_equal(carried, results, check_dtype=False)
    (of_rows,) = metadata["sources"]
    assert of_rows["report"]["sha256"] == file_sha256(source)


def test_kept_tables_belong_to_the_kept_checkpoint(done, monkeypatch):
    summary, _ = done
    kept = Path(summary["published"])
    assert file_sha256(kept) == file_sha256(Path(summary["checkpoint"]))
    for name in ("results.csv", "predictions.csv"):
        table = pd.read_csv(kept.with_suffix(f".{name}"))
        assert set(table[CHECKPOINT_COLUMN]) == {file_sha256(kept)}
    monkeypatch.setenv("PINN_CHECKPOINT", str(kept))
    shown = CliRunner().invoke(app, ["results"])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"^openai/gpt-oss-120b +2 ", shown.stdout, re.MULTILINE), shown.stdout


def test_only_what_decides_what_is_learned_is_in_the_recipe(source, tmp_path):
    plain = recipe_sha256(small(source, tmp_path))
    elsewhere = small(source, tmp_path / "other", "threads=2", "workers.count=1", "publish=null")
    assert recipe_sha256(elsewhere) == plain
    for change in ("fit.steps=101", "seed=1", "network.hidden=64", "run_fit.ttft_weight=0.31"):
        assert recipe_sha256(small(source, tmp_path, change)) != plain


def test_other_measurements_are_other_data(source, done, tmp_path):
    changed = tmp_path / "silicon_sample.csv"
    changed.write_text(source.read_text().replace(",250.0,", ",251.0,", 1))
    assert changed.read_text() != source.read_text()
    config = small(changed, tmp_path, "evaluation=none", "fit.steps=100")
    again = load_checkpoint(Path(run_experiment(config)["checkpoint"])).metadata
    first = load_checkpoint(Path(done[0]["checkpoint"])).metadata
    assert again["recipe_sha256"] == first["recipe_sha256"]
    assert again["data_sha256"] != first["data_sha256"]
    assert again["code_sha256"] == first["code_sha256"]


def test_a_second_experiment_finds_what_the_first_one_predicted(source, done, monkeypatch):
    _, folder = done
    before = (folder / "predictions.csv").read_bytes()
    monkeypatch.setattr("pinn.evaluation.crossvalidation._predictions", None)
    run_experiment(small(source, folder, "final_fit=false"))
    assert (folder / "predictions.csv").read_bytes() == before


def test_one_model_is_held_out_alone(source, tmp_path):
    run_experiment(small(source, tmp_path, "evaluation.held_out=gpt-oss-120b", "final_fit=false"))
    predictions = pd.read_csv(tmp_path / "predictions.csv")
    assert set(predictions["held_out"]) == {"openai/gpt-oss-120b"}
    assert set(predictions["row_id"]) == {"openai/gpt-oss-120b 2", "openai/gpt-oss-120b 4"}


@pytest.mark.parametrize("name", ["b200_sxm", "B200-SXM"])
def test_one_gpu_is_held_out_alone(name, source, tmp_path):
    rows = pd.read_csv(source)
    rows = pd.concat([rows, rows.assign(system="b200_sxm", id=rows["id"] + " B200")])
    rows.to_csv(tmp_path / "two_gpus.csv", index=False)
    config = small(tmp_path / "two_gpus.csv", tmp_path, f"evaluation.held_out={name}")
    splits = experiment_splits(config, read_measured(config))
    assert set(splits) == {"leave-one-gpu-out", "leave-one-gpu-and-its-kernels-out"}
    assert {split.held_out for of_kind in splits.values() for split in of_kind} == {("b200_sxm",)}
    assert all(i.endswith("B200") for (split, *_) in splits.values() for i in split.test_ids)


def test_without_serving_runs_it_says_what_is_missing(source, tmp_path, caplog):
    caplog.set_level("INFO", "pinn")
    run_experiment(small(source, tmp_path, "evaluation=none", "final_fit=false"))
    assert "PINN_SERVING_RUNS" in caplog.text


def test_the_shipped_recipe_is_that_of_every_experiment():
    """Check that the settings of training do not depend on any choice of held-out data."""
    recipes = {
        recipe_sha256(configure(*experiment))
        for experiment in (
            (), ("+experiment=release",), ("+experiment=lomo",), ("+experiment=logo",),
            ("+experiment=moe_ep",), ("+experiment=suite",),
        )
    }  # fmt: skip
    assert len(recipes) == 1
    release = configure("+experiment=release")
    assert release.publish == "checkpoints"
    assert "leave-one-model-out" in release.evaluation.splits
