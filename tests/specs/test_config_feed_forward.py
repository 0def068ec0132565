import pytest

from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.config_fields import read_fields
from pinn.specs.layers import moe_plan
from pinn.specs.model import DenseFfnSpec, MoeFfnSpec

MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}


def plan(layers: int = 8, **values):
    return [i for i, moe in enumerate(moe_plan(read_fields(values, "test"), layers)) if moe]


@pytest.mark.parametrize(
    "key", ["num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts"]
)
@pytest.mark.parametrize("value", [16, [16, 16]])
def test_expert_count_under_any_key(parse, key, value):
    assert parse(**{**MOE, "num_experts": ..., key: value}).moe.experts == 16


@pytest.mark.parametrize("value", [None, 0, []])
def test_no_experts_is_dense(parse, value):
    assert parse(**{**MOE, "num_experts": value}).moe is None


def test_zero_experts_is_a_value_and_ends_the_search(parse):
    assert parse(**{**MOE, "num_experts": 0, "num_local_experts": 8}).moe is None
    assert parse(**{**MOE, "num_experts": None, "num_local_experts": 8}).moe.experts == 8


@pytest.mark.parametrize(
    "key", ["num_experts_per_tok", "top_k_experts", "moe_top_k", "moe_topk", "experts_per_token"]
)
def test_top_k_under_any_key(parse, key):
    assert parse(**{**MOE, "num_experts_per_tok": ..., key: 3}).moe.top_k == 3


def test_missing_or_too_large_top_k_is_an_error(parse):
    with pytest.raises(PinnError, match=r"config.json: num_experts_per_tok or .* is missing"):
        parse(**{**MOE, "num_experts_per_tok": ...})
    with pytest.raises(PinnError, match=r"at most the 16 experts of a layer, got 17"):
        parse(**{**MOE, "num_experts_per_tok": 17})


def test_layers_with_different_numbers_of_experts_are_refused(parse):
    with pytest.raises(PinnError, match="must have equal values in all layers"):
        parse(**{**MOE, "num_experts": [8, 16]})


def test_expert_width_falls_back_to_the_dense_width(parse):
    assert parse(**MOE).moe.width == 256
    assert parse(**{**MOE, "moe_intermediate_size": ...}).moe.width == 4096


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0),
        ({"shared_expert_intermediate_size": 512}, 512),
        ({"shared_expert_intermediate_size": 0, "n_shared_experts": 2}, 0),
        ({"n_shared_experts": 2}, 2 * 256),
        ({"n_shared_experts": None}, 0),
        ({"shared_intermediate_size": 0}, 0),
    ],
)
def test_shared_experts(parse, changes, expected):
    assert parse(**MOE, **changes).moe.shared_width == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, list(range(8))),
        ({"first_k_dense_replace": 3, "moe_layer_freq": 1}, [3, 4, 5, 6, 7]),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, [2, 4, 6]),
        ({"moe_layer_freq": [0, 0, 1, 1, 1, 1, 0, 1]}, [2, 3, 4, 5, 7]),
        ({"decoder_sparse_step": 1, "mlp_only_layers": []}, list(range(8))),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, [1, 5, 7]),
        ({"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 5}, [3, 4, 5, 6, 7]),
        ({"interleave_moe_layer_step": 1}, list(range(8))),
        ({"interleave_moe_layer_step": 2}, [1, 3, 5, 7]),
        ({"interleave_moe_layer_step": 0}, []),
        ({"interleave_moe_layer_step": 1, "moe_layers": [0, 4]}, [0, 4]),
        ({"num_dense_layers": 6}, [6, 7]),
        (
            {"moe_layer_start_index": 1, "moe_layer_end_index": 5, "moe_layer_interval": 2},
            [1, 3, 5],
        ),
        ({"moe_layer_start_index": 3, "moe_layer_end_index": -1}, [3, 4, 5, 6, 7]),
        ({"mlp_layer_types": ["hash_moe"] * 2 + ["moe"] * 6}, list(range(8))),
    ],
)
def test_layer_plans(values, expected):
    assert plan(**values) == expected


@pytest.mark.parametrize(
    ("name", "moe_layers", "dense_width", "shared_width"),
    [
        ("Llama-4-Scout-17B-16E-Instruct", 48, None, 8192),
        ("Llama-4-Maverick-17B-128E-Instruct", 24, 16384, 8192),
        ("DeepSeek-V3", 58, 18432, 2048),
        ("Kimi-K2.5", 60, 18432, 2048),
        ("DeepSeek-V2-Lite", 26, 10944, 2816),
        ("Qwen3-235B-A22B", 94, None, 0),
        ("Qwen1.5-MoE-A2.7B", 24, None, 5632),
        ("MiniMax-M2.5", 62, None, 0),
        ("GLM-4.5-Air", 45, 10944, 1408),
        ("Mixtral-8x7B", 32, None, 0),
    ],
)
def test_published_plans(name, moe_layers, dense_width, shared_width):
    model = load_model(name)
    dense = {g.ffn.width for g in model.layer_groups if isinstance(g.ffn, DenseFfnSpec)}
    assert model.moe_layers == moe_layers
    assert dense == (set() if dense_width is None else {dense_width})
    assert isinstance(model.moe, MoeFfnSpec)
    assert model.moe.shared_width == shared_width


@pytest.mark.parametrize(("kind", "gated"), [("llama", True), ("starcoder2", False)])
def test_gated_or_not(parse, kind, gated):
    assert parse(model_type=kind).layer_groups[0].ffn.gated is gated


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", "8"), ("vocab_size", 3.5)])
def test_wrong_numbers_name_file_field_and_value(parse, key, value):
    with pytest.raises(PinnError, match=rf"config.json: {key} must be a whole number, got"):
        parse(**{key: value})
    with pytest.raises(PinnError, match=rf"config.json: {key}.* is missing"):
        parse(**{key: ...})
