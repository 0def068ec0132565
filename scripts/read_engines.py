"""Reads engines' defaults off their releases and writes ``data/engines``.

    python scripts/read_engines.py                          # all releases; writes the tables
    python scripts/read_engines.py --wheels DIR             # with wheels that are at hand
    python scripts/read_engines.py 0.34.0 --engine vllm     # shows what one says; writes nothing

An engine's module in ``scripts/engine_reading`` names the releases (``RELEASES``), where pip finds
them (``requirement``) and what is read of them (``READERS``, and ``KERNEL_READERS`` for the kernels
of experts). Lines of flags that no reader reads stay as they are in the table.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from engine_reading.table import (
    COLUMNS,
    KERNEL_COLUMNS,
    as_csv,
    merged,
    read_all,
    rows_of,
)  # fmt: skip
from engine_reading.wheel import EngineSource, engine_source

from pinn.errors import PinnError

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS = ROOT / "data" / "engines" / "defaults.csv"
KERNELS = DEFAULTS.with_name("expert_kernels.csv")
#: In the order of the tables; TensorRT-LLM's package has no source to read.
ENGINES = ("vllm", "sglang")
_CACHE = Path.home() / ".cache" / "pinn" / "engine_wheels"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="VERSION")
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--wheels", type=Path, help="folder of wheels, or of unpacked ones")
    given = parser.parse_args(arguments)
    engines = [given.engine] if given.engine else [e for e in ENGINES if reader_of(e)]
    if given.versions:
        if len(engines) != 1:
            parser.error("--engine says whose release it is")
        show(engines[0], given.versions, given.wheels)
        return
    for engine in engines:
        module = reader_of(engine)
        sources = [opened(module, engine, version, given.wheels) for version in module.RELEASES]
        write(DEFAULTS, COLUMNS, engine, defaults_of(module, sources))
        if hasattr(module, "KERNEL_READERS"):
            write(KERNELS, KERNEL_COLUMNS, engine, kernels_of(module, sources))


def reader_of(engine: str) -> Any:
    """The module that reads an engine; None where there is none."""
    name = f"engine_reading.{engine}"
    return import_module(name) if find_spec(name) else None


def opened(module: Any, engine: str, version: str, wheels: Path | None) -> EngineSource:
    return engine_source(engine, module.requirement(version), wheels, _CACHE)


def defaults_of(module: Any, sources: list[EngineSource]) -> list[dict[str, str]]:
    """Rows of defaults: the newest release holds where none is named."""
    ends = {"engine_version": sources[-1], "oldest_engine_version": sources[0]}
    said = {"engine_version": "newest", "oldest_engine_version": "oldest"}
    heads = [
        dict.fromkeys(COLUMNS, "")
        | {"engine": source.engine, "flag": flag, "value": source.version, "assumed": "no"}
        | {"source": f"{said[flag]} release that was read"}
        for flag, source in ends.items()
    ]
    return [*heads, *merged([(s, read_all(s, module.READERS)) for s in sources])]


def kernels_of(module: Any, sources: list[EngineSource]) -> list[dict[str, str]]:
    return merged([(s, read_all(s, module.KERNEL_READERS)) for s in sources])


def write(path: Path, columns: tuple[str, ...], engine: str, rows: list[dict[str, str]]) -> None:
    """Put an engine's rows in the table; others' stay, and its own of flags that were not read."""
    old = rows_of(path.read_text(encoding="utf-8")) if path.exists() else []
    subject = columns[1]
    read = {row[subject] for row in rows}
    kept = [row for row in old if row["engine"] == engine and row[subject] not in read]
    order = list(dict.fromkeys([*(row["engine"] for row in old), engine]))
    new = [
        row
        for each in order
        for row in ([*rows, *kept] if each == engine else [r for r in old if r["engine"] == each])
    ]
    path.write_text(as_csv(new, columns), encoding="utf-8")
    print(f"{path.relative_to(ROOT)}: {len(rows)} lines of {engine} read, {len(kept)} kept")


def show(engine: str, versions: list[str], wheels: Path | None) -> None:
    module = reader_of(engine)
    for version in versions:
        source = opened(module, engine, version, wheels)
        lines = read_all(source, (*module.READERS, *getattr(module, "KERNEL_READERS", ())))
        print(f"{engine} {version} {source.sha256}")
        for line in lines:
            print(f"  {line}")


if __name__ == "__main__":
    try:
        main()
    except PinnError as error:
        sys.exit(f"error: {error}")
