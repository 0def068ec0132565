"""Configurations from text, files and grids."""

import json

import pytest

from pinn.engines.configurations import (
    KEYS,
    canonical,
    expand_grid,
    make_deployment,
    make_deployments,
    parse_grid,
    read_configurations,
)
from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.flags import flags_of
from pinn.specs.serving import ServingSpec

LLAMA = {"model": "Llama-3.1-8B", "gpu": "H100"}


def test_keys_are_vllm_flags_in_any_spelling():
    found = canonical(
        {
            "--tensor-parallel-size": "2",
            "enable_expert_parallel": "TRUE",
            "quantization": "fp8",
            "cpu-offload-gb": "1.5",
            "max_model_len": "",
            "model": " Llama-3.1-8B ",
        }
    )
    assert found == {
        "tensor_parallel_size": 2,
        "enable_expert_parallel": True,
        "precision": "fp8",
        "cpu_offload_gb": 1.5,
        "model": "Llama-3.1-8B",
    }


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"tensor": 2}, "the configuration key 'tensor' is unknown: use model, gpu"),
        ({"tensor_parallel_size": "two"}, "tensor_parallel_size must be a whole number, got 'two'"),
        ({"enforce_eager": "maybe"}, "enforce_eager must be true or false, got 'maybe'"),
        ({"cpu_offload_gb": "lots"}, "cpu_offload_gb must be a number, got 'lots'"),
        ({"tensor_parallel_size": True}, "must be a whole number, got True: omit the flag to"),
    ],
)
def test_what_cannot_be_read_is_named(configuration, message):
    with pytest.raises(PinnError, match=message):
        canonical(configuration)


def test_defaults_are_those_of_vllm_on_the_gpu():
    large, small = (make_deployment({**LLAMA, "gpu": gpu}).recipe for gpu in ("H100", "L4"))
    assert (large.token_budget, large.max_requests) == (8192, 1024)
    assert (small.token_budget, small.max_requests) == (2048, 256)
    given = make_deployment({**LLAMA, "max_num_batched_tokens": 512}).serving
    assert given.max_num_batched_tokens == 512


