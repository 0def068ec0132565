"""Flags that engines' launch commands have: ``data/engines/launch_flags.csv``.

Names are those of the argument parsers of vLLM 0.10.2 to 0.33.0 and SGLang 0.5.3 to 0.5.23
(``vllm/engine/arg_utils.py``, ``entrypoints``; ``srt/server_args.py``, ``arg_groups/fields``), and
of ``trtllm-serve`` with the keys of its YAML options, as remembered. A test holds the table against
the source of the newest.
"""

from __future__ import annotations

import csv
import difflib
from functools import cache
from typing import NamedTuple

from pinn.errors import PinnError
from pinn.specs.data_folder import data_folder

TAKEN, NO_EFFECT, UNMODELLED = "taken", "no_effect", "unmodelled"
SWITCH, VALUE, VALUES = "switch", "value", "values"


class Known(NamedTuple):
    """A flag of an engine.

    Attributes:
        kind: ``TAKEN``, ``NO_EFFECT`` (on the time of a step) or ``UNMODELLED``.
        takes: ``SWITCH``, ``VALUE`` or ``VALUES``.
        field: What it sets: a field of ``ServingSpec`` or ``EngineSpec``, with ``!`` in front the
            opposite, with ``:`` a way to read it (``pinn.specs.launch.values``).
    """

    kind: str
    takes: str
    field: str


@cache
def known_flags(engine: str) -> dict[str, Known]:
    """Flag as typed, with dashes, to what is known of it."""
    path = data_folder("engines") / "launch_flags.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {
            name: Known(row["kind"], row["takes"], row["field"])
            for row in csv.DictReader(file)
            if row["engine"] == engine
            for name in row["flags"].split()
        }


def unknown_flag(engine: str, name: str) -> PinnError:
    """An error that names the nearest flag."""
    names = sorted(known_flags(engine))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    meant = f": did you mean {close[0]}?" if close else ": leave it out"
    return PinnError(f"{name} is no flag of {engine} that is known here{meant}")
