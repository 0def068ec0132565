"""Inputs that once crashed, hung, or were taken without a word: each is refused in one line."""

import json
from itertools import pairwise

import pytest
import yaml
from fuzz.targets import RUNS

from pinn.cli.outputs import check_outputs
from pinn.common.files import find_checkpoint
from pinn.engines.configurations import (
    canonical,
    make_deployment,
    parse_grid,
    read_configurations,
)
from pinn.errors import PinnError
from pinn.measurements.benchmarks.read import read_benchmarks
from pinn.measurements.runs.serving_runs import read_serving_runs
from pinn.physics.batch_sums import sum_batches
from pinn.planning.candidates import read_candidates_file
from pinn.planning.prices import read_prices
from pinn.simulator.slo import parse_slo
from pinn.simulator.workloads.load import load_workload
from pinn.specs.batch import Batch, parse_batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.surrogate.batch_marks import batch_marks

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32000,
    "num_hidden_layers": 8, "num_attention_heads": 16, "max_position_embeddings": 4096,
}  # fmt: skip
MOE = CONFIG | {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2}
BLOCKS = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 0]}}
PLAIN = {"prompt_tokens": 100, "output_tokens": 10, "stages": [{"rate": 2, "duration": 5}]}


def perf_load(**prompts):
    """A profile of inference-perf with shared prompts."""
    load = {"stages": PLAIN["stages"]}
    return {"load": load, "data": {"type": "shared_prefix", "shared_prefix": prompts}}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CONFIG | {"head_dim": 0}, "head_dim must be at least 1, got 0"),
        (CONFIG | {"head_dim": -128}, "head_dim must be at least 1, got -128"),
        (
            CONFIG | {"hidden_size": 10**400},
            r"hidden_size must be at most 1,000,000,000, got 10\^400",
        ),
        (CONFIG | {"hidden_size": float("nan")}, "hidden_size must be a whole number, got nan"),
        (CONFIG | {"hidden_size": float("inf")}, "hidden_size must be a whole number, got inf"),
        (
            CONFIG | {"num_hidden_layers": 10**12},
            "num_hidden_layers must be at most .*, got 1,000,000,000,000",
        ),
        (CONFIG | {"num_hidden_layers": 10**8}, "must be at most 1,000, got"),
        (CONFIG | {"tie_word_embeddings": "false"}, "true or false, unquoted"),
        (
            CONFIG | {"rope_scaling": {"type": "linear", "factor": "x"}},
            "factor and .* of the rope scaling must be positive",
        ),
        (CONFIG | BLOCKS, r"two positive whole numbers such as \[128, 128\], got \[0, 0\]"),
        (MOE | {"mlp_only_layers": "abc"}, "mlp_only_layers must be a list, got 'abc'"),
        ("[" * 100_000, "nested more than 100 levels deep"),
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ("9" * 5000, "malformed JSON"),
        (b"\xff\xfe{}", "not UTF-8 text"),
    ],
)
def test_configs(file, config, words):
    path = file("config.json", config)
    with pytest.raises(PinnError, match=words) as error:
        load_model(path)
    assert str(path) in str(error.value)


def test_an_expression_that_never_ends_matching(file):
    ignored = {"quant_method": "fp8", "ignored_layers": ["re:(.*a)+$"]}
    with pytest.raises(PinnError, match="simplify the pattern"):
        load_model(file("config.json", CONFIG | {"quantization_config": ignored}))


def test_a_byte_order_mark_is_read(file):
    marked = b"\xef\xbb\xbf"
    model = load_model(file("config.json", marked + json.dumps(CONFIG).encode()))
    assert model.layers == 8
    rows = read_configurations(file("l.csv", marked + b"model,gpu\nm,H100\n"))
    assert rows == [{"model": "m", "gpu": "H100"}]
    assert len(load_workload(file("w.yaml", marked + json.dumps(PLAIN).encode()))) == 10


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -1, "2e12", True])
def test_gpus(file, value):
    gpu = {"X": {"memory_bandwidth_gb_s": value, "compute_tflops_fp16": 100}}
    with pytest.raises(PinnError, match="memory_bandwidth_gb_s must be a positive number"):
        load_gpu(file("gpu.json", gpu))


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        ({"tensor_parallel_size": True}, "must be a whole number, got True"),
        ({"max_num_seqs": 0}, "must be a positive whole number, got 0"),
        ({"enable_expert_parallel": True}, "needs a model with experts"),
        ({"data_parallel_size": 10**9}, "at most 4,096"),
        ({"max_num_seqs": 10**400}, "must be a whole number"),
        ({"-tp": 1, "tensor_parallel_size": 2}, "given twice"),
    ],
)
def test_flags(configuration, words):
    with pytest.raises(PinnError, match=words):
        make_deployment(canonical({"model": "Llama-3.1-8B", "gpu": "H100"} | configuration))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "[" * 50_000, "nested more than 100 levels deep"),
        ("b.yaml", "- " * 50_000, "nested more than 100 levels deep"),
        ("c.yaml", "gpu: H100\ngpu: L4", "line 2: the key 'gpu' occurs twice"),
        ("d.yaml", "&a [*a]", "nested more than 100 levels deep"),
        ("e.yaml", "a: &a [1,2,3,4,5,6,7,8,9]\n" + "".join(
            f"{y}: &{y} [{', '.join(['*' + x] * 9)}]\n" for x, y in pairwise("abcdefgh")
        ), "at most 200,000"),
        ("f.csv", "gpu,gpu\nH100,L4\n", "the column 'gpu' occurs twice"),
        ("g.csv", "model,gpu\nm\n", "1 values, expected one for each of 2 columns"),
        ("i.csv", ",".join(map(str, range(200_000))), "columns in .* at most 1,000, got 200,000"),
        ("j.json", "{" + "".join(f'"{i}": 0, ' for i in range(200_000)) + '"199999": 1}',
         "the key '199999' occurs twice"),
        ("h.json", '{"gpu": ' + str([1] * 10) + "}", "gpu must be text"),
    ],
)  # fmt: skip
def test_lists(file, name, text, words):
    with pytest.raises(PinnError, match=words):
        read_configurations(file(name, text))


