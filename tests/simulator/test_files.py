"""Every kind of workload file, and what is wrong with bad ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from pinn.errors import PinnError
from pinn.simulator.workloads.load import load_workload

PROFILE = """
api: {type: completion, streaming: true}
data:
  type: shared_prefix
  shared_prefix:
    num_unique_system_prompts: 9
    num_users_per_system_prompt: 5
    system_prompt_len: 100
    question_len: 447
    output_len: 248
load:
  type: constant
  stages: [{rate: 8, duration: 600}, {rate: 20, duration: 600}]
server: {type: vllm, ignore_eos: true}
"""
BLIS = """
version: "2"
seed: 42
category: language
aggregate_rate: 100.0
num_requests: 1000
clients:
  - id: chat
    tenant_id: a
    slo_class: interactive
    rate_fraction: 0.75
    arrival: {process: gamma, cv: 2.0}
    input_distribution: {type: gaussian, params: {mean: 512, std_dev: 128, min: 64, max: 2048}}
    output_distribution: {type: exponential, params: {mean: 128}}
    prefix_group: system
    prefix_length: 256
  - id: batch
    rate_fraction: 0.25
    input_distribution: {type: constant, params: {value: 1000}}
    output_distribution: {type: constant, params: {value: 10}}
"""
CSV = """arrival_s,prompt_tokens,output_tokens,prefix_group,prefix_tokens,prompt_id,timeout_s
5.0,100,10,a,64,,
5.5,120,20,a,64,x,30
6.0,120,20,b,64,x,0
"""
TRACE = """session_id,input_tokens,output_tokens,server_input_tokens,arrival_time_us,deadline_us
s,90,10,100,2000000,0
s,140,10,150,3000000,4500000
,50,10,,2500000,
"""


def write(tmp_path, text, name="load.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def test_inference_perf_ignores_what_the_tool_ignores(tmp_path):
    load = load_workload(write(tmp_path, PROFILE))
    assert len(load) == 16_800
    assert len(np.unique(load.prompt_tokens)) == 1
    assert load.prompt_tokens[0] == 547
    assert load.stages_wait
    assert load.stage_gap_s == 1.0
    assert (load.timeout_s == 300).all()
    # 10 groups of 10 prompts, whatever num_unique_system_prompts says.
    assert (load.shares_with < 100).all()
    assert (load.shares_with[100:] >= 0).all()
    assert (load.shares_with < 0).sum() == 10


def test_inference_perf_s_own_yaml_is_json_too(tmp_path):
    values = {
        "load": {"type": "poisson", "stages": [{"rate": 5, "duration": 10}], "request_timeout": 20},
        "data": {"type": "random", "input_distribution": {"mean": 100, "std_dev": 10, "max": 120}},
    }
    load = load_workload(write(tmp_path, json.dumps(values)), seed=3)
    assert len(load) == 50
    assert load.prompt_tokens.max() <= 120
    assert (load.timeout_s == 20).all()


def test_a_blis_specification_mixes_its_clients(tmp_path):
    load = load_workload(write(tmp_path, BLIS))
    assert len(load) == 1000
    chat = load.prompt_tokens != 1000
    assert chat.mean() == pytest.approx(0.75, abs=0.05)
    assert load.prompt_tokens[chat].mean() == pytest.approx(256 + 512, rel=0.03)
    assert load.offset_s[-1] == pytest.approx(10, rel=0.2)
    assert (load.shared_tokens[chat][1:] == 256).all()
    assert (load.shares_with[~chat] == -1).all()


def test_a_blis_horizon_ends_the_load(tmp_path):
    text = BLIS.replace("num_requests: 1000", "horizon: 2000000")
    load = load_workload(write(tmp_path, text))
    assert load.offset_s[-1] <= 2
    assert len(load) == pytest.approx(200, rel=0.3)


def test_a_blis_client_has_all_its_keys(tmp_path):
    values = yaml.safe_load(BLIS) | {"goodput_slo_targets": {"interactive": {"ttft_ms": 200}}}
    values["clients"][0] |= {
        "model": "m", "adapter": "a", "network": {"rtt_ms": 5, "bandwidth_mbps": 100},
        "reasoning": {"reason_ratio_distribution": {"type": "constant", "params": {"value": 50}}},
        "slo_target_us": 1e6, "timeout": 3e7, "prefix_length": 0,
        "arrival": {"process": "gamma", "shape": 0.25, "scale": 53333.3},
        "input_distribution": {"type": "empirical", "params": {100: 1, 200: 3}},
    }  # fmt: skip
    load = load_workload(write(tmp_path, yaml.safe_dump(values)))
    chat = load.prompt_tokens != 1000
    # A prefix group without a length has one of 50 tokens.
    assert set(load.prompt_tokens[chat]) == {150, 250}
    assert (load.prompt_tokens[chat] == 250).mean() == pytest.approx(0.75, abs=0.06)
    assert (load.shared_tokens[chat][1:] == 50).all()
    assert (load.timeout_s[chat] == 30).all()
    assert chat.mean() == pytest.approx(0.75, abs=0.06)


def test_a_blis_client_lives_in_its_windows(tmp_path):
    values = yaml.safe_load(BLIS.replace("num_requests: 1000", "horizon: 30000000"))
    values["clients"][0]["lifecycle"] = {
        "windows": [
            {"start_us": 0, "end_us": 1e7},
            {
                "start_us": 2e7, "end_us": 2.5e7, "trace_rate": 10,
                "input_distribution": {"type": "constant", "params": {"value": 7}},
            },
        ]
    }  # fmt: skip
    load = load_workload(write(tmp_path, yaml.safe_dump(values)))
    chat = load.prompt_tokens != 1000
    first, second = load.offset_s < 10, load.offset_s >= 20
    assert not (chat & ~first & ~second).any()
    assert (chat & first).sum() == pytest.approx(750, rel=0.3)
    assert (chat & second).sum() == pytest.approx(50, rel=0.7)
    assert (load.prompt_tokens[chat & second] == 7).all()  # its own lengths, and no prefix


def test_a_blis_client_in_a_closed_loop(tmp_path):
    values = yaml.safe_load(BLIS)
    values["clients"] = [values["clients"][1] | {"concurrency": 8}]
    load = load_workload(write(tmp_path, yaml.safe_dump(values)))
    assert (load.concurrency, len(load), load.offset_s.max()) == (8, 1000, 0)


INFERENCE_PERF = """
seed: 1
inference_perf:
  stages: [{rate: 8, duration: 60}, {rate: 20, duration: 60}]
  shared_prefix:
    {num_unique_system_prompts: 9, num_users_per_system_prompt: 5, system_prompt_len: 100,
     question_len: 447, output_len: 248, enable_multi_turn_chat: false}
