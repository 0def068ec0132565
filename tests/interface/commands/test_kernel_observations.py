"""``pinn observations kernels``."""

import json

import pandas as pd
import pytest

from pinn.common.files import file_sha256
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.training import composed

GRID = (
    "--model", "Llama-3.1-8B", "--model", "gpt-oss-20b", "--gpu", "H100",
    "--tensor-parallel-size", 1, "--tensor-parallel-size", 2, "--tensor-parallel-size", 7,
    "--enable-expert-parallel", "--no-enable-expert-parallel",
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(composed, "SHARD_DEPLOYMENTS", 4)


@pytest.fixture
def make(run, kernels_folder):
    """Run the command with quickly fitted surrogates, read from disk each time."""
    return lambda *options: run("observations", "kernels", "--kernels", kernels_folder, *options)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_grid_becomes_steps_with_a_manifest(make, tmp_path):
    result = make(*GRID, "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    assert "6 deployments, 96 steps each" in result.stdout
    assert "3 left out: --enable-expert-parallel needs a model with experts" in result.stdout
    table = pd.read_parquet(tmp_path / "new" / "deployments.parquet")
    assert sorted(set(table["tensor_parallel_size"])) == [1, 2]
    assert table["enable_expert_parallel"].sum() == 2
    assert json.loads(table["model_json"][0])["hidden_size"] == 4096
    shards = sorted((tmp_path / "new").glob("steps-*.parquet"))
    steps = pd.concat([pd.read_parquet(path) for path in shards])
    assert (steps["deployment"].value_counts() == 96).all()
    assert set(steps["deployment"]) == set(table["deployment"])
    assert (steps[[f"{name}_s" for name in COMPOSED_PARTS]] >= 0).all(axis=None)
    manifest = json.loads((tmp_path / "new" / "manifest.json").read_text())
    assert manifest["shards_sha256"] == {path.name: file_sha256(path) for path in shards}
    assert manifest["selection"]["tensor_parallel_size"] == [1, 2, 7]
    assert sum(manifest["left_out"].values()) + len(table) == 2 * 3 * 2
    digest = file_sha256(tmp_path / "new" / "deployments.parquet")
    assert manifest["deployments_file_sha256"] == digest


def test_an_interrupted_run_goes_on_to_the_same_bits(make, tmp_path, monkeypatch):
    options = (*GRID, "--synthetic", 5, "--catalog", 6, "--gpu", "B200", "--seed", 3)
    assert make(*options, "--out", tmp_path / "whole").exit_code == 0
    compose_shard, done = composed._compose_shard, []

    def cut(*arguments):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(compose_shard(*arguments))

    with monkeypatch.context() as patched:
        patched.setattr(composed, "_compose_shard", cut)
        make(*options, "--out", tmp_path / "cut")
    partial = files(tmp_path / "cut")
    assert sum(name.startswith("steps") for name in partial) == 2
    assert "manifest.json" not in partial
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cut").glob("steps-*")}
    result = make(*options, "--out", tmp_path / "cut")
    assert result.exit_code == 0, result.output
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert {path: path.stat().st_mtime_ns for path in written} == written


def test_other_options_take_the_place_of_what_a_folder_held(make, tmp_path):
    assert make(*GRID, "--out", tmp_path / "a").exit_code == 0
    assert make(*GRID, "--seed", 1, "--out", tmp_path / "b").exit_code == 0
    assert files(tmp_path / "a") != files(tmp_path / "b")
    result = make(*GRID, "--seed", 1, "--out", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_what_cannot_be_made_is_refused(refused, tmp_path, kernels_folder):
    command = ("observations", "kernels", "--kernels", kernels_folder, "--out", tmp_path / "x")
    assert "no deployments" in refused(*command)
    assert "no --model given" in refused(*command, "--tensor-parallel-size", 2)
    assert "fitted without" in refused(*command, "--synthetic", 2, "--exclude-gpu", "B200")
