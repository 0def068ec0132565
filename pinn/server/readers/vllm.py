"""vLLM's traces: snapshots, journeys and steps."""

from __future__ import annotations

import mmap
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pinn.common.files import ReadReport, file_sha256
from pinn.common.tables import KeptRows
from pinn.errors import PinnError
from pinn.server.readers.lines import STRETCH_BYTES, check_file, read_stretch, stretches
from pinn.server.readers.otlp import LEVELS, Counts
from pinn.server.readers.parser import ARROW_TYPES, ChunkParser, ParsedChunk
from pinn.server.readers.request_spans import (
    ENGINE,
    ENGINE_SCHEMA,
    FRONT,
    FRONT_SCHEMA,
    engine_rows,
    front_rows,
)
from pinn.server.readers.wire import (
    API,
    JOURNEY,
    SNAPSHOT_FIELDS,
    SNAPSHOTS,
    SPANS,
    STEP_FIELDS,
    STEPS,
    Field,
)

# Reads traces.json, the OpenTelemetry file of an instrumented vLLM, into raw tables on disk.
#
# The file is streamed: stretches of it are parsed one after another or by several processes, and
# what comes out is spooled as Arrow files, so memory does not grow with the file.

_EVENT_COLUMNS = {"span": pa.int64(), "server": pa.int64(), "wall_ns": pa.int64()}


def _event_schema(fields: tuple[Field, ...]) -> pa.Schema:
    columns = {f.column: ARROW_TYPES[f.kind] for f in fields}
    more = {"label": pa.string(), "extra": pa.string()}
    return pa.schema(sorted({**_EVENT_COLUMNS, **columns, **more}.items()))


#: Schema of each raw table.
RAW_SCHEMAS = {
    STEPS: _event_schema(STEP_FIELDS),
    SNAPSHOTS: _event_schema(SNAPSHOT_FIELDS),
    ENGINE: ENGINE_SCHEMA,
    FRONT: FRONT_SCHEMA,
}


#: Parsed stretches per process that wait for an earlier one, so that order and memory are kept.
MAX_PARTS = 8


