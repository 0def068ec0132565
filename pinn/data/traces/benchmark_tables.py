"""Benchmark runs as a table of an ingested folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pinn.data.benchmarks.benchmark_run import FIGURES, BenchmarkRun
from pinn.data.traces.trace_tables import TraceTables

BENCHMARKS = "benchmarks"

#: One row a run, for people; the last column holds all of it.
BENCHMARK_SCHEMA = pa.schema(
    {
        "name": pa.string(),
        "tool": pa.string(),
        "requests": pa.int64(),
        "served": pa.int64(),
        "failed": pa.int64(),
        "concurrency": pa.int64(),
        "rate_per_s": pa.float64(),
        "prompt_tokens": pa.float64(),
        "output_tokens": pa.float64(),
        **{name: pa.float64() for name in FIGURES},
        "run": pa.string(),
    }
)


def benchmark_table(runs: Sequence[BenchmarkRun]) -> pa.Table:
    """The runs as a table of ``BENCHMARK_SCHEMA``."""
    return pa.Table.from_pylist([_row(run) for run in runs], schema=BENCHMARK_SCHEMA)


def _row(run: BenchmarkRun) -> dict[str, Any]:
    load = run.load
    return {
        "name": run.name,
        "tool": run.tool,
        "requests": load.requests,
        "served": run.served,
        "failed": run.failed,
        "concurrency": load.concurrency,
        "rate_per_s": load.rate_per_s,
        "prompt_tokens": load.prompt.mean,
        "output_tokens": load.output.mean,
        **run.figures,
        "run": json.dumps(run.to_json()),
    }


def read_benchmark_table(tables: TraceTables) -> list[BenchmarkRun]:
    """The runs of an ingested folder.

    Raises:
        PinnError: If it has none, or was changed since.
    """
    texts = tables.table(BENCHMARKS, ["run"])["run"].to_pylist()
    return [BenchmarkRun.from_json(json.loads(text)) for text in texts]
