"""Layer plans of hybrid, linear and sparse models, against what was published of them."""

import csv
from itertools import product

import pytest
from parameter_counts import attention_parameters, count_parameters

from pinn.common.files import data_folder
from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.huggingface import model_from_config
from pinn.specs.mixers import IndexerSpec, LinearMixerSpec
from pinn.specs.model import mixer_names

PUBLISHED = list(csv.DictReader((data_folder("models").parent / "published_parameters.csv").open()))


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["model"])
def test_total_is_within_two_percent_of_the_published_figure(row):
    found = count_parameters(load_model(row["model"])).total / 1e9
    assert found == pytest.approx(float(row["total_billion"]), rel=0.02), row["source"]


@pytest.mark.parametrize(
    "row", [row for row in PUBLISHED if row["active_billion"]], ids=lambda row: row["model"]
)
def test_active_is_within_two_percent_or_rounds_to_the_published_figure(row):
    model, text = load_model(row["model"]), row["active_billion"]
    count = count_parameters(model)
    beside = {"layers": -model.vocab_size * model.hidden_size, "head": 0, "all": count.embedding}
    found = count.active + beside[row["active_counts"]]
    digits = len(text.partition(".")[2])
    near = found / 1e9 == pytest.approx(float(text), rel=0.02)
    assert near or round(found / 1e9, digits) == float(text), (found / 1e9, row["source"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Qwen/Qwen3.5-397B-A17B", "45 gated delta net, 15 full attention; 60 with experts"),
        ("zai-org/GLM-5", "78 sparse latent attention; 75 with experts"),
        (
            "moonshotai/Kimi-Linear-48B-A3B-Instruct",
            "20 KDA, 7 latent attention; 26 with experts",
        ),
        (
            "MiniMaxAI/MiniMax-Text-01",
            "70 lightning attention, 10 full attention; 80 with experts",
        ),
        ("nvidia/Nemotron-H-8B-Base-8K", "24 Mamba-2, 4 full attention"),
        ("ai21labs/Jamba-v0.1", "28 Mamba-1, 4 full attention; 16 with experts"),
        ("tiiuae/Falcon-H1-7B-Instruct", "44 full attention, 44 Mamba-2"),
        ("google/gemma-3n-E4B-it", "28 windowed attention, 7 full attention"),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "32 full attention, 8 cross-attention"),
        ("tiiuae/falcon-mamba-7b-instruct", "64 Mamba-1"),
        (
            "deepseek-ai/DeepSeek-V4-Flash",
            "2 latent window, 21 compressed sparse attention, 20 compressed attention; "
            "43 with experts",
        ),
        (
            "deepseek-ai/DeepSeek-V4-Pro",
            "31 compressed attention, 30 compressed sparse attention; 61 with experts",
        ),
    ],
)
def test_plan_of_a_family(name, words):
    assert mixer_names(load_model(name)) == words


def test_layers_that_are_a_mixer_or_a_network_count_half():
    assert load_model("nvidia/Nemotron-H-8B-Base-8K").layers == 26


def test_shared_choices_of_keys_have_no_indexer_of_their_own():
    model = load_model("zai-org/GLM-5.2")
    heads = {g.attention.indexer.heads: g.count for g in model.layer_groups if g.ffn is not None}
    assert set(heads) == {0, 32}
    assert model.window_tokens == 2048


def test_hand_count_of_a_gated_delta_layer():
    """Qwen3-Next: qkvz 2048 x 12288, ba 2048 x 64, out 4096 x 2048."""
    linear = load_model("Qwen/Qwen3-Next-80B-A3B-Instruct").layer_groups[0].attention
    assert attention_parameters(2048, linear) == 2048 * (12288 + 64) + 4096 * 2048
    assert linear.state_bytes() == 32 * 128 * 128 * 2 + 3 * 8192 * 2


def _compressed(ratio):
    groups = load_model("deepseek-ai/DeepSeek-V4-Flash").layer_groups
    return next(g.attention for g in groups if g.attention.ratio == ratio)


def test_hand_count_of_compressed_layers():
    """DeepSeek-V4-Flash: queries and the one vector 4096 x 1536, 1024 x 64 x 512; 8 output groups.

    A key of 4 tokens is summed from two vectors with a gate each, one of 128 from one with a gate.
    """
    window = 4096 * (1024 + 512) + 1024 * 64 * 512 + 8 * 8 * 512 * 1024 + 8 * 1024 * 4096
    indexer = 1024 * 64 * 128 + 4096 * 4 * 128 + 4096 * 64
    assert attention_parameters(4096, _compressed(0)) == window
    assert attention_parameters(4096, _compressed(128)) == window + 4096 * 2 * 512
    assert attention_parameters(4096, _compressed(4)) == window + 4096 * 4 * 512 + indexer


def test_compressed_layers_are_cut_by_heads_and_groups_of_the_output():
    shapes = {p.name: p.shape(4) for p in _compressed(128).projections(4096)}
    assert shapes == {
        "fused_wqa_wkv": (1024 + 3 * 512, 4096),
        "q_b_proj": (16 * 512, 1024),
        "wo_a": (2 * 1024, 8 * 512),
        "o_proj": (4096, 2 * 1024),
    }


