"""From lines of single releases to the table: runs of releases that say the same."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
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


@dataclass(frozen=True)
class Line:
    """One default of one release; of a flag's lines the first that fits counts.

    Attributes:
        flag: Field of ``ServingSpec``, or a name that ``pinn.specs`` looks up.
        gpu: Regular expression for a part of the GPU's name in small letters; empty for any.
        least_gib: Smallest memory of the GPU in GiB; None for any.
        below_gib: Memory in GiB that the GPU has less than; None for any.
        least_tp: Smallest tensor-parallel size; None for any.
        below_tp: Size that the tensor-parallel one is below; None for any.
        models: ``model_type`` of models; empty for any.
        value: As the flag reads it.
        source: ``path: symbol`` in the release.
    """

    flag: str
    gpu: str = ""
    least_gib: float | None = None
    below_gib: float | None = None
    least_tp: int | None = None
    below_tp: int | None = None
    models: tuple[str, ...] = ()
    value: str = ""
    source: str = ""


@dataclass(frozen=True)
class KernelLine:
    """The kernels that one release multiplies experts of one format by.

    Attributes:
        form: Number format of the experts, as ``pinn.specs.precision`` names it.
        least_capability: Lowest compute capability of the GPU.
        below_capability: Capability that the GPU's is below.
        spread: How experts are spread, empty for any: ``tp`` where each is cut over tensor-parallel
            GPUs, ``ep`` where whole ones are spread over those, ``dp`` over ranks of data
            parallelism.
        kernels: The engine's own name of them.
        source: ``path: symbol`` in the release.
    """

    form: str
    least_capability: float | None
    below_capability: float | None
    spread: str
    kernels: str
    source: str


Reader = Callable[[EngineSource], Sequence[Any]]


def read_all(source: EngineSource, readers: Iterable[Reader]) -> list[Any]:
    """All lines of a release, in their order."""
    return [line for reader in readers for line in reader(source)]


def merged(read: Sequence[tuple[EngineSource, Sequence[Any]]]) -> list[dict[str, str]]:
    """Rows of the table: what consecutive releases say alike is written once.

    Args:
        read: Releases and their lines, oldest first; of releases of one number the last counts.
    """
    last = {release(source.version): (source, lines) for source, lines in read}
    releases = [last[number] for number in sorted(last)]
    subjects = dict.fromkeys(_subject(line) for _, lines in releases for line in lines)
    rows: list[dict[str, str]] = []
    for subject in subjects:
        said = [(s, [x for x in lines if _subject(x) == subject]) for s, lines in releases]
        runs = [list(run) for _, run in groupby(said, key=lambda pair: _bare(pair[1]))]
        for i, run in enumerate(runs):
            # 0.28.0 is written as 0.28, which is before it when numbers are compared.
            since = run[0][0].version.removesuffix(".0") if i else ""
            until = runs[i + 1][0][0].version.removesuffix(".0") if i + 1 < len(runs) else ""
            rows += [
                _row(line, run[0][0].engine, since, until, _sources(run, j))
                for j, line in enumerate(run[0][1])
            ]
    return rows


def _subject(line: Any) -> str:
    return str(astuple(line)[0])


def _bare(lines: Sequence[Any]) -> list[Any]:
    return [replace(line, source="") for line in lines]


def _sources(run: Sequence[tuple[EngineSource, Sequence[Any]]], j: int) -> str:
    """Where a line of a run stands: releases, file and symbol, and the next where they moved."""
    found = []
    for source, part in groupby(run, key=lambda pair: pair[1][j].source):
        versions = [each.version for each, _ in part]
        span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
        found.append(f"{span} {source}")
    return f"{run[0][0].engine} {'; '.join(found)}"


def _row(line: Any, engine: str, since: str, until: str, source: str) -> dict[str, str]:
    named = {"form": "format"}
    row = {named.get(f.name, f.name): _cell(getattr(line, f.name)) for f in fields(line)}
    row |= {"engine": engine, "since": since, "until": until, "source": source}
    return row | ({"assumed": "no"} if isinstance(line, Line) else {})


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def as_csv(rows: Iterable[dict[str, str]], columns: Sequence[str]) -> str:
    """The text of the table."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def rows_of(text: str) -> list[dict[str, str]]:
    """Rows of a table's text."""
    return list(csv.DictReader(io.StringIO(text)))


def said_of(rows: Iterable[dict[str, str]], engine: str, version: str) -> list[dict[str, str]]:
    """What a table says of one release, without releases and sources."""
    number = release(version)
    return [
        {k: v for k, v in row.items() if k not in ("since", "until", "source")}
        for row in rows
        if row["engine"] == engine
        and (not row["since"] or release(row["since"]) <= number)
        and (not row["until"] or number < release(row["until"]))
    ]
