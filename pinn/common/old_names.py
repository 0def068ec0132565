"""Names of the last release that this one still reads, with a note; the next one drops them."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pinn.errors import warn_user

if TYPE_CHECKING:
    import pandas as pd

#: Old name -> current name of commands, of options and of environment variables.
COMMANDS: Mapping[str, str] = {"account": "breakdown"}
OPTIONS: Mapping[str, str] = {"--judges": "--held-out-runs"}
VARIABLES: Mapping[str, str] = {"PINN_JUDGE_RUNS": "PINN_HELD_OUT_RUNS"}
#: Old part -> current part of a group of the scorecard, and of a method in a table of scores.
GROUPS: Mapping[str, str] = {
    "judges: ": "held-out serving runs: ",
    ", half taught: ": ", half held out: ",
}
METHODS: Mapping[str, str] = {", model left out": ", model held out"}


def note(old: str, new: str, where: str = "") -> None:
    """Warn that a name is an old one.

    Args:
        old: Old name.
        new: Current name.
        where: File that has the old name, if any.
    """
    place = f"{where}: " if where else ""
    warn_user(
        f"{place}{old!r} is now called {new!r}; the next release will not accept the old name"
    )


def current_options(arguments: Sequence[str], known: Collection[str]) -> list[str]:
    """Return arguments of a command with old options replaced by current ones, with a note.

    Args:
        arguments: Words behind the command.
        known: Options of the command; others are not replaced.
    """
    found = []
    for word in arguments:
        name, equals, value = word.partition("=")
        new = OPTIONS.get(name)
        if new in known:
            note(name, str(new))
            word = f"{new}{equals}{value}"
        found.append(word)
    return found


def old_arguments(known: Collection[str]) -> dict[str, str]:
    """Return old name -> current name of the keyword arguments that a function has.

    Args:
        known: Current names of its keyword arguments.
    """
    pairs = ((_keyword(old), _keyword(new)) for old, new in OPTIONS.items())
    return {old: new for old, new in pairs if new in known}


def _keyword(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def variable(name: str) -> str:
    """Return the value of an environment variable, also under its old name; empty if not set."""
    for old, new in VARIABLES.items():
        if new == name and not os.environ.get(name) and os.environ.get(old):
            note(old, new)
            return os.environ[old]
    return os.environ.get(name, "")


def old_variables(name: str) -> list[str]:
    """Return an environment variable's old names."""
    return [old for old, new in VARIABLES.items() if new == name]


def current_texts(texts: "pd.Series", names: Mapping[str, str], where: str) -> "pd.Series":
    """Return texts with old parts replaced by current ones, with a note for each old part.

    Args:
        texts: Cells of a column, or a table's column names.
        names: Old part -> current part.
        where: File of the table.
    """
    for old, new in names.items():
        if texts.str.contains(old, regex=False).any():
            note(old.strip(", :"), new.strip(", :"), where)
            texts = texts.str.replace(old, new, regex=False)
    return texts
