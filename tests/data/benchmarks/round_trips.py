"""Servers whose scalars are known: served, written as each kind of file, read back, calibrated."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from benchmark_files import ASKED, KINDS, write
from seeded_trials import run_trials
from served_load import served

from pinn.calibration.benchmarks import (
    calibrate_to_benchmarks,
    fitted_figures,
    simulated_rows,
)
from pinn.calibration.posterior import Posterior, Quantity, scalar_quantities
from pinn.calibration.prior import SCALARS, Prior
from pinn.engines.configurations import make_deployment
from pinn.engines.deployment import Deployment
from pinn.measurements.benchmarks.benchmark_run import BenchmarkRun, Lengths
from pinn.measurements.benchmarks.loads import benchmark_workload
from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.benchmarks.reading import GivenLoad
from pinn.measurements.traces.ingestion import benchmark_target
from pinn.simulator.linear_latency import LinearLatency
from pinn.surrogate.coefficients import NAMES
from pinn.surrogate.step_features import STEP_FEATURES
from pinn.surrogate.uncertainty.quantiles import NORMAL_QUANTILE

#: Two GPUs, so that all scalars take part.
SERVER = {"model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "tensor_parallel_size": 2}

#: Files of these kinds are of other engines than vLLM.
_ENGINES = {"sglang": "sglang", "InferenceX": "trtllm"}

#: Lengths that a kind's file stands for; equal ones elsewhere.
_LENGTHS = {
    "sglang": (Lengths(512.0, 1, 1023), Lengths(64.0, 1, 127)),
    "InferenceX": (Lengths(921.6, 819.2, 1024), Lengths(115.2, 102.4, 128)),
}

#: Closed loops that each server is measured under, and requests per unit of concurrency.
_CONCURRENCIES, _REQUESTS = (4, 16, 64), 10

#: How many scalars are off, and by which shares.
_MOST_OFF, _OFF = 3, (0.1, 0.3)


def flags_of(kind: str) -> dict[str, object]:
    """Return the command that starts the server of a kind's files."""
    engine = _ENGINES.get(kind, "vllm")
    release = {"engine_version": "0.5.9"} if kind == "sglang" else {}  # which its file names
    return SERVER | {"engine": engine, "enable_prefix_caching": kind != "InferenceX"} | release


def true_server(prior: Prior, draw: np.random.Generator) -> tuple[np.ndarray, dict[str, float]]:
    """Coefficients with one to three scalars off, and the factors on those."""
    off = draw.choice(list(SCALARS), draw.integers(1, _MOST_OFF + 1), replace=False)
    factors = {name: 1 + draw.choice((-1, 1)) * draw.uniform(*_OFF) for name in sorted(off)}
    truth = prior.mean.copy()
    for name, factor in factors.items():
        truth[np.isin(NAMES, SCALARS[name])] *= factor
    return np.maximum(truth, prior.lower), factors


def read_back(
    kind: str, truth: np.ndarray, seed: int, folder: Path
) -> tuple[list[BenchmarkRun], Deployment]:
    """The runs of a server's files of one kind, and the server that they and its flags name."""
    split = len(STEP_FEATURES)
    prompt, output = _LENGTHS.get(kind, (None, None))
    runs: list[BenchmarkRun] = []
    for concurrency in _CONCURRENCIES:
        of = served(
            lambda d: LinearLatency(d, truth[:split], truth[split:]), concurrency, None, prompt,
            output, _REQUESTS * concurrency, **flags_of(kind),
        )  # fmt: skip
        asked = {"concurrency": concurrency} if kind in ASKED else {}
        paths = write(replace(of, seed=seed), kind, folder / str(concurrency))
        runs += read_benchmarks(paths, GivenLoad(**asked))[0]
    given = {"tensor_parallel_size": SERVER["tensor_parallel_size"]}
    return runs, benchmark_target(runs, SERVER["model"], SERVER["gpu"], given).deployment()


