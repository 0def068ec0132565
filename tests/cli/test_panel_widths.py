"""``pinn evaluate panel`` with intervals: scored on groups not fitted to, fitted on request."""

import json

import numpy as np
import pandas as pd
import pytest
from calibrations import PLAIN, small_calibration

from pinn.engines.deployment import Deployment
from pinn.evaluation import panel_rows
from pinn.evaluation.interval_widths import interval_rows
from pinn.specs.serving import ServingSpec
from pinn.surrogate.uncertainty.intervals import (
    calibration_path,
    read_calibration,
    write_calibration,
)
from pinn.surrogate.uncertainty.width_fit import fit_widths

OTHER = Deployment(PLAIN.model, PLAIN.gpu, ServingSpec(engine="sglang"))


def drawn_rows():
    """Twelve groups, half of them of another engine, which are three times as far off."""
    draw = np.random.default_rng(0)
    groups = [
        (f"deployments: org/Model{i}", (PLAIN, OTHER)[i % 2], 3.0 ** (i % 2)) for i in range(12)
    ]
    found = [
        (group, f"c{load}", metric, deployment, 1.0, np.exp(0.1 * far * draw.normal()))
        for group, deployment, far in groups
        for load in range(6)
        for metric in ("tpot", "ttft")
    ]
    return pd.DataFrame(found, columns=list(panel_rows.ROW_COLUMNS))


@pytest.fixture
def rows(monkeypatch):
    """Return the tables that every panel is made of."""
    found = drawn_rows()
    monkeypatch.setattr(panel_rows, "panel_rows", lambda *_: found)
    monkeypatch.delenv("PINN_WHOLE_STEPS", raising=False)
    return found


@pytest.fixture
def checkpoint(tmp_path, checkpoint_path):
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(checkpoint_path.read_bytes())
    return path


@pytest.fixture
def stated(checkpoint):
    """A checkpoint with intervals beside it, whose widths nothing was fitted to."""
    write_calibration(small_calibration(checkpoint), calibration_path(checkpoint))
    return checkpoint


def panel(run, checkpoint, *more):
    result = run("evaluate", "panel", "--checkpoint", checkpoint, *more)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_intervals_are_judged_without_being_changed(run, rows, stated, tmp_path):
    before = calibration_path(stated).read_bytes()
    printed = panel(run, stated, "--out", tmp_path / "panel.csv")
    assert "90 % intervals, with each group held out of the fit in turn: coverage" in printed
    assert "interval score relative to" in printed
    assert calibration_path(stated).read_bytes() == before
    scored = interval_rows(stated, rows)
    inside = 100 * (scored["error"].abs() <= scored["nested"]).mean()
    table = pd.read_csv(tmp_path / "panel.csv")
    assert np.average(table["inside"], weights=table["rows"]) == pytest.approx(inside, abs=1e-3)


def test_widths_are_fitted_to_all_groups_and_kept(run, rows, stated):
    printed = panel(run, stated, "--widths")
    found = read_calibration(stated)
    assert found.widths == fit_widths(interval_rows(stated, rows))
    assert found.half_widths == small_calibration(stated).half_widths
    wide, narrow = (found.half_width("tpot", each, gpu_known=True) for each in (OTHER, PLAIN))
    assert 2 < wide / narrow < 4.5
    # Fitted anew they are the same: they are fitted to the constants.
    assert panel(run, stated, "--widths") == printed
    assert read_calibration(stated) == found


@pytest.mark.usefixtures("rows")
@pytest.mark.parametrize("schema", [None, "pinn intervals 3"])
def test_without_intervals_errors_are_scored_all_the_same(run, checkpoint, schema, tmp_path):
    if schema is not None:
        calibration_path(checkpoint).write_text(json.dumps({"schema": schema, "coefficients": {}}))
    printed = panel(run, checkpoint, "--out", tmp_path / "panel.csv")
    assert "Intervals" not in printed
    assert pd.read_csv(tmp_path / "panel.csv")["inside"].isna().all()


def test_widths_without_intervals_are_refused_before_anything_is_simulated(
    refused, checkpoint, monkeypatch
):
    monkeypatch.setattr(panel_rows, "panel_rows", lambda *_: pytest.fail("simulated"))
    said = refused("evaluate", "panel", "--checkpoint", checkpoint, "--widths")
    assert "the file of intervals" in said
