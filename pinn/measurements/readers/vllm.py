"""Reader of traces of an instrumented vLLM: events of steps, and of requests in their spans."""

import mmap
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pinn.common.documents import MOST_LINE_BYTES
from pinn.common.files import ReadReport, file_sha256
from pinn.common.tables import KeptRows
from pinn.errors import PinnError
from pinn.measurements.readers import request_spans, wire
from pinn.measurements.readers.otlp import Counts
from pinn.measurements.readers.parser import ARROW_TYPES, ChunkParser, ParsedChunk
from pinn.measurements.readers.wire import FIELDS, SNAPSHOTS, STEPS
from pinn.measurements.schemas import SCHEMAS

# Lines of a large file, divided into byte ranges (sections) that can be read independently.

#: Size, in bytes, of a section of a trace file, which is parsed at once: large enough for a small
#: relative overhead, and small enough for several sections in memory.
STRETCH_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Stretch:
    """Lines that begin in one section (stretch) of a large file.

    Attributes:
        lines: Lines with their newlines.
        too_long: Number of lines that were skipped because they are too long.
        last_is_cut: Whether the last line is the last one in the file and lacks a newline.
    """

    lines: list[bytes]
    too_long: int = 0
    last_is_cut: bool = False


def stretches(size: int, length: int = STRETCH_BYTES) -> list[tuple[int, int]]:
    """Return the byte ranges (start, end) into which a file of ``size`` bytes is divided.

    >>> stretches(5, 2)
    [(0, 2), (2, 4), (4, 5)]
    """
    return [(start, min(start + length, size)) for start in range(0, size, length)]


def check_file(path: Path, remedy: str) -> None:
    """Check that a file exists and is not sparse, before any of it is read.

    A sparse file, whose holes use no disk space, may appear to contain terabytes. Reading the zeros
    in its holes would take hours.

    Args:
        path: File to check.
        remedy: Remedy in the error message if the file does not exist.

    Raises:
        PinnError: If the file is missing, or has a hole longer than the longest line.
    """
    if not path.is_file():
        raise PinnError(f"the file {path} does not exist: {remedy}")
    with path.open("rb") as file:
        size, data = os.fstat(file.fileno()).st_size, 0
        # Skip the loop for an empty file, because seeking in it raises an error.
        while data < size and (hole := os.lseek(file.fileno(), data, os.SEEK_HOLE)) < size:
            try:
                data = os.lseek(file.fileno(), hole, os.SEEK_DATA)
            except OSError:  # raised if the rest of the file is a hole
                data = size
            if data - hole > MOST_LINE_BYTES:
                rest = f"tail -c +{data + 1}" if data < size else f"head -c {hole}"
                raise PinnError(
                    f"{path} has no data in {data - hole:,} bytes from byte {hole:,} on, more "
                    f"than the longest line ({MOST_LINE_BYTES:,} bytes): extract the rest of "
                    f"the file with '{rest}'"
                )


def read_stretch(path: Path, start: int, end: int, max_line: int = MOST_LINE_BYTES) -> Stretch:
    """Read the lines whose first byte is in ``[start, end)``, with their newlines."""
    lines: list[bytes] = []
    too_long, is_cut = 0, False
    with path.open("rb", buffering=2**20) as file:
        if start:
            file.seek(start - 1)
            _skip_line(file, end)
        position = file.tell()
        while position < end and (line := file.readline(max_line + 1)):
            position += len(line)
            is_cut = not line.endswith(b"\n")
            if is_cut and len(line) > max_line:
                too_long, is_cut = too_long + 1, False
                position += _skip_line(file, end)
            else:
                lines.append(line)
    return Stretch(lines, too_long, is_cut)


def _skip_line(file: BinaryIO, end: int) -> int:
    """Skip the rest of a line, up to byte ``end``; return the number of skipped bytes."""
    skipped = 0
    while file.tell() < end and (piece := file.readline(2**20)):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


# Reader of traces.json, the OpenTelemetry file of an instrumented vLLM, into raw tables on disk.
#
# The file is streamed: one or several processes parse its sections, and the tables are written to
# Arrow files, so memory use does not grow with the file.


def _event_schema(table: str) -> pa.Schema:
    columns = {field.column: ARROW_TYPES[field.kind] for field in FIELDS[table]}
    columns |= dict.fromkeys(("span", "server", "wall_ns"), pa.int64())
    columns |= dict.fromkeys(("label", "extra"), pa.string())
    return pa.schema(sorted(columns.items()))


