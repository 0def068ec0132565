"""A comparison, printed and written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from pinn.specs.files.screen import WIDEST, page


def print_comparison(
    a: Path, b: Path, tables: Mapping[str, pd.DataFrame], no_errors: str = ""
) -> None:
    """Print what ``pinn compare`` found.

    Args:
        a: Where A was read from.
        b: Where B was.
        tables: ``errors``, ``step_times`` and ``coefficients``, those that there are.
        no_errors: Why errors are not compared, where they are not.
    """
    console = page(WIDEST)
    console.print(f"A: {a}\nB: {b}\n")
    if "errors" in tables:
        console.print(_errors(tables["errors"]))
        console.print()
    elif no_errors:
        console.print(f"Errors: {no_errors}.\n")
    if "coefficients" in tables:
        console.print(_coefficients(tables["coefficients"]))
        console.print()
    if "step_times" in tables:
        console.print(_step_times(tables["step_times"]))
        ratio = tables["step_times"]["ratio"]
        console.print(
            f"\nStep times of B are {ratio.min():.2f} to {ratio.max():.2f} x those of A, median "
            f"{ratio.median():.2f}."
        )


def _table(title: str, *headings: str, text: int = 1) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i < text else "right", no_wrap=i < text)
    return table


def _errors(errors: pd.DataFrame) -> Table:
    table = _table(
        "median absolute percentage error", "split", "metric", "n", "A", "B", "B - A",
        "95 % interval", "B lower in", "verdict", text=2,
    )  # fmt: skip
    for row in errors.to_dict("records"):
        ends = "-" if pd.isna(row["low"]) else f"{row['low']:+.1f} to {row['high']:+.1f}"
        parts = f"{row['parts_b_lower']} of {row['parts']}" if row["parts"] else "-"
        table.add_row(
            row["split"], row["metric"].upper(), str(row["n"]), f"{row['a']:.1f}",
            f"{row['b']:.1f}", f"{row['difference']:+.1f}", ends, parts, row["verdict"],
        )  # fmt: skip
    return table


def _coefficients(coefficients: pd.DataFrame) -> Table:
    table = _table("coefficients", "name", "unit", "A", "B", "B / A", "", text=2)
    for row in coefficients.to_dict("records"):
        values = (f"{row['a']:.4g}", f"{row['b']:.4g}", f"{row['ratio']:.2f}")
        table.add_row(row["name"], row["unit"], *values, row["verdict"])
    return table


def _step_times(times: pd.DataFrame) -> Table:
    table = _table("step times", "deployment", "batch", "A us", "B us", "B / A", text=2)
    for row in times.to_dict("records"):
        values = (f"{row['a_us']:.0f}", f"{row['b_us']:.0f}", f"{row['ratio']:.2f}")
        table.add_row(row["deployment"], row["batch"], *values)
    return table


def comparison_document(tables: Mapping[str, pd.DataFrame]) -> dict[str, Any]:
    """The tables as lists of records, ready for JSON; what is not known is None."""
    return {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
