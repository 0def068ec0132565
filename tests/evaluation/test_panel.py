"""The panel: what a score adds up, whose noise a small group has, which checkpoint it prefers."""

import numpy as np
import pandas as pd
import pytest

from pinn.common.files import file_sha256, find_checkpoint
from pinn.errors import PinnError
from pinn.evaluation.measured import json_sha256
from pinn.evaluation.panel import (
    BETTER,
    NOISE_FILE,
    add_to_ledger,
    compare_panels,
    group_scores,
    ledger_line,
    sum_up,
    training_noise,
)
from pinn.evaluation.panel_rows import learned_steps
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def rows(group="deployments: a", configurations=6, tpot=0.1, ttft=0.2, seed=0):
    """Two loads of every configuration, with the same errors but for a little noise."""
    draw = np.random.default_rng(seed)
    found = []
    for i in range(configurations):
        for metric, error in (("tpot", tpot), ("ttft", ttft)):
            if error is None:
                continue
            for sign in (-1, 1):
                off = sign * (error + 0.01 * draw.uniform(-1, 1))
                found.append((group, f"c{i}", metric, 1.0, float(np.exp(off))))
    columns = ["group", "configuration", "metric", "measured_s", "predicted_s"]
    return pd.DataFrame(found, columns=columns).assign(half=0.15)


#: Of a recipe whose seeds agree.
QUIET = pd.Series({"deployments: a": 0.0, "deployments: b": 0.0})


def panel(*tables):
    return sum_up(pd.concat(tables, ignore_index=True))


def test_two_thirds_of_a_score_are_tpot_and_groups_count_the_same():
    many, few = rows(), rows("serving runs: b", 2, tpot=0.01, ttft=None)
    scores = group_scores(panel(many, few)).set_index("group")
    assert scores.loc["deployments: a", "score"] == pytest.approx(40 / 3, rel=0.05)
    assert scores.loc["serving runs: b", "score"] == pytest.approx(1.0, abs=1.0)
    assert np.isnan(scores.loc["serving runs: b", "ttft"])
    # All of TPOT's rows lie inside, none of TTFT's.
    assert scores.loc["deployments: a", "inside"] == pytest.approx(50)
    assert scores.loc["serving runs: b", "inside"] == pytest.approx(100)
    mean = scores["score"].iloc[:-1].mean()
    assert scores.loc["panel", "score"] == pytest.approx(mean)
    assert scores.loc["panel", "configurations"] == 8
    assert scores.loc["deployments: a", "low"] < scores.loc["deployments: a", "score"]
    assert np.isnan(scores.loc["serving runs: b", "low"])


def test_half_a_percent_in_every_configuration_is_better():
    before = panel(rows(), rows("deployments: b"))
    table, verdict = compare_panels(before, before.assign(error=before["error"] - 0.5), QUIET)
    assert verdict == BETTER
    assert table["difference"].tolist() == pytest.approx([-0.5] * 3)


def test_a_better_mean_does_not_excuse_a_worse_group():
    before = panel(rows(), rows("deployments: b"))
    worse = before["group"] == "deployments: b"
    after = before.assign(error=before["error"] + np.where(worse, 1.0, -3.0))
    _, verdict = compare_panels(before, after, QUIET)
    assert verdict.startswith("better;")
    assert verdict.endswith(": deployments: b")


def test_one_run_has_the_noise_of_the_others():
    noisy = rows("serving runs: a", 6, tpot=0.2, ttft=None)
    before = panel(noisy, rows("judges: b", 1, ttft=None))
    draw = np.random.default_rng(1)
    after = before.assign(error=before["error"] + draw.normal(0, 3, len(before)))
    judge = after["group"] == "judges: b"
    after.loc[judge, "error"] = before.loc[judge, "error"] + 0.5
    table, _ = compare_panels(before, after, QUIET)
    assert table.set_index("group").loc["judges: b", "low"] < 0


