"""``pinn evaluate coefficients``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinn.interface.commands.options import output
from pinn.interface.commands.serving_flags import engine_flags
from pinn.simulator.engine_spec import EngineSpec

if TYPE_CHECKING:
    import pandas as pd

#: Figures that are printed; the JSON and the CSV have all.
_PRINTED = ("ttft_mean_s", "tpot_mean_s", "itl_mean_s", "e2e_mean_s", "output_tokens_per_s")


@engine_flags(EngineSpec)
def coefficients(
    file: Annotated[
        Path, typer.Argument(help="Of 'pinn calibrate' or 'pinn coefficients --json'.")
    ],
    observations: Annotated[
        Path, typer.Option("--observations", help="Folder that 'pinn ingest' wrote.")
    ],
    out: Annotated[Path | None, output("--out", "Also write the table, as CSV.", ".csv")] = None,
    *,
    flags: dict[str, Any],
) -> None:
    """Score a coefficient file on a run: its steps, or the loads of its benchmarks.

    Beside the file's coefficients, those from before its calibration, where the file has them. On
    traces every part of the run's time is judged; a file calibrated to the same run has seen the
    first. Flags say how the engine schedules the loads, where that is not its default.

    Example: pinn evaluate coefficients run1.json --observations run2
    """
    from pinn.coefficients.coefficient_set import read_coefficient_set
    from pinn.data.traces.trace_tables import read_trace_tables
    from pinn.evaluation.coefficient_files import benchmark_runs, score_benchmarks, score_steps
    from pinn.specs.files.csv_cells import write_frame

    found, traces = read_coefficient_set(file), read_trace_tables(observations)
    deployment = traces.deployment()
    found.check_deployment(deployment, str(file))
    sets = {file.name: found.coefficients}
    if found.base is not None:
        sets = {"before": found.base, **sets}
    if traces.manifest["tables"].get("cycles", {}).get("rows"):
        table = score_steps(traces, deployment, sets)
        lines = _steps(table)
    else:
        table = score_benchmarks(
            benchmark_runs(traces), deployment, sets, engine=EngineSpec(**flags)
        )
        lines = _benchmarks(table)
    typer.echo("\n".join(lines))
    if out is not None:
        write_frame(table, out)
        typer.echo(f"wrote {out}")


def _steps(table: pd.DataFrame) -> list[str]:
    names = list(dict.fromkeys(table["coefficients"]))
    lines = ["errors of mean step times (%): median / mean / bias"]
    lines.append(f"{'':24s} {'n':>6s} " + " ".join(f"{name:>24s}" for name in names))
    for (part, kind), rows in table.groupby(["part", "kind"], sort=False):
        if rows["n"].iloc[0]:
            cells = [
                " / ".join(f"{100 * row[f]:.2f}" for f in ("median", "mean", "bias"))
                for row in rows.to_dict("records")
            ]
            head = f"{f'{part}, {kind}':24s} {rows['n'].iloc[0]:>6d} "
            lines.append(head + " ".join(f"{cell:>24s}" for cell in cells))
    return lines


def _benchmarks(table: pd.DataFrame) -> list[str]:
    from pinn.evaluation.serving_runs import OVERLOADED

    shown = table[table["figure"].isin(_PRINTED)]
    names = list(dict.fromkeys(table["coefficients"]))
    lines = []
    for (run, load), rows in shown.groupby(["run", "load"], sort=False):
        lines.append(f"{run}: {load}")
        for figure, of_figure in rows.groupby("figure", sort=False):
            errors = of_figure.set_index("coefficients")["error_percent"]
            cells = ", ".join(f"{name} {errors[name]:+.1f} %" for name in names)
            lines.append(f"  {figure:20s} {of_figure['measured'].iloc[0]:10.4g}  {cells}")
    overloaded = shown["failed_share"] >= OVERLOADED
    lines.append("\nabsolute errors (%): median / mean / worst")
    for (name, what), rows in shown[~overloaded].groupby(["coefficients", "figure"], sort=False):
        size = rows["error_percent"].abs()
        figures = f"{size.median():.1f} / {size.mean():.1f} / {size.max():.1f}"
        lines.append(f"  {name:24s} {what:20s} n {len(size):<4d} {figures}")
    if overloaded.any():
        count = shown.loc[overloaded, "run"].nunique()
        lines.append(f"left out of these: {count} run(s) whose server failed requests")
    return lines
