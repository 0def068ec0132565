"""Loads in flags, and loads at another rate: as long as they were, with more requests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typed import alone
from typer.testing import CliRunner

from pinn.api.arguments import read_request
from pinn.api.requests import ManyRequest
from pinn.cli import simulate as simulate_command
from pinn.errors import PinnError
from pinn.simulator.workloads.arrivals import Stage
from pinn.simulator.workloads.load import LoadFlags, asked_load, load_workload
from pinn.simulator.workloads.rates import mean_rate_per_s, repeated
from pinn.simulator.workloads.workload import open_loop
from pinn.specs.serving import ServingSpec

app = alone(simulate_command)

SERVED = ["--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100"]
BLIS = """
aggregate_rate: 4
num_requests: 240
clients:
- rate_fraction: 1
  arrival: {process: gamma, shape: 2, scale: 125000}
  input_distribution: {type: constant, params: {value: 64}}
  output_distribution: {type: constant, params: {value: 8}}
"""
PERF = """
load: {stages: [{rate: 2, duration: 30}, {rate: 6, duration: 30}]}
data: {type: random}
"""
TRACE = "arrival_s,prompt_tokens,output_tokens,prefix_group,prefix_tokens\n" + "".join(
    f"{i / 4},{64 + i % 7},8,{i % 3},32\n" for i in range(241)
)


def test_a_closed_loop_in_vllm_s_words_is_the_file_s(coefficients, tmp_path):
    load = tmp_path / "load.yaml"
    load.write_text("{prompt_tokens: 100, output_tokens: 8, concurrency: 4, requests: 20}")
    ours = ["--input-len", "100", "--output-len", "8", "--concurrency", "4", "--num-prompts", "20"]
    theirs = [
        "--random-input-len", "100", "--random-output-len", "8", "--max-concurrency", "4",
        "--num-prompts", "20", "--request-rate", "inf",
    ]  # fmt: skip
    found = []
    for number, words in enumerate((["--workload", str(load)], ours, theirs)):
        out = tmp_path / f"{number}.json"
        made = [*SERVED, "--coefficients", str(coefficients), "--json", str(out), *words]
        result = CliRunner().invoke(app, made)
        assert result.exit_code == 0, result.output
        found.append(json.loads(out.read_text()))
    for each in found[1:]:
        assert each["workload"]["input_len"] == 100
        for name in ("e2e_mean_ms", "ttft_p99_ms", "completed_requests"):
            assert each[name] == found[0][name]


def test_python_takes_both_spellings():
    typed = {"random_input_len": 9, "output_len": 8, "max_concurrency": 3}
    _, given = read_request(ManyRequest, typed, ServingSpec, LoadFlags)
    load, rest = asked_load(None, given, None)
    assert (load.flags, rest) == (LoadFlags(input_len=9, output_len=8, concurrency=3), {})
    assert len(load.draw()) == 1000  # vLLM's default


def test_lengths_are_those_of_vllm_s_random_data_behind_a_prefix_that_all_share():
    flags = LoadFlags(input_len=101, output_len=9, num_prompts=4000, range_ratio=0.5, prefix_len=30)
    load = flags.draw(20.0, seed=1)
    assert (load.prompt_tokens.min(), load.prompt_tokens.max()) == (30 + 50, 30 + 152)
    assert (load.output_tokens.min(), load.output_tokens.max()) == (4, 14)
    assert (load.shares_with[0], *set(load.shares_with[1:])) == (-1, 0)
    assert (load.shared_tokens[1:] == 30).all()
    assert mean_rate_per_s(load) == pytest.approx(20)


def test_a_rate_lasts_as_long_as_it_is_told_and_may_be_capped():
    flags = LoadFlags(input_len=9, output_len=9, duration=600)
    assert len(flags.draw(8.0, 0)) == 4800
    capped = LoadFlags(input_len=9, output_len=9, num_prompts=50, concurrency=4).draw(8.0, 0)
    assert capped.concurrency == 4
    assert capped.offset_s[-1] > 0
    assert LoadFlags(input_len=9, output_len=9).draw(np.inf, 0).offset_s.max() == 0


@pytest.mark.parametrize(
    ("flags", "rate", "says"),
    [
        ({"input_len": 9}, 1.0, "--output-len is missing"),
        ({"output_len": 9}, 1.0, "--input-len is missing"),
        (
            {"input_len": 9, "output_len": 9},
            None,
            "the load has neither a request rate nor a concurrency",
        ),
        (
            {"input_len": 9, "output_len": 9, "concurrency": 2, "duration": 5},
            None,
            "--duration is given without --rate",
        ),
        ({"input_len": 9, "output_len": 9, "concurrency": 2}, 0.0, "--rate must be positive"),
        (
            {"input_len": 9, "output_len": 9, "num_prompts": 2, "duration": 5},
            1.0,
            "omit one of the two",
        ),
        ({"input_len": 9, "output_len": 9, "duration": 1e6}, 1e6, "at most 1,000,000"),
        ({"input_len": 0, "output_len": 9}, 1.0, "--input-len must be a positive whole number"),
        ({"input_len": 9, "output_len": 9, "range_ratio": 1}, 1.0, "--range-ratio must be in"),
    ],
)
def test_flags_that_make_no_load_are_refused_with_the_remedy(flags, rate, says):
    with pytest.raises(PinnError, match=says):
        LoadFlags(**flags).draw(rate, 0)


def test_a_file_and_flags_are_not_mixed(tmp_path):
    with pytest.raises(PinnError, match="--range-ratio both describe the load: omit one"):
        asked_load(tmp_path / "load.yaml", {"range_ratio": 0.5}, None)
    with pytest.raises(PinnError, match="the load is missing: give --input-len"):
        asked_load(None, {"max_num_seqs": 4}, None)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.5, 20), st.floats(5, 60)), min_size=1, max_size=3),
    st.floats(1, 100),
    st.sampled_from(["poisson", "gamma", "weibull"]),
)
def test_a_rate_asked_for_is_a_rate_in_the_file(tmp_path_factory, stages, factor, process):
    """Every way to state the rate gives equal requests, as long as the file's."""
    folder = tmp_path_factory.mktemp("rate")
    shape = f"prompt_tokens: 64, output_tokens: 8, process: {process}, cv: 2"
    for name, times in (("slow", 1.0), ("fast", factor)):
        written = [{"rate": rate * times, "duration": lasts} for rate, lasts in stages]
        (folder / f"{name}.yaml").write_text(f"{{{shape}, stages: {json.dumps(written)}}}")
    seconds = sum(lasts for _, lasts in stages)
    rate = factor * sum(rate * lasts for rate, lasts in stages) / seconds
    slow, fast = (load_workload(folder / f"{name}.yaml", 3, rate) for name in ("slow", "fast"))
    assert len(slow) == len(fast) == pytest.approx(rate * seconds, abs=len(stages))
    for column in ("prompt_tokens", "output_tokens", "stage"):
        assert (getattr(slow, column) == getattr(fast, column)).all()
    assert slow.offset_s == pytest.approx(fast.offset_s)
    assert mean_rate_per_s(slow) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", BLIS), ("b.yaml", PERF), ("c.csv", TRACE)]
)  # fmt: skip
def test_every_kind_of_load_lasts_as_long_at_a_higher_rate(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    slow, fast = load_workload(path), load_workload(path, None, 40.0)
    assert len(slow) == pytest.approx(240, abs=1)
    assert len(fast) == pytest.approx(2400, rel=0.01)
    assert mean_rate_per_s(fast) == pytest.approx(40)
    assert fast.stages == slow.stages


def test_a_repeated_load_goes_on_at_its_rate_and_shares_within_each_time():
    load = open_loop([Stage(4, 50), Stage(10, 50)], 100, 10)
    twice = repeated(load, 2 * len(load))
    assert mean_rate_per_s(twice) == pytest.approx(mean_rate_per_s(load), rel=0.01)
    n = len(load)
    gaps = np.diff(twice.offset_s)
    assert gaps[: n - 1] == pytest.approx(gaps[n:])
    assert len(repeated(load, n + 5)) == n + 5
    with pytest.raises(PinnError, match="at most 1,000,000"):
        repeated(load, 10**7)


@pytest.mark.parametrize(
    ("name", "text", "used"),
    [
        ("own.yaml", "{prompt_tokens: 10, output_tokens: 4, seed: 7,"
         " stages: [{rate: 4, duration: 9}]}", 7),
        ("none.yaml", "{prompt_tokens: 10, output_tokens: 4, stages: [{rate: 4, duration: 9}]}", 0),
        ("trace.csv", "arrival_s,prompt_tokens,output_tokens\n0.5,10,4\n1.5,20,4\n", 0),
    ],
)  # fmt: skip
def test_the_seed_of_a_load_is_the_one_that_was_used(tmp_path, name, text, used):
    path = tmp_path / name
    path.write_text(text)
    load, _ = asked_load(path, {}, None)
    assert load.used_seed == used
    np.testing.assert_array_equal(load.draw().offset_s, load.draw(seed=used).offset_s)
    assert asked_load(path, {}, 3)[0].used_seed == 3


def test_the_seed_of_flags_is_zero_if_none_is_given():
    flags = {"input_len": 9, "output_len": 3, "num_prompts": 5}
    assert asked_load(None, flags, None)[0].used_seed == 0