def test_a_grid_of_a_billion():
    axes = " ".join(f"{key}={','.join(map(str, range(1, 1001)))}" for key in (
        "tensor_parallel_size", "max_num_seqs", "max_model_len"
    ))  # fmt: skip
    with pytest.raises(
        PinnError, match="configurations must be at most 100,000, got 1,000,000,000"
    ):
        parse_grid(axes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "1000000000000000000 decode @ 700",
            r"requests of .* must be at most 1,000,000, got 10\^18",
        ),
        ("100000000 decode @ 1", "at most 1,000,000, got 100,000,000"),
        ("9" * 30 + " decode @ 0", r"requests of .*, got 10\^30"),
        ("600000 decode @ 1 + 600000 decode @ 2", "got 1,200,000"),
        ("1 prefill 10000000000 @ 0", "new tokens of .*, got 10,000,000,000"),
        ("1 decode @ " + "9" * 5000, "the part .* of the batch cannot be read"),
        ("0 decode @ 5 + 0 prefill 9 @ 0", "is empty: give at least one request"),
    ],
)
def test_batches(text, words):
    with pytest.raises(PinnError, match=words):
        parse_batch(text)


def test_a_batch_that_no_engine_runs_is_marked(llama_8b_h100):
    budget, context, *others = batch_marks(
        [parse_batch("1 prefill 10000000 @ 10000000")], llama_8b_h100
    )[0]
    assert budget.startswith("10,000,000")
    assert budget.endswith("--max-num-batched-tokens 8,192")
    assert context.startswith("20,000,000")
    assert context.endswith("--max-model-len 131,072")
    assert "16,384" in "; ".join(others)
    seats = batch_marks([parse_batch("2000 decode @ 5")], llama_8b_h100)[0]
    assert seats[0].startswith("2,000")
    assert seats[0].endswith("--max-num-seqs 1,024")
    assert batch_marks([parse_batch("32 decode @ 700")], llama_8b_h100) == [[]]


def test_equal_requests_are_a_count_and_sum_as_a_list_does():
    counted = parse_batch("300 decode @ 1201 + 3 prefill 77 @ 31")
    listed = Batch((1,) * 300 + (77,) * 3, (1201,) * 300 + (31,) * 3, (False,) * 300 + (True,) * 3)
    assert len(counted.new_tokens) == 2
    assert (len(counted), counted.tokens) == (len(listed), listed.tokens) == (303, 531)
    for window in (None, 100):
        both = sum_batches([counted, listed], window)
        for name, values in vars(both).items():
            assert values[0] == values[1], name


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (PLAIN | {"stages": [{"rate": 1e9, "duration": 60}]}, "requests in .*, got 60,000,000,000"),
        (PLAIN | {"stages": [{"rate": 1, "duration": 1e300}]}, "duration of a load stage must be"),
        ({"prompt_tokens": 9, "output_tokens": 9, "concurrency": 1, "requests": 10**8},
         "requests in .* at most 1,000,000, got 100,000,000"),
        (PLAIN | {"output_tokens": 10**12}, "at most 100,000,000"),
        (PLAIN | {"output_tokens": 10**400, "groups": 2}, r"at most 100,000.*, got 10\^400"),
        (PLAIN | {"prompt_tokens": 100.5}, "expected a whole number"),
        (PLAIN | {"prompt_tokens": True}, "the value must be a number, got true"),
        (PLAIN | {"timeout_s": -5}, "timeout_s of request 0 must be at least 0, got -5"),
        (PLAIN | {"seed": -1}, "the seed must be a whole number of 0 or more, got -1"),
        (PLAIN | {"groups": 10**6, "prompts_per_group": 10**6}, "different prompts"),
        (PLAIN | {"groups": 10**10, "prompts_per_group": 10**10}, "different prompts"),
        (PLAIN | {"shared_tokens": 5}, "shared_tokens is given without groups"),
        (PLAIN | {"output_tokens": -(10**300)}, r"output_tokens must be at least 0, got -10\^300"),
        (PLAIN | {"prompt_tokens": 10**300 + 9, "shared_tokens": -(10**300)},
         r"shared_tokens must be 0 to prompt_tokens \(10\^300\), got -10\^300"),
        (perf_load(output_len=-(10**300)), r"at least 0 tokens, got -10\^300"),
        (perf_load(question_len=10**300 + 9, system_prompt_len=-(10**300)),
         r"must be 0 or more, got -10\^300 and 10\^300"),
        (PLAIN | {4: None}, "each key must be text, such as stages, got 4"),
    ],
)  # fmt: skip
def test_workloads(file, load, words):
    with pytest.raises(PinnError, match=words):
        load_workload(file("load.yaml", yaml.safe_dump(load)))


