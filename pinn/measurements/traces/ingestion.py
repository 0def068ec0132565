"""Ingestion of traces and benchmark files into tables, with counts of dropped data by reason."""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pinn.common.files import ReadReport, json_text
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.measurements.benchmarks.benchmark_run import FIGURES, BenchmarkRun
from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.benchmarks.reading import GivenLoad
from pinn.measurements.readers.request_spans import ENGINE, FRONT
from pinn.measurements.readers.vllm import RawRun, read_steps, read_vllm
from pinn.measurements.readers.wire import SNAPSHOTS, STEPS
from pinn.measurements.traces import cycles, trace_tables
from pinn.measurements.traces.batches import aggregate_sums, complete_snapshots, knowledge_levels
from pinn.measurements.traces.measured_steps import MEASURED, MeasuredSteps, read_measured_steps
from pinn.measurements.traces.requests import canonical_requests
from pinn.measurements.traces.steps import (
    BATCH_ROWS,
    KNOWLEDGE,
    Canonical,
    canonical_snapshots,
    canonical_steps,
)
from pinn.measurements.traces.trace_tables import Target, TraceTables
from pinn.physics.costs import step_costs
from pinn.physics.step_values import floor_seconds
from pinn.specs.catalog import load_model
from pinn.specs.flags import FlagValue, flags_of
from pinn.specs.gpu import find_gpu
from pinn.specs.serving import ServingSpec

# Benchmark runs as a table of the folder that ``pinn ingest benchmarks`` writes.

BENCHMARKS = "benchmarks"

#: Schema of the table of benchmark runs: columns for display, and last the whole run as JSON.
BENCHMARK_SCHEMA = pa.schema(
    {
        **dict.fromkeys(("name", "tool"), pa.string()),
        **dict.fromkeys(("requests", "served", "failed", "concurrency"), pa.int64()),
        **dict.fromkeys(("rate_per_s", "prompt_tokens", "output_tokens", *FIGURES), pa.float64()),
        "run": pa.string(),
    }
)


def benchmark_table(runs: Sequence[BenchmarkRun]) -> pa.Table:
    """Return benchmark runs as a table with ``BENCHMARK_SCHEMA``, one row per run."""
    rows = []
    for run in runs:
        tokens = {"prompt_tokens": run.load.prompt.mean, "output_tokens": run.load.output.mean}
        row = vars(run.load) | vars(run) | tokens | dict(run.figures)
        rows.append(row | {"run": json_text(run)})
    return pa.Table.from_pylist(rows, schema=BENCHMARK_SCHEMA)


def read_benchmark_table(tables: TraceTables) -> list[BenchmarkRun]:
    """Return the benchmark runs in a folder that ``pinn ingest benchmarks`` wrote.

    Raises:
        PinnError: If the folder has no runs, or has changed since it was written.
    """
    texts = tables.table(BENCHMARKS, ["run"])["run"].to_pylist()
    return [BenchmarkRun.from_json(json.loads(text)) for text in texts]


# Deployment measured in benchmark files: facts in the files, completed by the user's flags.


def benchmark_target(
    runs: Sequence[BenchmarkRun],
    model: str | None = None,
    gpu: str | None = None,
    flags: Mapping[str, FlagValue] | None = None,
) -> Target:
    """Return the server (model, GPU, flags) on which benchmark runs were measured.

    The user's flags override those in the files; ``pinn.calibration.checks`` reports
    contradictions.

    Args:
        runs: Benchmark runs of one server.
        model: Name or config.json of the model; None for the first model that a file states.
        gpu: Name or datasheet of the GPU; None for the first GPU that a file states.
        flags: Fields of ``ServingSpec`` (and ``precision``) that the user specified.

    Raises:
        PinnError: If neither files nor user name the model or the GPU, the files name an unknown
            model, or a flag has an invalid value.
    """
    source = None if model else next((r for r in runs if r.server.model), None)
    model = model if source is None else source.server.model
    gpu = gpu or next((r.server.gpu for r in runs if find_gpu(r.server.gpu)), None)
    stated: dict[str, FlagValue] = {}
    for run in runs:
        stated = {**run.server.all_flags, **stated}
    flags = _of_engine(stated, flags or {}) | dict(flags or {})
    missing = [what for what, known in (("model", model), ("GPU", gpu)) if not known]
    lacking = f"{runs[0].name} does not state the {' and the '.join(missing)} of the server"
    target = Target.of(model, gpu, flags, lacking)
    if source is not None:
        _check_stated_model(source)
    return target


