"""Errors of times predicted from a coefficient file, on measurements of the same deployment."""

from pathlib import Path

import pandas as pd

from pinn.calibration.fit import benchmark_runs, score_benchmarks, score_steps
from pinn.common.numbers import number
from pinn.common.run_names import short_names
from pinn.common.screen import Grid
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.labels import hardware_label, step_limits
from pinn.evaluation.tables import frame_grid
from pinn.measurements.traces.trace_tables import read_trace_tables
from pinn.surrogate.coefficient_set import read_coefficient_set

#: Metrics of a load whose errors are printed; the saved table lists the errors of all metrics.
_SHOWN = ("ttft_mean_s", "tpot_mean_s", "itl_mean_s", "e2e_mean_s", "output_tokens_per_s")


def score_file(
    file: Path, observations: Path, engine: EngineSpec
) -> tuple[pd.DataFrame, list[Grid]]:
    """Return a coefficient file's prediction errors on measured steps or loads.

    Args:
        file: Coefficient file of a deployment.
        observations: Folder with tables of measured steps or loads of the same deployment.
        engine: Engine settings with which the loads are scheduled.

    Returns:
        The table of errors, and grids to print. The table has errors of the file's coefficients
        and, if the file stores them, of the coefficients before calibration. Columns are those of
        ``score_steps`` or ``score_benchmarks`` of ``pinn.calibration.fit``.

    Raises:
        PinnError: If a file is unreadable or invalid, or if the deployments differ.
    """
    found, traces = read_coefficient_set(file), read_trace_tables(observations)
    deployment = traces.deployment()
    found.check_deployment(deployment, str(file))
    before = {} if found.base is None else {"before": found.base}
    sets = before | {file.name: found.coefficients}
    if traces.manifest["tables"].get("cycles", {}).get("rows"):
        table = score_steps(traces, deployment, sets)
        return table, [_step_grid(table)]
    table = score_benchmarks(benchmark_runs(traces), deployment, sets, engine)
    name = f"{deployment.model.title} on {hardware_label(deployment)}"
    return table, _load_grids(table, f"{name}, {step_limits(deployment)}")


def _step_grid(table: pd.DataFrame) -> Grid:
    names = table["coefficients"].unique()
    caption = "errors of mean step times (%): median absolute / mean absolute / bias"
    grid = Grid.of("part", "steps", "n", *names, caption=caption, text=2)
    scored = table[table["n"] > 0]
    for (part, kind), rows in scored.groupby(["part", "kind"], sort=False):
        percent = 100 * rows[["median", "mean", "bias"]]
        cells = percent.apply(lambda of: "{:.2f} / {:.2f} / {:.2f}".format(*of), axis=1)
        grid.add(str(part), str(kind), str(rows["n"].iloc[0]), *cells)
    return grid


def _load_grids(table: pd.DataFrame, server: str) -> list[Grid]:
    """Return two grids: latency errors of each load, and summary statistics of these errors.

    Loads that overloaded the server are excluded from the statistics.
    """
    shown = table[table["figure"].isin(_SHOWN)]
    shown = shown.assign(run=shown["run"].map(short_names(list(shown["run"]))))
    key = ["run", "load", "figure"]
    errors = shown.pivot(index=key, columns="coefficients", values="error_percent")
    each = {"run": "run", "load": "load", "figure": "figure", "measured": "measured"}
    each |= {f"{name}, %": f"{name}:+.1f" for name in shown["coefficients"].unique()}
    measured = shown.drop_duplicates(key).join(errors, on=key)
    measured = measured.assign(measured=measured["measured"].map(number))
    repeated = measured.duplicated(["run", "load"])
    measured[["run", "load"]] = measured[["run", "load"]].mask(repeated, "")
    loads = frame_grid(measured, each, server, text=3)
    overloaded = shown["overload"] != ""
    size = shown[~overloaded].assign(size=shown["error_percent"].abs())
    of_figures = size.groupby(["coefficients", "figure"], sort=False)["size"]
    sums = of_figures.agg(["count", "median", "mean", "max"]).reset_index()
    of_run = shown[overloaded].drop_duplicates("run")[["run", "overload"]]
    reasons = [f"{name}: {why}" for name, why in of_run.itertuples(index=False)]
    without = f"; excluded, overloaded: {'; '.join(reasons)}" if reasons else ""
    columns = {"coefficients": "coefficients", "figure": "figure"}
    columns |= {"n": "count", "median": "median:.1f", "mean": "mean:.1f", "worst": "max:.1f"}
    return [loads, frame_grid(sums, columns, f"absolute errors, %{without}", text=2)]