def round_trip(
    kind: str, prior: Prior, seed: int, known: dict[str, pd.DataFrame] | None = None
) -> pd.DataFrame:
    """One server: each scalar's truth and what came back with its half-width; mean errors.

    Args:
        kind: Kind of file.
        prior: Prior of the server.
        seed: Which server it is.
        known: What came back of files before; files of equal loads and figures are fitted once.
    """
    truth, factors = true_server(prior, np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as folder:
        runs, deployment = read_back(kind, truth, seed, Path(folder))
    known = {} if known is None else known
    key = f"{seed} {deployment} {[_said(run) for run in runs]}"
    if key not in known:
        known[key] = _fitted(runs, deployment, prior, seed, truth, factors)
    return known[key]


def _said(run: BenchmarkRun) -> str:
    """All that a fit takes from a run; figures to nine digits, since units differ."""
    load = [np.asarray(column).tolist() for column in astuple(benchmark_workload(run))[1:]]
    return f"{load} {[f'{name} {run.figures[name]:.9g}' for name in fitted_figures(run)]}"


def _fitted(
    runs: list[BenchmarkRun], deployment: Deployment, prior: Prior, seed: int, truth: np.ndarray,
    factors: dict[str, float],
) -> pd.DataFrame:  # fmt: skip
    found = calibrate_to_benchmarks(runs, deployment, prior)
    rows = simulated_rows(runs, deployment, found.posterior.mean)
    exact = Posterior(truth, np.zeros_like(prior.covariance), rows.noise)
    features = rows.features / rows.measured[:, None]
    ours, theirs = (scalar_quantities(prior, p, features) for p in (found.posterior, exact))
    table = pd.DataFrame([_row(seed, q, t, q.name in factors)
                          for q, t in zip(ours, theirs, strict=True)])  # fmt: skip
    errors = {side: (found.errors[side] / found.errors["measured"] - 1).abs().mean()
              for side in ("before", "after")}  # fmt: skip
    return table.assign(**errors)


def _row(trial: int, found: Quantity, true: Quantity, off: bool) -> dict[str, object]:
    half = NORMAL_QUANTILE * found.after_error
    within = abs(found.after - true.after) <= half
    return {"trial": trial, "scalar": found.name, "off": off, "truth": true.after,
            "found": found.after, "half": half, "within": within}  # fmt: skip


def score(
    prior_of: Callable[[Deployment], Prior],
    trials: int,
    kinds: Sequence[str] = KINDS,
    workers: int | None = 1,
) -> pd.DataFrame:
    """One row a kind, in percent; ``prior_of`` gives a server's prior.

    Trials are spread over ``workers`` processes; None for as many as there are cores.

    Columns: ``off_within``, scalars that were off and came back within their 90 % interval;
    ``others_within``, the same of those that were right; ``none_moved``, trials in which none of
    those moved by more; ``half_width`` of the scalars that were off, their median; and
    ``error_before`` and ``error_after``, medians of how far the figures' times were off.
    """
    priors = {kind: prior_of(make_deployment(flags_of(kind))) for kind in kinds}
    of_seed = run_trials(partial(_trial, priors), trials, workers)
    found = []
    for kind in kinds:
        table = pd.concat([tables[kind] for tables in of_seed])
        off, right = table[table["off"]], table[~table["off"]]
        found.append({
            "kind": kind,
            "trials": trials,
            "off_within": 100 * off["within"].mean(),
            "others_within": 100 * right["within"].mean(),
            "none_moved": 100 * right.groupby("trial")["within"].all().mean(),
            "half_width": 100 * off["half"].median(),
            "error_before": 100 * table.groupby("trial")["before"].first().median(),
            "error_after": 100 * table.groupby("trial")["after"].first().median(),
        })  # fmt: skip
    return pd.DataFrame(found)


def _trial(priors: dict[str, Prior], seed: int) -> dict[str, pd.DataFrame]:
    """One server through every kind of file."""
    known: dict[str, pd.DataFrame] = {}
    return {kind: round_trip(kind, prior, seed, known) for kind, prior in priors.items()}
