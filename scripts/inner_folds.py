"""Score fits of calibration factors by cross-validation with two held-out models.

    python scripts/inner_folds.py gpt-oss [--second Kimi] [run_fit.operator_spread=0.2 ...]
    python scripts/inner_folds.py gpt-oss kernels=newer

Modelling assumptions (a physical rule, a prior, flags of a launch script) are chosen by these
scores, so that no model that is held out in published results affects its own predictions. The
first model is held out of everything: kernels, measured deployments and serving runs. Each other
model in turn is held out of the fit of calibration factors and request coefficients (alpha). Its
deployments, serving runs (``PINN_SERVING_RUNS``) and complete engine steps (``PINN_WHOLE_STEPS``)
are then predicted with step times summed from fitted kernels, without a network. The second model's
own kernels are not held out, so the errors are too low and serve only to compare assumptions. The
errors are aggregated as in the scorecard. The script runs for about five minutes.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.evaluation import panel, panel_rows
from pinn.evaluation.config import compose_config, typed
from pinn.evaluation.measured import read_measured
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.kernels.surrogates import KernelSurrogates
from pinn.measurements.runs.measured_runs import MeasuredRun
from pinn.measurements.runs.public import PublicSteps
from pinn.measurements.runs.whole_steps import MeasuredSteps
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.model import ModelSpec
from pinn.training.folds import fold_of, without_model
from pinn.training.kernel_data import fitted_surrogates
from pinn.training.kernel_learner import learn_from_runs
from pinn.training.run_scalars import RunFit, RunFitSettings
from pinn.training.serving_rows import ServingRows, simulate_rows
from pinn.training.teacher import Teacher

#: Scorecard columns to print.
SHOWN = ["group", "configurations", "rows", "tpot", "ttft", "score"]


@dataclass(frozen=True)
class Measurements:
    """Measured deployments, serving runs and complete engine steps; the steps are only scored."""

    rows: ServingRows
    runs: Sequence[MeasuredRun] = ()
    steps: Sequence[MeasuredSteps] = ()

    def of(self, model: ModelSpec) -> "Measurements":
        """Return only the measurements of a model and of models of almost the same shape."""
        mine = np.array([is_near_copy(d.model, model) for d in self.rows.deployments])
        runs, steps = (
            [one for one in every if is_near_copy(one.deployment.model, model)]
            for every in (self.runs, self.steps)
        )
        return Measurements(self.rows.take(mine[self.rows.deployment]), runs, steps)


def main(
    first: str, overrides: Annotated[list[str] | None, typer.Argument()] = None, second: str = ""
) -> None:
    """Print the scores of each model that is held out in addition to ``first``, and of all of them.

    ``overrides`` are settings as for train.py.
    """
    config = typed(compose_config(overrides or []))
    measured = read_measured(config)
    path = os.environ.get("PINN_WHOLE_STEPS")
    steps = panel_rows.read_panel_steps(Path(path)) if path else []
    everything = Measurements(measured.rows, measured.runs, steps)
    left_out = _named(measured.rows, first)
    tables = []
    kernels = fitted_surrogates(config.kernels.settings, Exclusion(models=(left_out,)))
    for model, found in inner_folds(kernels, config.run_fit, everything, left_out, second):
        print(f"{model.name}: {len(found)} figures", flush=True)
        tables.append(found)
    rows = pd.concat(tables, ignore_index=True).assign(half=np.nan)
    print(panel.group_scores(panel.sum_up(rows))[SHOWN].round(2).to_string())


def inner_folds(
    kernels: KernelSurrogates,
    settings: RunFitSettings,
    measured: Measurements,
    first: ModelSpec,
    second: str = "",
) -> Iterator[tuple[ModelSpec, pd.DataFrame]]:
    """Yield each additionally held-out model, with a table of its scorecard rows.

    The columns are ``panel_rows.ROW_COLUMNS``.

    Args:
        kernels: Fits to kernel times, without those of the first model.
        settings: Settings of the fit of calibration factors and alpha.
        measured: All measurements.
        first: Model that is held out of everything.
        second: Substring of the names of second models; empty for all other models.
    """
    rows = without_model(measured.rows, first)
    measured = Measurements(rows, measured.runs, measured.steps)
    for model in _seconds(measured, first, second):
        train = without_model(rows, model)
        fold = fold_of(train, measured.runs, Exclusion(models=(first, model)))
        fit = learn_from_runs(kernels, fold.runs, train, settings)
        yield model, _scored(Teacher(kernels, fit.scalars), fit, measured.of(model))


def _seconds(measured: Measurements, first: ModelSpec, second: str) -> list[ModelSpec]:
    """Return the models to hold out in addition to ``first``.

    Near copies of ``first`` are excluded; of several near copies, only one is returned.
    """
    others = (one.deployment for one in (*measured.runs, *measured.steps))
    models = {d.model.name: d.model for d in (*measured.rows.deployments, *others)}
    found: list[ModelSpec] = []
    for name, model in models.items():
        if second in name and not any(is_near_copy(model, m) for m in (first, *found)):
            found.append(model)
    if not found:
        names = ", ".join(sorted(models))
        raise PinnError(f"--second {second!r} is in no model's name: give a part of one of {names}")
    return found


@dataclass(frozen=True)
class Composed:
    """Predictor whose step times are summed from fitted kernels, without a network.

    Its fits determine which data is held out.
    """

    teacher: Teacher
    fit: RunFit

    def latencies(self, deployments: Sequence[Deployment]) -> list[LinearLatency]:
        """Return the latency model of each deployment, with sums of kernel times as step times."""
        betas = self.teacher.betas(deployments)
        return [
            LinearLatency(*each, self.fit.alpha) for each in zip(deployments, betas, strict=True)
        ]


def _scored(teacher: Teacher, fit: RunFit, measured: Measurements) -> pd.DataFrame:
    of, tables = Composed(teacher, fit), []
    if len(measured.rows):
        tables.append(_deployments(teacher, fit, measured.rows))
    if measured.runs:
        tables.append(panel_rows.run_rows(measured.runs, of, panel_rows.RUNS))
    steps = (PublicSteps(panel_rows.STEPS, one) for one in measured.steps)
    tables += [panel_rows.step_rows(one, of) for one in steps]
    return pd.concat([table[list(panel_rows.ROW_COLUMNS)] for table in tables], ignore_index=True)


def _deployments(teacher: Teacher, fit: RunFit, rows: ServingRows) -> pd.DataFrame:
    beta = teacher.betas(rows.deployments)
    found = simulate_rows(rows, beta, np.tile(fit.alpha, (len(beta), 1)))
    each = [rows.deployments[i] for i in rows.deployment]
    about = pd.DataFrame({
        "group": [f"{panel_rows.DEPLOYMENTS}: {one.model.name}" for one in each],
        "configuration": rows.deployment.astype(str),
        "deployment": each,
    })  # fmt: skip
    return pd.concat([
        about.assign(metric="tpot", measured_s=rows.tpot_s, predicted_s=found.tpot_s),
        about.assign(metric="ttft", measured_s=rows.ttft_s, predicted_s=found.ttft_s),
    ])  # fmt: skip


def _named(rows: ServingRows, part: str) -> ModelSpec:
    models = {d.model.name: d.model for d in rows.deployments}
    found = [model for name, model in models.items() if part in name]
    if len(found) != 1:
        raise PinnError(
            f"{part!r} is in the names of {len(found)} measured models, expected one: give a part "
            f"of one of {', '.join(models)}"
        )
    return found[0]


if __name__ == "__main__":
    try:
        typer.run(main)
    except PinnError as error:
        sys.exit(f"error: {error}")
