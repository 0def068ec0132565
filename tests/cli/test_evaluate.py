"""``pinn evaluate serving-runs``."""

import json

import pandas as pd
import pytest
from evaluations import observations

from pinn.common.files import ReadReport
from pinn.evaluation import suite as suites
from pinn.evaluation.formulas import fitted_formulas
from pinn.evaluation.tables import print_overview
from pinn.measurements.deployments.observations import write_observations

ROW = {
    "run": "run-1",
    "stage": "0",
    "model": "meta-llama/Meta-Llama-3.1-8B",
    "gpu": "H100",
    "tensor_parallel_size": 1,
    "precision": "FP16",
    "max_num_batched_tokens": 2048,
    "workload": "roleplay",
    "rate_per_s": 6.0,
    "prompt_tokens": 750,
    "output_tokens": 251,
    "ttft_mean_ms": 20.0,
    "ttft_p90_ms": 25.0,
    "ttft_p99_ms": 40.0,
    "itl_mean_reported_ms": 9.0,
    "e2e_mean_ms": 20.0 + 250 * 8.0,
    "e2e_p90_ms": 2100.0,
    "e2e_p99_ms": 2300.0,
    "itl_mean_ms": 8.0,
}


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.csv"
    pd.DataFrame([ROW, ROW | {"stage": "all", "rate_per_s": None}]).to_csv(path, index=False)
    return path


def test_a_run_is_simulated_and_scored(run, runs, tmp_path):
    out, figures = tmp_path / "scores.csv", tmp_path / "scores.json"
    result = run("evaluate", "serving-runs", runs, "--out", out, "--json", figures)
    assert result.exit_code == 0, result.output
    assert "run-1" in result.stdout
    scores = pd.read_csv(out)
    assert len(scores) == 2 * 7
    error = 100 * (scores["predicted_s"] / scores["measured_s"] - 1)
    pd.testing.assert_series_equal(scores["error_percent"], error, check_names=False)
    found = json.loads(figures.read_text())
    assert found["ranked_wrongly"] == {"network": []}


def test_own_runs_name_the_file_of_their_load(run, refused, tmp_path):
    load = "prompt_tokens: 740\noutput_tokens: 250\nstages: [{rate: 6, duration: 20}]\n"
    (tmp_path / "load.yaml").write_text(load)
    own = ROW | {"workload": "load.yaml", "max_num_seqs": 2}
    pd.DataFrame([own]).to_csv(tmp_path / "runs.csv", index=False)
    out = tmp_path / "scores.csv"
    result = run("evaluate", "serving-runs", tmp_path / "runs.csv", "--out", out)
    assert result.exit_code == 0, result.output
    scores = pd.read_csv(out).set_index("figure")
    assert set(scores["load"]) == {"load.yaml"}
    assert scores["rate_per_s"].tolist() == [6.0] * len(scores)
    # Two requests at a time do not keep up with six a second.
    assert scores.loc["ttft_mean_s", "predicted_s"] > 1
    pd.DataFrame([own | {"output_tokens": 500}]).to_csv(tmp_path / "runs.csv", index=False)
    line = refused("evaluate", "serving-runs", tmp_path / "runs.csv")
    assert str(tmp_path / "runs.csv") in line
    pd.DataFrame([own | {"workload": "lod.yaml"}]).to_csv(tmp_path / "runs.csv", index=False)
    assert "lod.yaml" in refused("evaluate", "serving-runs", tmp_path / "runs.csv")


def test_what_cannot_be_scored_is_refused(refused, tmp_path):
    assert "the table of serving runs" in refused("evaluate", "serving-runs", tmp_path / "none.csv")


@pytest.fixture
def suite(run, tmp_path, monkeypatch):
    """Run the suite's quick part on one split of a dozen made-up measurements."""
    monkeypatch.delenv("PINN_SERVING_RUNS", raising=False)
    rows = observations()
    report = ReadReport("made up", "1", "", len(rows), len(rows))
    write_observations(rows, tmp_path / "suite" / "observations" / "silicon.parquet", report)
    settings = (
        "data._target_=builtins.dict", f"output_dir={tmp_path / 'suite'}", "cells_from=[]",
        "evaluation.groups=[]", "evaluation.splits=[leave-one-gpu-out]", "kernels=off",
        f"report.images={tmp_path / 'images'}",
    )  # fmt: skip
    return lambda *arguments: run(
        "evaluate", *arguments, *(word for setting in settings for word in ("--set", setting))
    )