def test_every_compressed_layer_reaches_as_far_as_its_model_picks():
    """The window is spread over that: 128 keys of 2,048 tokens."""
    model = load_model("deepseek-ai/DeepSeek-V4-Flash")
    assert model.window_tokens == 512 * 4
    assert load_model("deepseek-ai/DeepSeek-V4-Pro").window_tokens == 1024 * 4
    assert _compressed(0).key_shares == (128 / 2048, 0)
    assert _compressed(4).key_shares == (128 / 2048 + 1 / 4, 0)
    assert _compressed(128).key_shares == (128 / 2048, 1 / 128)


@pytest.mark.parametrize(
    ("name", "experts"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", "mxfp4_mxfp8"),
        ("deepseek-ai/DeepSeek-V4-Pro", "mxfp4_mxfp8"),
        ("nvidia/DeepSeek-V4-Flash-NVFP4", "nvfp4"),
        ("nvidia/DeepSeek-V4-Pro-NVFP4", "nvfp4"),
        ("sgl-project/DeepSeek-V4-Flash-FP8", "fp8_block"),
    ],
)
def test_experts_beside_compressed_attention_have_a_format_of_their_own(name, experts):
    model = load_model(name)
    formats = model.precisions
    assert formats.experts.name == experts
    assert formats.attention.name == formats.shared_experts.name == "fp8_block"
    assert model.kv_cache_precision.name == "fp8"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"compress_ratios": [0, 4, 16] * 3},
            "compress_ratios must be a list with one of .* for each of 8 layers",
        ),
        ({"compress_ratios": None}, "compress_ratios must be a list"),
        ({"compress_ratios": [4, 128]}, "compress_ratios must be a list of 8 entries"),
        ({"compress_ratios": "4"}, "compress_ratios must be a list of 8 entries"),
        ({"expert_dtype": "int3"}, "expert_dtype must be one of NVFP4, fp4, fp8"),
        ({"expert_dtype": ["fp4"]}, "expert_dtype must be one of NVFP4, fp4, fp8"),
        ({"o_groups": 3}, "o_groups must divide num_attention_heads, got 3 and 16"),
        ({"index_n_heads": None}, "index_n_heads is missing"),
    ],
)
def test_broken_compression_is_refused(config, changes, message):
    sizes = {"head_dim": 512, "q_lora_rank": 64, "o_lora_rank": 64, "o_groups": 2, "hc_mult": 4}
    picks = {"index_topk": 64, "index_n_heads": 4, "sliding_window": 128, "expert_dtype": "fp4"}
    whole = config(model_type="deepseek_v4", compress_ratios=[0, 4] * 4, **sizes, **picks)
    assert model_from_config(whole, "test").layers == 8
    with pytest.raises(PinnError, match=message) as error:
        model_from_config(whole | changes, "test")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("kind", "tp"), product(["gated_delta", "kda", "mamba2"], [1, 2, 4]))
def test_tensor_parallelism_cuts_states_and_projections(kind, tp):
    mixer = LinearMixerSpec(kind, heads=16, key_heads=16, key_dim=64, value_dim=64)
    assert mixer.state_bytes(tp) * tp == mixer.state_bytes()
    whole = sum(n * k for n, k in (p.shape() for p in mixer.projections(512)))
    cut = sum(n * k for n, k in (p.shape(tp) for p in mixer.projections(512)))
    assert whole <= cut * tp <= 1.5 * whole  # KDA's low ranks are on every GPU


def test_a_layer_without_its_own_choice_reads_no_index():
    assert IndexerSpec(2048, 0).key_bytes == IndexerSpec(2048, 0).score_bytes == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["linear_attention"]}, "must have a type for each of 8 layers"),
        ({"layer_types": ["rocket"] * 8}, "the layer type 'rocket' is unknown"),
        ({"mamba_ssm_dtype": "int3"}, "mamba_ssm_dtype must be one of"),
        ({"linear_num_value_heads": None}, "linear_num_value_heads is missing"),
    ],
)
def test_broken_plans_are_refused(config, changes, message):
    hybrid = config(
        model_type="qwen3_next",
        layer_types=["linear_attention", "full_attention"] * 4,
        linear_num_value_heads=8,
        linear_num_key_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
    )
    assert mixer_names(model_from_config(hybrid, "test")) == "4 gated delta net, 4 full attention"
    with pytest.raises(PinnError, match=message):
        model_from_config(hybrid | changes, "test")


def test_families_whose_key_of_a_plan_is_null_have_layers_of_one_kind(config):
    sizes = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 16}
    bamba = config(model_type="bamba", attn_layer_indices=None, **sizes)
    assert mixer_names(model_from_config(bamba, "test")) == "8 Mamba-2"
    text = config(model_type="mllama_text_model", cross_attention_layers=None)
    assert mixer_names(model_from_config(text, "test")) == "8 full attention"
