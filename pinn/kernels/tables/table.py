"""Table of measured kernels: its path, and how its rows are read, rejected and counted."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from pinn.common.files import ReadReport, data_folder, file_sha256, read_rows
from pinn.errors import PinnError
from pinn.kernels.hardware import Gpus
from pinn.kernels.tables.work import Work
from pinn.specs.gpu import GpuSpec
from pinn.specs.precision import precision
from pinn.units import MILLISECOND

# Tables of measured kernels: which are read, their precedence, and which are refused entirely.
#
# The tables are those of aiconfigurator-core 0.12.0, ``systems/data/<system>/<kind>/<backend>/
# <version>/*.parquet``, or newer ones in a folder of the user. vLLM's own tables take precedence.
# Tables of other engines or versions fill in formats that vLLM's tables lack. The table of Intel's
# GPU (``b60``) is not read: its programming model differs, and no other system can validate its
# times.

#: Names of the directories of all systems (machines with one GPU type) that have tables.
SYSTEMS = (
    "a100_sxm", "h100_sxm", "h200_sxm", "l40s", "b200_sxm", "b300_sxm", "gb200", "gb300",
    "rtx_pro_6000_server",
)  # fmt: skip
VLLM = "0.24.0"
#: Newest release with complete tables, by engine or library. Tables of later vLLM releases contain
#: only new kernels, or only one system. Newer tables from a user's folder are read in addition, and
#: their rows take precedence.
LAST = {"vllm": VLLM, "nccl": "2.29.2"}


@dataclass(frozen=True)
class TableSource:
    """A table of measured kernels, and which part of it is used.

    Attributes:
        system: Name of the directory of the GPU's machine, such as ``h100_sxm``.
        backend: Serving engine whose kernels were measured.
        version: Version of that engine; empty for the newest up to ``LAST`` that has the table.
        formats: Names of the used number formats in the table; None for all.
        whole_experts_only: Whether rows with expert parallelism are refused, because the measured
            engine distributes experts differently from vLLM.
        ungrouped_heads_above: If set, only rows with more heads than this number are used, and of
            these only rows without grouped heads (every head has its own keys and values).
        kernel: Name in the table of the only kernel that is used; empty for all kernels.
    """

    system: str
    backend: str = "vllm"
    version: str = ""
    formats: tuple[str, ...] | None = None
    whole_experts_only: bool = False
    ungrouped_heads_above: int | None = None
    kernel: str = ""


@cache
def sources(name: str) -> tuple[TableSource, ...]:
    """Return the tables of one type in ``data/kernels/sources.csv``; earlier ones take precedence.

    Args:
        name: Field of ``KernelTables``. ``other_experts`` are kernels that vLLM selects in some
            releases or with some flags, in formats for which ``moe`` has a different kernel.
    """
    rows = read_rows(data_folder("kernels") / "sources.csv")
    return tuple(source for row in rows if row["table"] == name for source in _of_row(row))


def _of_row(row: Mapping[str, str]) -> Iterator[TableSource]:
    above = row["ungrouped_heads_above"]
    for system in SYSTEMS if row["systems"] == "all" else row["systems"].split():
        yield TableSource(
            system,
            row["backend"],
            row["version"],
            tuple(row["formats"].split()) or None,
            row["whole_experts_only"] == "yes",
            int(above) if above else None,
            row["kernel"],
        )


# Reading of one table of measured kernels: its path, its required columns, its refused rows.

#: Accepted rows and report of one table; then accepted rows and reports of several tables.
ReadTable = tuple[pd.DataFrame, ReadReport]
Read = tuple[pd.DataFrame, list[ReadReport]]
#: Function that transforms the rows of a table.
Step = Callable[[pd.DataFrame], pd.DataFrame]
#: Functions that return True for rows to exclude, by reason. If several match a row, the first
#: reason is reported.
Rules = dict[str, Callable[[pd.DataFrame], "np.ndarray | pd.Series[bool] | bool"]]

#: Number formats (keys of ``pinn.specs.precision.PRECISIONS``), by their names in the tables.
FORMATS = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4",
    "int4_wo": "int4_wo", "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}  # fmt: skip


def systems_folder() -> Path:
    """Return the ``systems`` folder of the installed aiconfigurator-core.

    Raises:
        PinnError: If the package is not installed.
    """
    spec = find_spec("aiconfigurator_core")
    if spec is None or spec.origin is None:
        raise PinnError(
            "the package aiconfigurator-core with measured kernels is not "
            "installed: run 'pip install aiconfigurator-core==0.12.0', or give "
            "the path of its systems folder"
        )
    return Path(spec.origin).parent / "systems"


def refuse(rows: pd.DataFrame, report: ReadReport, rules: Rules) -> ReadTable:
    """Drop the rows that any rule matches; a row is counted under the first matching rule."""
    refused = dict(report.refused)
    for reason, matches in rules.items():
        bad = np.asarray(matches(rows), dtype=bool)
        if bad.any():
            refused[reason] = refused.get(reason, 0) + int(bad.sum())
            rows = rows[~bad]
    return rows.reset_index(drop=True), replace(report, accepted=len(rows), refused=refused)


#: Bytes per element in tables of communication, whose message sizes are counted in 16-bit elements.
#: If they were bytes, H100's NVLink would reach only 170 of its 450 GB/s, and vLLM would switch to
#: NCCL at 4 MiB instead of 8 MiB.
ELEMENT_BYTES = 2
#: Factors to SI units, by column name.
_UNITS = {"seconds": MILLISECOND, "bytes": ELEMENT_BYTES}


def _is_known(rows: pd.DataFrame, sizes: list[str], known: pd.MultiIndex) -> np.ndarray:
    return pd.MultiIndex.from_frame(rows[sizes]).isin(known)


def _release(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _as_is(rows: pd.DataFrame) -> pd.DataFrame:
    return rows


@dataclass(frozen=True)
class Layout:
    """Columns of one type of table, and the rules by which its rows are refused.

    Attributes:
        kind: Folder of the kernel type, such as ``gemm``.
        file: File name without suffix.
        columns: Column of the table by column name in this project. Names that end in ``precision``
            are number formats (None for unknown formats); ``seconds`` and ``bytes`` are converted
            to these units.
        rules: Function that takes a GPU and a table's source and returns the rules for refusing
            rows.
        added: Function that adds columns before the rules are applied.
        finished: Function that transforms the rows that were not refused.
        helpers: Columns that only the rules need.
        newer: Columns that are missing from the A100's older table, where they count as 0.
    """

    kind: str
    file: str
    columns: Mapping[str, str]
    rules: Callable[[GpuSpec, TableSource], Rules]
    added: Step = _as_is
    finished: Step = _as_is
    helpers: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()

    def path(self, source: TableSource, systems: Path | None = None) -> Path:
        """Return the path of a source's table in ``systems``, by default in the installed package.

        Raises:
            PinnError: If no release has the table.
        """
        folder = self._folder(source, systems)
        if source.version:
            return folder / source.version / f"{self.file}.parquet"
        last = _release(LAST[source.backend])
        found = [v for v in self._versions(folder) if _release(v) <= last]
        if not found:
            raise PinnError(
                f"the folder {folder} has no measured kernels, expected */{self.file}.parquet: "
                "install aiconfigurator-core 0.12.0 again"
            )
        return folder / found[-1] / f"{self.file}.parquet"

    def _folder(self, source: TableSource, systems: Path | None) -> Path:
        folder = systems_folder() if systems is None else systems
        return folder / "data" / source.system / self.kind / source.backend

    def _versions(self, folder: Path) -> list[str]:
        """Return the releases that have the table, newest last, without pre-release builds."""
        found = (path.parent.name for path in folder.glob(f"*/{self.file}.parquet"))
        return sorted((name for name in found if "dev" not in name), key=_release)

    def read(self, gpu: GpuSpec, source: TableSource, systems: Path | None = None) -> ReadTable:
        """Read a table's accepted rows with ``columns``, ``gpu`` and ``source``, and a report.

        Raises:
            PinnError: If the file or a column is missing.
        """
        table, report = self._raw(source, systems)
        found = {
            ours: _in_si(ours, table[theirs]) if theirs in table else 0
            for ours, theirs in self.columns.items()
        }
        rows = self.added(pd.DataFrame({"gpu": gpu.name, **found, "source": report.source}))
        rows, report = refuse(rows, report, self.rules(gpu, source))
        return self.finished(rows.drop(columns=list(self.helpers))), report

    def read_all(
        self, sources: Sequence[TableSource], gpus: Gpus, systems: Path | None = None
    ) -> Read:
        """Read the tables of all sources whose system is a key of ``gpus``, in order."""
        known = [source for source in sources if source.system in gpus]
        return together(p for s in known for p in self._releases(gpus[s.system], s, systems))

    def _releases(
        self, gpu: GpuSpec, source: TableSource, systems: Path | None
    ) -> Iterator[ReadTable]:
        """Yield tables of newer vLLM releases, if ``systems`` has any, then the source's table."""
        later: list[str] = []
        if systems is not None and not source.version and source.backend == "vllm":
            versions = self._versions(self._folder(source, systems))
            later = [v for v in versions if _release(v) > _release(VLLM)]
        newer: list[pd.DataFrame] = []
        for version in (*reversed(later), source.version):
            rows, report = self.read(gpu, replace(source, version=version), systems)
            if newer:
                names = map(str, rows.columns)
                sizes = [n for n in names if not n.endswith(("seconds", "source", "kernel"))]
                known = pd.MultiIndex.from_frame(pd.concat(newer)[sizes])
                rule = partial(_is_known, sizes=sizes, known=known)
                rows, report = refuse(rows, report, {"measured again in a later release": rule})
            newer.append(rows)
            yield rows, report

    def _raw(self, source: TableSource, systems: Path | None) -> ReadTable:
        """Read the needed columns of a table, with a report in which every row is accepted."""
        path = self.path(source, systems)
        if not path.exists():
            raise PinnError(
                f"the table of measured kernels {path} does not exist: install "
                "aiconfigurator-core 0.12.0"
            )
        table = pd.read_parquet(path)
        absent = self.newer if source.system == "a100_sxm" else ()
        needed = [theirs for theirs in self.columns.values() if theirs not in absent]
        missing = [c for c in needed if c not in table.columns]
        if missing:
            raise PinnError(
                f"{path} lacks the columns {', '.join(map(repr, missing))}: expected "
                f"{', '.join(needed)}, got {', '.join(table.columns)}"
            )
        tool, count = f"{source.backend} {path.parent.name}", len(table)
        report = ReadReport("/".join(path.parts[-5:]), tool, file_sha256(path), count, count)
        return table[needed].reset_index(drop=True), report


