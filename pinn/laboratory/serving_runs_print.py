"""Errors on serving runs as they are shown, and those of their steady states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from rich.console import Console

from pinn.common.screen import WIDEST, Column, Grid, page
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.batch_sums import UniformBatches
from pinn.physics.costs import StepCosts, step_costs
from pinn.physics.step import step_features
from pinn.training.data.measured_runs import FIGURES, WHOLE_RUN, MeasuredRun
from pinn.units import MILLISECOND

# Tables of scored serving runs for the terminal; all of them are functions of saved tables.

#: Means whose measured values are shown.
_MEANS = ("e2e_mean_s", "ttft_mean_s", "itl_mean_s")
_HEADINGS = {figure: figure.removesuffix("_s").replace("_", " ") for figure in FIGURES}


def print_scores(scores: pd.DataFrame, console: Console | None = None) -> None:
    """One row per run and stage: every figure's error; files have what was measured too."""
    console = console or page(WIDEST)
    for method, of_method in scores.groupby("method", sort=False):
        run, stage = Column("run", True, most=24), Column("stage", True)
        columns = [run, stage, *map(Column, ("req/s", *_HEADINGS.values(), "failed"))]
        table = Grid(columns, f"{method}: error in %", gap=1)
        for (name, number), rows in of_method.groupby(["run", "stage"], sort=False):
            table.add(str(name), str(number), *_cells(rows))
        console.print(table)


def _cells(rows: pd.DataFrame) -> list[str]:
    by_figure = {row["figure"]: row for row in rows.to_dict("records")}
    first = next(iter(by_figure.values()))
    cells = ["" if pd.isna(first["rate_per_s"]) else f"{first['rate_per_s']:g}"]
    for figure in FIGURES:
        known = figure in by_figure
        cells.append(f"{by_figure[figure]['error_percent']:+.1f}" if known else "-")
    measured, predicted = first["failed_measured"], first["failed_predicted"]
    shown = measured > 0 or predicted > 0
    cells.append(f"{100 * predicted:.1f}, was {100 * measured:.1f}" if shown else "")
    return cells


def print_summary(
    summary: pd.DataFrame,
    inversions: Mapping[str, Sequence[tuple[str, str]]],
    console: Console | None = None,
) -> None:
    """Median, mean and largest error of every figure; per method the pairs ranked wrongly."""
    console = console or page(WIDEST)
    shown = summary[summary["part"].isin(["all", "stages", "overloaded"])]
    headings = ("method", "part", "figure", "n", "median", "mean", "largest")
    table = Grid.of(*headings, caption="absolute error in %", text=3)
    for row in shown.to_dict("records"):
        sizes = (f"{row[name]:.1f}" for name in ("median", "mean", "max"))
        about = (str(row["method"]), str(row["part"]), _HEADINGS[row["figure"]])
        table.add(*about, str(row["n"]), *sizes)
    console.print(table)
    for method, pairs in inversions.items():
        console.print(
            f"{method}: {len(pairs)} pairs of runs whose p99 E2E differs by more than 20 % are "
            "ranked wrongly"
        )
        for slower, faster in pairs:
            console.print(f"  {slower} is slower than {faster}")


def print_steady_states(table: pd.DataFrame, console: Console | None = None) -> None:
    """Steady-state ITL per run and stage, and the median error of each method."""
    console = console or page(WIDEST)
    methods = [c.removesuffix("_percent") for c in table.columns if c.endswith("_percent")]
    run = Column("run", True, most=44, folds=False)
    caption = "mean ITL in the steady state: ms and error in %"
    shown = Grid.of(run, "stage", "req/s", "measured", *methods, caption=caption)
    for row in table.to_dict("records"):
        cells = [f"{row[f'{m}_s'] / MILLISECOND:.2f} ({row[f'{m}_percent']:+.1f})" for m in methods]
        head = (str(row["run"]), str(row["stage"]), f"{row['rate_per_s']:g}")
        shown.add(*head, f"{row['measured_s'] / MILLISECOND:.2f}", *cells)
    console.print(shown)
    for method in methods:
        size = table[f"{method}_percent"].abs()
        console.print(f"{method}: median {size.median():.1f} %, mean {size.mean():.1f} %")


