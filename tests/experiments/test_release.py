"""What a fold of the release leaves out, and what it refuses."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from calibrations import small_calibration
from omegaconf import OmegaConf
from run_cases import three_runs

from pinn.errors import PinnError
from pinn.experiments.release import held_out_results, publish, run_release
from pinn.experiments.release_folds import LEFT_OUT, split_runs, without_model
from pinn.specs.catalog import load_model
from pinn.specs.deployment import Deployment
from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.training.serving_rows import serving_rows
from pinn.uncertainty.calibration import calibration_path, read_calibration, write_calibration


def on_four_gpus(name):
    return Deployment(load_model(name), load_gpu("H100"), ServingSpec(tensor_parallel_size=4))


def test_a_model_and_its_near_copies_train_nothing_of_its_fold():
    first = three_runs()[0]
    held_out = "meta-llama/Meta-Llama-3.1-70B"
    copy = on_four_gpus("meta-llama/Meta-Llama-3.1-70B")
    runs = [
        replace(first, name="held out", deployment=copy),
        replace(first, name="other", deployment=on_four_gpus("meta-llama/Meta-Llama-3.1-8B")),
    ]
    train, test = split_runs(runs, load_model(held_out))
    assert [run.name for run in train] == ["other"]
    assert [run.name for run in test] == ["held out"]


def test_serving_rows_of_the_model_go_too():
    names = ("meta-llama/Meta-Llama-3.1-70B", "mistralai/Mixtral-8x7B-v0.1")
    table = pd.DataFrame(
        [
            {
                "row_id": name,
                "model": name,
                "gpu": "h100_sxm",
                "precision": "bf16",
                "tensor_parallel_size": 4,
                "enable_expert_parallel": False,
                "kv_cache_dtype": "auto",
                "concurrency": 4,
                "prompt_tokens": 128,
                "output_tokens": 16,
                "ttft_s": 1.0,
                "tpot_s": 1.0,
                "engine_version": "",
                "date": "",
                "series": "",
            }
            for name in names
        ]
    )
    kept = without_model(serving_rows(table), load_model(names[0]))
    assert kept.row_id == (names[1],)


def test_held_out_errors_go_below_those_of_another_experiment(tmp_path):
    other = pd.DataFrame(
        [
            {
                "split": "leave-one-model-out", "held_out": "all", "method": "network",
                "metric": "tpot", "n": 3, "median": 1.0, "mean": 2.0, "p90": 3.0, "bias": 0.5,
            }
        ]
    )  # fmt: skip
    other.to_csv(tmp_path / "results.csv", index=False)
    scores = pd.DataFrame(
        {
            "method": [LEFT_OUT] * 4 + ["network"],
            "stage": ["all", "all", "0", "all", "all"],
            "model": ["a", "b", "a", "b", "a"],
            "figure": ["e2e_mean_s", "e2e_mean_s", "e2e_mean_s", "ttft_mean_s", "e2e_mean_s"],
            "predicted_s": [1.1, 0.8, 9.0, 1.0, 9.0],
            "measured_s": np.ones(5),
        }
    )
    config = OmegaConf.create({"held_out_results": str(tmp_path / "results.csv")})
    results = held_out_results(config, scores)
    of_runs = results.set_index(["held_out", "metric"])
    assert of_runs.loc[("all", "e2e_mean"), "mean"] == pytest.approx(15.0)
    assert of_runs.loc[("b", "e2e_mean"), "bias"] == pytest.approx(-20.0)
    assert of_runs.loc[("all", "ttft_mean"), "n"] == 1
    assert of_runs.loc[("all", "tpot"), "mean"] == 2.0
    results.to_csv(tmp_path / "results.csv", index=False)
    assert len(held_out_results(config, scores)) == len(results)
    missing = OmegaConf.create({"held_out_results": str(tmp_path / "none.csv")})
    with pytest.raises(PinnError, match="no results table"):
        held_out_results(missing, scores)


def test_a_release_without_runs_is_refused(tmp_path):
    config = OmegaConf.create(
        {
            "seed": 0,
            "threads": 1,
            "output_dir": str(tmp_path),
            "runs": {"path": None, "model_configs": None},
        }
    )
    with pytest.raises(PinnError, match="PINN_SERVING_RUNS"):
        run_release(config)


def trained(folder):
    """A checkpoint beside its results."""
    folder.mkdir()
    (folder / "results.csv").write_text("split\n")
    (folder / "serving_runs.csv").write_text("run\n")
    (folder / "checkpoint.safetensors").write_bytes(b"a network")
    return folder / "checkpoint.safetensors"


def test_a_new_release_takes_the_intervals_over(tmp_path, capsys):
    new, target = trained(tmp_path / "results"), tmp_path / "pinn.safetensors"
    target.write_bytes(b"before")
    write_calibration(small_calibration(target), calibration_path(target))
    publish(new, target)
    assert target.read_bytes() == b"a network"
    assert read_calibration(target).metrics == small_calibration(target).metrics
    assert (tmp_path / "pinn.results.csv").read_text() == "split\n"
    assert (tmp_path / "pinn.serving_runs.csv").read_text() == "run\n"
    assert capsys.readouterr().err == ""


def test_a_release_without_intervals_says_so(tmp_path, capsys):
    publish(trained(tmp_path / "results"), tmp_path / "pinn.safetensors")
    assert (tmp_path / "pinn.safetensors").read_bytes() == b"a network"
    assert "has no intervals: no intervals at" in capsys.readouterr().err
