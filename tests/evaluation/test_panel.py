"""Scorecard: sums of a score, noise of small groups, and the choice between two checkpoints."""

import numpy as np
import pandas as pd
import pytest

from pinn.common.files import file_sha256, find_checkpoint
from pinn.errors import PinnError
from pinn.evaluation.measured import json_sha256
from pinn.evaluation.panel import (
    ADOPTED,
    BETTER,
    NOISE_FILE,
    NOT_ADOPTED,
    NOT_BETTER,
    add_to_ledger,
    compare_panels,
    group_scores,
    group_weights,
    ledger_line,
    read_ledger,
    read_panel,
    sum_up,
    training_noise,
    uncompared_groups,
)
from pinn.evaluation.panel_rows import HELD_OUT_RUNS, learned_steps
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint


def rows(group="deployments: a", configurations=6, tpot=0.1, ttft=0.2, seed=0):
    """Return two loads of every configuration, with equal errors but for a little noise."""
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


#: Training noise of settings whose seeds agree.
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


def test_families_of_a_source_count_the_same():
    models = ["deployments: org/Qwen3-8B", "deployments: org/Qwen2.5-7B", "deployments: Yi-34B",
              f"{HELD_OUT_RUNS}: meta-llama/Meta-Llama-3-8B"]  # fmt: skip
    assert group_weights(pd.Series(models)) == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3])


def test_no_row_counts_for_more_than_a_factor_of_three():
    far = rows(tpot=None, ttft=np.log(30))
    assert panel(far)["error"].tolist() == pytest.approx([100 * np.log(3)] * 6)


def test_half_a_percent_in_every_configuration_is_better():
    before = panel(rows(), rows("deployments: b"))
    table, verdict = compare_panels(before, before.assign(error=before["error"] - 0.5), QUIET)
    assert verdict == BETTER
    assert table["difference"].tolist() == pytest.approx([-0.5] * 3)
    assert table["worse"].tolist() == [0.0] * 3


def test_what_falls_half_of_the_time_is_not_better():
    before = panel(rows(), rows("deployments: b"))
    after = before.assign(error=before["error"] - 0.1)
    assert compare_panels(before, after, QUIET + 5.0)[1] == NOT_BETTER


@pytest.mark.parametrize(
    ("worse_by", "verdict"),
    [
        (1.5, "better; groups worse by more than their training noise: deployments: b"),
        (0.9, BETTER),
    ],
)
def test_a_better_mean_excuses_a_group_that_is_a_little_worse_alone(worse_by, verdict):
    before = panel(rows(), rows("deployments: b"))
    worse = before["group"] == "deployments: b"
    after = before.assign(error=before["error"] + np.where(worse, worse_by, -3.0))
    assert compare_panels(before, after, QUIET)[1] == verdict


def test_one_of_many_groups_may_be_worse_by_chance():
    """Check that one group of thirty at 99 % is no evidence of worsening, while one alone is."""
    many = [f"deployments: {name}" for name in "abcdefghijklmnopqrstuvwxyz"]
    quiet = pd.Series(0.0, many)
    before = panel(*(rows(name, 12) for name in many))
    nth = before.groupby(["group", "metric"]).cumcount()
    shift = np.where(before["group"] == many[0], 2.0 + 3.0 * np.where(nth % 2, 1, -1), -1.0)
    after = before.assign(error=before["error"] + shift)
    table, verdict = compare_panels(before, after, quiet)
    assert 0.95 < table["worse"].iloc[0] < 0.999
    assert verdict == BETTER
    two = [frame[frame["group"].isin(many[:2])] for frame in (before, after)]
    assert compare_panels(*two, quiet)[1].endswith(many[0])


@pytest.mark.parametrize(
    ("alone", "elsewhere", "verdict"),
    [(0.4, 0.0, ADOPTED), (0.6, 0.0, NOT_ADOPTED), (0.4, 30.0, NOT_ADOPTED)],
)
def test_a_mechanism_halves_the_error_where_it_stands_alone(alone, elsewhere, verdict):
    before = panel(rows(), rows("deployments: b"))
    mine = before["group"] == "deployments: b"
    after = before.assign(
        error=np.where(mine, alone * before["error"], before["error"] + elsewhere)
    )
    assert compare_panels(before, after, QUIET, "deployments: b")[1] == verdict
    with pytest.raises(PinnError, match="the group 'c' is unknown: use one of deployments: a"):
        compare_panels(before, after, QUIET, "c")


def test_one_run_has_the_noise_of_the_others():
    noisy = rows("serving runs: a", 6, tpot=0.2, ttft=None)
    before = panel(noisy, rows(f"{HELD_OUT_RUNS}: b", 1, ttft=None))
    draw = np.random.default_rng(1)
    after = before.assign(error=before["error"] + draw.normal(0, 3, len(before)))
    held_out = after["group"] == f"{HELD_OUT_RUNS}: b"
    after.loc[held_out, "error"] = before.loc[held_out, "error"] + 0.5
    table, _ = compare_panels(before, after, QUIET)
    assert table.set_index("group").loc[f"{HELD_OUT_RUNS}: b", "low"] < 0