def _check_stated_model(run: BenchmarkRun) -> None:
    """Check that the model that a file names can be loaded.

    Raises:
        PinnError: If it cannot be loaded, such as an alias under which the server serves it.
    """
    try:
        load_model(run.server.model)
    except PinnError as error:
        raise PinnError(
            f"{run.name} states the model {run.server.model!r} (if this is an alias, give the "
            f"model with --model): {error}"
        ) from error


def _of_engine(
    stated: dict[str, FlagValue], given: Mapping[str, FlagValue]
) -> dict[str, FlagValue]:
    """Drop engine-specific flags in files if the user specifies another engine."""
    if stated.get("engine") in (None, given.get("engine", stated.get("engine"))):
        return stated
    own = {f.name for f in flags_of(ServingSpec) if f.engines} | {"engine_version"}
    return {name: value for name, value in stated.items() if name not in own}


# Ingestion of the files of one server into a folder of tables.


def ingest_vllm(
    traces: Path, out: Path, target: Target | None = None, workers: int = 1
) -> TraceTables:
    """Convert the trace file of an instrumented vLLM into a folder of trace tables.

    Args:
        traces: OTLP-JSON file.
        out: Folder to write to; existing trace tables in it are replaced.
        target: Traced deployment; without it, no column is checked against the roofline lower
            bound.
        workers: Number of parsing processes.

    Raises:
        PinnError: If a file is missing or contains no data from a server, or the deployment is
            unknown.
    """
    deployment = target.deployment() if target else None
    with (
        trace_tables.atomic_folder(out) as folder,
        tempfile.TemporaryDirectory(dir=folder.parent) as spool,
    ):
        run = read_vllm(traces, Path(spool), workers)
        if not any(table.num_rows for table in run.tables.values()):
            lines = run.reports["lines"]
            raise PinnError(
                f"{traces} has no events of the instrumented vLLM ({lines.read} "
                f"lines were read, refused {dict(lines.refused)}): give a file that "
                "vLLM's OTLP exporter wrote"
            )
        _write_run(folder, run, target, deployment)
    return trace_tables.read_trace_tables(out)


def ingest_steps(path: Path, out: Path, target: Target | None = None) -> TraceTables:
    """Read a Parquet file of step summaries into a folder of trace tables.

    Args:
        path: Parquet file.
        out: Folder to write to; existing trace tables in it are replaced.
        target: Traced deployment; without it, no column is checked against the roofline lower
            bound.

    Raises:
        PinnError: If the file is missing or malformed, or the deployment is unknown.
    """
    deployment = target.deployment() if target else None
    run = read_steps(path)
    with trace_tables.atomic_folder(out) as folder:
        _write_run(folder, run, target, deployment)
    return trace_tables.read_trace_tables(out)


@dataclass(frozen=True)
class GivenServer:
    """Facts about the measured server from the user, which override those in the files.

    Attributes:
        model: Name or config.json of the model; None for the model in the files.
        gpu: Name or datasheet of the GPU; None for the GPU in the files.
        flags: Engine flags: values by field of ``ServingSpec`` (and ``precision``).
    """

    model: str | None
    gpu: str | None
    flags: Mapping[str, FlagValue]


def ingest_measured_steps(path: Path, out: Path, given: GivenServer) -> MeasuredSteps:
    """Read measured engine steps with their times into a folder of trace tables.

    Args:
        path: Folder written by ``pinn measure``, or a CSV file in the same layout.
        out: Folder to write to; existing trace tables in it are replaced.
        given: Facts about the server from the user.

    Raises:
        PinnError: If the file is malformed, or the deployment is unknown.
    """
    found = read_measured_steps(path)
    target = found.target(given.model, given.gpu, given.flags)
    target.deployment()  # raises an error for an unknown model or GPU
    table = pa.Table.from_pandas(found.rows, preserve_index=False)
    sources = [{"path": path.name, "sha256": found.report.sha256}]
    origin = {"sources": sources, "deployment": target, "facts": found.facts.values}
    _write_single(out, MEASURED, table, found.report, origin)
    return found