@dataclass
class RawTraces:
    """What a trace file held.

    Attributes:
        folder: Holds one Arrow file per raw table.
        servers: Resource attributes, as JSON text, of each server by its number.
        counts: Lines, groups, spans and events read and refused.
        parse_s: Wall time of reading, parsing and walking.
        spool_s: Wall time of writing the raw tables.
    """

    folder: Path
    servers: list[str] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    parse_s: float = 0.0
    spool_s: float = 0.0
    _maps: dict[str, mmap.mmap] = field(default_factory=dict)

    def table(self, name: str) -> pa.Table:
        """A raw table, mapped from disk; empty where the file held none of it."""
        path = self.folder / f"{name}.arrow"
        if not path.is_file():
            return RAW_SCHEMAS[name].empty_table()
        if name not in self._maps:
            with path.open("rb") as file:
                self._maps[name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return pa.ipc.open_file(pa.BufferReader(pa.py_buffer(self._maps[name]))).read_all()

    def release(self) -> None:
        """Give back the memory of what was looked at; tables stay valid and read it anew."""
        pa.default_memory_pool().release_unused()
        for pages in self._maps.values():
            pages.madvise(mmap.MADV_DONTNEED)

    def reports(self, source: str, sha256: str = "") -> dict[str, ReadReport]:
        """One report per level: lines, groups, spans, events."""
        reports = {}
        for level in LEVELS:
            refused = dict(self.counts.refused[level].most_common())
            read = self.counts.read[level]
            reports[level] = ReadReport(
                source=f"{source} {level}",
                version="",
                sha256=sha256,
                read=read,
                accepted=read - sum(refused.values()),
                refused=refused,
            )
        return reports


def read_vllm(
    path: Path, spool: Path, workers: int = 1, stretch_bytes: int = STRETCH_BYTES
) -> RawTraces:
    """Read a trace file.

    Args:
        path: One OTLP-JSON export object per line.
        spool: Folder for the raw tables; made if it does not exist.
        workers: Processes that parse, this one among them.
        stretch_bytes: Bytes a process reads at once.

    Raises:
        PinnError: If there is no such file, or it is sparse.
    """
    check_file(path, "give the file that vLLM's OTLP exporter wrote")
    spool.mkdir(parents=True, exist_ok=True)
    raw = RawTraces(spool)
    with _Spool(raw) as writer:
        begin = time.perf_counter()
        for chunk in parse_file(path, workers, stretch_bytes):
            writer.add(chunk)
        raw.parse_s = time.perf_counter() - begin - raw.spool_s
    return raw


def parse_file(
    path: Path, workers: int = 1, stretch_bytes: int = STRETCH_BYTES
) -> Iterator[ParsedChunk]:
    """Parse a file stretch by stretch, in order."""
    tasks = [(path, *s) for s in stretches(path.stat().st_size, stretch_bytes)]
    parser = ChunkParser()
    if workers == 1 or len(tasks) < 2:
        yield from (_parse_stretch(parser, *task) for task in tasks)
        return
    # This process parses too: it begins while the others start. They are spawned, not forked, since
    # this one may run threads.
    with ProcessPoolExecutor(workers - 1, get_context("spawn"), _start_worker) as pool:
        parts: deque[Future[ParsedChunk]] = deque()  # in order of the file
        for task in tasks:
            if sum(not part.done() for part in parts) < 2 * (workers - 1):
                part = pool.submit(_work, *task)
            else:
                part = Future()
                part.set_result(_parse_stretch(parser, *task))
            parts.append(part)
            while parts and (parts[0].done() or len(parts) >= MAX_PARTS * workers):
                yield parts.popleft().result()
        while parts:
            yield parts.popleft().result()


def _parse_stretch(parser: ChunkParser, path: Path, start: int, end: int) -> ParsedChunk:
    stretch = read_stretch(path, start, end)
    chunk = parser.parse(stretch.lines, stretch.last_is_cut)
    if stretch.too_long:
        chunk.counts.read["lines"] += stretch.too_long
        chunk.counts.refused["lines"]["line too long"] += stretch.too_long
    _gather_requests(chunk)
    return chunk


def _gather_requests(chunk: ParsedChunk) -> None:
    """Put rows of requests in the place of their spans and events."""
    spans, journey, api = (chunk.tables.pop(name, []) for name in (SPANS, JOURNEY, API))
    refused = chunk.counts.refused["events"]
    for name, gather, events in ((ENGINE, engine_rows, journey), (FRONT, front_rows, api)):
        rows = gather(spans, events, chunk.spans, refused)
        if rows is not None:
            chunk.tables[name] = [rows]


_worker_parser: ChunkParser | None = None


def _start_worker() -> None:
    global _worker_parser
    _worker_parser = ChunkParser()


def _work(path: Path, start: int, end: int) -> ParsedChunk:
    assert _worker_parser is not None
    return _parse_stretch(_worker_parser, path, start, end)


class _Spool:
    """Appends the chunks' tables to one Arrow file each, servers renumbered."""

    def __init__(self, raw: RawTraces) -> None:
        self._raw = raw
        self._servers: dict[str, int] = {}
        self._writers: dict[str, pa.RecordBatchFileWriter] = {}

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()
        self._raw.servers = list(self._servers)

    def add(self, chunk: ParsedChunk) -> None:
        begin = time.perf_counter()
        servers = np.array(
            [self._servers.setdefault(s, len(self._servers)) for s in chunk.servers], dtype=np.int64
        )
        for name, batches in chunk.tables.items():
            if name not in self._writers:
                path = str(self._raw.folder / f"{name}.arrow")
                self._writers[name] = pa.ipc.new_file(path, RAW_SCHEMAS[name])
            for batch in batches:
                self._writers[name].write_batch(self._renumbered(batch, servers))
        self._raw.counts.add(chunk.counts)
        self._raw.spool_s += time.perf_counter() - begin

    def _renumbered(self, batch: pa.RecordBatch, servers: np.ndarray) -> pa.RecordBatch:
        place = batch.schema.get_field_index("server")
        column = pa.array(servers[batch.column("server").to_numpy()])
        return batch.set_column(place, "server", column)


# Reads step summaries that are already in a table: a Parquet file with the wire's names.

#: Column that tells runs in one file apart; each is a server of its own.
RUN_COLUMN = "experiment_id"


def read_steps(path: Path) -> tuple[pa.Table, list[str], ReadReport]:
    """Read a table of step summaries.

    Args:
        path: Parquet with the columns of ``step.BATCH_SUMMARY`` under any of their names, and
            optionally ``experiment_id``.

    Returns:
        The raw table of steps, the names of its servers, and the counts: rows without a value
        that a step needs are refused.

    Raises:
        PinnError: If the file is missing, is no Parquet, or lacks a column that steps need.
    """
    if not path.is_file():
        raise PinnError(f"no step summaries at {path}: give the path of the Parquet file")
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise PinnError(f"{path} is not a readable Parquet file: {error}") from error
    columns, kept = {}, KeptRows(table.num_rows)
    for each_field in STEP_FIELDS:
        name = next((n for n in each_field.names if n in table.column_names), None)
        if name is None and each_field.required:
            raise PinnError(
                f"{path} lacks the column {each_field.names[0]!r}; it has "
                f"{', '.join(table.column_names)}"
            )
        wanted = RAW_SCHEMAS[STEPS].field(each_field.column).type
        try:
            column = pa.nulls(table.num_rows, wanted) if name is None else table[name].cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise PinnError(f"{path}: column {name!r} does not hold numbers: {error}") from error
        columns[each_field.column] = column
        if each_field.required:
            kept.refuse(f"step without {each_field.names[0]}", pc.is_null(column))
    servers, number = _runs(table)
    columns |= {
        "server": pa.array(number),
        "span": pa.array(np.full(table.num_rows, -1)),
        "wall_ns": pa.array(np.zeros(table.num_rows, dtype=np.int64)),
        "label": pa.nulls(table.num_rows, pa.string()),
        "extra": pa.nulls(table.num_rows, pa.string()),
    }
    raw = pa.table({f.name: columns[f.name] for f in RAW_SCHEMAS[STEPS]})
    report = kept.report(path.name, sha256=file_sha256(path))
    return raw.filter(pa.array(kept.mask)), servers, report


def _runs(table: pa.Table) -> tuple[list[str], np.ndarray]:
    if RUN_COLUMN not in table.column_names:
        return ["steps"], np.zeros(table.num_rows, dtype=np.int64)
    encoded = pc.dictionary_encode(table[RUN_COLUMN].cast(pa.string()), null_encoding="encode")
    encoded = encoded.combine_chunks() if encoded.num_chunks != 1 else encoded.chunk(0)
    names = [str(n) for n in encoded.dictionary.to_pylist()]
    return names, encoded.indices.to_numpy().astype(np.int64)
