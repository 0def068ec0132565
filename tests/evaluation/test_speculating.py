"""Measured deployments with unknown numbers of drafted tokens, on a few rows of each engine."""

import pytest

from pinn.evaluation.engines import Networks
from pinn.evaluation.speculation import ACCEPTANCES, score_speculating, speculating_grid
from pinn.surrogate.checkpoint import load_checkpoint
from pinn.training.data.engine_deployments import read_speculating


@pytest.fixture(scope="module")
def rows():
    found, report = read_speculating()
    assert report.read == len(found) + sum(report.refused.values())
    return found.groupby("engine").head(3)


@pytest.fixture(scope="module")
def scores(rows, checkpoint_path):
    return score_speculating(rows, Networks(load_checkpoint(checkpoint_path).network, {}), tokens=3)


def test_the_more_is_accepted_the_less_a_token_takes(scores):
    tpot_s = scores[[f"tpot_s_{rate}" for rate in ACCEPTANCES]]
    assert (tpot_s > 0).all(axis=None)
    assert (tpot_s.diff(axis=1).iloc[:, 1:] < 0).all(axis=None)


def test_at_best_every_draft_is_a_token(scores):
    """Check that four tokens a step are at most four times as fast, and that drafts take time."""
    assert (scores["tpot_s_0.9"] > scores["tpot_s_plain"] / 4).all()


def test_the_table_has_a_line_for_each_part(scores):
    lines = speculating_grid(scores).markdown().splitlines()
    parts = scores.groupby(["engine", "model", "gpu", "precision"]).ngroups
    assert len(lines) == 2 + scores["engine"].nunique() + parts
    assert all(line.count("|") == lines[0].count("|") for line in lines)
