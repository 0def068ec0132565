"""Rounds of simulating and fitting: which changes are applied whole, and which by half."""

from dataclasses import replace

import numpy as np
import pytest
from run_cases import operator_betas, three_runs

from pinn.surrogate.request_features import REQUEST_FEATURES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.training import run_scalars
from pinn.training.run_rows import RunRows
from pinn.training.run_scalars import Evidence, RunFitSettings, fit_in_rounds

SETTINGS = RunFitSettings(rounds=5)


def logs(fit):
    """Return the logarithm that all multipliers have in common."""
    (found,) = set(np.log(fit.scalars.multipliers).round(9))
    return found


@pytest.fixture
def rounds(monkeypatch, rows):
    """Return a function that runs rounds with given errors, each fit wanting one more e-fold."""

    def run(errors):
        starts, seconds = [], iter(errors)

        def simulate(_runs, _latencies, _workers):
            number = len(starts) + 1.0
            measured, error = np.array([2.0**number]), next(seconds)
            return RunRows(
                run=np.zeros(1, dtype=np.int64),
                step_features=np.zeros((1, len(STEP_FEATURES))),
                request_features=np.zeros((1, len(REQUEST_FEATURES))),
                simulated=measured * (1 + error),
                measured_s=measured,
                gain=np.ones(1),
                weight=np.ones(1),
            )

        def fit(_evidence, current, _settings):
            starts.append(logs(current))
            scalars = current.scalars
            return replace(
                current, scalars=replace(scalars, multipliers=scalars.multipliers * np.e)
            )

        monkeypatch.setattr(run_scalars, "run_rows", simulate)
        monkeypatch.setattr(run_scalars, "fit_to_runs", fit)
        runs = three_runs()
        parts = np.stack([operator_betas()] * len(runs))
        serving = np.stack([operator_betas()] * len(rows.deployments))
        return starts, fit_in_rounds(Evidence(runs, parts, rows, serving), SETTINGS)

    return run


def test_three_rounds_take_the_whole_change_and_later_ones_half(rounds):
    starts, fit = rounds([0.1] * 5)
    assert starts == [0.0, 1.0, 2.0, 3.0, 3.5]
    assert logs(fit) == 4.0


def test_a_change_that_makes_figures_much_worse_is_halved(rounds):
    starts, fit = rounds([0.1, 0.5, 0.1, 0.1, 0.1])
    assert starts[:2] == [0.0, 0.5]
    assert logs(fit) < 4.0
