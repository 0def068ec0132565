"""Requests joined from spans, and segments of servers and clocks."""

from pathlib import Path

import numpy as np
import pytest
from trace_runs import engine_run, event, export, lines_of, read_lines, span, summary

from pinn.measurements.traces.requests import canonical_requests
from pinn.measurements.traces.steps import canonical_steps, find_segments

MS = 1_000_000


def journey(label: str, time_ms: int, step: int, **more: object) -> dict:
    return event(
        f"journey.{label}", ts__monotonic_ns=time_ms * MS, scheduler__step=step,
        prefill__total_tokens=100, **more,
    )  # fmt: skip


def whole_journey() -> list[dict]:
    return [
        journey("QUEUED", 10, 1),
        journey("SCHEDULED", 15, 2, prefill__done_tokens=16, schedule__kind="FIRST"),
        journey("FIRST_TOKEN", 25, 2, decode__done_tokens=1),
        journey("FINISHED", 65, 6, decode__done_tokens=5, finish__status="length"),
    ]


def front(number: int = 1, *labels: str) -> dict:
    moments = {"ARRIVED": 0.008, "DEPARTED": 0.066, "ABORTED": 0.050}
    events = [
        event(f"api.{label}", event__ts__monotonic=moments[label])
        for label in labels or ("ARRIVED", "DEPARTED")
    ]
    return span("llm_request", *events, number=number, gen_ai__request__id="cmpl-x")


def core(*events: dict, number: int = 2, parent: int = 1) -> dict:
    return span(
        "llm_core", *events, number=number, parent=parent, gen_ai__request__id="cmpl-x-0-hash"
    )


def requests(folder: Path, *parts: dict | str):
    """Requests of spans, or of lines."""
    lines = parts if isinstance(parts[0], str) else [export(*parts)]
    raw = read_lines(folder, list(lines))
    found = canonical_requests(raw.tables["engine"], raw.tables["front"])
    return found.table(), {"request spans": found.report, **raw.reports}


def test_engine_and_api_spans_are_joined_by_the_parent(tmp_path: Path) -> None:
    table, reports = requests(tmp_path, core(*whole_journey()), front())
    (row,) = table.to_pylist()
    assert row["request_id"] == "cmpl-x-0-hash"
    assert row["api_request_id"] == "cmpl-x"
    assert row["issue"] is None
    assert row["arrival_to_queue_s"] == pytest.approx(0.002)
    assert row["queue_to_schedule_s"] == pytest.approx(0.005)
    assert row["schedule_to_first_token_s"] == pytest.approx(0.010)
    assert row["output_token_s"] == pytest.approx(0.010)
    assert row["completion_s"] == pytest.approx(0.001)
    assert (row["prompt_tokens"], row["cached_tokens"], row["output_tokens"]) == (100, 16, 5)
    assert row["status"] == "length"
    assert all(not r.refused for r in reports.values())


def test_the_order_in_the_file_does_not_matter(tmp_path: Path) -> None:
    table, _ = requests(tmp_path, front(), core(*reversed(whole_journey())))
    assert table["queue_to_schedule_s"].to_pylist() == [pytest.approx(0.005)]
    assert table["issue"].to_pylist() == [None]


@pytest.mark.parametrize("missing", range(4))
def test_missing_events_are_named_and_leave_their_targets_null(tmp_path: Path, missing) -> None:
    events = whole_journey()
    label = events.pop(missing)["name"].removeprefix("journey.")
    table, _ = requests(tmp_path, core(*events), front())
    row = table.to_pylist()[0]
    assert row["issue"] == f"no {label}"
    nulls = {
        "QUEUED": {"arrival_to_queue_s", "queue_to_schedule_s"},
        "SCHEDULED": {"queue_to_schedule_s", "schedule_to_first_token_s"},
        "FIRST_TOKEN": {"schedule_to_first_token_s", "output_token_s"},
        "FINISHED": {"output_token_s", "completion_s"},
    }[label]
    targets = ("arrival_to_queue_s", "queue_to_schedule_s", "schedule_to_first_token_s",
               "output_token_s", "completion_s")  # fmt: skip
    assert {name for name in targets if row[name] is None} == nulls


def test_impossible_orders_are_flagged(tmp_path: Path) -> None:
    events = whole_journey()
    events[1] = journey("SCHEDULED", 5, 2, schedule__kind="FIRST")  # before it was queued
    table, _ = requests(tmp_path, core(*events), front())
    row = table.to_pylist()[0]
    assert row["issue"] == "events out of order"
    assert row["queue_to_schedule_s"] is None


def test_orphans_and_childless_spans_stay_as_requests(tmp_path: Path) -> None:
    table, _ = requests(
        tmp_path, core(*whole_journey(), parent=77), front(1), front(5, "ARRIVED", "ABORTED")
    )
    assert sorted(table["issue"].to_pylist()) == [
        "no engine span",
        "no engine span",
        "no parent span",
    ]
    orphan = next(r for r in table.to_pylist() if r["issue"] == "no parent span")
    assert orphan["queue_to_schedule_s"] == pytest.approx(0.005)
    assert orphan["arrival_to_queue_s"] is None


