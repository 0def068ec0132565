"""Inner folds of the scalars' fit: a second model left out, composed steps scored on it.

    python scripts/inner_folds.py gpt-oss [--runs] [--second Kimi]

What a recipe assumes (a rule of the physics, a prior, a launch script's flags) is chosen here, so
that no left-out model of the results has a say in its own fold. The first model is out of
everything: its kernels, its measured deployments, its serving runs. Of the others one at a time is
left out of the fit of scalars and alpha, whose steps then simulate its rows, without a network. The
second model's own kernels stay in, so these errors are lower than those of a left-out model; they
compare recipes, no more. With ``--runs`` serving runs teach too (about a minute a fit).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from pinn.errors import PinnError
from pinn.kernels.exclusion import Exclusion
from pinn.kernels.surrogates import KernelSurrogates
from pinn.laboratory.methods import read_measured
from pinn.laboratory.metrics import error_summary
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.many import Job, map_runs
from pinn.specs.model import ModelSpec
from pinn.training.data.measured_runs import MeasuredRun
from pinn.training.kernel_learner import fold_of, learn_from_runs, without_model
from pinn.training.run_scalars import RunFit, RunFitSettings
from pinn.training.serving_rows import ServingRows
from pinn.training.teacher import Teacher

CONF = Path(__file__).parents[1] / "conf"
KERNELS = Path(__file__).parents[1] / "checkpoints" / "kernels"


def main(first: str, second: str, with_runs: bool) -> None:
    """Print one line for each second model, and one for all their rows."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train")
    measured = read_measured(config)
    if with_runs and not measured.runs:
        raise PinnError("--runs without serving runs: name their CSV in PINN_SERVING_RUNS")
    runs = measured.runs if with_runs else ()
    settings = instantiate(config.run_fit)
    left_out = _named(measured.rows, first)
    tables = []
    for model, scored in inner_folds(settings, measured.rows, runs, left_out, second):
        print(model.name, _figures(scored), sep=" | ", flush=True)
        tables.append(scored)
    rows = pd.concat(tables)
    print("all", _figures(rows), sep=" | ")
    bias = (100 * (rows["ttft"] / rows["ttft_measured"] - 1)).groupby(rows["clients"]).median()
    print("TTFT's bias by clients:", ", ".join(f"{n} {b:+.1f}" for n, b in bias.items()))


def inner_folds(
    settings: RunFitSettings,
    rows: ServingRows,
    runs: Sequence[MeasuredRun],
    first: ModelSpec,
    second: str = "",
) -> Iterator[tuple[ModelSpec, pd.DataFrame]]:
    """Each second model with its rows as simulated and as measured.

    Args:
        settings: How scalars and alpha are fitted.
        rows: All measured deployments.
        runs: Serving runs that may teach.
        first: Left out of everything.
        second: Part of the names of those left out of the fit; all others by default.
    """
    rows = without_model(rows, first)
    kernels = KernelSurrogates.load(KERNELS / Exclusion(models=(first,)).slug())
    others = {d.model.name: d.model for d in rows.deployments}
    models = {name: model for name, model in others.items() if second in name}
    if not models:
        raise PinnError(f"--second {second!r} is part of none of {', '.join(others)}")
    for model in models.values():
        train = without_model(rows, model)
        fold = fold_of(train, runs, Exclusion(models=(first, model)))
        fit = learn_from_runs(kernels, fold.runs, train, settings)
        mine = np.array([d.model.name == model.name for d in rows.deployments])
        yield model, _scored(Teacher(kernels, fit.scalars), fit, rows.take(mine[rows.deployment]))


def _scored(teacher: Teacher, fit: RunFit, rows: ServingRows) -> pd.DataFrame:
    betas = teacher.betas(rows.deployments)
    jobs = [
        Job(one.served, one.workload, LinearLatency(one.served, betas[i], fit.alpha))
        for one, i in zip(rows.measured, rows.deployment, strict=True)
    ]
    found = np.array(
        map_runs(lambda _, run: (run.requests.mean_itl_s.mean(), run.requests.ttft_s.mean()), jobs)
    )
    return pd.DataFrame(
        {
            "clients": rows.concurrency,
            "tpot": found[:, 0],
            "tpot_measured": rows.tpot_s,
            "ttft": found[:, 1],
            "ttft_measured": rows.ttft_s,
        }
    )


def _figures(rows: pd.DataFrame) -> str:
    """Rows, and TPOT and TTFT as median / mean absolute % (bias)."""
    cells = []
    for name in ("tpot", "ttft"):
        c = error_summary(rows[name].to_numpy(), rows[f"{name}_measured"].to_numpy())
        cells.append(f"{name.upper()} {c['median']:.1f} / {c['mean']:.1f} ({c['bias']:+.1f})")
    return f"{len(rows)} rows, " + ", ".join(cells)


def _named(rows: ServingRows, part: str) -> ModelSpec:
    models = {d.model.name: d.model for d in rows.deployments}
    found = [model for name, model in models.items() if part in name]
    if len(found) != 1:
        raise PinnError(
            f"{part!r} names {len(found)} of the measured models: give a part of one of "
            f"{', '.join(models)}"
        )
    return found[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", help="part of a measured model's name")
    parser.add_argument("--second", default="", help="only these second models")
    parser.add_argument("--runs", action="store_true", help="learn from serving runs too")
    options = parser.parse_args()
    try:
        main(options.first, options.second, options.runs)
    except PinnError as error:
        parser.exit(1, f"error: {error}\n")
