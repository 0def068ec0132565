"""Canonical tables of a run, from its raw ones, with all that was dropped and why."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.physics.costs import step_costs
from pinn.physics.step_values import floor_seconds
from pinn.server.readers.request_spans import ENGINE, FRONT
from pinn.server.readers.vllm import RawRun
from pinn.server.readers.wire import SNAPSHOTS, STEPS
from pinn.server.traces import cycles
from pinn.server.traces.batches import aggregate_sums, complete_snapshots, knowledge_levels
from pinn.server.traces.cleaning import canonical_snapshots, check_target
from pinn.server.traces.requests import canonical_requests
from pinn.server.traces.steps import BATCH_ROWS, KNOWLEDGE, Canonical, canonical_steps
from pinn.server.traces.trace_tables import Target, write_manifest, write_table

#: What cycles, links and floors need of the steps, segments, states and journeys of the requests,
#: and the level of knowledge of a step of its snapshots: little enough to keep in memory.
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

#: What the floor of a step and the durations that it is held against need.
_OF_FLOORS = ("prefill_requests", "decode_requests", "prefill_tokens", "kv_blocks_total",
              "kv_usage", "reported_duration_s")  # fmt: skip

#: Rows that the floor is worked out for at most, evenly spread.
_FLOOR_ROWS = 50_000


def write_run(
    folder: Path, run: RawRun, target: Target | None, deployment: Deployment | None
) -> None:
    """Write the tables and, last, the manifest.

    Args:
        folder: To fill.
        run: What was read.
        target: The deployment as the user names it, if it is known.
        deployment: The same, loaded.
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
    tables = {n: write_table(folder, n, table.batches(), table.schema) for n, table in made.items()}
    _check_holds(tables, run)
    batches = cycle_rows.to_batches(BATCH_ROWS)
    tables["cycles"] = write_table(folder, "cycles", batches, cycle_rows.schema)
    reports = run.reports | {table.report.source: table.report for table in made.values()}
    issues = pq.read_table(folder / tables["requests"]["file"], columns=["issue"])["issue"]
    counts = {
        entry["values"] or "none": entry["counts"] for entry in issues.value_counts().to_pylist()
    }
    above_one = pc.greater(run.tables[STEPS]["kv_usage"], 1)
    manifest: dict[str, Any] = {
        "sources": [{"path": run.source, "sha256": run.sha256}],
        "deployment": target,
        "servers": run.servers,
        "segments": _segments(steps),
        "tables": tables,
        "reports": {name: report for name, report in reports.items() if report.read},
        "intervals": cycles.accounting(intervals),
        "medians_by_decodes": cycles.medians_by_decodes(steps, intervals).to_dict("records"),
        "rules": cycles.RULES,
        # Such a usage is no share: in percent, say.
        "implausible": {"kv_usage above 1": pc.sum(above_one).as_py() or 0},
        "request_issues": dict(Counter(counts).most_common()),
        "targets": checks,
        "seconds": {
            "parse": run.parse_s,
            "prepare": prepared - begin,
            "write": time.perf_counter() - prepared,
        },
    }
    write_manifest(folder, manifest)


def _check_holds(tables: dict[str, Any], run: RawRun) -> None:
    """Tables of nothing would take the place of good ones."""
    if not any(table["rows"] for table in tables.values()):
        counts = ", ".join(
            f"{r.read} {name} (refused {r.refused})" for name, r in run.reports.items()
        )
        raise PinnError(f"{run.source} holds no step and no request that can be used: {counts}")


def _floor_checks(
    steps: Canonical, intervals: pd.DataFrame, deployment: Deployment
) -> dict[str, dict[str, Any]]:
    """Verdicts on the candidate columns.

    The floor of a window is the mean of the floors of its ends, that of a single step its own.
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
        "step_s": check_target("step_s", step_s, between),
        "reported_duration_s": check_target("reported_duration_s", reported, floor),
    }


def _segments(steps: pd.DataFrame) -> list[dict[Any, Any]]:
    table = steps.groupby("segment").agg(
        server=("server", "first"),
        steps=("step_id", "size"),
        first_step=("step_id", "min"),
        last_step=("step_id", "max"),
        seconds=("start_s", lambda start: start.max() - start.min()),
        is_ambiguous=("is_ambiguous", "any"),
    )
    return table.reset_index().to_dict("records")
