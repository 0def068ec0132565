"""Measured serving runs: one load of a server calibrates, its other loads are scored.

All starts from the checkpoint in use, which learned from runs of the same models (of a model that
has a network of its own left out, from that one).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from calibration_scores import prior_of
from pinn.common.files import find_checkpoint
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.kernels.exclusion import Exclusion
from pinn.laboratory.folds import LEFT_OUT_FOLDER
from pinn.server.benchmarks.benchmark_run import BenchmarkRun, Lengths, Load, SharedPrefix
from pinn.server.calibration.benchmarks import calibrate_to_benchmarks, simulated_rows
from pinn.training.data.measured_runs import PROMPT_RANGE, MeasuredRun, read_measured_runs
from pinn.training.data.serving_runs import workload

#: Seconds of a stage that are simulated, or so many times a request's latency, if that is longer:
#: a steady state's means need no more.
_SECONDS, _LATENCIES = 120.0, 10.0


def score() -> tuple[pd.DataFrame, dict[str, float]]:
    """E2E errors (%) of every load of a server after each other one, and before."""
    path = os.environ.get("PINN_SERVING_RUNS")
    if not path:
        raise PinnError("no serving runs: set PINN_SERVING_RUNS to their CSV")
    configs = os.environ.get("PINN_MODEL_CONFIGS")
    runs, _ = read_measured_runs(Path(path), Path(configs) if configs else None)
    servers: dict[Deployment, list[BenchmarkRun]] = {}
    for run in runs:
        servers.setdefault(run.deployment, []).extend(_stages(run))
    rows = []
    for deployment, loads in servers.items():
        if len(loads) > 1:
            rows += _server(deployment, loads)
    table = pd.DataFrame(rows)
    apart = table.groupby("model")["before"].agg(np.ptp).idxmax()
    print(f"shown apart, since its loads contradict each other most: {apart}")
    parts = {"others": table[table["model"] != apart], "apart": table[table["model"] == apart]}
    return table, {
        f"{name}_{figure}": value
        for name, part in parts.items()
        for figure, value in {
            "n": len(part),
            "before_median": float(part["before"].abs().median()),
            "median": float(part["after"].abs().median()),
            "worst": float(part["after"].abs().max()),
        }.items()
    }


def _stages(run: MeasuredRun) -> list[BenchmarkRun]:
    """Each stage of a run as a benchmark of its own."""
    sent = workload(run.load_name)
    low, high = (share * sent.prompt_tokens for share in PROMPT_RANGE)
    found = []
    for stage in run.stages:
        rate, figures = run.rates_per_s[int(stage)], run.measured[stage]
        seconds = max(_SECONDS, _LATENCIES * figures["e2e_mean_s"])
        load = Load(
            max(int(rate * seconds), 100),
            Lengths((low + high) / 2, low, high),
            Lengths(sent.output_tokens),
            rate_per_s=rate,
            prefix=SharedPrefix(sent.groups, sent.prompts_per_group, sent.shared_prefix_tokens),
        )
        kept = {"ttft_mean_s": figures["ttft_mean_s"], "tpot_mean_s": figures["itl_mean_s"],
                "e2e_mean_s": figures["e2e_mean_s"]}  # fmt: skip
        found.append(
            BenchmarkRun(f"{run.name} {rate:g}/s", "serving run", load, kept, load.requests)
        )
    return found


def _server(deployment: Deployment, loads: list[BenchmarkRun]) -> list[dict[str, object]]:
    slug = Exclusion(models=(deployment.model,)).slug()
    left_out = find_checkpoint(None).with_name(LEFT_OUT_FOLDER) / f"{slug}.safetensors"
    prior = prior_of(deployment, left_out if left_out.is_file() else None)
    before = _e2e_errors(loads, deployment, prior.mean)
    rows = []
    for i, train in enumerate(loads):
        found = calibrate_to_benchmarks([train], deployment, prior)
        others = [j for j in range(len(loads)) if j != i]
        after = _e2e_errors([loads[j] for j in others], deployment, found.posterior.mean)
        for j, error in zip(others, after, strict=True):
            rows.append({
                "model": deployment.model.name, "calibrated on": train.name,
                "scored": loads[j].name, "before": before[j], "after": error,
            })  # fmt: skip
    return rows


def _e2e_errors(
    loads: list[BenchmarkRun], deployment: Deployment, coefficients: np.ndarray
) -> np.ndarray:
    """Signed errors of E2E, TTFT plus the gaps, in percent."""
    rows = simulated_rows(loads, deployment, coefficients)
    gaps = np.array([load.load.output.mean - 1 for load in loads])
    first, between = (
        np.array([v for v, name in zip(rows.simulated, rows.names, strict=True)
                  if name.startswith(each)])
        for each in ("ttft", "tpot")
    )  # fmt: skip
    measured = np.array([load.figures["e2e_mean_s"] for load in loads])
    return 100 * ((first + gaps * between) / measured - 1)
