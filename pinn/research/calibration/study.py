"""Error against budget: how many observations a calibration needs, and does choosing them help?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from pinn.physics.step import STEP_FEATURES
from pinn.research.calibration.baselines import line
from pinn.specs.files.write import replace_atomically
from pinn.training.calibration.calibrate import calibrate_to, candidates, summary
from pinn.training.calibration.intervals import TEST, Intervals
from pinn.training.calibration.prior import Prior
from pinn.training.calibration.selection import SELECTIONS, select

#: What is shown, and over how many seeds; nothing is fitted with them.
BUDGETS = (10, 25, 50, 100, 250, 500, 1000)
SEEDS = 5

#: Share of the candidates that each seed offers, the same to every method: without it the active
#: selection, which draws nothing, would be judged on a single case.
OFFERED = 0.8

LINE = "line from nothing"


def budget_errors(
    intervals: Intervals,
    prior: Prior,
    kind: str = "windows",
    budgets: Sequence[int] = BUDGETS,
    seeds: int = SEEDS,
) -> pd.DataFrame:
    """Errors on the last 20 % of time after calibrations of every budget, selection and seed.

    Args:
        intervals: Of a run.
        prior: Coefficients before.
        kind: Intervals to calibrate on and to judge: ``windows`` or ``singles``.
        budgets: Numbers of observations; those beyond what is offered are left out.
        seeds: How often.

    Returns:
        Columns ``budget``, ``method`` (active, random, or a line fitted to the random ones),
        ``seed``, ``n`` (test rows), ``median``, ``mean`` and ``bias``.
    """
    last = intervals.of_part(TEST)
    test = last.take(last.is_window if kind == "windows" else last.is_single)
    everything = candidates(intervals, kind)
    beta = prior.mean[: len(STEP_FEATURES)]
    rows = []
    for seed in range(seeds):
        offer = np.random.default_rng(seed).permutation(len(everything))
        pool = everything.take(np.sort(offer[: max(1, int(OFFERED * len(everything)))]))
        for budget in (b for b in budgets if b <= len(pool)):
            chosen = {how: pool.take(select(how, pool, beta, budget, seed)) for how in SELECTIONS}
            predicted = {
                how: test.features @ calibrate_to(used, prior).beta for how, used in chosen.items()
            }
            predicted[LINE] = line(chosen["random"], test)
            for method, times in predicted.items():
                figures = summary(times / test.seconds - 1)
                entry = {"budget": budget, "method": method, "seed": seed, "n": len(test)}
                rows.append(entry | figures)
    return pd.DataFrame(rows)


def budget_table(errors: pd.DataFrame) -> pd.DataFrame:
    """Median and worst seed of the median error, per budget and method."""
    groups = errors.groupby(["budget", "method"])["median"]
    table = pd.DataFrame({"median_seed": groups.median(), "worst_seed": groups.max()})
    return table.reset_index()


def budget_plot(errors: pd.DataFrame, before: float, path: Path) -> None:
    """Draw the curve: medians over seeds, bands from the best seed to the worst.

    Args:
        errors: Of :func:`budget_errors`.
        before: Median error of the coefficients before any calibration, a share.
        path: PNG to write.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    for method, color in zip((*SELECTIONS, LINE), ("tab:blue", "tab:orange", "gray"), strict=True):
        groups = 100 * errors[errors["method"] == method].pivot(
            index="budget", columns="seed", values="median"
        )
        label = method if method == LINE else f"calibrated, {method} selection"
        axis.plot(groups.index, groups.median(axis=1), "o-", color=color, label=label)
        axis.fill_between(
            groups.index, groups.min(axis=1), groups.max(axis=1), color=color, alpha=0.15, lw=0
        )
    axis.axhline(100 * before, color="black", lw=1, ls="--", label="before calibration")
    axis.set(xscale="log", yscale="log", xlabel="observations", ylabel="median error (%)")
    budgets = sorted(errors["budget"].unique())
    axis.set_xticks(budgets, [str(b) for b in budgets])
    axis.xaxis.minorticks_off()
    ticks = [t for t in (0.5, 0.7, 1, 1.5, 2, 3, 5, 10, 20, 50) if t < 300 * before]
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axis.yaxis.minorticks_off()
    axis.set_title(
        f"Mean step times of {errors['n'].iloc[0]} later intervals (last 20 % of the run)\n"
        f"median of {errors['seed'].nunique()} seeds, bands from the best to the worst",
        fontsize=11,
    )
    axis.grid(alpha=0.3)
    axis.legend()
    replace_atomically(path, lambda target: figure.savefig(target, format="png", dpi=120))
    plt.close(figure)