def test_what_another_seed_does_as_well_is_no_worse_group():
    before = panel(rows(), rows("deployments: b"))
    worse = before["group"] == "deployments: b"
    after = before.assign(error=before["error"] + np.where(worse, 1.0, -3.0))
    # The difference of two trainings: 1.96 times the root of 2 times 0.4 is 1.1.
    table, verdict = compare_panels(before, after, QUIET + 0.4)
    assert verdict == BETTER
    assert table["low"].iloc[1] == pytest.approx(1 - 1.11, abs=0.1)
    _, verdict = compare_panels(before, after, QUIET + 0.3)
    assert verdict.startswith("better;")
    assert verdict.endswith(": deployments: b")
    # A group that no seed has scored moves as the others do in the median.
    _, verdict = compare_panels(before, after, (QUIET + 0.4).rename({"deployments: b": "new"}))
    assert verdict == BETTER


def test_noise_of_training_is_a_groups_own_over_trainings_but_not_less_than_its_sources():
    about = {"date": "2026-11-26", "checkpoint": ["x", "y", "z"], "what": "", "panel": 9.0}
    lines = pd.DataFrame(
        about
        | {"deployments: a": 5.0, "deployments: b": [5.0, 6.0, 7.0],
           "deployments: c": [5.0, 9.0, 13.0], "judges: d": [5.0, 8.0, 11.0],
           "serving runs: e": [6.0, 5.0, 4.0], "whole steps: came later": [np.nan, 5.0, 6.0]}
    )  # fmt: skip
    # Deviations 0, 1 and 4 have the median 1; runs and judges, 3 and 1, are one source.
    assert training_noise(lines).to_dict() == pytest.approx(
        {"deployments: a": 1.0, "deployments: b": 1.0, "deployments: c": 4.0, "judges: d": 3.0,
         "serving runs: e": 2.0}
    )  # fmt: skip


def test_the_shipped_noise_is_of_the_groups_of_the_shipped_panel():
    """No group takes the median for want of its own."""
    beside = find_checkpoint().parent
    shipped = pd.read_csv(beside / "pinn.panel.csv")
    noise = pd.read_csv(beside / NOISE_FILE).set_index("group")["score"]
    assert set(noise.index) == set(shipped["group"])
    assert (noise > 0).all()


def test_missing_predictions_and_other_groups_are_refused():
    broken = rows().assign(predicted_s=np.nan)
    with pytest.raises(PinnError, match="no finite prediction for every row of deployments: a"):
        sum_up(broken)
    with pytest.raises(PinnError, match="no group in common"):
        compare_panels(panel(rows()), panel(rows("judges: b")), QUIET)


def test_the_ledger_grows_by_a_line_and_by_new_groups(tmp_path, checkpoint_path):
    path = tmp_path / "ledger.csv"
    for tables in ((rows(),), (rows(), rows("judges: b"))):
        add_to_ledger(path, ledger_line(checkpoint_path, group_scores(panel(*tables)), "a try"))
    found = pd.read_csv(path)
    assert found.columns.tolist()[:4] == ["date", "checkpoint", "what", "panel"]
    assert found["checkpoint"].tolist() == [file_sha256(checkpoint_path)] * 2
    assert found["judges: b"].isna().tolist() == [True, False]


@pytest.mark.parametrize("taught", [True, False])
def test_steps_that_taught_a_checkpoint_do_not_judge_it(tmp_path, checkpoint_path, taught):
    steps = tmp_path / "steps.csv"
    steps.write_text("a table")
    of_steps = file_sha256(steps) if taught else None
    metadata = {
        "sources": [
            {"schema": "deployments", "table_sha256": "rows"},
            {"schema": "serving runs", "table_sha256": "runs"},
        ],
        "data_sha256": json_sha256("rows", "runs", of_steps),
    }
    path = tmp_path / "pinn.safetensors"
    save_checkpoint(Checkpoint(load_checkpoint(checkpoint_path).network, metadata), path)
    assert learned_steps(path, steps) is taught