#: Arrow schemas of raw tables, by name of the table.
RAW_SCHEMAS = {
    STEPS: _event_schema(STEPS),
    SNAPSHOTS: _event_schema(SNAPSHOTS),
    **{name: SCHEMAS[name] for name in (request_spans.ENGINE, request_spans.FRONT)},
}


#: Maximum number of parsed sections in memory per process. Results are yielded in file order, so
#: later sections may have to wait for an earlier one.
MAX_PARTS = 8


@dataclass(frozen=True)
class RawRun:
    """Raw tables of a trace file or of a table of step summaries, and their origin.

    Attributes:
        source: Name of the file.
        sha256: SHA-256 hash of the file's content.
        servers: Name, or resource attributes as a JSON string, of each server, by number.
        tables: Raw tables by name; tables of a trace file are memory-mapped from disk.
        reports: Counts of items read and rejected: rows of a table; or lines, groups, spans and
            events of a trace file, each in a report.
        parse_s: Wall time of reading, in seconds.
        maps: Memory maps of the tables on disk.
    """

    source: str
    sha256: str
    servers: list[str]
    tables: dict[str, pa.Table]
    reports: dict[str, ReadReport]
    parse_s: float
    maps: Sequence[mmap.mmap] = ()

    def release(self) -> None:
        """Free the memory of mapped pages that were already read; the tables remain usable."""
        pa.default_memory_pool().release_unused()
        for pages in self.maps:
            pages.madvise(mmap.MADV_DONTNEED)


def read_vllm(
    path: Path, spool: Path, workers: int = 1, stretch_bytes: int = STRETCH_BYTES
) -> RawRun:
    """Read a vLLM trace file into raw tables on disk.

    Args:
        path: File with one OTLP-JSON export object per line.
        spool: Folder for the raw tables, which is created if needed.
        workers: Number of parsing processes, including this one.
        stretch_bytes: Number of bytes in each section of the file, which a process reads at a time.

    Raises:
        PinnError: If the file does not exist or is sparse.
    """
    check_file(path, "give the file that vLLM's OTLP exporter wrote")
    spool.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    servers, counts = dict[str, int](), Counts()
    files = {name: spool / f"{name}.arrow" for name in RAW_SCHEMAS}
    with ExitStack() as stack:
        writers = {
            name: stack.enter_context(pa.ipc.new_file(str(file), RAW_SCHEMAS[name]))
            for name, file in files.items()
        }
        for chunk in parse_file(path, workers, stretch_bytes):
            own = [servers.setdefault(server, len(servers)) for server in chunk.servers]
            for name, batches in chunk.tables.items():
                for batch in batches:
                    writers[name].write_batch(_renumbered(batch, pa.array(own, pa.int64())))
            counts.add(chunk.counts)
    parse_s = time.perf_counter() - begin
    maps = [_mapped(file) for file in files.values()]
    opened = (pa.ipc.open_file(pa.BufferReader(pa.py_buffer(pages))) for pages in maps)
    tables = {name: found.read_all() for name, found in zip(files, opened, strict=True)}
    sha256 = file_sha256(path)
    reports = counts.reports(path.name, sha256)
    return RawRun(path.name, sha256, list(servers), tables, reports, parse_s, maps)


def _renumbered(batch: pa.RecordBatch, servers: pa.Array) -> pa.RecordBatch:
    """Replace the server numbers of a chunk's rows by those of the whole file."""
    place = batch.schema.get_field_index("server")
    return batch.set_column(place, "server", servers.take(batch.column("server")))


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def parse_file(
    path: Path, workers: int = 1, stretch_bytes: int = STRETCH_BYTES
) -> Iterator[ParsedChunk]:
    """Parse a trace file section by section, and yield the raw tables of each section in order."""
    tasks = [(path, *s) for s in stretches(path.stat().st_size, stretch_bytes)]
    if workers == 1 or len(tasks) < 2:
        yield from (_parse_stretch(*task) for task in tasks)
        return
    # This process also parses while worker processes start. Workers are spawned, not forked,
    # because this process may run threads.
    with ProcessPoolExecutor(workers - 1, get_context("spawn")) as pool:
        parts: deque[Future[ParsedChunk]] = deque()  # in the order of the file
        for task in tasks:
            if sum(not part.done() for part in parts) < 2 * (workers - 1):
                part = pool.submit(_parse_stretch, *task)
            else:
                part = Future()
                part.set_result(_parse_stretch(*task))
            parts.append(part)
            while parts and (parts[0].done() or len(parts) >= MAX_PARTS * workers):
                yield parts.popleft().result()
        while parts:
            yield parts.popleft().result()


