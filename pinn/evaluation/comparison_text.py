"""Printed comparison of two checkpoints, coefficient files or evaluations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from pinn.common.numbers import number
from pinn.common.screen import WIDEST, WIDTH, Column, page
from pinn.evaluation.tables import frame_grid
from pinn.units import MICROSECOND

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from pinn.common.screen import Grid
    from pinn.evaluation.sides import Comparison

#: Maximum number of rows printed per table; --details prints all rows.
_ROWS = 5


def print_comparison(found: Comparison, details: bool = False) -> None:
    """Print a comparison on one screen; with ``details``, print every row and column."""
    console = page(WIDEST if details else WIDTH)
    console.print(f"A: {found.a}\nB: {found.b}\n")
    if len(found.errors):
        _print_rows(_errors(found.errors, details), console, details)
    elif found.no_errors:
        console.print(f"Errors: {found.no_errors}.\n")
    if len(coefficients := found.coefficients):
        _print_rows(_coefficients(coefficients, details), console, details)
        differ = int((coefficients["a"] != coefficients["b"]).sum())
        outside = int(coefficients["verdict"].str.startswith("outside").sum())
        told = (
            f"{outside} outside A's interval"
            if coefficients["verdict"].any()
            else "A's file has no intervals of single coefficients"
        )
        console.print(f"{differ} of {len(coefficients)} coefficients differ, {told}.")
    if len(times := found.step_times):
        if details:
            _print_rows(_step_times(times), console, details)
        ratio, places = times["ratio"], times["deployment"].unique()
        on = places[0] if len(places) == 1 else f"{len(places)} deployments"
        batches = "; ".join(times["batch"].unique())
        console.print(
            f"Step times on {on} ({batches}): B / A is {ratio.min():.2f} to {ratio.max():.2f}, "
            f"median {ratio.median():.2f}."
        )
    if not details:
        console.print("More: --details (every row), --json FILE.")


def _print_rows(table: Grid, console: Console, details: bool) -> None:
    """Print a table, or its first rows and the number of omitted rows."""
    if not table.rows:
        return
    shown = table if details else replace(table, rows=table.rows[:_ROWS])
    console.print(shown)
    if len(shown.rows) < len(table.rows):
        console.print(f"... and {len(table.rows) - len(shown.rows)} more")
    console.print()


def _errors(errors: pd.DataFrame, details: bool) -> Grid:
    signed = "{:+.1f}".format
    ends = errors["low"].map(signed) + " to " + errors["high"].map(signed)
    parts = errors["parts_b_lower"].astype(str) + " of " + errors["parts"].astype(str)
    shown = errors.assign(
        metric=errors["metric"].str.upper(),
        ends=ends.where(errors["low"].notna()),
        parts=parts.where(errors["parts"] > 0),
    )
    more = {"B - A": "difference:+.1f", "95 % interval": "ends", "B lower in": "parts"}
    columns = {"split": "split", "metric": "metric", "n": "n", "A": "a:.1f", "B": "b:.1f"}
    columns |= more if details else {}
    verdict = {Column("verdict", True): "verdict"}
    return frame_grid(shown, columns | verdict, "median absolute percentage error", text=2)


def _coefficients(coefficients: pd.DataFrame, details: bool) -> Grid:
    """Return a table of both sides' coefficients: all if ``details``, otherwise those that differ.

    Coefficients with the largest ratio of B to A, or of A to B, come first.
    """
    if not details:
        # A coefficient that is 0 on one side has a ratio of 0 or infinity and is sorted first.
        # Ratios are clipped to a tiny positive number, because 0 has no logarithm.
        off = coefficients["ratio"].clip(1e-300).map(math.log).abs()
        off = off[off > 0].sort_values(ascending=False)
        coefficients = coefficients.loc[off.index]
    verdict = coefficients["verdict"].str.removesuffix(" A's interval")
    columns: dict[str | Column, str]
    columns = {Column(name, True, folds=False): name for name in ("name", "unit")}
    columns |= {"A": "a", "B": "b", "B / A": "ratio:.2f"}
    if verdict.any():
        columns |= {Column("A's interval", True): "verdict"}
    # Coefficients with units of time are shown in microseconds.
    in_us = coefficients["unit"].str.match(r"s(/|$)")
    scale = in_us.map({True: MICROSECOND, False: 1.0})
    sides = {side: (coefficients[side] / scale).map(number) for side in ("a", "b")}
    unit = ("u" + coefficients["unit"]).where(in_us, coefficients["unit"].replace("1", "x"))
    shown = coefficients.assign(verdict=verdict, unit=unit, **sides)
    return frame_grid(shown, columns, "coefficients")


def _step_times(times: pd.DataFrame) -> Grid:
    columns = {"deployment": "deployment", "batch": "batch"}
    columns |= {"A us": "a_us:,.0f", "B us": "b_us:,.0f", "B / A": "ratio:.2f"}
    return frame_grid(times, columns, "step times", text=2)
