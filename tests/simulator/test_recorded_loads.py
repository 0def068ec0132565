"""Recorded loads: whether a file has times, under which names, and how much of it is sent."""

from __future__ import annotations

import json

import numpy as np
import pytest

import pinn
from pinn.errors import PinnError
from pinn.simulator.workloads import rates
from pinn.simulator.workloads.load import LoadFlags, asked_load, load_workload

OWN = "arrival_s,prompt_tokens,output_tokens"


def write(tmp_path, text, name="load.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def conversations(tmp_path, count, turns):
    pairs = [{"from": "human", "value": "x" * 40}, {"from": "gpt", "value": "y" * 40}]
    return write(tmp_path, json.dumps([{"conversations": pairs * turns}] * count), "texts.json")


@pytest.mark.parametrize("turns", [1, 3])
def test_texts_have_no_times_whatever_their_turns(tmp_path, turns):
    path = conversations(tmp_path, 40, turns)
    assert not load_workload(path).timed
    with pytest.raises(PinnError, match="does not state when conversations start"):
        asked_load(path, {}, None)[0].draw()
    found = asked_load(path, {}, None)[0].draw(2.0)
    assert (len(found), found.timed) == (40 * turns, True)  # once, not again and again
    assert rates.mean_rate_per_s(found) == pytest.approx(2.0)
    assert (found.offset_s != load_workload(path, 1, 2.0).offset_s).any()
    closed = asked_load(path, {"concurrency": 4}, None)[0].draw()
    assert (closed.concurrency, closed.offset_s.max()) == (4, 0.0)


def test_a_trace_whose_sessions_begin_at_once_has_times(tmp_path):
    rows = "0,4,2,a,\n0,4,2,b,\n0,10,2,a,5\n"
    path = write(tmp_path, f"{OWN},session_id,think_time_s\n{rows}")
    found = asked_load(path, {}, None)[0].draw()
    assert (found.timed, found.follows.tolist()) == (True, [-1, -1, 0])


def test_requests_that_are_not_wanted_are_not_repeated(tmp_path, monkeypatch):
    """A day of one request per minute at 1,000 requests/s would be 86 million requests."""
    rows = "".join(f"{60 * i},9,2\n" for i in range(1440))
    path = write(tmp_path, f"{OWN}\n{rows}")
    monkeypatch.setattr(rates, "repeated", pytest.fail)
    found = load_workload(path, rate_per_s=1000.0, most=100)
    assert len(found) == 100
    assert rates.mean_rate_per_s(found) == pytest.approx(1000)
    with pytest.raises(PinnError, match="at most 1,000,000"):
        load_workload(path, rate_per_s=1000.0)


def test_own_columns_may_be_spelled_otherwise(tmp_path):
    header = "Timestamp (ms),Input Tokens,Output-Tokens,Session ID,Timeout_S,Prompt tokens"
    found = load_workload(write(tmp_path, f"{header}\n0,7,2,a,9,\n1500,20,3,a,,21\n"))
    assert found.prompt_tokens.tolist() == [7, 21]
    assert found.offset_s.tolist() == [0.0, 1.5]
    assert found.timeout_s.tolist() == [9.0, np.inf]
    assert found.shared_tokens.tolist() == [0, 9]
    twice = write(tmp_path, f"{OWN},Session ID,session-id\n0,1,1,a,b\n", "twice.csv")
    with pytest.raises(PinnError, match="has two columns named session_id: rename"):
        load_workload(twice)


def test_a_round_that_waits_needs_no_time_under_any_name(tmp_path):
    rows = "3,4,2,a,\n,9,2,a,5\n,4,2,b,\nx,9,2,a,5\n"
    header = "timestamp_s,context_tokens,generated_tokens,session_id,think_time_s"
    found = load_workload(write(tmp_path, f"{header}\n{rows}"))
    assert (found.offset_s.tolist(), found.follows.tolist()) == ([0.0, 5.0], [-1, 0])
    assert found.reading.refused == {"without timestamp_s": 2}


@pytest.mark.parametrize(("asked", "sent"), [(7, None), (8, 8), (17, 16)])
def test_conversations_are_sent_whole_or_refused(tmp_path, asked, sent):
    keys = {"prompt_tokens": 40, "output_tokens": 2, "turns": 8, "concurrency": 2}
    path = write(tmp_path, json.dumps({**keys, "requests": asked}), "load.yaml")
    flags = LoadFlags(input_len=40, output_len=2, turns=8, concurrency=2, num_prompts=asked)
    for draw in (lambda: load_workload(path), lambda: flags.draw(None, 0)):
        if sent is None:
            with pytest.raises(PinnError, match="the load has 7 requests, fewer than the"):
                draw()
        else:
            assert len(draw()) == sent


def test_prompts_of_a_group_are_of_no_conversation():
    keys = {"prompt_tokens": 40, "output_tokens": 2, "turns": 2, "concurrency": 2, "requests": 8}
    with pytest.raises(
        PinnError,
        match=r"prompts_per_group does not apply to conversations.*: remove prompts_per_group",
    ):
        pinn.simulate({**keys, "groups": 2, "prompts_per_group": 3}, "Llama-3.1-8B", "H100")