def test_an_overview_names_each_split_whole_and_marks_who_is_first(capsys):
    split = "leave-one-gpu-and-its-kernels-out"
    rows = [(split, metric, "all", name, 825, 15.7) for metric in ("tpot", "ttft")
            for name in ("network", "aiconfigurator")]  # fmt: skip
    longest = "serving runs, leave-one-model-out"
    rows += [(longest, "e2e_p99", "all", name, 825, 93.4) for name in ("aisimulate", "roofline")]
    results = pd.DataFrame(rows, columns=["split", "metric", "held_out", "method", "n", "median"])
    verdicts = results.assign(
        verdict=["first", "behind", "behind", "tied first", "first", "behind"]
    )
    print_overview(results, verdicts)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1].split() == [split, "tpot", "825", "15.7*", "-", "15.7", "-"]
    assert lines[2].split() == ["ttft", "825", "15.7", "-", "15.7*", "-"]
    assert lines[3].startswith(f"{longest}  e2e_p99")
    assert lines[3].split()[-4:] == ["-", "93.4*", "-", "93.4"]
    assert max(map(len, lines)) <= 80


def test_the_suite_writes_tables_and_a_page(suite, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    result = suite("--fast")
    assert result.exit_code == 0, result.output
    assert list(here.iterdir()) == []
    folder = tmp_path / "suite"
    summary = json.loads((folder / "evaluation.json").read_text())
    screen, where = result.stdout.split("Written:")
    assert str(folder / "report.html") in where
    lines = screen.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert "leave-one-gpu-out" in lines[1]
    results = pd.read_csv(folder / "results.csv")
    assert set(results["split"]) == {"leave-one-gpu-out"}
    assert set(results["method"]) == {"roofline", "BLIS, published"}  # all that fits nothing
    ranking = pd.read_csv(folder / "ranking.csv")
    assert summary["first"]["leave-one-gpu-out"]["tpot"][0] in set(ranking["method"])
    assert "<h2" in (folder / "report.html").read_text()
    assert (folder / "figures" / "accuracy-leave-one-gpu-out-tpot.png").is_file()
    # None of the README's pictures is of this split.
    assert list((tmp_path / "images").iterdir()) == []
    # What could not be made is said with its reason.
    assert set(summary["skipped"]) == {
        "fits", "intervals", "shipped predictions", "shipped serving runs",
    }  # fmt: skip


def test_a_fast_suite_scores_the_fits_on_disk_and_makes_none(suite, tmp_path, monkeypatch):
    monkeypatch.setattr(
        suites, "_learned", lambda _, measured: fitted_formulas(measured.observations)
    )
    folder = tmp_path / "suite"
    tables = []
    for words in ([], ["--fast"]):
        result = suite(*words)
        assert result.exit_code == 0, result.output
        assert ("fold 1 of" in result.stderr) == (not words)
        tables.append(pd.read_csv(folder / "ranking.csv"))
    pd.testing.assert_frame_equal(*tables)
    # Those that saw what they predict are shown and cannot be first.
    verdicts = tables[1].groupby("method")["verdict"].agg(set)
    assert verdicts["blackbox, per configuration"] == {"not for an unseen pair"}
    others = verdicts.drop("blackbox, per configuration")
    assert set(others.index) == {
        "roofline", "roofline, constant efficiencies", "blackbox", "BLIS, published",
    }  # fmt: skip
    assert "not for an unseen pair" not in set.union(*others)


def test_what_the_suite_cannot_be_set_to_is_refused(refused):
    line = refused("evaluate", "--set", "no.such.key=1")
    assert "the settings of --set are invalid: Could not override 'no.such.key'" in line