def ingest_benchmarks(
    files: Sequence[Path], out: Path, given: GivenServer, load: GivenLoad
) -> tuple[list[BenchmarkRun], ReadReport]:
    """Read benchmark files into a folder with a table of benchmark runs.

    Args:
        files: Files or folders; metrics pages in pairs, the earlier first.
        out: Folder to write to; existing trace tables in it are replaced.
        given: Facts about the server from the user.
        load: Options for data about the load missing from the files.

    Raises:
        PinnError: If nothing could be read, or the deployment is unknown.
    """
    runs, report = read_benchmarks(files, load)
    target = benchmark_target(runs, given.model, given.gpu, given.flags)
    target.deployment()  # raises an error for an unknown model or GPU
    sources = [{"path": file.name, "sha256": report.sha256} for file in files]
    origin = {"sources": sources, "deployment": target}
    _write_single(out, BENCHMARKS, benchmark_table(runs), report, origin)
    return runs, report


def _write_single(
    out: Path, name: str, table: pa.Table, report: ReadReport, origin: dict[str, object]
) -> None:
    """Write a folder with one table, and a manifest that states the table's origin."""
    with trace_tables.atomic_folder(out) as folder:
        entry = trace_tables.write_table(folder, name, table.to_batches(), table.schema)
        held = {"tables": {name: entry}, "reports": {name: report}}
        trace_tables.write_manifest(folder, origin | held)


# Canonical tables of a run (in order, with times in seconds), from its raw tables.

#: Columns of canonical tables that are kept in memory. Columns of steps serve to compute cycles and
#: lower bounds and to link steps to requests; columns of requests to derive segments, engine states
#: and batches; columns of snapshots to decide whether a step's snapshots are complete.
_OF_SNAPSHOTS = ("segment", "step_id", "is_prefill", "new_tokens")
_OF_REQUESTS = (
    "server", "segment", "wall_s", "queued_s", "finished_s", "scheduled_step", "first_token_step",
    "finished_step", "prompt_tokens", "cached_tokens", "output_tokens", "preempted_steps",
    "preempted_outputs", "resumed_steps", "resumed_cached",
)  # fmt: skip
_OF_STEPS = (
    "server", "segment", "step_id", "start_s", "wall_s", "running_depth", "waiting_depth",
    "prefill_requests", "decode_requests", "prefill_tokens", "decode_tokens", "finished",
    "preempted", "kv_usage", "is_ambiguous",
)  # fmt: skip

#: Columns of steps for computing the lower bound of a step's time, and the column of durations to
#: compare with the bound.
_OF_FLOORS = ("prefill_requests", "decode_requests", "prefill_tokens", "kv_blocks_total",
              "kv_usage", "reported_duration_s")  # fmt: skip

#: Maximum number of steps, evenly spaced, for which the roofline lower bound is computed.
_FLOOR_ROWS = 50_000


