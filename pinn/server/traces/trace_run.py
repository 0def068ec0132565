"""Canonical tables of a run, from its raw ones, with all that was dropped and why."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pinn.common.files import ReadReport
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.server.readers.request_spans import ENGINE, FRONT
from pinn.server.readers.wire import SNAPSHOTS, STEPS
from pinn.server.traces import cleaning
from pinn.server.traces.batches import aggregate_sums, complete_snapshots, knowledge_levels
from pinn.server.traces.cycles import (
    RULES,
    WINDOW,
    JourneyEvidence,
    accounting,
    cycle_table,
    journey_evidence,
    journeys_by_segment,
    medians_by_decodes,
    with_segments,
    with_states,
)
from pinn.server.traces.requests import (
    REQUEST_SCHEMA,
    STATE_COLUMNS,
    RequestOrder,
    canonical_requests,
)
from pinn.server.traces.steps import (
    BATCH_ROWS,
    STEP_SCHEMA,
    StepOrder,
    canonical_steps,
    usage_above_one,
)
from pinn.server.traces.trace_tables import Target, write_manifest, write_table


def _some(schema: pa.Schema, *names: str) -> pa.Schema:
    """Some columns of a schema."""
    return pa.schema([schema.field(name) for name in names])


#: What cycles, links and floors need of the steps, segments, states and journeys of the requests,
#: and the level of knowledge of a step of its snapshots: little enough to keep in memory.
_OF_SNAPSHOTS = _some(cleaning.SNAPSHOT_SCHEMA, "segment", "step_id", "is_prefill", "new_tokens")
_OF_REQUESTS = _some(
    REQUEST_SCHEMA, "server", "segment", "wall_s", "queued_s", "finished_s", "scheduled_step",
    "first_token_step", "finished_step", "prompt_tokens", "cached_tokens", "output_tokens",
    "preempted_steps", "preempted_outputs", "resumed_steps", "resumed_cached",
)  # fmt: skip
_OF_STEPS = _some(
    STEP_SCHEMA, "server", "segment", "step_id", "start_s", "wall_s", "running_depth",
    "waiting_depth", "prefill_requests", "decode_requests", "prefill_tokens", "decode_tokens",
    "finished", "preempted", "kv_usage", "is_ambiguous",
)  # fmt: skip

#: What the floor of a step and the durations that it is held against need.
_OF_FLOORS = _some(
    STEP_SCHEMA, "prefill_requests", "decode_requests", "prefill_tokens", "kv_blocks_total",
    "kv_usage", "reported_duration_s",
)  # fmt: skip

#: Columns of the requests that are filled in once the steps are known.
_FILLED = ("segment", *STATE_COLUMNS)

#: Rows that the floor is worked out for at most, evenly spread.
_FLOOR_ROWS = 50_000


@dataclass
class RawRun:
    """Raw tables of a run and what is known of their origin.

    ``table`` gives a raw table by name; tables of big files are mapped, and ``release`` gives back
    the memory of what was looked at.
    """

    sources: list[dict[str, str]]
    servers: list[str]
    table: Callable[[str], pa.Table]
    reports: dict[str, ReadReport]
    release: Callable[[], None] = pa.default_memory_pool().release_unused
    seconds: dict[str, float] = field(default_factory=dict)


def write_run(
    folder: Path,
    run: RawRun,
    target: Target | None,
    deployment: Deployment | None,
) -> None:
    """Write the tables and, last, the manifest.

    Args:
        folder: To fill.
        run: What was read.
        target: The deployment as the user names it, if it is known.
        deployment: The same, loaded.
    """
    begin = time.perf_counter()
    order = StepOrder(run.table(STEPS), release=run.release)
    batches = canonical_steps(run.table(STEPS), order, schema=_OF_STEPS)
    steps = _frame(_releasing(batches, run), _OF_STEPS)
    request_order = RequestOrder(run.table(ENGINE), run.table(FRONT))
    run.release()
    spans = run.table(ENGINE), run.table(FRONT)
    batches = canonical_requests(*spans, request_order, schema=_OF_REQUESTS)
    requests = pa.Table.from_batches(batches, schema=_OF_REQUESTS)
    run.release()
    evidence = JourneyEvidence.none(len(steps))
    if requests.num_rows and len(steps):
        requests = with_segments(requests, steps)
        budget = deployment.recipe.token_budget if deployment else None
        journeys = journeys_by_segment(requests, steps, budget)
        evidence = journey_evidence(requests, steps, journeys)
        del journeys
    cycles = cycle_table(steps, evidence)
    if requests.num_rows and len(steps):
        requests = with_states(requests, steps, cycles)
    filled = requests.select([n for n in requests.column_names if n in _FILLED])
    del requests
    snapshot_order = cleaning.SnapshotOrder(run.table(SNAPSHOTS), steps)
    has_snapshot = np.zeros(len(steps), dtype=bool)
    if len(snapshot_order.rows):
        raw = run.table(SNAPSHOTS)
        batches = cleaning.canonical_snapshots(raw, snapshot_order, _OF_SNAPSHOTS)
        has_snapshot = complete_snapshots(steps, _frame(batches, _OF_SNAPSHOTS))
    run.release()
    knowledge = knowledge_levels(has_snapshot, evidence.agrees)
    checks: dict[str, cleaning.TargetCheck] = {}
    if deployment is not None and len(steps):
        checks = _floor_checks(run.table(STEPS), order, cycles, deployment)
    run.release()
    prepared = time.perf_counter()

    cycle_rows = pa.Table.from_pandas(cycles, preserve_index=False).replace_schema_metadata()
    issues: Counter[str] = Counter()
    request_batches = _requests(run, request_order, filled, issues)
    snapshot_batches = cleaning.canonical_snapshots(run.table(SNAPSHOTS), snapshot_order)
    tables = {
        name: write_table(folder, name, _releasing(batches, run), schema)
        for name, batches, schema in (
            ("steps", canonical_steps(run.table(STEPS), order, knowledge), STEP_SCHEMA),
            ("requests", request_batches, REQUEST_SCHEMA),
            ("snapshots", snapshot_batches, cleaning.SNAPSHOT_SCHEMA),
            ("cycles", cycle_rows.to_batches(BATCH_ROWS), cycle_rows.schema),
        )
    }
    _check_holds(tables, run)
    segments, intervals = _segments(steps), accounting(cycles)
    medians = medians_by_decodes(steps, cycles).to_dict("records")
    reports = run.reports | {
        "steps": order.report,
        "request spans": request_order.report,
        "snapshots": snapshot_order.report,
    }
    manifest: dict[str, Any] = {
        "sources": run.sources,
        "deployment": target,
        "servers": run.servers,
        "segments": segments,
        "tables": tables,
        "reports": {name: r.to_json() for name, r in reports.items() if r.read},
        "intervals": intervals,
        "medians_by_decodes": medians,
        "rules": vars(RULES),
        "implausible": {"kv_usage above 1": usage_above_one(run.table(STEPS))},
        "request_issues": dict(issues.most_common()),
        "targets": {name: check.to_json() for name, check in checks.items()},
        "seconds": run.seconds
        | {"prepare": prepared - begin, "write": time.perf_counter() - prepared},
    }
    write_manifest(folder, manifest)


def _check_holds(tables: dict[str, Any], run: RawRun) -> None:
    """Tables of nothing would take the place of good ones."""
    if not any(tables[name]["rows"] for name in ("steps", "requests", "snapshots")):
        read = {name: report.to_json() for name, report in run.reports.items()}
        counts = ", ".join(
            f"{r['read']} {name} (refused {r['refused']})" for name, r in read.items()
        )
        names = ", ".join(source["path"] for source in run.sources)
        raise PinnError(f"{names} holds no step and no request that can be used: {counts}")


def _requests(
    run: RawRun, order: RequestOrder, filled: pa.Table, issues: Counter[str]
) -> Iterator[pa.RecordBatch]:
    """The canonical requests; their issues are counted on the way."""
    for batch in canonical_requests(run.table(ENGINE), run.table(FRONT), order, filled):
        for entry in batch.column("issue").value_counts().to_pylist():
            issues[entry["values"] or "none"] += entry["counts"]
        yield batch


def _frame(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pd.DataFrame:
    """All batches; each column leaves Arrow as it is converted, so that it is held only once."""
    return pa.Table.from_batches(batches, schema=schema).to_pandas(
        split_blocks=True, self_destruct=True
    )


def _releasing(batches: Iterable[pa.RecordBatch], run: RawRun) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        run.release()


def _floor_checks(
    raw: pa.Table, order: StepOrder, cycles: pd.DataFrame, deployment: Deployment
) -> dict[str, cleaning.TargetCheck]:
    """Verdicts on the candidate columns.

    The floor of a window is the mean of the floors of its ends, that of a single step its own.
    """
    rows = np.unique(np.linspace(0, len(cycles) - 1, _FLOOR_ROWS).astype(np.int64))
    window, block_size = deployment.model.window_tokens, deployment.recipe.block_tokens

    def at(chosen: np.ndarray) -> tuple[pd.DataFrame, np.ndarray]:
        steps = _frame(canonical_steps(raw, order.only(chosen), schema=_OF_FLOORS), _OF_FLOORS)
        return steps, cleaning.batch_floor(deployment, aggregate_sums(steps, block_size, window))

    steps, floor = at(rows)
    _, floor_after = at(np.minimum(rows + 1, len(cycles) - 1))
    part = cycles.iloc[rows]
    is_window = (part["kind"] == WINDOW).to_numpy()
    values = {
        "step_s": part["step_s"].where(part["set_aside"].isna()).to_numpy(),
        "reported_duration_s": steps["reported_duration_s"].to_numpy(float),
    }
    floors = {
        "step_s": np.where(is_window, (floor + floor_after) / 2, floor),
        "reported_duration_s": floor,
    }
    return {name: cleaning.check_target(name, values[name], floors[name]) for name in values}


def _segments(steps: pd.DataFrame) -> list[dict[Any, Any]]:
    groups = steps.groupby("segment")
    table = pd.DataFrame(
        {
            "server": groups["server"].first(),
            "steps": groups.size(),
            "first_step": groups["step_id"].min(),
            "last_step": groups["step_id"].max(),
            "seconds": groups["start_s"].max() - groups["start_s"].min(),
            "is_ambiguous": groups["is_ambiguous"].any(),
        }
    )
    return table.reset_index().to_dict("records")
