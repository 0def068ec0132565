"""``pinn compare``: checkpoints, coefficient files and evaluations."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from changed_weights import with_array
from evaluations import write_evaluation
from one_screen import assert_one_screen

from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    return write_evaluation(tmp_path_factory.mktemp("evaluation") / "a")


@pytest.fixture
def better(evaluation, tmp_path):
    """Return an evaluation with a network that is always right."""
    folder = shutil.copytree(evaluation, tmp_path / "better")
    rows = pd.read_parquet(folder / "predictions.parquet")
    network = rows["method"] == "network"
    for metric in ("tpot", "ttft"):
        rows.loc[network, f"{metric}_s"] = rows.loc[network, f"{metric}_measured_s"]
    rows.to_parquet(folder / "predictions.parquet", index=False)
    results = pd.read_csv(folder / "results.csv")
    results.loc[results["method"] == "network", ["median", "mean", "p90", "bias"]] = 0.0
    results.to_csv(folder / "results.csv", index=False)
    return folder


def compared(run, tmp_path, *arguments):
    out = tmp_path / "comparison.json"
    result = run("compare", *arguments, "--json", out)
    assert result.exit_code == 0, result.output
    assert_one_screen(result.stdout)
    return json.loads(out.read_text()), result.stdout


def test_evaluations_get_a_verdict_per_split_and_metric(run, evaluation, better, tmp_path):
    found, shown = compared(run, tmp_path, evaluation, better)
    verdicts = {(row["split"], row["metric"]): row["verdict"] for row in found["errors"]}
    assert set(verdicts.values()) == {"B better"}
    assert len(verdicts) == 4
    assert all(row["high"] < 0 for row in found["errors"])
    assert "B better" in shown
    assert set(found) == {"errors"}


def test_another_method_can_be_named(run, evaluation, better, tmp_path):
    found, _ = compared(run, tmp_path, evaluation, better, "--method", "global vector")
    assert {row["verdict"] for row in found["errors"]} == {"tied"}


def test_tables_alone_are_compared_by_their_parts(run, evaluation, better, tmp_path):
    found, _ = compared(run, tmp_path, evaluation / "results.csv", better / "results.csv")
    assert {row["verdict"] for row in found["errors"]} == {"B better"}
    assert all(row["low"] is None for row in found["errors"])


@pytest.fixture
def checkpoints(checkpoint_path, evaluation, tmp_path):
    """Two checkpoints: B's layers take longer and its held-out errors are half of A's."""
    results = pd.read_csv(evaluation / "results.csv")
    paths = []
    for name, factor in (("a", 1.0), ("b", 0.5)):
        found = load_checkpoint(checkpoint_path)
        numbers = ["median", "mean", "p90", "bias"]
        held_out = results.assign(**{column: factor * results[column] for column in numbers})
        records = held_out.drop(columns=["pearson_r", "inversions"]).to_dict("records")
        network = found.network
        if name == "b":
            network = with_array(network, "beta_base", network.arrays["beta_base"] + 0.1)
        paths.append(tmp_path / f"{name}.safetensors")
        save_checkpoint(Checkpoint(network, {"held_out_results": records}), paths[-1])
    return paths


def test_checkpoints_are_compared_by_held_out_errors_and_steps(run, checkpoints, tmp_path):
    found, shown = compared(run, tmp_path, *checkpoints)
    assert {row["verdict"] for row in found["errors"]} == {"B better"}
    ratios = [row["ratio"] for row in found["step_times"]]
    assert min(ratios) > 1.0
    said = " ".join(shown.split())
    assert f"B / A is {min(ratios):.2f} to {max(ratios):.2f}," in said
    assert all(row["batch"] in said for row in found["step_times"])
    assert f"Step times on {len({row['deployment'] for row in found['step_times']})} dep" in said
    assert "coefficients" not in found


def test_coefficient_files_are_compared_by_name_and_interval(run, tmp_path):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    run("coefficients", "--model", "Llama-3.1-8B", "--gpu", "H100", "--json", first)
    tree = json.loads(first.read_text())
    gemm = tree["beta"]["gemm"]
    gemm |= {"low": 0.9 * gemm["value"], "high": 1.1 * gemm["value"]}
    first.write_text(json.dumps(tree))
    gemm["value"] *= 1.5
    second.write_text(json.dumps(tree))
    found, shown = compared(run, tmp_path, first, second)
    rows = {row["name"]: row for row in found["coefficients"]}
    assert rows["beta.gemm"]["ratio"] == pytest.approx(1.5)
    assert rows["beta.gemm"]["verdict"] == "outside A's interval"
    others = [row["ratio"] for name, row in rows.items() if name != "beta.gemm"]
    np.testing.assert_array_equal(others, 1.0)
    assert all(row["ratio"] > 1 for row in found["step_times"])
    assert "beta.gemm  x" in shown
    assert "outside" in shown
    assert f"1 of {len(rows)} coefficients" in shown
    sentence = "Step times on meta-llama/Meta-Llama-3.1-8B on H100-SXM (64 decode @ 1000; 1 prefill"
    assert sentence in " ".join(shown.split())
    assert "no errors" not in shown
    every = run("compare", first, second, "--details").stdout
    assert all(name in every for name in rows)


def test_calibrations_are_compared_by_their_own_errors(run, tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    run("coefficients", "--model", "Llama-3.1-8B", "--gpu", "H100", "--json", paths[0])
    tree = json.loads(paths[0].read_text())
    for path, error in zip(paths, (0.02, 0.01), strict=True):
        record = {"part": "test", "kind": "windows", "n": 100, "coefficients": "calibrated",
                  "median": error, "mean": error, "bias": 0.0}  # fmt: skip
        other = record | {"kind": "singles", "n": 0, "median": None, "mean": None, "bias": None}
        tree["calibration"] = {"errors": [record, other]}
        path.write_text(json.dumps(tree))
    found, _ = compared(run, tmp_path, *paths)
    (row,) = found["errors"]
    assert (row["split"], row["metric"], row["verdict"]) == ("test, windows", "step", "B better")
    assert row["b"] == pytest.approx(1.0)


def test_calibrations_to_loads_are_compared_by_their_held_out_errors(run, tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    run("coefficients", "--model", "Llama-3.1-8B", "--gpu", "H100", "--json", paths[0])
    tree = json.loads(paths[0].read_text())
    for path, factor in zip(paths, (1.02, 1.01), strict=True):
        tree["calibration"] = {
            "held_out": [{"run": name, "load": name, "figure": figure, "measured": 2.0,
                          "before": 3.0, "after": factor * 2.0}
                         for name in "xyz" for figure in ("ttft_mean_s", "tpot_mean_s")]
        }  # fmt: skip
        path.write_text(json.dumps(tree))
    found, shown = compared(run, tmp_path, *paths)
    rows = {row["metric"]: row for row in found["errors"]}
    assert set(rows) == {"ttft", "tpot"}
    assert (rows["ttft"]["split"], rows["ttft"]["n"]) == ("held-out loads", 3)
    assert (rows["ttft"]["a"], rows["ttft"]["b"]) == pytest.approx((2.0, 1.0))
    assert rows["ttft"]["verdict"] == "B better"
    assert "no errors" not in shown


def test_a_file_and_a_checkpoint(run, checkpoints, tmp_path):
    path = tmp_path / "file.json"
    run("coefficients", "--model", "Llama-3.1-8B", "--gpu", "H100", "--json", path,
        "--checkpoint", checkpoints[0])  # fmt: skip
    found, _ = compared(run, tmp_path, path, checkpoints[0])
    assert {row["ratio"] for row in found["coefficients"]} == {1.0}
    assert len(found["step_times"]) == 3


def test_what_cannot_be_compared_is_refused(refused, evaluation, checkpoint_path, tmp_path):
    assert "does not exist: give a checkpoint" in refused("compare", tmp_path / "none", evaluation)
    text = tmp_path / "x.txt"
    text.write_text("")
    assert "give a checkpoint" in refused("compare", text, evaluation)
    assert "as method (--method)" in refused("compare", evaluation, evaluation, "--method", "x")
    line = refused("compare", evaluation, checkpoint_path)
    assert f"no errors against measurements in B ({checkpoint_path})" in line
    assert "checkpoints with held-out errors" in line
