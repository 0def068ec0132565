"""Calibration to the public step summaries: later time, other loads, and a prompt nobody sent."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from calibration_scores import prior_of
from pinn.coefficients.intervals import NORMAL_QUANTILE
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.physics.step import STEP_FEATURES, step_features
from pinn.server.calibration.calibrate import (
    TEST,
    BetaSettings,
    Intervals,
    calibrate_to,
    chosen,
    read_intervals,
)
from pinn.server.calibration.prior import Prior, all_features
from pinn.server.traces.ingestion import ingest_steps
from pinn.server.traces.trace_tables import Target
from pinn.specs.batch import parse_batch
from pinn.specs.serving import ServingSpec

#: Server of the public run.
_TARGET = Target(
    "codellama/CodeLlama-34b-Instruct-hf",
    "H100",
    ServingSpec(tensor_parallel_size=2, max_num_batched_tokens=2048, max_num_seqs=128),
)

_SEEDS, _PROMPT_SEEDS = 5, 10
_PROMPT = "1 prefill 4000 @ 0"


def read_public_steps() -> tuple[Deployment, Intervals, Prior]:
    """The public run's server, its intervals and the checkpoint's prior.

    Raises:
        PinnError: If PINN_STEPS_DIR names no folder with the file.
    """
    folder = os.environ.get("PINN_STEPS_DIR", "")
    found = sorted(Path(folder).glob("*codellama*.parquet")) if folder else []
    if not found:
        raise PinnError("no step summaries: set PINN_STEPS_DIR to their folder")
    with tempfile.TemporaryDirectory() as scratch:
        traces = ingest_steps(found[0], Path(scratch) / "tables", _TARGET)
        deployment = traces.deployment()
        intervals = read_intervals(traces, deployment)
    return deployment, intervals, prior_of(deployment)


def score() -> tuple[pd.DataFrame, dict[str, float]]:
    """Median errors (%) and how far an unseen prompt's time moves, over its stated half-width."""
    deployment, intervals, prior = read_public_steps()
    rows = [
        {"fitted": f"{kind}, {budget or 'all'}"} | _later(intervals, prior, kind, budget)
        for kind, budget in (
            ("windows", 50), ("windows", 500), ("singles", None), ("both", 50), ("both", 500),
        )
    ]  # fmt: skip
    rows += _halves(intervals, prior)
    moves = {
        f"{kind}, {budget}": _moves(deployment, intervals, prior, kind, budget)
        for kind in ("windows", "both")
        for budget in (10, 50, 500)
    }
    rows += [
        {"fitted": name, "tested": f"move of {_PROMPT} over its half-width, worst of 10",
         "after": worst}
        for name, worst in moves.items()
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    return table, {"worst_move": max(moves.values())}


def _errors(rows: Intervals, coefficients: np.ndarray) -> float:
    beta = coefficients[: len(STEP_FEATURES)]
    return 100 * float(np.median(np.abs(rows.features @ beta / rows.seconds - 1)))


def _later(intervals: Intervals, prior: Prior, kind: str, budget: int | None) -> dict[str, object]:
    last = intervals.of_part(TEST)
    tests = {"windows": last.take(last.is_window), "singles": last.take(last.is_single)}
    fits = [
        calibrate_to(chosen(intervals, BetaSettings(kind, budget, seed=seed)), prior).mean
        for seed in range(_SEEDS if budget else 1)
    ]
    name = "singles" if kind == "singles" else "windows"
    return {
        "tested": f"last 20 %, {name}",
        "before": _errors(tests[name], prior.mean),
        "after": float(np.median([_errors(tests[name], fit) for fit in fits])),
        "singles": float(np.median([_errors(tests["singles"], fit) for fit in fits])),
    }


def _halves(intervals: Intervals, prior: Prior) -> list[dict[str, object]]:
    """Fitted to the steps of few requests and tested on those of many, and the reverse."""
    rows = []
    for kind, mask in (("windows", intervals.is_window), ("singles", intervals.is_single)):
        of_kind = intervals.take(mask)
        upper = of_kind.sums.requests > np.median(of_kind.sums.requests)
        for name, train in (("lower", ~upper), ("upper", upper)):
            test = of_kind.take(~train)
            for budget in (50, 500):
                errors = [
                    _errors(test, _fit(of_kind.take(train), prior, kind, budget, seed))
                    for seed in range(_SEEDS)
                ]
                rows.append({
                    "fitted": f"{kind}, {budget}, {name} half of the loads", "tested": "the other",
                    "before": _errors(test, prior.mean), "after": max(errors),
                })  # fmt: skip
    return rows


def _fit(pool: Intervals, prior: Prior, kind: str, budget: int, seed: int) -> np.ndarray:
    anytime = replace(pool, part=np.zeros_like(pool.part))
    used = chosen(anytime, BetaSettings(kind, budget, seed=seed))
    return calibrate_to(used, prior).mean


def _moves(
    deployment: Deployment, intervals: Intervals, prior: Prior, kind: str, budget: int
) -> float:
    """Largest log change of the prompt's time over the half-width that is stated afterwards."""
    sums = sum_batches([parse_batch(_PROMPT)], deployment.model.window_tokens)
    features = all_features(step_features(step_costs([deployment]), sums))
    before = features @ prior.mean
    ratios = []
    for seed in range(_PROMPT_SEEDS):
        found = calibrate_to(chosen(intervals, BetaSettings(kind, budget, seed=seed)), prior)
        half = NORMAL_QUANTILE * found.spread(features)
        ratios.append(abs(np.log(features @ found.mean / before)) / half)
    return float(np.max(ratios))