@pytest.mark.parametrize(
    ("columns", "row", "words"),
    [
        ("", "0,100.5,5", "line 2: prompt_tokens must be a whole number from 0 to .*, got '100.5'"),
        (",prefix_group,prefix_tokens", "0,100,5,a,200", "at most the prompt's 100 tokens"),
        (",timeout_s", "0,100,5,-3", "line 2: timeout_s must be 0 or more, got -3"),
        (",prompt_tokens", "0,100,5,100", "the column 'prompt_tokens' occurs twice"),
        ("", "0,1e30,5", "must be a whole number from 0 to 100,000,000"),
        ("", "1e300,1,1\n0,1,1", "offset_s must be at most 320,000,000, got"),
    ],
)
def test_traces(file, columns, row, words):
    text = f"arrival_s,prompt_tokens,output_tokens{columns}\n{row}\n"
    with pytest.raises(PinnError, match=words):
        load_workload(file("trace.csv", text))


@pytest.mark.parametrize("text", ["ttft<=1.2.3s for 95 %", "ttft<=.s for 95 %", "ttft<=1s for . %"])
def test_limits_with_numbers_that_are_none(text):
    with pytest.raises(PinnError, match="--slo"):
        parse_slo(text)


def test_a_gpu_with_two_prices():
    with pytest.raises(PinnError, match="H100-SXM has the prices 1 and 2 per hour: give one price"):
        read_prices("H100=1 H100-SXM=2")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "[" * 100_000, "nested more than 100 levels deep"),
        ("b.json", '{"a": ' * 100_000, "nested more than 100 levels deep"),
        ("c.json", '{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ("d.yaml", "- " * 50_000 + "1", "nested more than 100 levels deep"),
        ("e.json", b"\xff\xfe{}", "cannot be read as text"),
    ],
)
def test_benchmark_files(file, name, content, words):
    with pytest.raises(PinnError, match=words):
        read_benchmarks([file(name, content)])


@pytest.mark.parametrize("name", ["9" * 400, "~nobody-of-that-name/x"])
def test_names_that_no_file_can_have(name):
    for load in (load_model, load_gpu):
        with pytest.raises(PinnError, match="give a known name or the path"):
            load(name)
    with pytest.raises(PinnError, match="give a known name or the path"):
        find_checkpoint(name)


def test_a_batch_that_looks_like_a_home_folder_is_no_path():
    check_outputs([("--batch", "~nobody-of-that-name")])


def test_a_benchmark_file_with_a_value_of_another_type(file):
    log = {"benchmarks": [{"metrics": True}], "metadata": {"version": 2}}
    with pytest.raises(PinnError, match=r"a value is not in the format of"):
        read_benchmarks([file("run.json", log)])


@pytest.mark.parametrize("gpu", ["nan", ""])
def test_serving_runs_without_a_gpu(file, gpu):
    with pytest.raises(PinnError, match=r"the GPU\(s\) \(none\) are unknown"):
        read_serving_runs(file("runs.csv", RUNS.replace(b",H100,", f",{gpu},".encode())))


def test_an_empty_csv_of_runs(file):
    with pytest.raises(
        PinnError, match=r"runs.csv is not a CSV table .*give a CSV of serving runs"
    ):
        read_serving_runs(file("runs.csv", b""))


def test_a_whole_number_beyond_all_floats_is_no_number_of_a_run(file):
    runs = RUNS.replace(b",H100,1,", b",H100,1" + b"0" * 400 + b",")
    assert runs != RUNS
    with pytest.raises(PinnError, match="tensor_parallel_size must be a number, got 1000"):
        read_serving_runs(file("runs.csv", runs))


def test_a_grid_of_candidates_that_nests(file):
    with pytest.raises(PinnError, match="nested more than 100 levels deep"):
        read_candidates_file(file("candidates.yaml", "grid: " + "[" * 50_000))