def _write_run(
    folder: Path, run: RawRun, target: Target | None, deployment: Deployment | None
) -> None:
    """Write the tables of steps, requests, snapshots and cycles of a run, then the manifest.

    Args:
        folder: Folder to write to.
        run: Raw tables of the run.
        target: Deployment as the user specified it; None if unknown.
        deployment: Deployment with its model and GPU loaded; None if unknown.
    """
    begin = time.perf_counter()
    all_steps = canonical_steps(run.tables[STEPS], run.release)
    steps = all_steps.having(*_OF_STEPS).frame()
    all_requests = canonical_requests(run.tables[ENGINE], run.tables[FRONT], run.release)
    requests = all_requests.having(*_OF_REQUESTS).table()
    evidence = cycles.JourneyEvidence.none(len(steps))
    is_joined = bool(requests.num_rows and len(steps))
    if is_joined:
        requests = cycles.with_segments(requests, steps)
        budget = deployment.recipe.token_budget if deployment else None
        evidence = cycles.journey_evidence(requests, steps, budget)
    intervals = cycles.cycle_table(steps, evidence)
    if is_joined:
        all_requests.given["segment"] = requests["segment"]
        all_requests.given.update(cycles.states(requests, steps, intervals))
    del requests
    all_snapshots = canonical_snapshots(run.tables[SNAPSHOTS], steps, run.release)
    has_snapshot = complete_snapshots(steps, all_snapshots.having(*_OF_SNAPSHOTS).frame())
    known = knowledge_levels(has_snapshot, evidence.agrees)
    checks = _floor_checks(all_steps, intervals, deployment) if deployment and len(steps) else {}
    all_steps.given["knowledge"] = pa.DictionaryArray.from_arrays(known, list(KNOWLEDGE))
    prepared = time.perf_counter()

    cycle_rows = pa.Table.from_pandas(intervals, preserve_index=False).replace_schema_metadata()
    made = {"steps": all_steps, "requests": all_requests, "snapshots": all_snapshots}
    write = partial(trace_tables.write_table, folder)
    tables = {name: write(name, table.batches(), table.schema) for name, table in made.items()}
    # Raise an error if there are no rows, because empty tables would replace good ones in the
    # folder.
    if not any(table["rows"] for table in tables.values()):
        read = (f"{r.read} {name} (refused {r.refused})" for name, r in run.reports.items())
        counts_read = ", ".join(read)
        raise PinnError(
            f"{run.source} has no usable step and no usable request (read {counts_read}): give "
            "the traces of a server under load"
        )
    tables["cycles"] = write("cycles", cycle_rows.to_batches(BATCH_ROWS), cycle_rows.schema)
    reports = run.reports | {table.report.source: table.report for table in made.values()}
    issues = pq.read_table(folder / tables["requests"]["file"], columns=["issue"])["issue"]
    counts = {e["values"] or "none": e["counts"] for e in issues.value_counts().to_pylist()}
    written = time.perf_counter()
    above_one = pc.greater(run.tables[STEPS]["kv_usage"], 1)
    manifest: dict[str, object] = {
        "sources": [{"path": run.source, "sha256": run.sha256}],
        "deployment": target,
        "servers": run.servers,
        "segments": _segments(steps),
        "tables": tables,
        "reports": {name: report for name, report in reports.items() if report.read},
        "intervals": cycles.accounting(intervals),
        "medians_by_decodes": cycles.medians_by_decodes(steps, intervals).to_dict("records"),
        "rules": cycles.RULES,
        # KV usage is a share of the cache; values above 1 may be percentages.
        "implausible": {"kv_usage above 1": pc.sum(above_one).as_py() or 0},
        "request_issues": dict(Counter(counts).most_common()),
        "targets": checks,
        "seconds": {"parse": run.parse_s, "prepare": prepared - begin, "write": written - prepared},
    }
    trace_tables.write_manifest(folder, manifest)


def _floor_checks(
    steps: Canonical, intervals: pd.DataFrame, deployment: Deployment
) -> dict[str, dict[str, str | float | bool]]:
    """Check columns of times against the roofline lower bound; return the result by column.

    The lower bound of an interval of several steps is the mean of the bounds at its ends.
    """
    rows = np.unique(np.linspace(0, len(intervals) - 1, _FLOOR_ROWS).astype(np.int64))
    window, block_size = deployment.model.window_tokens, deployment.recipe.block_tokens
    costs = step_costs([deployment])

    def at(chosen: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
        some = steps.only(chosen).having(*_OF_FLOORS).frame()
        return some, floor_seconds(costs, aggregate_sums(some, block_size, window))

    some, floor = at(rows)
    _, floor_after = at(np.minimum(rows + 1, len(intervals) - 1))
    part = intervals.iloc[rows]
    is_window = (part["kind"] == cycles.WINDOW).to_numpy()
    step_s = part["step_s"].where(part["set_aside"].isna()).to_numpy()
    between = np.where(is_window, (floor + floor_after) / 2, floor)
    reported = some["reported_duration_s"].to_numpy(float)
    return {
        "step_s": cycles.check_target("step_s", step_s, between),
        "reported_duration_s": cycles.check_target("reported_duration_s", reported, floor),
    }


def _segments(steps: pd.DataFrame) -> list[dict[Hashable, object]]:
    table = steps.groupby("segment").agg(
        server=("server", "first"),
        steps=("step_id", "size"),
        first_step=("step_id", "min"),
        last_step=("step_id", "max"),
        seconds=("start_s", lambda start: start.max() - start.min()),
        is_ambiguous=("is_ambiguous", "any"),
    )
    return table.reset_index().to_dict("records")
