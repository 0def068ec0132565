"""Cycles and windows: what is kept, what is set aside and why."""

import numpy as np
import pandas as pd
import pytest

from pinn.measurements.traces.cycles import (
    JourneyEvidence,
    accounting,
    check_target,
    cycle_table,
    medians_by_decodes,
)
from pinn.measurements.traces.interval_batches import temporal_split


def steps_frame(count: int = 40, **columns: object) -> pd.DataFrame:
    """Steps 100, 101, ... of one busy server, 10 ms apart, 8 decodes each."""
    frame = pd.DataFrame(
        {
            "segment": np.zeros(count, dtype=int),
            "step_id": 100 + np.arange(count),
            "start_s": 5.0 + 0.01 * np.arange(count),
            "prefill_requests": 0,
            "decode_requests": 8,
            "prefill_tokens": 0,
            "decode_tokens": 8,
            "running_depth": 8,
            "waiting_depth": 0,
            "finished": 0,
            "preempted": 0,
            "is_ambiguous": False,
        }
    )
    return frame.assign(**columns)


def with_value(frame: pd.DataFrame, row: int, column: str, value: object) -> pd.DataFrame:
    frame = frame.copy()
    frame.loc[row, column] = value
    return frame


def reasons(frame: pd.DataFrame, **evidence: np.ndarray) -> dict[int, str]:
    journeys = JourneyEvidence.none(len(frame))
    for name, value in evidence.items():
        getattr(journeys, name)[:] = value
    table = cycle_table(frame, journeys)
    aside = table["set_aside"].dropna()
    return {int(i): str(r) for i, r in aside.items() if r != "last of its segment"}


def test_busy_steps_give_single_cycles() -> None:
    table = cycle_table(steps_frame())
    assert table["step_s"].iloc[:-1].to_numpy() == pytest.approx(0.01)
    assert table["kind"].iloc[0] == "single"
    assert accounting(table) == {
        "single cycles": 39, "windows": 0, "set aside: last of its segment": 1
    }  # fmt: skip


def test_sampled_steps_give_window_means() -> None:
    frame = steps_frame().iloc[[0, 3, 4, 20]].reset_index(drop=True)
    table = cycle_table(frame)
    assert table["steps"].tolist()[:3] == [3, 1, 16]
    assert table["kind"].tolist()[:3] == ["window", "single", "window"]
    assert table["batches"].tolist()[:3] == ["ends", "summary", "ends"]
    assert table["step_s"].to_numpy()[:3] == pytest.approx(0.01)


def test_every_step_is_accounted_for_whatever_happens() -> None:
    draw = np.random.default_rng(0)
    frame = steps_frame(300)
    for column in ("running_depth", "waiting_depth", "finished", "preempted", "decode_requests"):
        frame[column] = draw.integers(0, 4, 300)
    frame["segment"] = np.sort(draw.integers(0, 5, 300))
    frame["step_id"] = draw.integers(0, 400, 300)
    frame["is_ambiguous"] = draw.random(300) < 0.1
    assert sum(accounting(cycle_table(frame)).values()) == 300


@pytest.mark.parametrize(
    ("row", "column", "value", "expected"),
    [
        (20, "decode_requests", 0, {19: "idle server", 20: "idle server"}),
        (20, "finished", 8, {20: "idle server"}),
        (20, "preempted", 1, {19: "preemption", 20: "preemption"}),
        (20, "is_ambiguous", True, {20: "two servers in one"}),
    ],
)
def test_set_aside_by_what_the_summary_says(row, column, value, expected) -> None:
    found = reasons(with_value(steps_frame(), row, column, value))
    warm_up = {k: v for k, v in found.items() if v == "warm-up"}
    assert {k: v for k, v in found.items() if k not in warm_up} == expected
    assert bool(warm_up) == ("idle server" in expected.values())


def test_finishing_all_is_not_idle_while_others_wait() -> None:
    frame = with_value(with_value(steps_frame(), 20, "finished", 8), 20, "waiting_depth", 2)
    assert reasons(frame) == {}


def test_steps_after_an_idle_server_warm_up() -> None:
    frame = with_value(steps_frame(60), 20, "decode_requests", 0)
    found = reasons(frame)
    warm = [row for row, reason in found.items() if reason == "warm-up"]
    assert warm == list(range(21, 41))


def test_the_first_steps_of_a_process_warm_up() -> None:
    found = reasons(steps_frame(step_id=np.arange(3, 43)))
    assert list(found) == list(range(17))
    assert set(found.values()) == {"warm-up"}


def test_a_stall_is_set_aside_but_a_long_prompt_is_not() -> None:
    frame = steps_frame(60)
    frame.loc[30:, "start_s"] += 0.2
    assert reasons(frame) == {29: "stalled"}
    assert reasons(with_value(frame, 29, "prefill_tokens", 2000)) == {}


def test_a_clock_that_does_not_advance() -> None:
    frame = with_value(steps_frame(), 20, "start_s", 5.19)
    assert reasons(frame)[19] == "clock does not advance"


def test_windows_with_few_requests_may_hide_an_idle_server() -> None:
    frame = steps_frame(decode_requests=1, running_depth=1).iloc[::5].reset_index(drop=True)
    assert set(reasons(frame).values()) == {"few requests"}
    known = np.ones(len(frame), dtype=bool)
    assert reasons(frame, agrees=known, is_certain=known) == {}


def test_journeys_tell_of_idle_servers_and_preemptions_inside() -> None:
    frame = steps_frame().iloc[::5].reset_index(drop=True)
    at_2 = np.arange(len(frame)) == 2
    assert reasons(frame, preempts_until=at_2) == {2: "preemption"}
    assert reasons(frame, idle_until=at_2)[2] == "idle server"


def test_medians_by_decodes_take_good_cycles_only() -> None:
    frame = steps_frame(60)
    frame.loc[30:, "decode_requests"] = 9
    frame.loc[31:, "start_s"] += 0.5
    medians = medians_by_decodes(frame, cycle_table(frame)).set_index("decode_requests")
    assert medians.loc[8, "median_step_s"] == pytest.approx(0.01)
    assert medians["cycles"].to_dict() == {8: 30, 9: 28}  # less the stalled one and the last


def test_temporal_split_is_in_time_and_inside_each_run() -> None:
    frame = pd.concat([steps_frame(101), steps_frame(51, segment=1)], ignore_index=True)
    cycles = cycle_table(frame)
    split = temporal_split(cycles)
    start = cycles["start_s"].to_numpy()
    segment = cycles["segment"].to_numpy()
    for number, count in ((0, 100), (1, 50)):
        parts = [p[segment[p] == number] for p in split]
        assert [len(p) for p in parts] == pytest.approx(
            [0.6 * count, 0.2 * count, 0.2 * count], abs=2.1
        )
        ends = [float(start[p].max()) for p in parts]
        assert ends == sorted(ends)


def test_a_column_below_the_floor_is_no_target() -> None:
    floor = np.full(100, 0.010)
    assert check_target("step_s", np.full(100, 0.015), floor)["is_target"]
    mixed = np.where(np.arange(100) < 49, 0.001, 0.015)
    assert check_target("step_s", mixed, floor)["is_target"]  # most rows are possible
    bad = check_target("reported_duration_s", np.full(100, 3e-4), floor)
    assert not bad["is_target"]
    assert bad["below_floor"] == 100
    assert "schedule() call" in bad["explanation"]
    assert not check_target("step_s", np.full(3, np.nan), floor[:3])["is_target"]