def test_what_another_seed_does_as_well_is_no_worse_group():
    before = panel(rows(), rows("deployments: b"))
    worse = before["group"] == "deployments: b"
    after = before.assign(error=before["error"] + np.where(worse, 1.5, -6.0))
    table, verdict = compare_panels(before, after, QUIET + 0.6)
    assert verdict == BETTER
    # The difference of two trainings: 1.96 times the root of 2 times 0.6 is 1.66.
    assert table["low"].iloc[1] == pytest.approx(1.5 - 1.66, abs=0.1)
    _, verdict = compare_panels(before, after, QUIET + 0.4)
    assert verdict.startswith("better;")
    assert verdict.endswith(": deployments: b")
    # A group without a score by other seeds has the median noise of the others.
    _, verdict = compare_panels(before, after, (QUIET + 0.6).rename({"deployments: b": "new"}))
    assert verdict == BETTER


def test_noise_of_training_is_a_groups_own_over_trainings_but_not_less_than_its_sources():
    about = {"date": "2026-11-26", "checkpoint": ["x", "y", "z"], "what": "", "panel": 9.0}
    lines = pd.DataFrame(
        about
        | {"deployments: a": 5.0, "deployments: b": [5.0, 6.0, 7.0],
           "deployments: c": [5.0, 9.0, 13.0], f"{HELD_OUT_RUNS}: d": [5.0, 8.0, 11.0],
           "serving runs: e": [6.0, 5.0, 4.0], "whole steps: came later": [np.nan, 5.0, 6.0]}
    )  # fmt: skip
    # Deviations 0, 1 and 4 have the median 1; runs of both kinds, 3 and 1, are one source.
    assert training_noise(lines).to_dict() == pytest.approx(
        {"deployments: a": 1.0, "deployments: b": 1.0, "deployments: c": 4.0,
         f"{HELD_OUT_RUNS}: d": 3.0, "serving runs: e": 2.0}
    )  # fmt: skip


def test_the_shipped_noise_is_of_the_groups_of_the_shipped_panel():
    beside = find_checkpoint().parent
    shipped = pd.read_csv(beside / "pinn.panel.csv")
    noise = pd.read_csv(beside / NOISE_FILE).set_index("group")["score"]
    assert set(noise.index) <= set(shipped["group"])
    assert (noise > 0).all()


def test_missing_predictions_and_other_groups_are_refused():
    broken = rows().assign(predicted_s=np.nan)
    error = "some predictions of the group deployments: a are not finite: correct or remove"
    with pytest.raises(PinnError, match=error):
        sum_up(broken)
    with pytest.raises(PinnError, match="no group in common"):
        compare_panels(panel(rows()), panel(rows(f"{HELD_OUT_RUNS}: b")), QUIET)


def test_groups_that_cannot_be_compared_are_named():
    renamed = rows("runs: d").assign(configuration=lambda table: "new " + table["configuration"])
    a, b = (
        panel(rows(), rows(f"{HELD_OUT_RUNS}: b"), rows("runs: d")),
        panel(rows(), rows("c: d"), renamed),
    )
    assert uncompared_groups(a, b) == ["c: d", f"{HELD_OUT_RUNS}: b", "runs: d"]
    assert uncompared_groups(a, a) == []


def test_the_ledger_grows_by_a_line_and_by_new_groups(tmp_path, checkpoint_path):
    path = tmp_path / "ledger.csv"
    for tables in ((rows(),), (rows(), rows(f"{HELD_OUT_RUNS}: b"))):
        add_to_ledger(path, ledger_line(checkpoint_path, group_scores(panel(*tables)), "a try"))
    found = pd.read_csv(path)
    assert found.columns.tolist()[:4] == ["date", "checkpoint", "what", "panel"]
    assert found["checkpoint"].tolist() == [file_sha256(checkpoint_path)] * 2
    assert found[f"{HELD_OUT_RUNS}: b"].isna().tolist() == [True, False]


def test_old_names_of_groups_are_read_with_a_note(tmp_path):
    path = tmp_path / "panel.csv"
    table = panel(rows("judges: b"), rows("vLLM steps, half taught: c"))
    table.to_csv(path, index=False)
    with pytest.warns(UserWarning, match="is now called '.*'") as said:
        found = read_panel(path)
    assert set(found["group"]) == {f"{HELD_OUT_RUNS}: b", "vLLM steps, half held out: c"}
    assert len(said) == 2
    ledger = tmp_path / "ledger.csv"
    ledger.write_text("date,panel,judges: b\n2026-11-26,9,5\n")
    with pytest.warns(UserWarning, match="'judges' is now called 'held-out serving runs'"):
        assert read_ledger(ledger).columns.tolist() == ["date", "panel", f"{HELD_OUT_RUNS}: b"]


@pytest.mark.parametrize("taught", [True, False])
def test_steps_of_the_training_data_are_left_off_the_scorecard(tmp_path, checkpoint_path, taught):
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
