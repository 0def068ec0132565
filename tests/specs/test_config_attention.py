import pytest

from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.huggingface import model_from_config
from pinn.specs.model import LatentAttentionSpec, mixer_names

MLA = {
    "model_type": "deepseek_v3",
    "q_lora_rank": 256,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


def attention(model):
    assert len({group.attention for group in model.layer_groups}) == 1
    return model.layer_groups[0].attention


def windows(model):
    """Number of layers per window."""
    return {
        tokens: sum(g.count for g in model.layer_groups if g.attention.window_tokens == tokens)
        for tokens in {g.attention.window_tokens for g in model.layer_groups}
    }


@pytest.mark.parametrize(("given", "expected"), [(128, 128), (None, 64), (..., 64)])
def test_head_dim_is_explicit_or_derived(parse, given, expected):
    assert attention(parse(head_dim=given)).head_dim == expected


@pytest.mark.parametrize(
    ("name", "head_dim"), [("Qwen3-30B-A3B", 128), ("Mistral-Nemo", 128), ("gpt-oss-20b", 64)]
)
def test_published_explicit_head_dims_differ_from_hidden_over_heads(name, head_dim):
    model = load_model(name)
    group = model.layer_groups[0]
    assert group.attention.head_dim == head_dim != model.hidden_size // group.attention.heads


@pytest.mark.parametrize(
    "key", ["num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"]
)
def test_kv_heads_under_any_key(parse, key):
    assert attention(parse(**{"num_key_value_heads": ..., key: 2})).kv_heads == 2


def test_kv_heads_default_to_the_heads(parse):
    assert attention(parse(num_key_value_heads=...)).kv_heads == 16


def test_falcon_multi_query_ignores_the_key(parse):
    old = parse(model_type="falcon", multi_query=True, num_kv_heads=16, num_key_value_heads=...)
    new = parse(model_type="falcon", new_decoder_architecture=True, num_kv_heads=8)
    assert (attention(old).kv_heads, attention(new).kv_heads) == (1, 8)


def test_heads_that_do_not_divide_name_file_and_value(parse):
    with pytest.raises(PinnError, match=r"config.json: the number of KV heads must .*, got 5"):
        parse(num_key_value_heads=5)
    with pytest.raises(
        PinnError, match="3 heads do not divide the hidden_size 1024: add the key head_dim"
    ):
        parse(num_attention_heads=3, num_key_value_heads=...)


def test_latent_attention(parse):
    latent = attention(parse(**MLA))
    assert isinstance(latent, LatentAttentionSpec)
    assert (latent.kv_width, latent.head_dim) == (512 + 64, 128 + 64)
    assert attention(parse(**{**MLA, "q_lora_rank": None})).q_lora_rank is None


def test_null_latent_fields_mean_plain_attention(parse):
    model = parse(**{**MLA, "kv_lora_rank": None})
    assert "latent" not in mixer_names(model)
    assert attention(model).kv_heads == 4


def test_latent_fields_of_other_types_are_ignored_like_in_vllm(parse):
    assert "latent" not in mixer_names(parse(**{**MLA, "model_type": "llama"}))


def test_full_width_qk_norm_is_minimax_alone():
    assert load_model("MiniMax-M2.5").layer_groups[0].attention.qk_norm_full_width
    assert not load_model("Qwen3-32B").layer_groups[0].attention.qk_norm_full_width


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliding_window": None}, {None: 8}),
        ({"sliding_window": 1024}, {1024: 8}),
        ({"sliding_window": 8192}, {None: 8}),  # as long as the longest context
        ({"sliding_window": 1024, "use_sliding_window": False}, {None: 8}),
        ({"sliding_window": 1024, "model_type": "qwen2"}, {None: 8}),  # off unless switched on
        (
            {"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": 6},
            {1024: 2, None: 6},
        ),
        (
            {"sliding_window": 512, "layer_types": ["sliding_attention", "full_attention"] * 4},
            {512: 4, None: 4},
        ),
        ({"sliding_window": 512, "sliding_window_pattern": 4}, {512: 6, None: 2}),
        ({"sliding_window": [512, None, None, None]}, {512: 2, None: 6}),
        ({"model_type": "mistral"}, {4096: 8}),  # the configuration class's default
        ({"model_type": "mistral", "sliding_window": None}, {None: 8}),
    ],
)
def test_windows(parse, changes, expected):
    assert windows(parse(**changes)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt-oss-120b", {128: 18, None: 18}),
        ("google/gemma-2-27b", {4096: 23, None: 23}),
        ("google/gemma-3-27b-it", {1024: 52, None: 10}),
        ("Mistral-7B-v0.1", {4096: 32}),
        ("Mistral-7B-v0.3", {None: 32}),
        ("Qwen2.5-7B-Instruct", {None: 28}),
        ("Phi-3-mini-128k-instruct", {None: 32}),
        ("Llama-4-Scout-17B-16E-Instruct", {8192: 36, None: 12}),
        ("Llama-4-Maverick-17B-128E-Instruct", {8192: 36, None: 12}),
    ],
)
def test_published_windows(name, expected):
    assert windows(load_model(name)) == expected


def test_llama4_layers_without_rotary_embedding_see_everything(config):
    text = config(
        model_type="llama4_text",
        attention_chunk_size=1024,
        intermediate_size_mlp=8192,
        no_rope_layers=[1, 0] * 4,  # 1 means rotary
    )
    model = model_from_config({"model_type": "llama4", "text_config": text}, "test")
    assert windows(model) == {1024: 4, None: 4}
    text["layer_types"] = ["chunked_attention"] * 7 + ["full_attention"]
    model = model_from_config({"model_type": "llama4", "text_config": text}, "test")
    assert windows(model) == {1024: 7, None: 1}


def test_short_layer_lists_are_refused(parse):
    with pytest.raises(PinnError, match=r"layer_types must be a list of 8 entries.*got 2 entries"):
        parse(sliding_window=64, layer_types=["sliding_attention"] * 2)


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (None, 8192),
        ({"rope_type": "linear", "factor": 2.0}, 16384),
        ({"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096}, 16384),
        ({"rope_type": "llama3", "factor": 8.0}, 8192),
        ({"rope_type": "longrope", "factor": 8.0}, 8192),
    ],
)
def test_longest_context_follows_vllm(parse, rope, expected):
    assert parse(rope_scaling=rope).max_position == expected
