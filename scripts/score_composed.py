"""Score settings on the scorecard with step times summed from fitted kernels, without a network.

    python scripts/score_composed.py composed.csv [run_fit.rounds=3 ...]
    python scripts/score_composed.py new.csv --against composed.csv --alone "fresh prompts: ..."

Use this script to choose how step times are modelled before a network is trained on them. Each
measured model (its kernels, deployments and serving runs) is held out as in a training run's folds.
Data that is never used for fits is predicted by the fit to all other data. Serving runs that are
used for training are not scored here. Environment variables name the data: ``PINN_SERVING_RUNS``,
``PINN_HELD_OUT_RUNS``, ``PINN_WHOLE_STEPS`` and ``PINN_PUBLIC_MEASUREMENTS``. The script runs for
about ten minutes on two cores.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from inner_folds import Composed

from pinn.common import old_names
from pinn.common.tables import write_frame
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.evaluation import panel, panel_rows
from pinn.evaluation.config import compose_config, typed
from pinn.evaluation.measured import read_measured
from pinn.kernels.exclusion import Exclusion, is_near_copy
from pinn.simulator.linear_latency import LinearLatency
from pinn.specs.model import ModelSpec
from pinn.training.folds import fold_of, without_model
from pinn.training.kernel_data import fitted_surrogates
from pinn.training.kernel_learner import learn_from_runs
from pinn.training.teacher import Teacher


@dataclass(frozen=True)
class Folds:
    """Latency predictors without a network: one per held-out model, and one for all data."""

    whole: Composed
    without: tuple[tuple[ModelSpec, Composed], ...]

    def latencies(self, deployments: Sequence[Deployment]) -> list[LinearLatency]:
        """Return the latency model of each deployment, from the fit without its model."""
        chosen = [self._of(one.model) for one in deployments]
        found: dict[int, LinearLatency] = {}
        for of in (self.whole, *(fold for _, fold in self.without)):
            mine = [i for i, fold in enumerate(chosen) if fold is of]
            if mine:
                found |= zip(mine, of.latencies([deployments[i] for i in mine]), strict=True)
        return [found[i] for i in range(len(deployments))]

    def _of(self, model: ModelSpec) -> Composed:
        return next((fold for m, fold in self.without if is_near_copy(m, model)), self.whole)


def learn(overrides: Sequence[str]) -> Folds:
    """Fit the calibration factors without each fold's model, and to all data, as train.py would."""
    config = typed(compose_config(list(overrides)))
    measured = read_measured(config)
    models = {d.model.name: d.model for d in measured.rows.deployments}
    found = []
    for model in (None, *models.values()):
        exclude = Exclusion(models=() if model is None else (model,))
        rows = measured.rows if model is None else without_model(measured.rows, model)
        kernels = fitted_surrogates(config.kernels.settings, exclude)
        fold = fold_of(rows, measured.runs, exclude)
        fit = learn_from_runs(kernels, fold.runs, rows, config.run_fit)
        print(f"fitted without {model.name if model else 'nothing'}", file=sys.stderr, flush=True)
        found.append(Composed(Teacher(kernels, fit.scalars), fit))
    return Folds(found[0], tuple(zip(models.values(), found[1:], strict=True)))


def main(
    out: Path,
    overrides: Annotated[list[str] | None, typer.Argument()] = None,
    against: Path | None = None,
    alone: str | None = None,
) -> None:
    """Fit the calibration factors without each held-out model, and to all data, like train.py."""
    paths = {
        name: [Path(path) for path in old_names.variable(name).split(os.pathsep) if path]
        for name in ("PINN_HELD_OUT_RUNS", "PINN_WHOLE_STEPS", "PINN_PUBLIC_MEASUREMENTS")
    }
    runs, steps, public = paths.values()
    rows = panel_rows.held_out_rows(learn(overrides or []), runs, next(iter(steps), None), public)
    found = panel.sum_up(rows.assign(half=np.nan))
    write_frame(found, out, float_format="%.6g")
    if against is None:
        print(panel.panel_grid(panel.group_scores(found)).markdown())
        return
    noise = pd.Series(0.0, found["group"].unique())  # without a network, there is no training noise
    table, verdict = panel.compare_panels(panel.read_panel(against), found, noise, alone)
    print(f"{panel.panel_grid(table).markdown()}\n\nB is {verdict}.")


if __name__ == "__main__":
    try:
        typer.run(main)
    except PinnError as error:
        sys.exit(f"error: {error}")
