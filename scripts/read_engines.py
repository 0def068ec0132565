"""Read engines' defaults from their releases and write ``data/engines``.

    python scripts/read_engines.py                       # read all releases, write the tables
    python scripts/read_engines.py --wheels DIR          # the same, from local wheels
    python scripts/read_engines.py 0.34.0 --engine vllm  # print one release, write nothing

An engine's module in ``scripts/engine_reading`` lists the releases (``RELEASES``), their pip
requirement (``requirement``) and the readers (``READERS``, and ``KERNEL_READERS`` for the kernels
of experts). Rows of flags without a reader stay unchanged in the table.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

import pandas as pd
import typer
from engine_reading import sglang, vllm
from engine_reading.table import COLUMNS, KERNEL_COLUMNS, Line, default, merged
from engine_reading.wheel import EngineSource, engine_source

from pinn.common.tables import write_frame
from pinn.errors import PinnError

DEFAULTS = Path(__file__).resolve().parents[1] / "data" / "engines" / "defaults.csv"
KERNELS = DEFAULTS.with_name("expert_kernels.csv")
#: Modules that read an engine's releases, by engine, in the order of the tables. TensorRT-LLM's
#: package contains no source to read.
ENGINES = {"vllm": vllm, "sglang": sglang}
_CACHE = Path.home() / ".cache" / "pinn" / "engine_wheels"


def main(
    versions: Annotated[list[str] | None, typer.Argument(metavar="VERSION")] = None,
    engine: Annotated[str, typer.Option(help="vllm or sglang; both by default")] = "",
    wheels: Annotated[Path | None, typer.Option(help="folder of wheels, or unpacked ones")] = None,
) -> None:
    """Write data/engines from engines' releases, or print the defaults of one release."""
    if engine not in ("", *ENGINES) or (versions and not engine):
        raise PinnError(
            f"--engine must be one of {', '.join(ENGINES)} when releases are given, got {engine!r}"
        )
    for name in [engine] if engine else ENGINES:
        module = ENGINES[name]
        sources = [
            engine_source(name, module.requirement(version), wheels, _CACHE)
            for version in versions or module.RELEASES
        ]
        if versions:
            show(module, sources)
            continue
        write(DEFAULTS, COLUMNS, name, defaults_of(module, sources))
        if module.KERNEL_READERS:
            write(KERNELS, KERNEL_COLUMNS, name, kernels_of(module, sources))


def read_all(source: EngineSource, readers: Sequence) -> list[Line]:
    """Return all rows with a release's defaults, in the order of the engine's readers."""
    return [line for reader in readers for line in reader(source)]


def defaults_of(module: ModuleType, sources: list[EngineSource]) -> list[Line]:
    """Return all rows of an engine's defaults, from the releases that were read.

    Two more rows name the newest of these releases, which is the default, and the oldest.
    """
    ends = (("", "newest", sources[-1]), ("oldest_", "oldest", sources[0]))
    heads = [
        default(f"{start}engine_version", each.version, f"{said} release that was read")
        | {"engine": each.engine}
        for start, said, each in ends
    ]
    return [*heads, *merged((s, read_all(s, module.READERS)) for s in sources)]


def kernels_of(module: ModuleType, sources: list[EngineSource]) -> list[Line]:
    return merged((s, read_all(s, module.KERNEL_READERS)) for s in sources)


def write(path: Path, columns: tuple[str, ...], engine: str, rows: list[Line]) -> None:
    """Replace the rows of an engine in a table.

    Rows of other engines, and of flags that no reader reads, stay unchanged.
    """
    old = pd.read_csv(path, dtype=str, keep_default_na=False)
    parts = dict(iter(old.groupby("engine", sort=False)))
    own, read = parts.get(engine, old[:0]), pd.DataFrame(rows, columns=columns)
    kept = own[~own[columns[1]].isin(read[columns[1]])]
    write_frame(pd.concat((parts | {engine: pd.concat([read, kept])}).values()), path)
    print(f"{path.name}: {len(read)} lines of {engine} read, {len(kept)} kept")


def show(module: ModuleType, sources: list[EngineSource]) -> None:
    for source in sources:
        print(f"{source.engine} {source.version}")
        for line in read_all(source, (*module.READERS, *module.KERNEL_READERS)):
            print("  " + ", ".join(f"{name} {cell}" for name, cell in line.items() if cell))


if __name__ == "__main__":
    try:
        typer.run(main)
    except PinnError as error:
        sys.exit(f"error: {error}")
