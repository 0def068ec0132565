"""Errors of times predicted from a coefficient file, on measurements of the same deployment."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from pinn.calibration.fit import benchmark_runs, score_benchmarks, score_steps
from pinn.common.numbers import amount, number
from pinn.common.run_names import short_names
from pinn.common.screen import Grid
from pinn.engines.engine_spec import EngineSpec
from pinn.engines.labels import hardware_label, step_limits
from pinn.evaluation.tables import frame_grid
from pinn.measurements.benchmarks.run_table import metric_name
from pinn.measurements.traces.trace_tables import read_trace_tables
from pinn.surrogate.coefficient_set import CoefficientSet, read_coefficient_set
from pinn.units import MILLISECOND

#: Metrics of a load whose errors are printed; the saved table lists the errors of all metrics.
_LATENCIES = ("ttft", "tpot", "itl", "e2e")
_SHOWN = (*(f"{name}_{tail}_s" for name in _LATENCIES for tail in ("mean", "p99")),
          "output_tokens_per_s")  # fmt: skip


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
        ``score_steps`` or ``score_benchmarks`` of ``pinn.calibration.fit``; loads also have
        ``fitted`` (whether the file was calibrated to them).

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
    table.insert(list(table).index("figure"), "fitted", _fitted_runs(found, table))
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


def _fitted_runs(found: CoefficientSet, table: pd.DataFrame) -> list[bool]:
    """Return for each row of errors whether the file was calibrated to the row's run.

    Runs are compared by load and measured values, because the files may have been moved.
    """
    key = ["load", "figure", "measured"]
    fitted = {tuple(row[name] for name in key) for row in found.calibration.get("figures", ())}
    is_fitted = [row in fitted for row in table[key].itertuples(index=False, name=None)]
    runs = set(table["run"][is_fitted])
    return [run in runs for run in table["run"]]


def _load_grids(table: pd.DataFrame, server: str) -> list[Grid]:
    """Return two grids: summary statistics of errors with a verdict, and errors of each load.

    Loads that overloaded the server are excluded from the statistics. Fitted loads have separate
    statistics.
    """
    shown = table[table["figure"].isin(_SHOWN)]
    short = short_names(list(shown["run"]))
    columns = list(shown["coefficients"].unique())
    errors = shown.pivot(index=["run", "figure"], columns="coefficients", values="error_percent")
    loads = Grid.of("load", "measured", *(f"{name}, %" for name in columns), caption=server)
    for run, rows in shown.drop_duplicates(["run", "figure"]).groupby("run", sort=False):
        load, overload, fitted = rows.iloc[0][["load", "overload", "fitted"]]
        state = "; overloaded" * bool(overload) + "; fitted" * bool(fitted)
        loads.add(f"{short[str(run)]}: {load}{state}", "", *[""] * len(columns))
        for row in rows.to_dict("records"):
            cells = (f"{errors.loc[(run, row['figure']), name]:+.1f}" for name in columns)
            loads.add(*_with_unit(row["figure"], row["measured"]), *cells)
    return [_summary(shown, short), loads]


def _with_unit(figure: str, measured: float) -> tuple[str, str]:
    """Return a metric's name with its unit, and its value: ms for times, 1/s for rates.

    >>> _with_unit("ttft_mean_s", 0.025)
    ('  TTFT mean, ms', '25.0')
    """
    if figure.endswith("_per_s"):
        return f"  {metric_name(figure)}", number(measured)
    return f"  {metric_name(figure)}, ms", number(measured / MILLISECOND)


def _summary(shown: pd.DataFrame, short: Mapping[str, str]) -> Grid:
    overloaded = shown["overload"] != ""
    loads = shown["fitted"].map({True: "fitted", False: "other"})
    metric = shown["figure"].map(metric_name)
    size = shown.assign(size=shown["error_percent"].abs(), loads=loads, metric=metric)
    key = ["coefficients", *["loads"] * bool(shown["fitted"].any()), "metric"]
    of_figures = size[~overloaded].groupby(key, sort=False)["size"]
    sums = of_figures.agg(["count", "median", "mean", "max"]).reset_index()
    of_run = shown[overloaded].drop_duplicates("run")[["run", "overload"]]
    reasons = [f"{short[name]}: {why}" for name, why in of_run.itertuples(index=False)]
    without = f" Excluded, overloaded: {'; '.join(reasons)}." if reasons else ""
    columns = {name: name for name in key}
    columns |= {"n": "count", "median": "median:.1f", "mean": "mean:.1f", "worst": "max:.1f"}
    caption = f"{_verdict(size[~overloaded])}{without} Absolute errors, %:"
    return frame_grid(sums, columns, caption, text=len(key))


def _verdict(errors: pd.DataFrame) -> str:
    """Return which metrics a calibration predicts better, on loads that it was not fitted to.

    If it was fitted to all loads, the sentence is about these, and says so.

    Args:
        errors: Columns ``coefficients`` (``before`` and the file's name), ``loads`` (``fitted`` or
            ``other``), ``run``, ``metric`` and ``size``, the absolute error in percent.
    """
    others = errors[errors["loads"] == "other"]
    used = others if len(others) else errors
    medians = used.pivot_table("size", "metric", "coefficients", aggfunc="median", sort=False)
    where = amount(used["run"].nunique(), "load")
    if "before" not in medians or medians.shape[1] < 2:
        listed = ", ".join(f"{name} {row.iloc[0]:.1f} %" for name, row in medians.iterrows())
        return f"Median APE on {where}: {listed}." if listed else "No load to evaluate."
    (after,) = (name for name in medians if name != "before")
    change = medians[after] - medians["before"]
    sides = {"smaller": change < 0, "larger": change > 0}
    parts = [
        f"{word} for {', '.join(medians.index[side])}" for word, side in sides.items() if side.any()
    ] or ["not smaller"]
    fitted = " that it was not fitted to" if len(others) else ""
    advice = "" if len(others) else " It was fitted to these loads: evaluate it on others, too."
    return (
        f"On {where}{fitted}, the median APE of {after} is {' and '.join(parts)} than before the "
        f"calibration.{advice}"
    )
