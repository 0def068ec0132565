import warnings
from dataclasses import replace

import pytest

from pinn.errors import PinnError
from pinn.specs.huggingface import model_from_config
from pinn.specs.model import DenseFfnSpec, MoeFfnSpec, mixer_names


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        ("diffusion_gemma_text", "found by diffusion"),
        ("jetmoe", "a mixture of attention heads"),
        ("xlnet", "attention in both directions"),
    ],
)
def test_unsupported_layer_kinds_are_named(parse, model_type, kind):
    with pytest.raises(PinnError, match=kind) as error:
        parse(model_type=model_type)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("marker", "kind"),
    [
        ({"layer_types": ["linear_attention"] * 8}, "linear_attention"),
        ({"index_topk": 2048}, 'DSA.*drop index_topk and set .*"llama", the nearest known family'),
        (
            {"lambda_std_dev": 0.1, "num_experts": 8, "num_experts_per_tok": 2},
            'differential.*drop lambda_std_dev and set .*"mixtral"',
        ),
        ({"sparse_attention_config": {"sparse_topk_blocks": 16}}, "block-sparse attention"),
        ({"attn_type_list": [0, 1] * 4}, "linear attention"),
        ({"hybrid_override_pattern": "M*M*"}, "mamba"),
    ],
)
@pytest.mark.parametrize("model_type", ["llama", "brand_new"])
def test_markers_count_under_any_type(parse, marker, kind, model_type):
    with pytest.raises(PinnError, match=kind):
        parse(model_type=model_type, **marker)


def test_a_mixture_is_never_read_as_a_dense_model(parse):
    with pytest.raises(PinnError, match="compute nothing") as error:
        parse(zero_expert_num=8)  # nothing says how many compute something
    assert '"llama"' not in str(error.value)


