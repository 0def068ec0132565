"""From a server's files to a folder of canonical tables."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from pinn.data.traces.cycles import CycleRules
from pinn.data.traces.readers.kv_events import read_kv_events
from pinn.data.traces.readers.steps import read_steps
from pinn.data.traces.readers.vllm import RAW_SCHEMAS, read_vllm
from pinn.data.traces.readers.wire import STEPS
from pinn.data.traces.trace_run import RawRun, Target, write_run
from pinn.data.traces.trace_tables import TraceTables, atomic_folder, read_trace_tables
from pinn.errors import PinnError
from pinn.specs.files.read_report import file_sha256


def ingest_vllm(
    traces: Path,
    out: Path,
    target: Target | None = None,
    *,
    kv_events: Path | None = None,
    workers: int = 1,
    rules: CycleRules | None = None,
) -> TraceTables:
    """Read an instrumented vLLM's trace file into a folder of canonical tables.

    Args:
        traces: The OTLP-JSON file.
        out: Folder to write; one with earlier trace tables is replaced.
        target: The deployment; without it no column is checked against the floor.
        kv_events: The file of KV cache events, if there is one.
        workers: Processes that parse.
        rules: Thresholds of what is set aside.

    Raises:
        PinnError: If a file is missing, holds nothing of the server, or the deployment is unknown.
    """
    deployment = target.deployment() if target else None
    with atomic_folder(out) as folder, tempfile.TemporaryDirectory(dir=folder.parent) as spool:
        raw = read_vllm(traces, Path(spool), workers)
        sha256 = file_sha256(traces)
        run = RawRun(
            [{"path": traces.name, "sha256": sha256}],
            raw.servers,
            raw.table,
            raw.reports(traces.name, sha256),
            raw.release,
            seconds={"parse": raw.parse_s, "spool": raw.spool_s},
        )
        if not any(raw.table(name).num_rows for name in RAW_SCHEMAS):
            lines = run.reports["lines"]
            raise PinnError(
                f"{traces} holds no events of the instrumented vLLM: {lines.read} lines read, "
                f"refused {dict(lines.refused)}"
            )
        if kv_events is not None:
            read = read_kv_events(kv_events)
            run.kv_events = read.table
            run.reports |= {"KV lines": read.lines, "KV events": read.events}
            run.sources.append({"path": kv_events.name, "sha256": file_sha256(kv_events)})
        write_run(folder, run, target, deployment, rules or CycleRules())
    return read_trace_tables(out)


def ingest_steps(
    path: Path, out: Path, target: Target | None = None, *, rules: CycleRules | None = None
) -> TraceTables:
    """Read a Parquet file of step summaries into a folder of canonical tables.

    Args:
        path: The Parquet file.
        out: Folder to write; one with earlier trace tables is replaced.
        target: The deployment; without it no column is checked against the floor.
        rules: Thresholds of what is set aside.

    Raises:
        PinnError: If the file is missing or malformed, or the deployment is unknown.
    """
    deployment = target.deployment() if target else None
    begin = time.perf_counter()
    steps, servers, report = read_steps(path)
    run = RawRun(
        [{"path": path.name, "sha256": report.sha256}],
        servers,
        lambda name: steps if name == STEPS else RAW_SCHEMAS[name].empty_table(),
        {"rows": report},
        seconds={"parse": time.perf_counter() - begin},
    )
    with atomic_folder(out) as folder:
        write_run(folder, run, target, deployment, rules or CycleRules())
    return read_trace_tables(out)
