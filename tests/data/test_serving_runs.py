import os
from pathlib import Path

import pandas as pd
import pytest
from serving_run_row import run_row

from pinn.errors import PinnError
from pinn.measurements.deployments.measured import run_deployment
from pinn.measurements.runs.serving_runs import (
    ASSUMED_RELEASE,
    WORKLOADS,
    read_serving_runs,
    workload,
)


def read_rows(tmp_path, *changes, **options):
    path = tmp_path / "runs.csv"
    pd.DataFrame([run_row(**change) for change in changes]).to_csv(path, index=False)
    return read_serving_runs(path, **options)


def test_a_row_in_seconds(tmp_path):
    rows, report = read_rows(tmp_path, {}, {"stage": "all", "rate_per_s": None})
    stage, whole = rows.iloc[0], rows.iloc[1]
    assert (stage["ttft_mean_s"], stage["itl_mean_s"]) == (0.02, 0.008)
    assert stage["e2e_p99_s"] == pytest.approx(2.3)
    assert (stage["gpu"], stage["precision"]) == ("h100_sxm", "fp16")
    assert (stage["duration_s"], whole["duration_s"]) == (600, 1200)
    assert (stage["row_id"], whole["row_id"]) == ("run-1/0", "run-1/all")
    assert report.accepted == report.read == 2


def test_refused_rows_are_counted_by_reason(tmp_path):
    _, report = read_rows(
        tmp_path,
        {},
        {"ttft_mean_ms": None},
        {"e2e_mean_ms": 3000.0},
        {"rate_per_s": 6.0},
        {"stage": "2"},
        {},
    )
    assert list(report.refused.values()) == [1, 1, 2, 1]
    assert report.accepted == 1


def test_a_run_carries_its_release_or_the_one_it_was_taken_to_have(tmp_path):
    """A later default of the engine changes nothing about what was measured before."""
    rows, report = read_rows(tmp_path, {}, {"run": "b", "engine_version": "0.19.0"})
    assert rows["engine_version"].tolist() == [ASSUMED_RELEASE, "0.19.0"]
    assert report.noted == {"the release is not stated: assuming vLLM 0.15.1": 1}
    assert run_deployment(rows.iloc[1]).serving.engine_version == "0.19.0"


def test_nothing_usable_raises(tmp_path):
    with pytest.raises(PinnError, match="none of its 1 rows can be used"):
        read_rows(tmp_path, {"ttft_mean_ms": 0.0})


def test_unknown_names_raise(tmp_path):
    with pytest.raises(PinnError, match="the workload 'chat' is unknown"):
        read_rows(tmp_path, {"workload": "chat"})
    with pytest.raises(PinnError, match=r"the GPU\(s\) MI300 are unknown"):
        read_rows(tmp_path, {"gpu": "MI300"})
    with pytest.raises(PinnError, match="has no model: fill in the column model"):
        read_rows(tmp_path, {"model": None})
    with pytest.raises(PinnError, match=r"the table of serving runs .* does not exist"):
        read_serving_runs(tmp_path / "none.csv")


def test_a_config_in_the_folder_goes_before_the_catalogue(tmp_path):
    folder = tmp_path / "configs" / "llama-2-7b-hf"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    rows, _ = read_rows(
        tmp_path, {}, {"run": "b", "model": "01-ai/Yi-34B"}, model_configs=tmp_path / "configs"
    )
    assert list(rows["config"]) == [str(folder / "config.json"), "01-ai/Yi-34B"]


def test_workloads_last_twenty_minutes_and_repeat_a_hundred_prompts():
    for name in WORKLOADS:
        known = workload(name)
        assert sum(stage.duration_s for stage in known.stages) == 1200
        assert known.groups * known.prompts_per_group == 100
        assert known.shared_prefix_tokens < known.prompt_tokens


def test_the_public_runs():
    if "PINN_SERVING_RUNS" not in os.environ:
        pytest.skip("set PINN_SERVING_RUNS to the CSV file of serving runs")
    rows, report = read_serving_runs(Path(os.environ["PINN_SERVING_RUNS"]))
    assert report.accepted == report.read == len(rows) == 39
    assert rows["run"].nunique() == 15
    assert rows["model"].nunique() == 6
