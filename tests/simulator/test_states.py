"""Recurrent states in the engine's memory, and what cannot be exported of them."""

import pytest
from parameter_counts import count_parameters

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.export.blis_model import check_expressible
from pinn.memory.kv_cache import kv_cache_bytes, kv_layout
from pinn.memory.kv_layout import state_bytes
from pinn.memory.weights import gpu_weight_bytes
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec


def deployed(name, gpu="H200", **flags):
    return Deployment(load_model(name), load_gpu(gpu), ServingSpec(**flags), force=True)


def test_blocks_grow_until_keys_take_as_much_as_a_state():
    """State 1,097,728 bytes, keys and values 2,048 a token: 536 tokens, in steps of 16.

    From 0.28 on a second state is kept for prefixes, from 0.33 on in blocks of 64 tokens.
    """
    rows = [("0.22.1", 544, 1), ("0.31.0", 544, 2), ("0.33.0", 576, 2)]
    for release, tokens, states in rows:
        flags = {"tensor_parallel_size": 2, "engine_version": release}
        deployment = deployed("Qwen/Qwen3-Next-80B-A3B-Instruct", **flags)
        layout = kv_layout(deployment, EngineSpec())
        assert deployment.recipe.block_tokens == tokens
        assert (layout.full_groups, layout.window_groups, layout.window_blocks) == (1, 3, states)
        assert layout.block_bytes == 12 * tokens * 1024


@pytest.mark.parametrize("tokens", [1, 500, 5_000, 200_000])
def test_a_request_holds_its_states_once_whatever_its_length(tokens):
    flags = {"tensor_parallel_size": 2, "engine_version": "0.22.1"}
    deployment = deployed("Qwen/Qwen3-Next-80B-A3B-Instruct", **flags)
    layout = kv_layout(deployment, EngineSpec())
    assert layout.request_blocks(tokens, 544) == -(-tokens // 544) + 3


def test_a_model_of_states_alone_has_one_block_per_request():
    deployment = deployed("tiiuae/falcon-mamba-7b-instruct", "H100", max_model_len=65536)
    layout = kv_layout(deployment, EngineSpec())
    assert layout.request_blocks(60_000, deployment.recipe.block_tokens) == 1
    assert layout.block_bytes == state_bytes(deployment) == 64 * (8192 * 16 + 3 * 8192) * 2


def test_other_engines_take_a_pool_for_states_off_the_cache():
    flags = {"tensor_parallel_size": 4, "engine": "sglang", "enable_prefix_caching": False}
    flags["gpu_memory_utilization"] = 0.8  # else graphs of fewer requests leave more
    few, many = (
        kv_layout(deployed("Qwen/Qwen3-Next-80B-A3B-Instruct", max_num_seqs=n, **flags),
                  EngineSpec())
        for n in (8, 256)
    )  # fmt: skip
    state = state_bytes(deployed("Qwen/Qwen3-Next-80B-A3B-Instruct", **flags))
    assert (few.blocks - many.blocks) * few.block_bytes == pytest.approx(248 * state, rel=1e-3)


def test_states_take_no_more_than_sglangs_share_of_what_is_left():
    """States may take 0.9 times as much as keys and values: 9 of 19 parts.

    sglang 0.5.9 server_args.py: mamba_full_memory_ratio and model_runner_kv_cache_mixin.py, and
    0.5.23 mem_cache/kv_cache_configurator.py.
    """
    flags = {"tensor_parallel_size": 4, "engine": "sglang", "enable_prefix_caching": False}
    flags["gpu_memory_utilization"] = 0.8  # else graphs of fewer requests leave more
    one, most = (
        deployed("Qwen/Qwen3-Next-80B-A3B-Instruct", max_num_seqs=n, **flags)
        for n in (1, 1_000_000)
    )
    left = kv_cache_bytes(one, EngineSpec()) + state_bytes(one)
    assert kv_cache_bytes(most, EngineSpec()) == pytest.approx(left * 10 / 19, rel=1e-9)


def test_states_find_no_common_prefixes():
    assert not deployed("ibm-granite/granite-4.0-h-small").recipe.prefix_caching
    assert deployed("zai-org/GLM-4.5-Air").recipe.prefix_caching


def test_layers_without_a_cache_of_their_own_take_no_memory():
    """Gemma-3n-E4B: 20 of 35 layers keep 512 tokens (16) or all (4)."""
    layout = kv_layout(deployed("google/gemma-3n-E4B-it"), EngineSpec())
    assert (layout.full_groups, layout.window_groups) == (1, 4)
    assert layout.block_bytes == 4 * 16 * 2 * 2 * 256 * 2


def test_compressed_keys_take_a_share_of_a_token_and_a_request_keeps_its_window():
    """DeepSeek-V4-Flash: pages of 64 keys of 584 bytes, 64 of an index, or 2 keys, in 576 bytes.

    A request holds windows in 3 blocks of two groups each, and unfinished sums in 3 and 17.
    """
    found = deployed("deepseek-ai/DeepSeek-V4-Flash", "B300", tensor_parallel_size=4)
    layout, size = kv_layout(found, EngineSpec()), found.recipe.block_tokens
    assert layout.block_bytes == 21 * (65 * 576 + 15 * 576) + 20 * 3 * 576
    assert (size, layout.window_blocks) == (256, 2 * 3 + 3 + 17)
    assert layout.request_blocks(10_000_000, size) == -(-10_000_000 // size) + 26
    assert layout.request_blocks(1, size) == 1 + 26


@pytest.mark.parametrize(
    "name", ["meta-llama/Llama-3.2-11B-Vision-Instruct", "google/gemma-3n-E4B-it"]
)
def test_weights_that_text_does_not_use_are_held(name):
    deployment = deployed(name)
    total = count_parameters(deployment.model).total
    assert gpu_weight_bytes(deployment) == pytest.approx(2 * total, rel=1e-3)


@pytest.mark.parametrize("name", ["zai-org/GLM-5", "Qwen/Qwen3-Next-80B-A3B-Instruct"])
def test_exports_refuse_what_they_cannot_say(name):
    deployment = deployed(name, "B200", tensor_parallel_size=8)
    with pytest.raises(PinnError, match="BLIS's step time formula covers plain attention"):
        check_expressible(deployment)