def test_spans_written_twice_count_once(tmp_path: Path) -> None:
    twice = core(*whole_journey())
    table, reports = requests(tmp_path, twice, front(), twice)
    assert table.num_rows == 1
    assert dict(reports["request spans"].refused) == {"span written twice": 1}
    assert table["issue"].to_pylist() == [None]


def test_events_written_twice_in_a_span_take_the_first(tmp_path: Path) -> None:
    events = [*whole_journey(), journey("FIRST_TOKEN", 40, 4)]
    table, reports = requests(tmp_path, core(*events), front())
    assert table["schedule_to_first_token_s"].to_pylist() == [pytest.approx(0.010)]
    assert reports["events"].refused == {"journey.FIRST_TOKEN twice in a span": 1}


def test_preemptions_are_listed_in_order(tmp_path: Path) -> None:
    events = whole_journey()
    events[3:3] = [
        journey("PREEMPTED", 30, 3, decode__done_tokens=2, num_preemptions=1),
        journey("SCHEDULED", 40, 5, schedule__kind="RESUME", prefill__done_tokens=32),
    ]
    table, _ = requests(tmp_path, core(*events), front())
    row = table.to_pylist()[0]
    assert row["scheduled_step"] == 2
    assert (row["preempted_steps"], row["preempted_outputs"]) == ([3], [2])
    assert (row["resumed_steps"], row["resumed_cached"]) == ([5], [32])
    assert row["preemptions"] == 1


def test_steps_written_twice_and_absurd_ones_are_refused(tmp_path: Path) -> None:
    one = summary(5, 1000)
    raw = read_lines(
        tmp_path,
        [
            export(span("scheduler_steps_1", one, summary(6, 2000))),
            export(span("scheduler_steps_2", one, summary(7, -5), number=2)),
            export(span("scheduler_steps_3", summary(8, 4000, batch__prefill_tokens=-1), number=3)),
        ],
    )
    report = canonical_steps(raw.tables["steps"]).report
    assert (report.read, report.accepted) == (5, 2)
    assert dict(report.refused) == {
        "start time or step number not positive": 1,
        "a count is negative or implausibly large": 1,
        "written twice": 1,
    }


def segments_of(step_id, start_s, wall_s=None, server=None):
    start_ns = (np.asarray(start_s) * 1e9).astype(np.int64)
    wall_ns = (
        np.zeros_like(start_ns) if wall_s is None else (np.asarray(wall_s) * 1e9).astype(np.int64)
    )
    server = np.zeros_like(start_ns) if server is None else np.asarray(server)
    return find_segments(server, np.asarray(step_id), start_ns, wall_ns)


def test_a_restart_begins_a_segment() -> None:
    found = segments_of([100, 101, 102, 1, 2, 3], [1.0, 1.1, 1.2, 60.0, 60.1, 60.2])
    assert found.segment.tolist() == [0, 0, 0, 1, 1, 1]
    assert not found.is_ambiguous.any()


def test_rows_out_of_order_are_sorted_by_start() -> None:
    found = segments_of([102, 100, 101], [1.2, 1.0, 1.1])
    assert found.order.tolist() == [1, 2, 0]
    assert found.segment.tolist() == [0, 0, 0]


def test_a_clock_reset_begins_a_segment_even_where_steps_go_on() -> None:
    start, wall = [500.0, 500.1, 2.0, 2.1], [1e9, 1e9 + 0.1, 1e9 + 60, 1e9 + 60.1]
    found = segments_of([10, 11, 12, 13], start, wall)
    assert len(set(found.segment[:2])) == 1
    assert set(found.segment[:2]).isdisjoint(found.segment[2:])


def test_servers_with_marks_are_segments_of_their_own() -> None:
    step = [5, 5, 6, 6, 7, 7]
    found = segments_of(step, np.arange(1, 7) * 0.1, server=[0, 1, 0, 1, 0, 1])
    assert found.segment.tolist() == [0, 1, 0, 1, 0, 1]


def test_servers_on_two_hosts_differ_by_their_clocks() -> None:
    wall = 1e9 + np.arange(6) * 0.1
    start = np.where(np.arange(6) % 2, 50.0, 9000.0) + np.arange(6) * 0.1
    found = segments_of([5, 50, 6, 51, 7, 52], start, wall)
    assert len(set(found.segment[::2])) == 1
    assert len(set(found.segment[1::2])) == 1
    assert found.segment[0] != found.segment[1]


def test_servers_without_any_mark_are_ambiguous() -> None:
    step = np.stack((np.arange(100), 5000 + np.arange(100)), axis=1).ravel()
    found = segments_of(step, 1 + np.arange(200) * 0.005)
    assert found.is_ambiguous.all()


def test_a_written_run_gives_every_request(tmp_path: Path) -> None:
    run = engine_run()
    table, _ = requests(tmp_path, *lines_of(run))
    assert table["issue"].null_count == len(run.arrivals)
    assert table["prompt_tokens"].to_pylist() == [a.prompt_tokens for a in run.arrivals]
    assert table["cached_tokens"].to_pylist() == [a.cached_tokens for a in run.arrivals]
    assert table["output_tokens"].to_pylist() == [a.output_tokens for a in run.arrivals]
