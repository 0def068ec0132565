"""Deprecated names from the last release, accepted with a note until the next release."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from pinn.errors import warn_user

if TYPE_CHECKING:
    import pandas as pd

#: Current names of commands, options and environment variables, each by outdated name.
COMMANDS: Mapping[str, str] = {"account": "breakdown"}
OPTIONS: Mapping[str, str] = {"--judges": "--held-out-runs"}
VARIABLES: Mapping[str, str] = {"PINN_JUDGE_RUNS": "PINN_HELD_OUT_RUNS"}
#: Current words in the names of scorecard groups and of prediction methods, by outdated word. Older
#: versions wrote the outdated words to tables of scores.
GROUPS: Mapping[str, str] = {
    "judges: ": "held-out serving runs: ",
    ", half taught: ": ", half held out: ",
}
METHODS: Mapping[str, str] = {", model left out": ", model held out"}


def note(old: str, new: str, where: str = "") -> None:
    """Warn the user that a name is deprecated.

    Args:
        old: Deprecated name.
        new: Current name.
        where: File that contains the deprecated name, if any.
    """
    place = f"{where}: " if where else ""
    warn_user(
        f"{place}{old!r} is now called {new!r}; the next release will not accept the old name"
    )


def current_options(arguments: Sequence[str], known: Collection[str]) -> list[str]:
    """Replace deprecated options in a command's arguments with current ones, with a note for each.

    Args:
        arguments: Words after the command's name.
        known: Current options of the command; only their deprecated names are replaced.
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
    """Map the deprecated keyword arguments of a function to their current names.

    Args:
        known: Current names of the function's keyword arguments.
    """
    pairs = ((_keyword(old), _keyword(new)) for old, new in OPTIONS.items())
    return {old: new for old, new in pairs if new in known}


def _keyword(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def variable(name: str) -> str:
    """Return an environment variable's value, also under its deprecated names; empty if not set."""
    for old, new in VARIABLES.items():
        if new == name and not os.environ.get(name) and os.environ.get(old):
            note(old, new)
            return os.environ[old]
    return os.environ.get(name, "")


def old_variables(name: str) -> list[str]:
    """Return the deprecated names of an environment variable."""
    return [old for old, new in VARIABLES.items() if new == name]


def current_texts(texts: "pd.Series", names: Mapping[str, str], where: str) -> "pd.Series":
    """Replace deprecated words in a table's cells with current ones, with a note for each.

    Args:
        texts: Cells of a column, or column names of a table.
        names: Mapping of deprecated words to current ones.
        where: File that contains the table, for the notes.
    """
    for old, new in names.items():
        if texts.str.contains(old, regex=False).any():
            note(old.strip(", :"), new.strip(", :"), where)
            texts = texts.str.replace(old, new, regex=False)
    return texts