"""


def test_blis_inference_perf_of_stages_is_poisson(tmp_path):
    load = load_workload(write(tmp_path, INFERENCE_PERF))
    assert (load.prompt_tokens == 547).all()
    assert (load.offset_s < 60).sum() == pytest.approx(480, rel=0.15)
    assert len(load) == pytest.approx(1680, rel=0.1)
    assert (load.shares_with < 0).sum() == 9
    assert (load.shared_tokens[load.shares_with >= 0] == 100).all()


def test_blis_inference_perf_of_one_stage_ends_with_all_its_clients(tmp_path):
    values = yaml.safe_load(INFERENCE_PERF)
    values["inference_perf"]["stages"] = [{"rate": 10, "duration": 30}]
    load = load_workload(write(tmp_path, yaml.safe_dump(values)))
    assert len(load) == 300
    assert load.offset_s[-45:] == pytest.approx(30)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("speed", 3, "clients.0.speed: this key is unknown"),
        ("network", {"jitter": 1}, "network.jitter"),
        ("multimodal", {"image_distribution": {}}, "the key multimodal is not simulated"),
        ("reasoning", {"multi_turn": {"max_rounds": 3}}, "the key multi_turn is not simulated"),
        ("concurrency", 3, "single client"),
    ],
)
def test_what_blis_sends_and_we_cannot_is_refused_by_its_key(tmp_path, place, value, message):
    values = yaml.safe_load(BLIS)
    values["clients"][0][place] = value
    with pytest.raises(PinnError, match=message):
        load_workload(write(tmp_path, yaml.safe_dump(values)))


CURVED = "prompt_tokens: 8\noutput_tokens: 2\nrate_curve: day.csv\nprocess: constant\n"


def test_a_curve_of_rates_is_stages(tmp_path):
    (tmp_path / "day.csv").write_text("time_min,rate,host\n60,2,a\n61,0.5,a\n63,1,a\n")
    (tmp_path / "load.yaml").write_text(CURVED)
    (tmp_path / "plain.yaml").write_text(CURVED.replace("rate_curve: day.csv", (
        "stages: [{rate: 2, duration: 60}, {rate: 0.5, duration: 120}, {rate: 1, duration: 120}]"
    )))  # fmt: skip
    found, plain = (load_workload(tmp_path / f"{name}.yaml") for name in ("load", "plain"))
    assert np.bincount(found.stage).tolist() == [120, 60, 120]
    assert found.stage_starts_s == plain.stage_starts_s == (0.0, 60.0, 180.0)
    assert (found.offset_s == plain.offset_s).all()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("time,rate\n0,1\n9,1\n", "must have the columns rate .*, got time, rate"),
        ("time_s,rate\n0,1\n", "has 1 rows"),
        ("time_s,rate\n0,1\n0,2\n", "must rise from row to row, got 0 after 0"),
        ("time_s,rate\n0,1\n9,x\n", "line 3: the cell must be a number, got 'x'"),
        ("time_s,rate\n0,1\n9,0\n", "stage 1: the rate of a load stage must be positive"),
        (None, "the curve of rates .* does not exist"),
    ],
)
def test_what_no_curve_of_rates_can_be_is_refused(tmp_path, table, said):
    (tmp_path / "load.yaml").write_text(CURVED)
    if table is not None:
        (tmp_path / "day.csv").write_text(table)
    with pytest.raises(PinnError, match=said):
        load_workload(tmp_path / "load.yaml")


def test_stages_and_a_curve_of_rates_contradict_each_other(tmp_path):
    (tmp_path / "load.yaml").write_text(CURVED + "stages: [{rate: 1, duration: 9}]\n")
    with pytest.raises(PinnError, match="has both stages and rate_curve"):
        load_workload(tmp_path / "load.yaml")


PLAIN = "prompt_tokens: 512\noutput_tokens: 64\n"


@pytest.mark.parametrize("amount", ["duration: 20", "requests: 40"])
def test_a_rate_is_one_stage(tmp_path, amount):
    stages = load_workload(write(tmp_path, PLAIN + "stages: [{rate: 2, duration: 20}]", "a.yaml"))
    found = load_workload(write(tmp_path, PLAIN + f"rate: 2\n{amount}\n", "b.yaml"))
    assert found.offset_s.tolist() == stages.offset_s.tolist()
    assert found.prompt_tokens.tolist() == stages.prompt_tokens.tolist()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("rate: 2", "rate needs either duration"),
        ("rate: 2\nduration: 9\nrequests: 9", "rate needs either duration"),
        ("rate: 0\nrequests: 9", "expected a number greater than 0"),
        ("duration: 9", "duration needs rate: give it, or remove duration"),
        ("requests: 9", "requests needs rate or concurrency"),
        ("stages: [{rate: 2, duration: 20}]\nrequests: 9", "requests needs rate or concurrency"),
        ("stages: [{rate: 2, duration: 20}]\nrate: 3", "has both stages and rate"),
        ("rate: 2\nrequests: 9\nconcurrency: 3", "has both concurrency and rate"),
        ("duration: 2\nrequests: 9\nconcurrency: 3", "has both concurrency and duration"),
        ("rate: .inf\nrequests: 9", "must be"),
    ],
)
def test_a_rate_needs_one_amount(tmp_path, keys, said):
    with pytest.raises(PinnError, match=said):
        load_workload(write(tmp_path, PLAIN + keys, "load.yaml"))


def test_a_csv_trace_counts_from_its_first_request(tmp_path):
    load = load_workload(write(tmp_path, CSV, "trace.csv"))
    assert load.offset_s.tolist() == [0.0, 0.5, 1.0]
    assert load.shares_with.tolist() == [-1, 0, 1]
    assert load.shared_tokens.tolist() == [0, 64, 120]
    assert load.timeout_s.tolist() == [np.inf, 30, np.inf]


def test_a_trace_v2_is_found_by_its_header(tmp_path):
    write(tmp_path, TRACE, "trace.csv")
    load = load_workload(write(tmp_path, "{trace_version: 2, time_unit: us}", "trace.yaml"))
    assert load.offset_s.tolist() == [0.0, 0.5, 1.0]
    assert load.prompt_tokens.tolist() == [100, 50, 150]
    # The second round repeats the first one's 100 prompt and 10 output tokens.
    assert load.shares_with.tolist() == [-1, -1, 0]
    assert load.shared_tokens.tolist() == [0, 0, 110]
    assert load.timeout_s.tolist() == [np.inf, np.inf, 1.5]


def test_a_plain_closed_loop(tmp_path):
    text = "{prompt_tokens: 1024, output_tokens: 64, concurrency: 8, requests: 80, seed: 4}"
    load = load_workload(write(tmp_path, text))
    assert (load.concurrency, len(load)) == (8, 80)


def test_a_plain_open_loop_with_shared_prompts(tmp_path):
    text = (
        "{prompt_tokens: 100, output_tokens: 8, stages: [{rate: 4, duration: 20}], groups: 2, "
        "prompts_per_group: 5, shared_tokens: 40, process: gamma, cv: 2}"
    )
    load = load_workload(write(tmp_path, text))
    assert len(load) == 80
    assert (load.shares_with < 10).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "must be a YAML mapping of keys to values, got list"),
        ("a: [", "line 2: malformed YAML"),
        ("{x: 1}", "the format of the workload file .* is unknown"),
        (
            PROFILE.replace("rate: 8,", "rate: 0,"),
            r"load\.yaml, stage 0: .*must be positive and finite, got 0",
        ),
        (PROFILE.replace("type: shared_prefix", "type: shareGPT"), "shareGPT"),
        (PROFILE.replace("type: constant", "type: burst"), "load.type"),
        (BLIS.replace("aggregate_rate: 100.0", "aggregate_rate: 0"), "aggregate_rate 0"),
        (BLIS.replace("num_requests: 1000", ""), "neither num_requests nor horizon"),
        (
            BLIS.replace("num_requests: 1000", "num_requests: 0"),
            "num_requests: expected a number",
        ),
        (BLIS.replace("tenant_id: a", "think_time_us: 5"), "think_time_us"),
        (
            "{prompt_tokens: 10, output_tokens: -1, concurrency: 1, requests: 1}",
            "output_tokens must be at least 0, got -1",
        ),
        ("{prompt_tokens: 10, output_tokens: 1}", "give stages"),
        (
            "{prompt_tokens: 10, output_tokens: 1, concurrency: 2}",
            "needs requests: give their number",
        ),
        (
            "{prompt_tokens: 9, output_tokens: 1, shared_tokens: 10}",
            r"must be 0 to prompt_tokens \(9\)",
        ),
        ("{prompt_tokens: 9, output_tokens: 1, rates: 3}", "rates.*known keys are"),
        ("{trace_version: 2, time_unit: ms}", "time_unit must be microseconds, got 'ms'"),
        ("{trace_version: 2}", "CSV file of its folder, which has 0"),
    ],
)
def test_bad_yaml_is_refused_with_the_place(tmp_path, text, message):
    with pytest.raises(PinnError, match=message):
        load_workload(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arrival_s,prompt_tokens,output_tokens\n", "no requests"),
        ("when,prompt_tokens,output_tokens\n1,2,3\n", "arrival_s or arrival_ms or arrival_time_us"),
        ("arrival_s,tokens,output_tokens\n1,2,3\n", "lacks the column of the prompt length"),
        (
            "arrival_s,prompt_tokens,output_tokens\n1,2,x\n",
            "line 2: output_tokens must be a finite number, got 'x'",
        ),
        ("arrival_s,prompt_tokens\n1,2\n", "lacks the column of the output length"),
        (
            "arrival_s,prompt_tokens,output_tokens\n1,2,-1\n",
            "line 2: output_tokens must be a whole number from 0 to .*, got '-1'",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,deadline_us\n5,2,1,4000000\n",
            "before the arrival",
        ),
    ],
)
def test_bad_traces_are_refused_with_the_line(tmp_path, text, message):
    with pytest.raises(PinnError, match=message):
        load_workload(write(tmp_path, text, "trace.csv"))


def test_a_missing_file_says_what_could_be_given(tmp_path):
    with pytest.raises(PinnError, match=r"the workload file .* does not exist: .*CSV trace"):
        load_workload(tmp_path / "nothing.yaml")
