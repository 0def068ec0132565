"""Simulated against measured serving runs, figure by figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pinn.data.measured_runs import FIGURES, WHOLE_RUN, MeasuredRun
from pinn.simulator.latency_metrics import failed_share, figure_seconds
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, simulate_many

#: Runs whose figures differ by less than this share may come out in either order.
RANKING_MARGIN = 0.2

#: Share of failed requests from which a run counts as overloaded and is summed up apart.
OVERLOADED = 0.05


def score_runs(
    runs: Sequence[MeasuredRun],
    latencies: Sequence[LinearLatency],
    method: str,
    workers: int | None = None,
) -> pd.DataFrame:
    """Simulate runs and compare what their clients see.

    Args:
        runs: What was measured.
        latencies: Coefficients of each.
        method: Where the coefficients come from, for the table.
        workers: Threads.

    Returns:
        One row per run, stage (``all`` is the whole run) and figure: ``method``, ``run``,
        ``model``, ``load``, ``stage``, ``rate_per_s``, ``figure``, ``measured_s``,
        ``predicted_s``, ``error_percent``, ``failed_measured`` and ``failed_predicted`` (shares of
        the stage's requests).
    """
    jobs = [
        Job(latency.deployment, run.workload, latency)
        for run, latency in zip(runs, latencies, strict=True)
    ]
    rows = []
    for run, simulated in zip(runs, simulate_many(jobs, workers), strict=True):
        for stage, measured in run.measured.items():
            failed = failed_share(simulated, stage)
            for figure in FIGURES:
                if figure not in measured:
                    continue
                predicted = figure_seconds(simulated, stage, figure)
                rows.append(
                    {
                        "method": method,
                        "run": run.name,
                        "model": run.deployment.model.name,
                        "load": run.load_name,
                        "stage": stage,
                        "rate_per_s": stage_rate(run, stage),
                        "figure": figure,
                        "measured_s": measured[figure],
                        "predicted_s": predicted,
                        "error_percent": 100 * (predicted / measured[figure] - 1),
                        "failed_measured": run.failed_share[stage],
                        "failed_predicted": failed,
                    }
                )
    return pd.DataFrame(rows)


def stage_rate(run: MeasuredRun, stage: str) -> float:
    """Requests per second of a stage; NaN for a whole run of several."""
    if stage != WHOLE_RUN:
        return run.rates_per_s[int(stage)]
    return run.rates_per_s[0] if len(run.rates_per_s) == 1 else float("nan")


def summarize_runs(scores: pd.DataFrame) -> pd.DataFrame:
    """Absolute percentage errors per method, figure and part of the runs.

    Parts: ``all`` runs, each model's, and ``stages`` (every stage by itself). Overloaded runs are
    in none of them but in ``overloaded``, since near saturation the wait is the step's error many
    times over.
    """
    overloaded = scores["failed_measured"] >= OVERLOADED
    whole = scores["stage"] == WHOLE_RUN
    parts = {"all": whole & ~overloaded, "stages": ~whole & ~overloaded}
    if (whole & overloaded).any():
        parts["overloaded"] = whole & overloaded
    for model in sorted(scores.loc[whole, "model"].unique()):
        parts[model] = whole & ~overloaded & (scores["model"] == model)
    rows = []
    for part, mask in parts.items():
        for (method, figure), of_figure in scores[mask].groupby(["method", "figure"], sort=False):
            size = of_figure["error_percent"].abs()
            rows.append(
                {
                    "method": method,
                    "part": part,
                    "figure": figure,
                    "n": len(size),
                    "median": float(size.median()),
                    "mean": float(size.mean()),
                    "max": float(size.max()),
                }
            )
    return pd.DataFrame(rows)


def ranking_inversions(
    scores: pd.DataFrame, figure: str = "e2e_p99_s", margin: float = RANKING_MARGIN
) -> list[tuple[str, str]]:
    """Pairs of runs (the slower one first) that simulation puts in the other order.

    Args:
        scores: Of one method.
        figure: What is ranked, over whole runs.
        margin: Runs count only where the slower one's measured figure is higher by more than this.
    """
    rows = scores[(scores["stage"] == WHOLE_RUN) & (scores["figure"] == figure)]
    measured, predicted = rows["measured_s"].to_numpy(), rows["predicted_s"].to_numpy()
    names = rows["run"].tolist()
    slower = measured[:, None] > (1 + margin) * measured[None, :]
    wrong = slower & (predicted[:, None] < predicted[None, :])
    return [(names[i], names[j]) for i, j in np.argwhere(wrong).tolist()]
