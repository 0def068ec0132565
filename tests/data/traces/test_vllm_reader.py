"""The OTLP reader: every line, span and event is accepted or refused with a reason."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from trace_runs import (
    attribute,
    engine_run,
    event,
    export,
    lines_of,
    read_lines,
    span,
    summary,
)

from pinn.errors import PinnError
from pinn.measurements.readers.vllm import read_vllm


def refused(raw, level: str) -> dict[str, int]:
    """Reasons of a level, after checking that the sums agree (the report refuses to lie)."""
    return dict(raw.reports[level].refused)


def test_a_written_run_is_read_completely(tmp_path: Path) -> None:
    run = engine_run()
    lines = lines_of(run, step_sampling=1.0)
    raw = read_lines(tmp_path, lines)
    assert raw.reports["lines"].read == len(lines)
    assert not any(report.refused for report in raw.reports.values())
    assert raw.tables["steps"].num_rows == len(run.steps)
    assert raw.reports["events"].read > sum(map(len, run.moments))
    assert raw.tables["engine"].num_rows == raw.tables["front"].num_rows == len(run.arrivals)
    assert raw.servers == ['{"service.name":"vllm"}']
    decodes = [sum(not p.is_prefill for p in step.parts) for step in run.steps]
    table = raw.tables["steps"].sort_by("step_id")
    assert table["decode_requests"].to_pylist() == decodes
    assert table["start_ns"][0].as_py() == 8_123_461_900_000 + round(run.steps[0].start_s * 1e9)


def test_processes_and_short_stretches_change_nothing(tmp_path: Path) -> None:
    lines = lines_of(engine_run(), step_sampling=0.5, snapshot_sampling=0.3)
    one = read_lines(tmp_path, lines)
    (tmp_path / "other").mkdir()
    two = read_lines(tmp_path / "other", lines, workers=2, stretch_bytes=40_000)
    keys = {
        "steps": "step_id",
        "snapshots": "request_id",
        "engine": "queued_s",
        "front": "arrived_s",
    }
    for name, key in keys.items():
        order = [(key, "ascending"), *([("step_id", "ascending")] if name == "snapshots" else [])]
        # As text, in which not-a-number equals itself.
        first, second = (repr(raw.tables[name].sort_by(order).to_pylist()) for raw in (one, two))
        assert first == second, name
    assert one.reports == two.reports


@pytest.mark.parametrize(
    ("line", "level", "reason"),
    [
        (b"{not json}\n", "lines", "invalid JSON"),
        (b"\n", "lines", "blank line"),
        (b'{"resourceMetrics": []}\n', "lines", "no resourceSpans"),
        (b"[1]\n", "lines", "no resourceSpans"),
        (
            b'{"resourceSpans": [7]}\n',
            "groups",
            "resourceSpans entry: Expected `object`, got `int`",
        ),
        (
            b'{"resourceSpans": [{}]}\n',
            "groups",
            "resourceSpans entry: Object missing required field `scopeSpans`",
        ),
        (
            b'{"resourceSpans": [{"scopeSpans": [{"spans": [3]}]}]}\n',
            "spans",
            "span: Expected `object`, got `int`",
        ),
        (b'{"resourceSpans": [{"scope', "lines", "truncated last line"),
        (b"\xff\xfe\n", "lines", "invalid JSON"),
    ],
)
def test_broken_lines_are_counted_by_reason(
    tmp_path: Path, line: bytes, level: str, reason: str
) -> None:
    good = export(span("scheduler_steps_1", summary(5, 1000)))
    raw = read_lines(tmp_path, [good, line])
    assert refused(raw, level) == {reason: 1}
    assert raw.reports["lines"].read == 2
    assert raw.tables["steps"]["step_id"].to_pylist() == [5]


def test_too_long_lines_do_not_fill_the_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("pinn.measurements.readers.vllm.read_stretch.__defaults__", (5000,))
    good = export(span("scheduler_steps_1", summary(5, 1000)))
    raw = read_lines(tmp_path, [good, "x" * 20_000, good], stretch_bytes=4096)
    assert refused(raw, "lines") == {"line too long": 1}
    assert raw.tables["steps"].num_rows == 2


def test_events_are_refused_by_what_they_lack(tmp_path: Path) -> None:
    whole = summary(5, 1000)
    no_id = {**whole, "attributes": whole["attributes"][1:]}
    bad = summary(6, 2000, queue__running_depth="many")
    unknown = event("step.NEW_EVENT", step__id=3)
    untimed = event("journey.QUEUED", scheduler__step=1)
    outside = event("journey.QUEUED", ts__monotonic_ns=5)
    odd = {"name": "step.BATCH_SUMMARY", "attributes": 7}
    raw = read_lines(
        tmp_path,
        [
            export(span("scheduler_steps_1", whole, no_id, bad, unknown, untimed, outside, odd)),
            export(span("GET /health", number=9)),
        ],
    )
    assert refused(raw, "events") == {
        "step.BATCH_SUMMARY without step.id": 1,
        "event with an invalid value of queue.running_depth": 1,
        "unknown event 'step.NEW_EVENT'": 1,
        "journey.QUEUED without a monotonic time": 1,
        "request event outside a request's span": 1,
        "event: Expected `array`, got `int`": 1,
    }
    assert refused(raw, "spans") == {"unknown span 'GET /health'": 1}
    assert raw.tables["steps"].num_rows == 1


def test_unknown_attributes_are_kept_aside(tmp_path: Path) -> None:
    plain = summary(5, 1000)
    more = summary(6, 2000, new__counter=17)
    listed = summary(7, 3000)
    listed["attributes"].append({"key": "new.list", "value": {"arrayValue": {"values": []}}})
    raw = read_lines(tmp_path, [export(span("scheduler_steps_1", plain, more, listed))])
    table = raw.tables["steps"].sort_by("step_id")
    extra = [x and json.loads(x) for x in table["extra"].to_pylist()]
    assert extra == [
        None,
        {"new.counter": {"intValue": "17"}},
        {"new.list": {"arrayValue": {"values": []}}},
    ]


def test_older_names_are_aliases(tmp_path: Path) -> None:
    core = span(
        "llm_core",
        event("QUEUED", ts__monotonic=8.5, scheduler_step=3, prefill_total_tokens=40),
        gen_ai__request_id="cmpl-1",
    )
    front = span(
        "llm_request", event("ARRIVED", event_ts_monotonic=8.25), number=2, gen_ai__request_id="c"
    )
    step = event(
        "BATCH_SUMMARY",
        **{
            "step_id": 4, "step_ts_start_ns": 9, "batch_num_prefill_reqs": 1,
            "batch_num_decode_reqs": 0, "batch_prefill_tokens": 7, "batch_decode_tokens": 0,
        },
    )  # fmt: skip
    raw = read_lines(tmp_path, [export(core, front, span("scheduler_steps_0", step, number=3))])
    assert not refused(raw, "events")
    (engine,), (front,) = raw.tables["engine"].to_pylist(), raw.tables["front"].to_pylist()
    assert (engine["prefill_total"], engine["queued_s"], engine["queued_step"]) == (40, 8.5, 3)
    assert front["arrived_s"] == 8.25
    assert (engine["request_id"], front["request_id"]) == ("cmpl-1", "c")
    assert raw.tables["steps"]["prefill_tokens"].to_pylist() == [7]


def test_seconds_stand_in_for_nanoseconds_where_those_are_missing(tmp_path: Path) -> None:
    both = {"ts__monotonic": 8.5, "ts__monotonic_ns": 8_400_000_000}
    lines = [
        export(span("llm_core", event("journey.QUEUED", **both))),
        export(span("llm_core", event("journey.QUEUED", ts__monotonic=8.5), number=2)),
        export(span("llm_core", event("journey.QUEUED", **both), number=3)),
    ]
    raw = read_lines(tmp_path, lines)
    assert raw.tables["engine"]["queued_s"].to_pylist() == pytest.approx([8.4, 8.5, 8.4])
    read = {level: report.read for level, report in raw.reports.items()}
    assert read == {"lines": 3, "groups": 6, "spans": 3, "events": 3}
    assert not refused(raw, "events")


def test_numbers_written_as_other_numbers(tmp_path: Path) -> None:
    step = summary(5, 1000, kv__usage_gpu_ratio=0)  # a whole number for a share
    step["attributes"][4] = {"key": "queue.waiting_depth", "value": {"doubleValue": 3.0}}
    step["attributes"][0] = {"key": "step.id", "value": {"intValue": 5}}
    raw = read_lines(tmp_path, [export(span("scheduler_steps_1", step))])
    row = raw.tables["steps"].to_pylist()[0]
    assert (row["kv_usage"], row["waiting_depth"], row["step_id"]) == (0.0, 3, 5)


def test_too_big_an_integer_refuses_its_event(tmp_path: Path) -> None:
    raw = read_lines(tmp_path, [export(span("scheduler_steps_1", summary(2**70, 1000)))])
    assert refused(raw, "events") == {"event with an invalid value of step.id": 1}


def test_servers_are_told_apart_by_their_resource(tmp_path: Path) -> None:
    lines = [
        export(span("scheduler_steps_1", summary(n, 1000 * n)), service=f"vllm-{n % 2}")
        for n in range(1, 5)
    ]
    raw = read_lines(tmp_path, lines)
    assert len(raw.servers) == 2
    assert raw.tables["steps"]["server"].to_pylist() == [0, 1, 0, 1]


def test_an_attribute_can_be_without_text_encoding(tmp_path: Path) -> None:
    core = span("llm_core", gen_ai__request__id="naïve-✓")
    raw = read_lines(tmp_path, [export(core)])
    assert raw.tables["engine"]["request_id"].to_pylist() == ["naïve-✓"]
    assert isinstance(raw.tables["steps"], pa.Table)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(PinnError, match="does not exist"):
        read_vllm(tmp_path / "none.json", tmp_path / "raw")


def test_attribute_helper_writes_the_wire_format() -> None:
    assert attribute("a", 1) == {"key": "a", "value": {"intValue": "1"}}
