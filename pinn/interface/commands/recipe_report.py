"""The effective recipe for people: what runs, what set it, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from pinn.specs.engine_defaults import unread_notice
from pinn.specs.recipe import ASSUMED, DESIGN, FLAG
from pinn.specs.serving import ServingSpec

#: Sizes of CUDA graphs that are listed; the rest is told by the last one.
_LISTED = 4


def print_recipe(recipe: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print a recipe as :meth:`EffectiveRecipe.described` gives it; JSON has the sources."""
    table = Table(title="effective recipe", title_justify="left", box=None, pad_edge=False)
    table.add_column("field", no_wrap=True)
    table.add_column("value", max_width=44)
    table.add_column("set by")
    for name, entry in recipe.items():
        kind = entry["set_by"]
        said = {
            FLAG: entry["source"],
            ASSUMED: "ASSUMED: " + entry["source"],
            DESIGN: "engine's design",
        }.get(kind, kind)
        table.add_row(name, _shown(entry["value"]), said)
    console.print(table)
    console.print()


def notices(serving: ServingSpec) -> dict[str, list[str]]:
    """``notices`` of a report, where anything has to be said of the engine's release."""
    said = unread_notice(serving.engine, serving.engine_version)
    return {} if said is None else {"notices": [said]}


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items() if each != "")
    if not isinstance(value, list):
        return str(value)
    if len(value) <= _LISTED:
        return " ".join(map(str, value)) or "-"
    return f"{' '.join(map(str, value[:_LISTED]))} .. {value[-1]}"
