"""Calibration on a measured run: from a few steps, later ones are predicted to about a percent.

The base is the priors alone, so that the result depends on no trained checkpoint.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from assumed_priors import beta_prior, prior_coefficients

from pinn.calibration.calibrate import (
    BetaSettings,
    Intervals,
    calibrate_to,
    chosen,
    error_table,
    read_intervals,
)
from pinn.measurements.traces.ingestion import ingest_steps
from pinn.measurements.traces.interval_batches import is_ahead
from pinn.measurements.traces.trace_tables import Target, TraceTables
from pinn.specs.serving import ServingSpec

BASE = prior_coefficients(1).beta[0]
PRIOR = beta_prior(BASE)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> TraceTables:
    folder = os.environ.get("PINN_STEPS_DIR")
    if not folder:
        pytest.skip("PINN_STEPS_DIR names no folder with step summaries")
    path = next(Path(folder).glob("*codellama*.parquet"))
    serving = ServingSpec(tensor_parallel_size=2, max_num_batched_tokens=2048, max_num_seqs=128)
    target = Target("codellama/CodeLlama-34b-Instruct-hf", "H100", serving)
    return ingest_steps(path, tmp_path_factory.mktemp("public") / "tables", target)


@pytest.fixture(scope="module")
def intervals(traces: TraceTables) -> Intervals:
    return read_intervals(traces, traces.deployment(), BASE)


def last_error(intervals: Intervals, beta: np.ndarray, kind: str) -> float:
    table = error_table(intervals, {"it": beta}).set_index(["part", "kind"])
    return float(table.loc[("last 20 %", kind), "median"])


def test_steps_are_scheduled_ahead(traces: TraceTables) -> None:
    assert is_ahead(traces.steps).all()


@pytest.mark.parametrize(("budget", "bar"), [(500, 0.010), (50, 0.013)])
def test_windows(intervals: Intervals, budget: int, bar: float) -> None:
    settings = [BetaSettings("windows", budget, seed) for seed in range(5)]
    fits = [calibrate_to(chosen(intervals, each), PRIOR) for each in settings]
    assert np.median([last_error(intervals, fit.beta, "windows") for fit in fits]) <= bar


def test_single_steps(intervals: Intervals) -> None:
    fit = calibrate_to(chosen(intervals, BetaSettings("singles", None)), PRIOR)
    assert len(fit.noise) == 463
    assert last_error(intervals, fit.beta, "singles") <= 0.016
