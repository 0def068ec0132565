"""Scores of serving runs, and their ranking."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from calibrations import small_calibration
from run_cases import measured, operator_betas, three_runs

from pinn.errors import PinnError
from pinn.evaluation.serving_runs import (
    ranking_inversions,
    score_runs,
    summarize_runs,
    with_intervals,
)
from pinn.evaluation.tables import print_scores, print_summary
from pinn.measurements.runs.measured_runs import FIGURES
from pinn.surrogate.uncertainty.intervals import calibration_path, write_calibration
from pinn.training.run_scalars import RunFit, run_latencies


@pytest.fixture(scope="module")
def scored():
    """Return scores of runs that were measured 10 % faster than the simulation predicts."""
    runs = three_runs()
    latencies = run_latencies(RunFit(), runs, np.stack([operator_betas()] * len(runs)))
    seen = [measured(run, latency) for run, latency in zip(runs, latencies, strict=True)]
    faster = [
        replace(
            run,
            measured={
                stage: {name: value / 1.1 for name, value in figures.items()}
                for stage, figures in run.measured.items()
            },
        )
        for run in seen
    ]
    return faster, latencies, score_runs(faster, latencies, "method")


def test_every_figure_of_every_stage_is_scored(scored):
    runs, _, scores = scored
    assert len(scores) == len(runs) * 3 * len(FIGURES)
    np.testing.assert_allclose(scores["error_percent"], 10.0, atol=1e-6)
    assert set(scores["stage"]) == {"0", "1", "all"}


def test_every_figure_lies_in_an_interval_as_wide_as_the_checkpoint_says(
    scored, checkpoint_path, tmp_path
):
    runs, latencies, scores = scored
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(checkpoint_path.read_bytes())
    with pytest.raises(PinnError, match=r"the file of intervals .* does not exist"):
        with_intervals(scores, runs, latencies, path)
    write_calibration(small_calibration(path), calibration_path(path))
    found = with_intervals(scores, runs, latencies, path)
    pd.testing.assert_frame_equal(found[scores.columns], scores)
    assert (found["low_s"] < found["predicted_s"]).all()
    assert (found["predicted_s"] < found["high_s"]).all()
    ttft = found[found["figure"] == "ttft_mean_s"]
    assert (np.log(ttft["high_s"] / ttft["predicted_s"]) >= 0.3 - 1e-9).all()
    itl = found[found["figure"] == "itl_mean_s"]
    assert (np.log(itl["high_s"] / itl["predicted_s"]) > 0.05).all()


def test_the_summary_shows_every_model_and_overloaded_runs_apart(scored):
    _, _, scores = scored
    lost = scores.assign(failed_measured=np.where(scores["run"] == "c", 0.3, 0.0))
    summary = summarize_runs(lost)
    e2e = summary[summary["figure"] == "e2e_mean_s"].set_index("part")
    assert e2e.loc["all", "n"] == 2
    assert e2e.loc["stages", "n"] == 4
    assert e2e.loc["overloaded", "n"] == 1
    assert {"dense-a", "dense-b"} <= set(e2e.index)
    np.testing.assert_allclose(e2e["median"], 10.0)


def ranked(measured_s, predicted_s):
    return pd.DataFrame(
        {
            "run": list("abc"),
            "stage": "all",
            "figure": "e2e_p99_s",
            "measured_s": measured_s,
            "predicted_s": predicted_s,
        }
    )


def test_only_runs_that_differ_clearly_can_be_ranked_wrongly():
    assert ranking_inversions(ranked([1.0, 1.1, 2.0], [1.2, 1.1, 1.3])) == []
    assert ranking_inversions(ranked([1.0, 1.1, 2.0], [1.6, 1.1, 1.5])) == [("c", "a")]


def test_tables_hold_every_stage(scored, capsys):
    _, _, scores = scored
    print_scores(scores)
    print_summary(summarize_runs(scores), {"method": [("a", "b")]})
    text = capsys.readouterr().out
    assert text.count("+10.0") == len(scores)
    assert "a is slower than b" in text
