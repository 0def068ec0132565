"""Journeys of servers with known alpha: served, written, read back and calibrated."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import jaxtyping
import numpy as np
import pandas as pd
import pytest
from seeded_trials import run_trials
from synthetic_engine import Arrival, EngineLimits, EngineRun, run_engine
from trace_writer import WriterOptions, write_traces

from pinn.calibration.alpha import calibrate_alpha
from pinn.calibration.calibrate import calibrate_to, read_intervals
from pinn.calibration.prior import Prior
from pinn.calibration.requests import read_requests
from pinn.engines.configurations import make_deployment
from pinn.measurements.traces.ingestion import ingest_vllm
from pinn.measurements.traces.trace_tables import Target, TraceTables
from pinn.physics.batch_sums import sum_batches
from pinn.physics.costs import step_costs
from pinn.specs.batch import Batch
from pinn.specs.serving import ServingSpec
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.step_features import STEP_FEATURES, step_features, step_time
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE

MODEL, GPU = "meta-llama/Llama-3.1-8B", "H100"
DEPLOYMENT = make_deployment({"model": MODEL, "gpu": GPU})

#: Least and largest relative difference of alphas from the prior; relative scatter of single
#: requests and of steps; share of stalled requests, and mean seconds of a stall.
_OFF, _JITTER, _STEP_JITTER, _STALLED, _STALL_S = (0.1, 0.5), 0.1, 0.005, 0.02, 0.05

#: Places of the alphas that a journey shows.
SHOWN = [
    NAMES.index(f"alpha.{name}")
    for name in (
        "arrival_to_queue.constant", "arrival_to_queue.prompt_token", "queue_to_schedule.constant",
        "schedule_to_first_token.constant", "output_token.constant", "completion.constant",
    )
]  # fmt: skip


def served(truth: np.ndarray, requests: int, draw: np.random.Generator) -> EngineRun:
    """Serve requests at a changing rate by steps that jitter."""
    costs, seed, now, arrivals = step_costs([DEPLOYMENT]), random.Random(0), 0.0, []
    for i in range(requests):
        now += draw.exponential(1 / (25 if (i // 50) % 2 else 8))
        prompt, output = np.exp(draw.uniform((4, 2), (8, 4))).astype(int).tolist()
        arrivals.append(Arrival(now, prompt, output))

    def seconds(batch: Batch) -> float:
        features = step_features(costs, sum_batches([batch]))
        exact = float(step_time(features, truth[: len(STEP_FEATURES)])[0])
        return exact * seed.lognormvariate(0, _STEP_JITTER)

    with pytest.MonkeyPatch.context() as patch:
        # Checking shapes anew in each of thousands of steps would take nine tenths of the time.
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        return run_engine(arrivals, seconds, EngineLimits(8192, 256))


def delayed(run: EngineRun, truth: np.ndarray, draw: np.random.Generator) -> EngineRun:
    """Add each request's time outside its steps to the run, except that of its completion."""
    arrivals, moments = [], []
    for arrival, of_request in zip(run.arrivals, run.moments, strict=True):
        jitter = np.maximum(1 + _JITTER * draw.standard_normal(4), 0)
        stall = (draw.random(4) < _STALLED) * draw.exponential(_STALL_S, 4)
        tokens = np.array([[1, arrival.prompt_tokens], [1, 0], [1, 0], [arrival.output_tokens, 0]])
        alpha = truth[SHOWN]
        parts = np.array([alpha[:2], [alpha[2], 0], [alpha[3], 0], [alpha[4], 0]])
        intake, scheduling, first, output = (tokens * parts).sum(axis=1) * jitter + stall
        after = {"QUEUED": 0.0, "SCHEDULED": scheduling, "FIRST_TOKEN": scheduling + first,
                 "FINISHED": scheduling + first + output}  # fmt: skip
        # The writer subtracts the completion's time from an arrival.
        arrivals.append(replace(arrival, time_s=arrival.time_s - intake + alpha[5]))
        moments.append(tuple(replace(m, time_s=m.time_s + after[m.label]) for m in of_request))
    return replace(run, arrivals=tuple(arrivals), moments=tuple(moments))


def read_back(truth: np.ndarray, requests: int, seed: int, folder: Path) -> TraceTables:
    """Return the traces of a server, one step in ten written, as tables."""
    draw = np.random.default_rng([seed, 1])
    run = delayed(served(truth, requests, draw), truth, draw)
    options = WriterOptions(step_sampling=0.1, http_s=float(truth[SHOWN[-1]]), seed=seed)
    write_traces(run, folder / "traces.json", options)
    return ingest_vllm(folder / "traces.json", folder / "tables", Target(MODEL, GPU, ServingSpec()))


def trial(prior: Prior, requests: int, seed: int) -> pd.DataFrame:
    """Return truth, estimate and half-width of each alpha of a server whose alphas all changed."""
    draw = np.random.default_rng(seed)
    truth = prior.mean.copy()
    truth[SHOWN] *= 1 + draw.choice((-1, 1), len(SHOWN)) * draw.uniform(*_OFF, len(SHOWN))
    with tempfile.TemporaryDirectory() as folder:
        tables = read_back(truth, requests, seed, Path(folder))
        steps = calibrate_to(read_intervals(tables, DEPLOYMENT, prior.beta), prior)
        rows = read_requests(tables, DEPLOYMENT, steps.mean[: len(STEP_FEATURES)])
        after = calibrate_alpha(rows, steps).posterior
    half = NORMAL_QUANTILE * np.sqrt(np.diag(after.covariance))
    table = pd.DataFrame({
        "alpha": [NAMES[i].removeprefix("alpha.") for i in SHOWN], "truth": truth[SHOWN],
        "before": prior.mean[SHOWN], "after": after.mean[SHOWN], "half": half[SHOWN],
        "half_before": NORMAL_QUANTILE * np.sqrt(np.diag(prior.covariance))[SHOWN],
    })  # fmt: skip
    return table.assign(within=(table["after"] - table["truth"]).abs() <= table["half"])


def score(prior: Prior, trials: int, requests: int = 300, workers: int | None = 1) -> pd.DataFrame:
    """Return one row per alpha, in percent of the truth, over trials in ``workers`` processes.

    None uses a process per core. Columns: ``within``, trials in which the truth lies in the 90 %
    interval; ``half_before`` and ``half_after``, median half-widths; ``error_before`` and
    ``error_after``, median errors.
    """
    found = run_trials(partial(trial, prior, requests), trials, workers)
    rows = []
    for name, table in pd.concat(found).groupby("alpha", sort=False):
        shares = {
            "half_before": table["half_before"], "half_after": table["half"],
            "error_before": (table["before"] - table["truth"]).abs(),
            "error_after": (table["after"] - table["truth"]).abs(),
        }  # fmt: skip
        medians = {key: 100 * (value / table["truth"]).median() for key, value in shares.items()}
        within = 100 * table["within"].mean()
        rows.append({"alpha": name, "trials": trials, "within": within, **medians})
    return pd.DataFrame(rows)
