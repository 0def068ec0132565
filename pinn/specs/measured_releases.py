"""Which releases of an engine were measured, in a few words for reports."""

from __future__ import annotations

import csv
from functools import cache

from pinn.errors import PinnError
from pinn.specs.data_folder import data_folder
from pinn.specs.engine_defaults import release, served_release

MEASURED_FILE = "measured.csv"
#: What stands for a release in an engine's own line of ``data/engines/measured.csv``.
ALL = "all"


def measured_line(engine: str, version: str) -> str:
    """A sentence on what runs and what measurements cover.

    Args:
        engine: ``vllm``, ``sglang`` or ``trtllm``.
        version: As ``--engine-version``; empty for the release of the defaults.

    >>> measured_line("sglang", "0.5.23")
    'sglang 0.5.23; measured servers ran 0.5.3rc1, 0.5.5, 0.5.6, 0.5.9'
    """
    runs = served_release(engine, version)
    return f"{engine} {runs}; measured servers ran {releases_text(engine)}"


@cache
def releases_text(engine: str) -> str:
    """The measured releases of an engine; empty where there are none.

    Three minor releases and more that follow each other are one stretch.

    >>> releases_text("vllm")
    '0.10.2, 0.15.1 to 0.19.0'
    """
    path = data_folder("engines") / MEASURED_FILE
    with path.open(encoding="utf-8", newline="") as file:
        names = [r["release"] for r in csv.DictReader(file) if r["engine"] == engine]
    stretches: list[list[str]] = []
    for name in (n for n in names if n != ALL):
        if stretches and _follows(stretches[-1][-1], name):
            stretches[-1].append(name)
        else:
            stretches.append([name])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(part) for part in stretches
    )


def release_order(version: str) -> tuple[int, tuple[int, ...], str]:
    """All before releases, releases by number, and tags that name none at the end."""
    if version == ALL:
        return 0, (), version
    try:
        return 1, release(version), version
    except PinnError:
        return 2, (), version


def _follows(before: str, after: str) -> bool:
    first, second = release_order(before)[1], release_order(after)[1]
    return first[:1] == second[:1] and second[1:2] == tuple(n + 1 for n in first[1:2]) != ()
