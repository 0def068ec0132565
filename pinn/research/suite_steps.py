"""Earlier steps teach, later ones test: one traced run, split by time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from pinn.coefficients.surrogate import Surrogate
from pinn.data.silicon import read_silicon
from pinn.data.table import replace_atomically
from pinn.data.traces.ingestion import ingest_steps
from pinn.data.traces.trace_run import Target
from pinn.errors import PinnError
from pinn.research.calibration.baselines import LEARNERS, baselines
from pinn.research.donors import donor_coefficients
from pinn.specs.data_folder import find_checkpoint
from pinn.specs.deployment import Deployment
from pinn.specs.files.read_report import file_sha256
from pinn.specs.serving import ServingSpec
from pinn.training.calibration.calibrate import candidates
from pinn.training.calibration.checkpoint_prior import checkpoint_prior
from pinn.training.calibration.intervals import TEST, Intervals, read_intervals
from pinn.training.calibration.prior import Prior

SPLIT = "temporal"


def step_cell(config: DictConfig, fingerprint: str, skipped: dict[str, str]) -> pd.DataFrame | None:
    """Predictions of the last 20 % of a traced run's time by what the first 60 % taught.

    Windows of several steps and single steps are told apart as held-out parts. Every 50 test rows
    that follow each other are a group.

    Args:
        config: Of the suite; ``steps`` names folder, model, GPU and flags of the run.
        fingerprint: Of what is learned.
        skipped: Gets the reason where nothing is made.
    """
    folder = config.steps.path
    found = sorted(Path(folder).glob(config.steps.pattern)) if folder else []
    if not found:
        skipped[SPLIT] = "no step summaries: set steps.path or PINN_STEPS_DIR to their folder"
        return None
    checkpoint = find_checkpoint(config.steps.checkpoint)
    parts = [fingerprint, file_sha256(found[0]), file_sha256(checkpoint)]
    digest = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]
    cell = Path(config.output_dir) / "cells" / f"steps-{digest}.parquet"
    if cell.is_file():
        return pd.read_parquet(cell)
    if config.fast:
        skipped[SPLIT] = "its fits are not made yet: pinn evaluate makes them"
        return None
    serving = ServingSpec(**config.steps.serving)
    target = Target(config.steps.model, config.steps.gpu, serving)
    traces = ingest_steps(found[0], Path(config.output_dir) / "observations" / "steps", target)
    deployment = traces.deployment()
    intervals = read_intervals(traces, deployment)
    coefficients = Surrogate.load(checkpoint).coefficients([deployment])
    prior, _ = checkpoint_prior(checkpoint, deployment, coefficients)
    table = step_predictions(intervals, deployment, prior)
    cell.parent.mkdir(parents=True, exist_ok=True)
    replace_atomically(cell, lambda path: table.to_parquet(path, index=False))
    return table


def step_predictions(intervals: Intervals, deployment: Deployment, prior: Prior) -> pd.DataFrame:
    """Every baseline of a calibration on the last part of the run's time."""
    last = intervals.of_part(TEST)
    methods = baselines(deployment, prior, donor_coefficients(read_silicon()[0]))
    if not set(LEARNERS) <= methods.keys():
        raise PinnError("the suite's regressions need it: run 'pip install scikit-learn'")
    tables = []
    for kind, mask in (("windows", last.is_window), ("singles", last.is_single)):
        test, train = last.take(mask), candidates(intervals, kind)
        names = [f"{kind} {row}" for row in test.row]
        groups = [f"{kind} {i // 50}" for i in range(len(test))]
        for name, fit_predict in methods.items():
            times = {"step_s": fit_predict(train, test), "step_measured_s": test.seconds}
            about = {"split": SPLIT, "held_out": kind, "row_id": names, "group": groups}
            tables.append(pd.DataFrame(about | {"method": _NAMES.get(name, name)} | times))
    return pd.concat(tables, ignore_index=True)


#: Names under which the same methods stand in the other splits.
_NAMES = {
    "coefficients, before": "network",
    "coefficients, calibrated": "network, calibrated",
    "roofline, tuned efficiencies": "roofline, constant efficiencies",
}