def layout(
    kind: str, file: str, rules: Callable[[GpuSpec, TableSource], Rules], **steps: Step
) -> Layout:
    """Return the layout of a table whose columns are listed in ``data/kernels/columns.csv``.

    Args:
        kind: Folder of the kernel type, as in :class:`Layout`.
        file: File name without suffix, as in :class:`Layout`.
        rules: Function that returns the refusal rules, as in :class:`Layout`.
        steps: Functions ``added`` and ``finished`` of :class:`Layout`.
    """
    rows = [row for row in read_rows(data_folder("kernels") / "columns.csv") if row["file"] == file]
    columns = {row["ours"]: row["theirs"] for row in rows}
    helpers = tuple(row["ours"] for row in rows if row["kept"] == "no")
    newer = tuple(row["theirs"] for row in rows if row["newer"] == "yes")
    return Layout(kind, file, columns, rules, helpers=helpers, newer=newer, **steps)


def together(parts: Iterable[ReadTable]) -> Read:
    """Concatenate the rows of several tables, and return them with the tables' reports."""
    found = list(parts)
    if not found:
        return pd.DataFrame(), []
    return pd.concat([rows for rows, _ in found], ignore_index=True), [r for _, r in found]


def _in_si(name: str, values: pd.Series) -> pd.Series:
    if name.endswith("precision"):
        return values.map(FORMATS)
    return values * _UNITS[name] if name in _UNITS else values


