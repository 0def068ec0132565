"""Layers of a model that differ: heads, widths, windows, caches and weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from parameter_counts import count_parameters

from pinn.engines.configurations import canonical, make_deployment
from pinn.errors import PinnError
from pinn.memory.weights import gpu_weight_bytes
from pinn.physics.cost_facts import model_facts
from pinn.physics.layer_work import attention_facts, small_kernel_elements
from pinn.specs.catalog import load_model
from pinn.specs.mixers import IndexerSpec
from pinn.specs.model import DenseFfnSpec, MoeFfnSpec, mixer_names

CASES = os.environ.get("PINN_PUBLIC_CASES")
MIXED = ["sliding_attention", "full_attention"] * 4


def _groups(model):
    return {group.attention.window_tokens: group for group in model.layer_groups}


def test_gemma_4_has_wider_heads_and_fewer_of_keys_where_it_sees_everything():
    groups = _groups(load_model("google/gemma-4-26B-A4B"))
    assert {tokens: group.count for tokens, group in groups.items()} == {1024: 25, None: 5}
    windowed, full = groups[1024].attention, groups[None].attention
    assert (windowed.kv_heads, windowed.head_dim, windowed.values_are_keys) == (8, 256, False)
    assert (full.kv_heads, full.head_dim, full.values_are_keys) == (2, 512, True)
    # A dense layer of 2,112 runs beside 128 experts of 704.
    assert groups[None].ffn == MoeFfnSpec(128, 8, 704, shared_width=2112)
    assert attention_facts(load_model("google/gemma-4-26B-A4B"), 1)["kv_width"] == 5 * 2 * 2 * 512


def test_values_may_be_narrower_than_keys():
    model = load_model("XiaomiMiMo/MiMo-V2-Flash")
    keys = {
        tokens: (g.attention.kv_heads, g.attention.kv_width) for tokens, g in _groups(model).items()
    }
    assert keys == {128: (8, 8 * (192 + 128)), None: (4, 4 * (192 + 128))}
    facts = attention_facts(model, 1)
    assert facts["windowed_kv_width"] == 39 * 2560
    assert facts["decode_flop"] == 2 * 9 * 64 * (192 + 128)


def test_layers_without_attention_and_networks_of_many_widths():
    groups = load_model("nvidia/Llama-3_3-Nemotron-Super-49B-v1").layer_groups
    assert sum(g.count for g in groups if g.attention is None) == 31
    assert sum(g.count for g in groups) == 80
    assert len({g.ffn.width for g in groups if isinstance(g.ffn, DenseFfnSpec)}) == 6


def test_a_searched_model_may_leave_out_a_network(parse):
    kept = {"attention": {"no_op": False, "n_heads_in_group": 8}, "ffn": {"ffn_mult": 2.0}}
    none = {"attention": {"no_op": True}, "ffn": {"no_op": True}}
    alone = {"attention": {"no_op": False, "n_heads_in_group": 4}, "ffn": {"no_op": True}}
    model = parse(block_configs=[kept, none, alone, kept] * 2, num_key_value_heads=None)
    # nemotron_nas.py: 2 / 3 of twice the width of 1,024, rounded up to a multiple of 256.
    found = [(g.count, g.attention.kv_heads, g.ffn) for g in model.layer_groups]
    assert found == [(4, 2, DenseFfnSpec(1536)), (2, 4, None)]


@pytest.mark.parametrize(
    "given",
    [
        {"per_layer_config": {str(i): {"head_dim": 128} for i in range(1, 8, 2)}},
        {"head_dim": [64, 128] * 4},
        {"global_head_dim": 128},
        {"swa_head_dim": 64, "head_dim": 128},
        {"attention_other_setting": {"head_dim": 64}, "head_dim": 128},
    ],
)
def test_sizes_of_some_layers_by_every_spelling(parse, given):
    model = parse(layer_types=MIXED, sliding_window=512, **given)
    widths = {tokens: g.attention.head_dim for tokens, g in _groups(model).items()}
    assert widths == {512: 64, None: 128}


def test_layers_that_take_over_a_cache_may_be_twice_as_wide(parse):
    model = parse(
        model_type="gemma4_text", layer_types=MIXED, sliding_window=512, num_kv_shared_layers=2,
        use_double_wide_mlp=True, hidden_size_per_layer_input=64, vocab_size_per_layer_input=1000,
    )  # fmt: skip
    found = [(g.count, g.attention.shares_cache, g.ffn.width) for g in model.layer_groups]
    assert sorted(found) == [(1, True, 8192), (1, True, 8192), (3, False, 4096), (3, False, 4096)]
    assert model.lookup_parameters == 1000 * 8 * 64


def test_two_attentions_a_layer_and_experts_that_compute_nothing(parse):
    latent = {"kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    model = parse(
        model_type="longcat_flash", **latent, n_routed_experts=8, zero_expert_num=4, moe_topk=3,
        expert_ffn_hidden_size=256,
    )  # fmt: skip
    assert [(g.count, bool(g.attention), type(g.ffn)) for g in model.layer_groups] == [
        (16, True, DenseFfnSpec), (8, False, MoeFfnSpec),
    ]  # fmt: skip
    assert model.moe.top_k == 2  # a third of the choices falls on experts that compute nothing


def _looped(parse, loops):
    kinds = ["sliding_attention", "mlp"] * 4
    ends = {"n_input_layers": 2, "n_output_layers": 2, "n_recurrent_loops": loops}
    return parse(model_type="dory", layer_types=kinds, sliding_window=512, **ends)


def test_layers_that_run_again_take_time_and_no_memory(parse):
    once, twice = (_looped(parse, loops) for loops in (1, 2))
    assert (once.layers, twice.layers) == (4, 6)
    assert count_parameters(once) == count_parameters(twice)
    layer = 2 * (model_facts(once, 1)["dense_weight_bytes"] - 2 * 32000 * 1024) / 8
    more = model_facts(twice, 1)["dense_weight_bytes"] - model_facts(once, 1)["dense_weight_bytes"]
    assert more == 2 * layer
    assert (
        attention_facts(twice, 1)["windowed_kv_width"]
        == 1.5 * attention_facts(once, 1)["windowed_kv_width"]
    )


def test_weights_of_layers_that_run_again_are_held_once(tmp_path, config):
    held = []
    for loops in (1, 3):
        ends = {"n_input_layers": 2, "n_output_layers": 2, "n_recurrent_loops": loops}
        file = tmp_path / str(loops) / "config.json"
        file.parent.mkdir()
        kinds = {"layer_types": ["full_attention", "mlp"] * 4}
        file.write_text(json.dumps(config(model_type="dory", **kinds, **ends)))
        held.append(
            gpu_weight_bytes(make_deployment(canonical({"model": str(file), "gpu": "H100"})))
        )
    assert held[0] == held[1]


def test_a_narrower_window_is_spread_over_the_widest(parse):
    model = parse(sliding_window=[512, 2048, None, 2048] * 2)
    assert model.window_tokens == 2048
    facts, layer = attention_facts(model, 1), 2 * 4 * 64
    assert facts["kv_width"] == 2 * layer
    # Beyond 2,048 tokens of context this is 2 x 512 keys and 4 x 2,048.
    assert facts["windowed_kv_width"] * 2048 == (2 * 512 + 4 * 2048) * layer


def test_a_state_is_read_once_beside_a_window(parse):
    linear = {
        "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    }  # fmt: skip
    kinds = ["linear_attention", "sliding_attention"] * 4
    both = parse(model_type="lara_mini", layer_types=kinds, sliding_window=512, **linear)
    kinds = ["linear_attention", "full_attention"] * 4
    alone = parse(model_type="lara_mini", layer_types=kinds, **linear)
    whole, spread = (attention_facts(m, 1)["state_bytes"] for m in (alone, both))
    assert spread * 512 == whole


def test_keys_are_chosen_in_blocks():
    model = load_model("MiniMaxAI/MiniMax-M3")
    assert mixer_names(model) == "3 full attention, 57 block-sparse attention; 57 with experts"
    facts = attention_facts(model, 1)
    assert facts["windowed_kv_width"] == 57 * 4 * 256
    assert model.window_tokens == 16 * 128
    # 256 bytes of a key of 16 bits, and a score of 8 bytes for 128 of them.
    assert facts["index_key_bytes"] == 57 * (256 + 8 / 128)
    chosen = {g.attention.indexer for g in model.layer_groups}
    assert chosen == {None, IndexerSpec(2048, 4, 128, block=128)}


def test_outputs_of_earlier_blocks_are_read_again():
    model = load_model("moonshotai/Kimi-K3")
    # 93 layers in blocks of 12 read 1, 2, ... 8 rows before each half.
    assert model.reread_rows == 2 * sum(i // 12 + 1 for i in range(93))
    without = small_kernel_elements(model, 1) - model.reread_rows * model.hidden_size
    assert 0 < without < small_kernel_elements(model, 1)


def test_a_shared_layer_of_zamba_is_stored_once(parse):
    mamba = {
        "mamba_d_state": 16, "n_mamba_heads": 8, "mamba_headdim": 256, "mamba_ngroups": 1,
        "adapter_rank": 32, "attention_head_dim": 128, "num_key_value_heads": 16,
    }  # fmt: skip
    model = parse(model_type="zamba2", layers_block_type=["mamba", "hybrid"] * 4, **mamba)
    shared = [(g.count, g.again) for g in model.layer_groups if g.ffn is not None]
    assert shared == [(1, False), (3, True)]
    assert sum(g.count for g in model.stored.layer_groups) == 8 + 1


def test_several_shapes_of_experts_are_refused(parse):
    with pytest.raises(PinnError, match="have equal values in all layers"):
        parse(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=[256, 512])


@pytest.mark.skipif(CASES is None, reason="PINN_PUBLIC_CASES names no folder of public configs")
def test_public_configs_are_read():
    files = [
        path for path in Path(CASES or "").glob("*.json") if "num_hidden_layers" in path.read_text()
    ]
    assert len(files) > 8
    for file in files:
        if not file.name.startswith("quant_"):
            assert load_model(file).layers > 0
