"""Readers of public traces: lines made up after their formats, counted row by row."""

from __future__ import annotations

import json
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.errors import PinnError
from pinn.simulator.workloads.hit_rate import with_hit_rate
from pinn.simulator.workloads.load import LoadFlags, asked_load, load_workload
from pinn.simulator.workloads.public_traces import json_entries
from pinn.simulator.workloads.rates import mean_rate_per_s

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,0
2023-11-16 18:15:51.3910170,91,16
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,\
Total tokens,Log Type
5,1,2.5,ChatGPT,472,18,490,Conversation log
45,1,3,ChatGPT,1087,230,1317,Conversation log
118,,0,GPT-4,417,0,417,API log
120,,4.0,GPT-4,1360,15,1375,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1000, "output_length": 52, "hash_ids": [46, 47]}
{"timestamp": 3000, "input_length": 1600, "output_length": 26, "hash_ids": [46, 47, 48, 49]}
{"timestamp": 1500, "input_length": 700, "output_length": 9, "hash_ids": [46, 50]}
{"timestamp": 4000, "input_length": 700, "output_length": 0, "hash_ids": [46, 50]}
{"timestamp": 5000, "input_length": 1100, "output_length": 3, "hash_ids": [46, 48, 49]}
"""
SHAREGPT = [
    {"id": "a", "conversations": [
        {"from": "human", "value": "x" * 40}, {"from": "gpt", "value": "y" * 80},
        {"from": "human", "value": "z" * 4}, {"from": "gpt", "value": "ü" * 2}]},
    {"id": "b", "conversations": [{"from": "human", "value": "nobody answers"},
                                  {"from": [], "value": "an author that is no name"}]},
    {"messages": [{"role": "system", "content": "s" * 8},
                  {"role": "user", "content": [{"type": "text", "text": "u" * 8}]},
                  {"role": "assistant", "content": "w" * 3}]},
]  # fmt: skip


def write(tmp_path, text, name):
    path = tmp_path / name
    path.write_text(text if isinstance(text, str) else json.dumps(text))
    return path


def test_azure_2023(tmp_path):
    load = load_workload(write(tmp_path, AZURE_2023, "azure.csv"))
    assert load.prompt_tokens.tolist() == [374, 396, 91]
    assert load.output_tokens.tolist() == [44, 109, 16]
    assert load.offset_s == pytest.approx([0, 4.314579, 4.710427], abs=1e-6)
    said = "4 read, 3 accepted, 1 refused (1 without GeneratedTokens)"
    assert str(load.reading) == said


def test_azure_2024_has_a_time_zone(tmp_path):
    load = load_workload(write(tmp_path, AZURE_2024, "azure.csv"))
    assert load.offset_s == pytest.approx([0, 0.007405], abs=1e-6)
    moved = AZURE_2024.replace("00.017335+00:00", "00.017335-01:30")
    later = load_workload(write(tmp_path, moved, "moved.csv"))
    assert later.offset_s[1] == pytest.approx(5400.007405, abs=1e-6)


def test_burstgpt_counts_failures_and_later_rounds_repeat_earlier_ones(tmp_path):
    load = load_workload(write(tmp_path, BURSTGPT, "burst.csv"))
    assert load.offset_s.tolist() == [0, 40, 115]
    assert load.prompt_tokens.tolist() == [472, 1087, 1360]
    assert (load.shares_with.tolist(), load.shared_tokens[1]) == ([-1, 0, -1], 490)
    assert (load.reading.rows, load.reading.accepted) == (4, 3)
    assert load.reading.refused == {"without Response tokens": 1}


def test_mooncake_s_hashes_say_which_prompts_begin_alike(tmp_path):
    load = load_workload(write(tmp_path, MOONCAKE, "mooncake.jsonl"))
    assert load.offset_s.tolist() == [0.0, 1.5, 3.0, 5.0]
    assert load.prompt_tokens.tolist() == [1000, 700, 1600, 1100]
    assert load.shares_with.tolist() == [-1, 0, 0, 0]
    # The third has both blocks of the first, whose second one is not full; in the last, 48 and 49
    # come after other tokens than in the third.
    assert load.shared_tokens.tolist() == [0, 512, 1000, 512]
    assert load.reading.refused == {"with output_length below 1 or above 100,000,000": 1}
    listed = [json.loads(line) for line in MOONCAKE.splitlines()]
    again = load_workload(write(tmp_path, listed, "mooncake.json"))
    assert again.shared_tokens.tolist() == load.shared_tokens.tolist()
    fast = load_workload(tmp_path / "mooncake.jsonl", None, 8.0)
    assert mean_rate_per_s(fast) == pytest.approx(8)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12))
def test_shared_tokens_are_those_of_the_longest_common_beginning(tmp_path_factory, hashes):
    lines = [
        {"timestamp": i, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for i, ids in enumerate(hashes)
    ]
    path = tmp_path_factory.mktemp("m") / "m.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    load = load_workload(path)
    for r, ids in enumerate(hashes):
        common = [
            len([*takewhile(lambda pair: pair[0] == pair[1], zip(ids, other, strict=False))])
            for other in hashes[:r]
        ]
        assert load.shared_tokens[r] == 512 * max(common, default=0)


def test_texts_of_conversations_are_turns_that_wait(tmp_path):
    path = write(tmp_path, SHAREGPT, "share.json")
    load = load_workload(path)
    assert load.prompt_tokens.tolist() == [10, 31, 4]
    assert load.output_tokens.tolist() == [20, 1, 1]
    assert load.follows.tolist() == [-1, 0, -1]
    assert load.shared_tokens.tolist() == [0, 30, 0]
    assert load.reading.refused == {"without a model's answer to a prompt": 1}
    assert "one token per 4 bytes of text" in str(load.reading)
    open_loop = load_workload(path, 1, 2.0)
    assert mean_rate_per_s(open_loop) == pytest.approx(2.0)
    lines = write(tmp_path, "\n".join(map(json.dumps, SHAREGPT)), "share.jsonl")
    assert load_workload(lines).prompt_tokens.tolist() == [10, 31, 4]
    assert len(load_workload(path, most=1)) == 1


def test_flags_beside_a_file_say_who_sends_it(tmp_path):
    path = write(tmp_path, SHAREGPT, "share.json")
    flags = {"concurrency": 2, "think_time": 3.0, "num_prompts": 2}
    sent = asked_load(path, flags, 7)[0].draw()
    assert (sent.concurrency, len(sent)) == (2, 2)
    assert sent.offset_s[1] > 0
    with pytest.raises(PinnError, match="give --rate 8, or --concurrency 64"):
        asked_load(path, {}, None)[0].draw()
    with pytest.raises(PinnError, match="no conversations: omit --think-time"):
        asked_load(write(tmp_path, AZURE_2023, "a.csv"), {"think_time": 1.0}, None)[0].draw()


def test_rounds_of_a_trace_wait_where_it_names_the_pause(tmp_path):
    text = (
        "session_id,arrival_s,prompt_tokens,output_tokens,think_time_s\n"
        "a,10,100,10,\nb,11,50,5,\na,,130,7,2.5\na,,160,7,0.5\n"
    )
    load = load_workload(write(tmp_path, text, "t.csv"))
    assert load.follows.tolist() == [-1, 0, 1, -1]
    assert load.offset_s.tolist() == [0.0, 2.5, 0.5, 1.0]
    assert load.shared_tokens.tolist() == [0, 110, 137, 0]
    with pytest.raises(PinnError, match="line 3: think_time_s needs an earlier turn"):
        load_workload(write(tmp_path, text.replace("b,11,50,5,", "b,11,50,5,1"), "u.csv"))
    with pytest.raises(PinnError, match="line 4: arrival_s is missing"):
        load_workload(write(tmp_path, text.replace("7,2.5", "7,"), "v.csv"))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("when,prompt_tokens,output_tokens", "arrival_s or arrival_ms .* got when, prompt_tokens"),
        (
            "arrival_s,input_len,output_tokens,prompt_len",
            "input_len and prompt_len could each be .*: rename",
        ),
        ("timestamp,input_length,output_length", "timestamp is '1', whose unit is unknown"),
        (
            "arrival_s,words,output_tokens",
            "lacks the column of the prompt length: .* got arrival_s, words",
        ),
    ],
)
def test_columns_that_cannot_be_told_are_named(tmp_path, header, says):
    cells = ",".join("1" for _ in header.split(","))
    with pytest.raises(PinnError, match=says):
        load_workload(write(tmp_path, f"{header}\n{cells}\n", "t.csv"))


def test_other_names_with_units_are_recognized(tmp_path):
    text = "start_time_ms,Num Input Tokens,completionTokens\n500,10,2\n1500,x,2\n2500,30,3\n"
    text += "2600,30.5,3\n"
    load = load_workload(write(tmp_path, text, "t.csv"))
    assert (load.offset_s.tolist(), load.prompt_tokens.tolist()) == ([0.0, 2.0], [10, 30])
    assert load.reading.refused == {"without Num Input Tokens": 2}
    own = load_workload(write(tmp_path, "arrival_ms,prompt_tokens,output_len\n7,5,4\n", "u.csv"))
    assert own.output_tokens.tolist() == [4]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "got an entry with (None|no keys)"),
        ('[{"a": 1}]', "expected entries with timestamp.* got an entry with a"),
        (
            '[{"timestamp": 1, "input_length": 0, "output_length": 1}]',
            "has no usable request: 1 read",
        ),
        ('[{"messages": []}]', "has no usable conversation"),
        ('[{"messages": [', "the JSON is malformed after 0 entries"),
    ],
)
def test_json_that_is_no_load_is_refused(tmp_path, text, says):
    with pytest.raises(PinnError, match=says):
        load_workload(write(tmp_path, text, "x.json"))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.text(max_size=9) | st.integers(), max_size=3)),
    st.booleans(),
    st.integers(1, 9),
)
def test_entries_are_read_whatever_the_pieces(tmp_path_factory, entries, listed, size):
    from pinn.simulator.workloads import public_traces

    path = tmp_path_factory.mktemp("j") / "x.json"
    path.write_text(json.dumps(entries) if listed else "\n".join(map(json.dumps, entries)))
    before, public_traces._CHUNK_BYTES = public_traces._CHUNK_BYTES, size
    try:
        assert list(json_entries(path)) == entries
    finally:
        public_traces._CHUNK_BYTES = before


@settings(max_examples=40, deadline=None)
@given(st.floats(0.01, 0.9), st.integers(0, 10**6), st.sampled_from([None, 4]))
def test_prompts_share_as_much_as_is_hit(rate, seed, clients):
    flags = LoadFlags(
        input_len=1000, output_len=9, num_prompts=600, range_ratio=0.5, concurrency=clients
    )
    load = with_hit_rate(flags.draw(None if clients else 4.0, seed), rate)
    assert load.shared_tokens.sum() / load.prompt_tokens.sum() == pytest.approx(rate, abs=2e-3)
    assert (load.shared_tokens < load.prompt_tokens).all()
    assert (load.shared_tokens <= load.prompt_tokens[np.maximum(load.shares_with, 0)]).all()
    assert (load.shares_with < 0).sum() == (4 if clients else 16)


def test_a_hit_rate_that_cannot_be_is_refused(tmp_path):
    few = LoadFlags(input_len=1000, output_len=9, num_prompts=4, prefix_hit_rate=0.9)
    with pytest.raises(PinnError, match=r"--prefix-hit-rate 0\.9 is too high"):
        few.draw(4.0, 0)
    path = write(tmp_path, MOONCAKE, "m.jsonl")
    with pytest.raises(PinnError, match="states which prompts share prefixes"):
        asked_load(path, {"prefix_hit_rate": 0.5}, None)[0].draw()