NO_TIME: Rules = {"no time": lambda r: ~(r["seconds"] > 0)}


def unused_format(column: str, source: TableSource) -> Rules:
    """Return the rule that refuses rows whose number format is not used from a source."""
    used = [FORMATS[name] for name in source.formats or FORMATS]
    return {"format not used": lambda r: ~r[column].isin(used)}


def below_floor(
    r: pd.DataFrame, work: Work, gpu: GpuSpec, flop_per_s: float | Float[np.ndarray, " rows"]
) -> Bool[np.ndarray, " rows"]:
    """Return a mask of rows that are faster than the roofline lower bound, ``[rows]``.

    The bound is the longer of two times: for the GPU to read the bytes and to compute the FLOP.
    """
    memory = work.read_bytes / gpu.memory_bandwidth_bytes_per_s
    return r["seconds"].to_numpy() < np.maximum(memory, work.flop / flop_per_s)


def warm(
    r: pd.DataFrame, work: Work, gpu: GpuSpec, cache_bytes: float, share: float
) -> Bool[np.ndarray, " rows"]:
    """Return a mask of rows whose operands may have been read from a warm cache, ``[rows]``."""
    memory = work.read_bytes / gpu.memory_bandwidth_bytes_per_s
    return (work.read_bytes <= cache_bytes) & (memory > share * r["seconds"].to_numpy())


#: A row counts as disturbed if its time exceeds the longer time of its two neighbors along a size
#: by more than this factor (an assumption).
SPIKE = 1.3


def spikes(rows: pd.DataFrame, shape: Sequence[str], axis: str) -> Bool[np.ndarray, " rows"]:
    """Return a mask of rows far slower than both neighbors along ``axis``, ``[rows]``.

    Neighbors have the same ``shape``.
    """
    order = rows.sort_values([*shape, axis])
    neighbours = order["seconds"].groupby([order[c] for c in shape])
    around = np.maximum(neighbours.shift(1), neighbours.shift(-1))
    return (order["seconds"] > SPIKE * around).reindex(rows.index).to_numpy()


def flop_rate(gpu: GpuSpec, formats: pd.Series) -> Float[np.ndarray, " rows"]:
    """Return the peak dense FLOP/s of a GPU in each row's number format."""
    rates = {f: gpu.matmul_flop_per_s(precision(f)) for f in formats.unique()}
    return formats.map(rates).to_numpy(dtype=np.float64)


def bytes_per_element(formats: pd.Series) -> Float[np.ndarray, " rows"]:
    """Return the bytes per element of each row's number format."""
    sizes = {f: precision(f).bytes_per_weight for f in formats.unique()}
    return formats.map(sizes).to_numpy(dtype=np.float64)
