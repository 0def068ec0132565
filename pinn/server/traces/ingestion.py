"""Traces and benchmark files as tables on disk."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pinn.common.files import json_text
from pinn.errors import PinnError
from pinn.server.benchmarks.benchmark_run import FIGURES, BenchmarkRun
from pinn.server.readers.vllm import read_steps, read_vllm
from pinn.server.traces.trace_run import write_run
from pinn.server.traces.trace_tables import Target, TraceTables, atomic_folder, read_trace_tables
from pinn.specs.flags import flags_of
from pinn.specs.gpu import find_gpu
from pinn.specs.serving import ServingSpec

# Benchmark runs as a table of an ingested folder.

BENCHMARKS = "benchmarks"

#: One row a run, for people; the last column holds all of it.
BENCHMARK_SCHEMA = pa.schema(
    {
        **dict.fromkeys(("name", "tool"), pa.string()),
        **dict.fromkeys(("requests", "served", "failed", "concurrency"), pa.int64()),
        **dict.fromkeys(("rate_per_s", "prompt_tokens", "output_tokens", *FIGURES), pa.float64()),
        "run": pa.string(),
    }
)


def benchmark_table(runs: Sequence[BenchmarkRun]) -> pa.Table:
    """The runs as a table of ``BENCHMARK_SCHEMA``."""
    rows = []
    for run in runs:
        tokens = {"prompt_tokens": run.load.prompt.mean, "output_tokens": run.load.output.mean}
        row = vars(run.load) | vars(run) | tokens | dict(run.figures)
        rows.append(row | {"run": json_text(run)})
    return pa.Table.from_pylist(rows, schema=BENCHMARK_SCHEMA)


def read_benchmark_table(tables: TraceTables) -> list[BenchmarkRun]:
    """The runs of an ingested folder.

    Raises:
        PinnError: If it has none, or was changed since.
    """
    texts = tables.table(BENCHMARKS, ["run"])["run"].to_pylist()
    return [BenchmarkRun.from_json(json.loads(text)) for text in texts]


# The deployment behind benchmark files: what they state, completed by the user's flags.


def benchmark_target(
    runs: Sequence[BenchmarkRun],
    model: str | None = None,
    gpu: str | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Target:
    """What served the runs.

    The user's word goes before the files'; where they contradict each other,
    ``pinn.server.calibration.checks`` says so.

    Args:
        runs: Of one server.
        model: Name or config.json; None for the first that a file states.
        gpu: Name or datasheet; None for the first that a file states.
        flags: Fields of ``ServingSpec`` (and ``precision``) that the user gave.

    Raises:
        PinnError: If neither says which model or GPU, or a flag has a bad value.
    """
    model = model or next((r.server.model for r in runs if r.server.model), None)
    gpu = gpu or next((r.server.gpu for r in runs if find_gpu(r.server.gpu)), None)
    stated: dict[str, Any] = {}
    for run in runs:
        stated = {**run.server.all_flags, **stated}
    flags = dict(flags or {})
    flags = _of_engine(stated, flags) | flags
    return Target.of(model, gpu, flags, f"{runs[0].name} does not say what served it")


def _of_engine(stated: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What files state, without what only the engine has that the user contradicts."""
    if stated.get("engine") in (None, given.get("engine", stated.get("engine"))):
        return stated
    own = {f.name for f in flags_of(ServingSpec) if f.engines} | {"engine_version"}
    return {name: value for name, value in stated.items() if name not in own}


# From a server's files to a folder of canonical tables.


def ingest_vllm(
    traces: Path, out: Path, target: Target | None = None, workers: int = 1
) -> TraceTables:
    """Read an instrumented vLLM's trace file into a folder of canonical tables.

    Args:
        traces: The OTLP-JSON file.
        out: Folder to write; one with earlier trace tables is replaced.
        target: The deployment; without it no column is checked against the floor.
        workers: Processes that parse.

    Raises:
        PinnError: If a file is missing, holds nothing of the server, or the deployment is unknown.
    """
    deployment = target.deployment() if target else None
    with atomic_folder(out) as folder, tempfile.TemporaryDirectory(dir=folder.parent) as spool:
        run = read_vllm(traces, Path(spool), workers)
        if not any(table.num_rows for table in run.tables.values()):
            lines = run.reports["lines"]
            raise PinnError(
                f"{traces} holds no events of the instrumented vLLM: {lines.read} lines read, "
                f"refused {dict(lines.refused)}"
            )
        write_run(folder, run, target, deployment)
    return read_trace_tables(out)


def ingest_steps(path: Path, out: Path, target: Target | None = None) -> TraceTables:
    """Read a Parquet file of step summaries into a folder of canonical tables.

    Args:
        path: The Parquet file.
        out: Folder to write; one with earlier trace tables is replaced.
        target: The deployment; without it no column is checked against the floor.

    Raises:
        PinnError: If the file is missing or malformed, or the deployment is unknown.
    """
    deployment = target.deployment() if target else None
    run = read_steps(path)
    with atomic_folder(out) as folder:
        write_run(folder, run, target, deployment)
    return read_trace_tables(out)