def _parse_stretch(path: Path, start: int, end: int) -> ParsedChunk:
    stretch = read_stretch(path, start, end)
    chunk = ChunkParser().parse(stretch.lines, stretch.last_is_cut)
    if stretch.too_long:
        chunk.counts.read["lines"] += stretch.too_long
        chunk.counts.refused["lines"]["line too long"] += stretch.too_long
    _gather_requests(chunk)
    return chunk


def _gather_requests(chunk: ParsedChunk) -> None:
    """Replace a chunk's request spans and their events by one row for each span."""
    raw = (wire.SPANS, wire.JOURNEY, wire.API)
    spans, journey, api = (chunk.tables.pop(name, []) for name in raw)
    refused = chunk.counts.refused["events"]
    for name, label, gather, events in (
        (request_spans.ENGINE, wire.CORE_SPAN, request_spans.engine_rows, journey),
        (request_spans.FRONT, wire.API_SPAN, request_spans.front_rows, api),
    ):
        of_label = [batch for batch in spans if request_spans.label_of(batch) == label]
        if of_label:
            chunk.tables[name] = [gather(of_label, events, chunk.spans, refused)]


# Reader of step summaries in a Parquet file, whose columns are named like trace attributes.

#: Column that distinguishes several runs in one file; each run is treated as a separate server.
RUN_COLUMN = "experiment_id"


def read_steps(path: Path) -> RawRun:
    """Read a table of step summaries; rows that lack a required value are rejected.

    Args:
        path: Parquet file with the attributes of the event ``step.BATCH_SUMMARY`` as columns, under
            any of their names, and optionally ``experiment_id``.

    Raises:
        PinnError: If the file is missing, is not a Parquet file, or lacks a required column.
    """
    begin = time.perf_counter()
    if not path.is_file():
        raise PinnError(
            f"the file of step summaries {path} does not exist: give the path of the Parquet file"
        )
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise PinnError(
            f"{path} is not a readable Parquet file ({error}): give a Parquet file of step "
            "summaries"
        ) from error
    columns, kept = {}, KeptRows(table.num_rows)
    for each_field in FIELDS[STEPS]:
        name = next((n for n in each_field.names if n in table.column_names), None)
        if name is None and each_field.required:
            held = ", ".join(table.column_names)
            name = each_field.names[0]
            raise PinnError(f"{path} lacks the column {name!r}: it has only {held}")
        wanted = RAW_SCHEMAS[STEPS].field(each_field.column).type
        try:
            column = pa.nulls(table.num_rows, wanted) if name is None else table[name].cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise PinnError(
                f"the column {name!r} of {path} must have numbers ({error}): correct the column"
            ) from error
        columns[each_field.column] = column
        if each_field.required:
            kept.refuse(f"step without {each_field.names[0]}", pc.is_null(column))
    servers, number = _runs(table)
    columns |= {
        "server": pa.array(number),
        "wall_ns": pa.array(np.zeros(table.num_rows, dtype=np.int64)),
        "extra": pa.nulls(table.num_rows, pa.string()),
    }
    report = kept.report(path.name, sha256=file_sha256(path))
    tables = {name: schema.empty_table() for name, schema in RAW_SCHEMAS.items()}
    tables[STEPS] = pa.table(columns).filter(pa.array(kept.mask))
    seconds = time.perf_counter() - begin
    return RawRun(path.name, report.sha256, servers, tables, {"rows": report}, seconds)


def _runs(table: pa.Table) -> tuple[list[str], np.ndarray]:
    if RUN_COLUMN not in table.column_names:
        return ["steps"], np.zeros(table.num_rows, dtype=np.int64)
    encoded = pc.dictionary_encode(table[RUN_COLUMN].cast(pa.string()), null_encoding="encode")
    encoded = encoded.combine_chunks()
    names = [str(n) for n in encoded.dictionary.to_pylist()]
    return names, encoded.indices.to_numpy().astype(np.int64)
