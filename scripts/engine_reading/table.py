"""Merging of the defaults of individual releases into a table with ranges of releases."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from engine_reading.wheel import EngineSource
from pinn.engines.recipe import release

COLUMNS = (
    "engine", "flag", "since", "until", "gpu", "least_gib", "below_gib", "least_tp", "below_tp",
    "models", "value", "assumed", "source",
)  # fmt: skip
KERNEL_COLUMNS = (
    "engine", "format", "since", "until", "least_capability", "below_capability", "spread",
    "kernels", "source",
)  # fmt: skip
#: Row of a table of defaults or kernels: values by column name.
Line = dict[str, str]
#: Consecutive releases, each with its rows for one flag or number format.
Run = Sequence[tuple[EngineSource, list[Line]]]


def default(flag: str, value: object, source: str, **limits: Any) -> Line:
    """Return a row of the table: one default of one release.

    If a flag has several rows, the first one whose conditions match applies.

    Args:
        flag: Field of ``ServingSpec``, or a name that ``pinn.specs`` looks up.
        value: Value in the notation of the flag.
        source: ``path: symbol`` in the release.
        limits: Conditions of the row: ``gpu``, a regular expression that matches part of the GPU's
            lower-case name; ``least_gib`` and ``below_gib``, inclusive lower and exclusive upper
            bounds of its memory; ``least_tp`` and ``below_tp``, the same for the tensor-parallel
            size; ``models``, values of ``model_type``. A missing condition, or None, matches
            anything.
    """
    given = {"flag": flag, "value": value, "source": source, "assumed": "no"} | limits
    return dict.fromkeys(COLUMNS, "") | {name: _cell(each) for name, each in given.items()}


def kernel_line(
    form: str, capabilities: tuple[float, float | None], spread: str, kernels: str, source: str
) -> Line:
    """Return a row with a release's kernels for experts in one number format.

    Args:
        form: Number format of the experts, as ``pinn.specs.precision`` names it.
        capabilities: Lowest compute capability of the GPU, and an exclusive upper bound.
        spread: Distribution of experts over GPUs: ``tp`` if each expert is sliced over
            tensor-parallel GPUs, ``ep`` if whole experts are distributed over these GPUs, ``dp`` if
            whole experts are distributed over data-parallel ranks; empty for any distribution.
        kernels: The engine's name for the kernels.
        source: ``path: symbol`` in the release.
    """
    given = ("", form, "", "", *capabilities, spread, kernels, source)
    return dict(zip(KERNEL_COLUMNS, map(_cell, given), strict=True))


def runs(values: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any, Any]]:
    """Return runs of identical values as (start of the run, start of the next run, value).

    >>> runs([(0, "a"), (8, "a"), (9, "b")])
    [(0, 9, 'a'), (9, None, 'b')]
    """
    first = [next(run) for _, run in groupby(values, key=lambda pair: pair[1])]
    ends = [*(start for start, _ in first[1:]), None]
    return [(start, end, value) for (start, value), end in zip(first, ends, strict=True)]


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def merged(read: Iterable[tuple[EngineSource, Sequence[Line]]]) -> list[Line]:
    """Return the rows of the table, with identical rows of consecutive releases merged.

    Args:
        read: Releases with their rows, oldest first. If two releases have the same number, the last
            one is used.
    """
    last = {release(source.version): (source, lines) for source, lines in read}
    releases = [last[number] for number in sorted(last)]
    rows: list[Line] = []
    for subject in dict.fromkeys(_subject(line) for _, lines in releases for line in lines):
        said = [(s, [x for x in lines if _subject(x) == subject]) for s, lines in releases]
        runs = [
            [*run] for _, run in groupby(said, lambda pair: [x | {"source": ""} for x in pair[1]])
        ]
        # Write 0.28.0 as 0.28, because version 0.28 is compared as earlier than 0.28.0.
        starts = [run[0][0].version.removesuffix(".0") for run in runs]
        for run, since, until in zip(runs, ["", *starts[1:]], [*starts[1:], ""], strict=True):
            about = {"engine": run[0][0].engine, "since": since, "until": until}
            rows += [
                line | about | {"source": _sources(run, j)} for j, line in enumerate(run[0][1])
            ]
    return rows


def _subject(line: Line) -> str:
    return line["flag" if "flag" in line else "format"]


def _sources(run: Run, j: int) -> str:
    """Return the sources of consecutive releases' rows as text.

    The text states the releases, file and symbol, repeated for later releases if the code moved.
    """
    found = []
    for source, part in groupby(run, key=lambda pair: pair[1][j]["source"]):
        versions = [each.version for each, _ in part]
        span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
        found.append(f"{span} {source}")
    return f"{run[0][0].engine} {'; '.join(found)}"