def test_a_precision_replaces_the_checkpoints_own():
    model = make_deployment({**LLAMA, "precision": "fp8"}).model
    assert model.precisions.attention.name == "fp8"


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"gpu": "H100"}, "model is missing: give --model"),
        ({"model": "Llama-3.1-8B"}, "gpu is missing: give --gpu"),
        ({**LLAMA, "tensor_parallel_size": 3}, "size 3 does not divide the 32 attention heads"),
        ({**LLAMA, "tensor_parallel_size": 0}, "--tensor-parallel-size must be a positive whole"),
        ({**LLAMA, "tensor_parallel_size": 1.5}, "positive whole number, got 1.5"),
        ({**LLAMA, "max_num_seqs": 0}, "positive whole number, got 0: omit the flag to use"),
        ({**LLAMA, "max_model_len": 100.5}, "--max-model-len must be a positive whole number"),
        ({**LLAMA, "precision": "fp3"}, "the number format 'fp3' is unknown: use one of bf16"),
        ({**LLAMA, "gpu": "H9000"}, "the GPU 'H9000' is unknown"),
        ({**LLAMA, "kv_cache_dtype": "fp5"}, "--kv-cache-dtype 'fp5' is unknown"),
        ({**LLAMA, "cpu_offload_gb": -1.0}, "must be 0 or more, got -1.0"),
        ({**LLAMA, "gpu_memory_utilization": 2.0}, r"must be in \(0, 1\], got 2.0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(configuration, message):
    with pytest.raises(PinnError, match=message) as error:
        make_deployment(configuration)
    assert "\n" not in str(error.value)


def test_a_grid_is_every_combination():
    found = expand_grid({"model": "Llama-3.1-8B", "gpu": ["H100", "L4"], "block-size": [16, 32]})
    assert [(c["gpu"], c["block_size"]) for c in found] == [
        ("H100", 16), ("H100", 32), ("L4", 16), ("L4", 32)
    ]  # fmt: skip
    assert found == parse_grid("model=Llama-3.1-8B gpu=H100,L4 block_size=16,32")


@pytest.mark.parametrize("text", ["gpu", "gpu=", "gpu=a gpu=b", "warp=9"])
def test_a_grid_that_cannot_be_read_is_refused(text):
    with pytest.raises(
        PinnError, match=r"of the grid cannot be read|the configuration key .* is unknown"
    ):
        parse_grid(text)


def test_an_axis_without_values_is_refused():
    with pytest.raises(PinnError, match="the keys gpu have no values"):
        expand_grid({"gpu": []})


def test_impossible_points_of_a_grid_can_be_left_out():
    grid = [{**LLAMA, "tensor_parallel_size": tp} for tp in (1, 3, 2)]
    with pytest.raises(PinnError, match=r"^configuration 2: --tensor-parallel-size 3"):
        make_deployments(grid)
    kept, deployments, reasons = make_deployments(grid, skip_invalid=True)
    assert [c["tensor_parallel_size"] for c in kept] == [1, 2]
    assert [d.serving.tensor_parallel_size for d in deployments] == [1, 2]
    assert list(reasons) == [2]
    kept, deployments, reasons = make_deployments(grid[1:2], skip_invalid=True)
    assert (kept, deployments, list(reasons)) == ([], [], [1])


CONTENTS = {
    "list.csv": "model,gpu,tensor_parallel_size\nLlama-3.1-8B,H100,2\nLlama-3.1-8B,L4,\n",
    "list.yaml": (
        "- {model: Llama-3.1-8B, gpu: H100, tensor_parallel_size: 2}\n"
        "- {model: Llama-3.1-8B, gpu: L4}\n"
    ),
    "list.json": json.dumps(
        [{**LLAMA, "tensor_parallel_size": 2}, {"model": "Llama-3.1-8B", "gpu": "L4"}]
    ),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_lists_are_read_from_every_format(tmp_path, name):
    (tmp_path / name).write_text(CONTENTS[name])
    assert read_configurations(tmp_path / name) == [
        {**LLAMA, "tensor_parallel_size": 2},
        {"model": "Llama-3.1-8B", "gpu": "L4"},
    ]


def test_a_yaml_mapping_is_a_grid(tmp_path):
    (tmp_path / "grid.yaml").write_text("model: Llama-3.1-8B\ngpu: [H100, L4]\n")
    assert [c["gpu"] for c in read_configurations(tmp_path / "grid.yaml")] == ["H100", "L4"]


def test_sampling_settings_may_be_a_mapping(tmp_path):
    (tmp_path / "grid.yaml").write_text(
        "model: Llama-3.1-8B\ngpu: H100\noverride_generation_config: [{temperature: 0}, {}]\n"
    )
    points = read_configurations(tmp_path / "grid.yaml")
    greedy, own = (make_deployment(point).sampling for point in points)
    assert greedy.is_greedy
    assert own == load_model("Llama-3.1-8B").sampling


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", None, "cannot be read"),
        ("empty.csv", "", "has no configurations"),
        ("header.csv", "model,gpu\n", "has no configurations"),
        (
            "ragged.csv",
            "model,gpu\nLlama-3.1-8B\n",
            "line 2: the row has 1 values, expected one for each of 2 columns",
        ),
        (
            "key.csv",
            "model,speed\nLlama-3.1-8B,9\n",
            "line 2: the configuration key 'speed' is unknown",
        ),
        ("type.csv", "model,block_size\nx,big\n", "line 2: block_size must be a whole number"),
        ("empty.yaml", "", "has no configurations"),
        ("broken.yaml", "a: [1,\n b", "malformed YAML"),
        ("text.yaml", "hello", "must have a list of configurations"),
        ("entries.yaml", "- 3\n", "entry 1 must map keys to values"),
        ("broken.json", "[1,", "malformed JSON"),
        ("list.txt", "", "the format of .* is unknown"),
        ("binary.csv", b"\xff\xfe\x00", "not UTF-8 text"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_it(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PinnError, match=message) as error:
        read_configurations(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def other(flag):
    """Return a value of the flag that is not its default."""
    if flag.name == "override_generation_config":
        return '{"top_k": 5}'
    if flag.name == "speculative_config":
        return '{"method": "ngram", "num_speculative_tokens": 2}'
    if flag.name == "speculative_acceptance":
        return "0.5"
    if flag.name == "moe_backend":
        return "triton"
    if flag.kind == "bool":
        return not flag.default
    if flag.allowed:
        return next(value for value in flag.allowed if value != flag.default)
    if flag.kind == "str":
        return "0.15.0"
    return (flag.default or 15) + 1 if flag.kind == "int" else (flag.default or 0.8) / 2


#: Flags of which only the default is accepted.
REFUSED = ("disaggregation_mode",)


@pytest.mark.parametrize(
    "flag",
    [flag for flag in flags_of(ServingSpec) if flag.name not in REFUSED],
    ids=lambda flag: flag.name,
)
def test_every_serving_flag_reaches_the_deployment(flag):
    """Check a flag as text in every spelling of the command line, and as a setting of its own."""
    value = other(flag)
    served = {"model": "Qwen/Qwen3-30B-A3B", "gpu": "H100"}
    if flag.engines:
        served |= {"engine": flag.engines[0], "tensor_parallel_size": 16}
    for spelling in (flag.name, flag.option, *flag.shorts):
        serving = make_deployment(canonical({**served, spelling: str(value)})).serving
        assert getattr(serving, flag.name) == value
    assert getattr(make_deployment(served).serving, flag.name) != value
    assert flag.name in KEYS


@pytest.mark.parametrize("length", ["32k", "32_000", 32_000])
def test_cells_accept_the_notation_of_the_command_line(length):
    found = canonical({"model": "Llama-3.1-8B", "gpu": "H100", "max_model_len": length})
    assert found["max_model_len"] == 32_000