def markdown_scores(scores: pd.DataFrame) -> str:
    """The per-stage table as Markdown: measured means and their errors."""
    errors = ("E2E ms", "error %", "TTFT ms", "error %", "ITL ms", "error %")
    table = Grid.of("run", "stage", "req/s", *errors, text=2)
    for (run, stage), rows in scores.groupby(["run", "stage"], sort=False):
        by_figure = {row["figure"]: row for row in rows.to_dict("records")}
        rate = rows["rate_per_s"].iloc[0]
        cells = [str(run), str(stage), "" if stage == WHOLE_RUN else f"{rate:g}"]
        for figure in _MEANS:
            row = by_figure[figure]
            cells += [f"{row['measured_s'] / MILLISECOND:,.1f}", f"{row['error_percent']:+.1f}"]
        table.add(*cells)
    return table.markdown() + "\n"


# Mean ITL of a load stage without a simulation: one batch, in the model's own steady state.
#
# At a constant rate as many requests decode at a time as arrive while one is served (Little's
# law); a token sees that many others in its batch beside its own request, and the batch in turn
# decides how long serving takes. Nothing of the measured latencies goes in.

#: Prompt tokens computed per request whose prompt is in the prefix cache: what lies beyond its
#: last whole block, and the block that has to be computed again when it ends with one. An
#: assumption; over all lengths they are 8.5 on average.
UNCACHED_TOKENS = 12.0

_ROUNDS = 200


def steady_itl_seconds(
    deployment: Deployment,
    beta: Float[np.ndarray, " step_features"],
    rate_per_s: float,
    prompt_tokens: float,
    output_tokens: int,
) -> float:
    """Mean step time at which arrivals and decodes balance.

    A step shares its batch with the prefills of the requests that arrived during the one before,
    Poisson in number.

    Args:
        deployment: What serves.
        beta: Its coefficients.
        rate_per_s: Requests per second.
        prompt_tokens: Mean prompt length; prompts are in the prefix cache.
        output_tokens: Tokens that each request generates.

    Raises:
        PinnError: If the rate is not positive.
    """
    if not rate_per_s > 0:
        raise PinnError(f"a steady state needs a positive rate, got {rate_per_s} req/s")
    costs, window = step_costs([deployment]), deployment.model.window_tokens
    context = prompt_tokens + output_tokens / 2
    seconds = 1e-3
    for _ in range(_ROUNDS):
        others = rate_per_s * output_tokens * seconds
        decodes = min(1 + others, deployment.recipe.max_requests)
        new = _mean_step(costs, window, beta, decodes, context, prompt_tokens, rate_per_s * seconds)
        if abs(new / seconds - 1) < 1e-9:
            return new
        seconds = (seconds + new) / 2  # halfway, so that large batches do not swing
    return seconds


def _mean_step(
    costs: StepCosts,
    window: int | None,
    beta: np.ndarray,
    decodes: float,
    context: float,
    prompt_tokens: float,
    arrivals: float,
) -> float:
    """Mean over steps with and without prefills, ``arrivals`` per step on average."""
    share = 1 - np.exp(-arrivals)
    two = np.ones(2)
    prefills = np.array([0.0, arrivals / share])
    batches = UniformBatches(
        decodes * two,
        context * two,
        prefills,
        UNCACHED_TOKENS * (prefills > 0),
        (prompt_tokens - UNCACHED_TOKENS) * (prefills > 0),
    )
    steps = step_features(costs, batches.sums(window)) @ beta
    return float((1 - share) * steps[0] + share * steps[1])


def score_steady_states(
    runs: Sequence[MeasuredRun], betas: Mapping[str, Sequence[Float[np.ndarray, " step_features"]]]
) -> pd.DataFrame:
    """Errors of the steady-state ITL.

    Args:
        runs: What was measured.
        betas: Method -> coefficients of each run.

    Returns:
        One row per run and stage: ``run``, ``model``, ``stage``, ``rate_per_s``, ``measured_s``
        and per method ``METHOD_s`` and ``METHOD_percent``.
    """
    rows = []
    for i, run in enumerate(runs):
        load = run.workload
        for stage in run.stages:
            measured, rate = run.measured[stage]["itl_mean_s"], run.rates_per_s[int(stage)]
            row = {
                "run": run.name,
                "model": run.deployment.model.name,
                "stage": stage,
                "rate_per_s": rate,
                "measured_s": measured,
            }
            for method, of_runs in betas.items():
                predicted = steady_itl_seconds(
                    run.deployment,
                    of_runs[i],
                    rate,
                    float(load.prompt_tokens.mean()),
                    int(load.output_tokens[0]),
                )
                row[f"{method}_s"] = predicted
                row[f"{method}_percent"] = 100 * (predicted / measured - 1)
            rows.append(row)
    return pd.DataFrame(rows)