def test_a_model_with_a_larger_cache_than_its_keys_suggest_is_read_as_no_family(parse):
    latent = {"kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64}
    with pytest.raises(PinnError, match="keys engines keep at full width") as error:
        parse(model_type="minicpm3", qk_rope_head_dim=32, v_head_dim=64, **latent)
    assert "deepseek" not in str(error.value)


def test_the_remedy_for_unknown_recurrent_layers_is_a_family_that_has_them(config):
    sizes = {"linear_num_key_heads": 8, "linear_num_value_heads": 16}
    sizes |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    plan = {"layer_types": ["linear_attention", "full_attention"] * 4}
    refused = config(model_type="brand_new", **sizes, **plan)
    with pytest.raises(PinnError, match='set "model_type": "qwen3_next" in a copy'):
        model_from_config(refused, "test")
    model = model_from_config(refused | {"model_type": "qwen3_next"}, "test")
    assert mixer_names(model) == "4 gated delta net, 4 full attention"


def test_sizes_of_some_layers_that_equal_those_of_others_mark_nothing(parse):
    same = {"num_attention_heads_per_layer": [16] * 8, "global_head_dim": 64, "head_dim": 64}
    assert parse(**same).layer_groups == parse(head_dim=64).layer_groups


def test_softmax_only_attention_list_is_no_marker(parse):
    assert parse(attn_type_list=[1] * 8).layers == 8


def test_an_unlisted_dense_model_is_read_by_its_keys_with_a_notice(parse):
    read = "'brand_new' is read as a dense decoder: RMSNorm, gated feed-forward"
    with pytest.warns(UserWarning, match=read):
        model = parse(model_type="brand_new")
    assert model == replace(parse(), model_type="brand_new")


def test_an_unlisted_mixture_is_read_by_its_keys_with_a_notice(parse):
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    more = {"num_shared_experts": 1, "num_dense_layers": 1}
    with pytest.warns(UserWarning, match="'brand_new' is read as a mixture of experts"):
        model = parse(model_type="brand_new", **experts, **more)
    assert model.moe == MoeFfnSpec(16, 2, 256, shared_width=256)
    assert model.moe_layers == 7


def test_an_unlisted_model_with_squared_relu_has_two_matrices(parse):
    with pytest.warns(UserWarning, match="two-matrix feed-forward"):
        assert not parse(model_type="brand_new", hidden_act="relu2").layer_groups[0].ffn.gated


def test_an_unlisted_model_with_latent_keys_has_latent_attention(parse):
    ranks = {"kv_lora_rank": 512, "q_lora_rank": 64, "qk_nope_head_dim": 128}
    widths = {"qk_rope_head_dim": 64, "v_head_dim": 128}
    with pytest.warns(UserWarning, match="brand_new"):
        assert mixer_names(parse(model_type="brand_new", **ranks, **widths)) == "8 latent attention"


def test_an_unlisted_model_may_have_values_of_another_width(parse):
    with pytest.warns(UserWarning, match="brand_new"):
        model = parse(model_type="brand_new", v_head_dim=32)
    assert model.layer_groups[0].attention.kv_width == 4 * (64 + 32)


def test_a_missing_type_is_refused(parse):
    with pytest.raises(PinnError, match=r'type is missing; to read .*set "model_type": "llama"'):
        parse(model_type=...)


def test_listed_types_are_read_without_a_notice(parse):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse(model_type="ministral3", rope_parameters={"rope_theta": 1e6})


def test_keys_of_gpt2(parse):
    names = {"n_embd": 1024, "n_head": 16, "n_layer": 8, "n_positions": 1024, "n_inner": None}
    old = ("hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size")
    dropped = dict.fromkeys((*old, "num_key_value_heads", "max_position_embeddings"), ...)
    model = parse(model_type="gpt2", **names, **dropped)
    assert (model.hidden_size, model.layers, model.tied_embeddings) == (1024, 8, True)
    assert model.layer_groups[0].ffn == DenseFfnSpec(4096, gated=False)
    assert model.extra_parameters == 1024 * (1024 + 2 * 8 + 1)


def test_kimi_linear_as_transformers_5_writes_it(config):
    nested = {"kda_layers": [1, 2, 3, 5, 6, 7], "num_heads": 8, "head_dim": 128}
    flat = {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2}
    sizes = {"linear_num_heads": 8, "linear_head_dim": 128, "linear_conv_kernel_dim": 4}
    old = model_from_config(config(model_type="kimi_linear", linear_attn_config=nested), "test")
    assert model_from_config(config(model_type="kimi_linear", **flat, **sizes), "test") == old


def test_deepseek_v4_as_transformers_5_writes_it(config):
    sizes = {"head_dim": 512, "q_lora_rank": 64, "o_lora_rank": 64, "o_groups": 2, "hc_mult": 4}
    picks = {"index_topk": 64, "index_n_heads": 4, "sliding_window": 128, "expert_dtype": "fp4"}
    ours = config(model_type="deepseek_v4", **sizes, **picks)
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    kinds = ["sliding_attention", *rates] * 2 + ["sliding_attention"] * 2
    old = model_from_config(ours | {"compress_ratios": [0, 4, 128] * 2 + [0, 0]}, "test")
    new = model_from_config(ours | {"compress_rates": rates, "layer_types": kinds}, "test")
    assert new == old


def test_lightning_heads_are_as_wide_as_the_model_allows(config):
    plan = {"layer_types": ["linear_attention", "full_attention"] * 4, "head_dim": None}
    model = model_from_config(config(model_type="minimax", **plan), "test")
    assert {group.attention.head_dim for group in model.layer_groups} == {1024 // 16}


def test_nested_text_config(config):
    text = config(torch_dtype=..., dtype="float16")
    outer = {"model_type": "mistral3", "text_config": text, "vision_config": {"hidden_size": 9}}
    model = model_from_config(outer, "test")
    assert (model.hidden_size, model.model_type) == (1024, "mistral3")
    assert model.precisions.attention.name == "fp16"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"torch_dtype": "float16"}, "fp16"),
        ({"torch_dtype": ..., "dtype": "bfloat16"}, "bf16"),
        ({"torch_dtype": ...}, "bf16"),  # absent means fp32, which vLLM serves in bf16
        ({"torch_dtype": "float32"}, "bf16"),
    ],
)
def test_dtype(parse, changes, expected):
    model = parse(**changes)
    assert model.precisions.lm_head.name == model.kv_cache_precision.name == expected


@pytest.mark.parametrize(
    ("changes", "tied"),
    [({}, False), ({"tie_word_embeddings": True}, True), ({"model_type": "gemma2"}, True)],
)
def test_tied_embeddings(parse, changes, tied):
    assert parse(**changes).tied_embeddings is tied


@pytest.mark.parametrize("value", [[], "text"])
def test_a_config_that_is_no_object_is_refused(value):
    with pytest.raises(PinnError, match="must be a JSON object"):
        model_from_config(value, "test")
