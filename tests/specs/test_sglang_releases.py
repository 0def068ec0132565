"""Defaults of four releases of SGLang, in words of one's own, read in their wheels."""

from __future__ import annotations

import pytest

from pinn.engines.recipe import DEFAULT
from pinn.engines.recipe_rules import effective_recipe
from pinn.engines.vllm_sglang_trtllm import MemoryUsers, reserve_mib, sglang_sizes
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.units import MIB

EAGLE = {"speculative_config": "EAGLE"}
NGRAM = {"speculative_config": "NGRAM"}
TREE = EAGLE | {"speculative_num_steps": 3, "speculative_eagle_topk": 2}
TREE |= {"speculative_num_draft_tokens": 6}
REPLICAS = {"tensor_parallel_size": 8, "data_parallel_size": 8, "enable_dp_attention": True}


def resolved(release, gpu="H100", model="llama", **flags):
    serving = ServingSpec(engine="sglang", engine_version=release, **flags)
    return effective_recipe(serving, load_gpu(gpu), model)


def left_out_mib(recipe, gpu):
    total = load_gpu(gpu).memory_bytes / MIB
    return total * (1 - recipe.memory_share)


FACTS = {
    # release: (GPU, model, flags, field, value)
    "0.5.5": [
        ("L4", "llama", {}, "token_budget", 2048),
        ("L4", "llama", {}, "graph_requests", 24),
        ("H100", "llama", {"tensor_parallel_size": 4}, "graph_requests", 512),
        ("H100", "llama", {}, "graph_tokens", 1),
        ("B200", "llama", {}, "block_tokens", 1),
        ("B200", "deepseek_v3", {}, "block_tokens", 64),
        ("B200", "gpt_oss", {"tensor_parallel_size": 2}, "fused_all_reduce", True),
        ("H100", "deepseek_v3", {"tensor_parallel_size": 8}, "fused_all_reduce", False),
        ("B200", "qwen3_moe", {}, "moe_kernels", "auto"),
        ("B200", "deepseek_v3", {}, "moe_kernels", "flashinfer_trtllm"),
        ("H100", "qwen3_next", {}, "overlap", True),
        ("H100", "llama", EAGLE, "overlap", False),
        ("H100", "llama", EAGLE, "max_requests", 48),
        ("H100", "qwen3", EAGLE, "graph_sizes", (*range(1, 9), *range(10, 33, 2), 40, 44, 48)),
    ],
    "0.5.9": [
        ("L4", "llama", {}, "token_budget", 2048),
        ("L4", "llama", {"tensor_parallel_size": 4}, "graph_requests", 80),
        ("B200", "llama", {}, "block_tokens", 64),
        ("B200", "qwen3_next", {}, "block_tokens", 1),
        ("H200", "deepseek_v32", {}, "block_tokens", 64),
        ("H200", "deepseek_v3", {"tensor_parallel_size": 8}, "fused_all_reduce", True),
        ("H200", "deepseek_v3", {"tensor_parallel_size": 16}, "fused_all_reduce", False),
        ("H20", "deepseek_v3", {"tensor_parallel_size": 8}, "fused_all_reduce", False),
        ("H100", "qwen3_next", {}, "overlap", False),
        ("H100", "qwen3_next", {"enable_prefix_caching": False}, "overlap", True),
        ("H100", "llama", NGRAM, "overlap", False),
        ("H100", "llama", NGRAM, "max_requests", 48),
        ("H100", "llama", {}, "graph_tokens", 1),
        ("B200", "minimax_m2", {}, "moe_kernels", "auto"),
    ],
    "0.5.14": [
        ("H100", "llama", {}, "graph_tokens", 8192),
        ("B200", "qwen3_moe", {}, "graph_tokens", 16384),
        ("H200", "deepseek_v3", {}, "graph_tokens", 2048),
        ("H200", "deepseek_v3", {"enforce_eager": True}, "graph_tokens", 0),
        ("H200", "deepseek_v3", REPLICAS, "graph_tokens", 1),
        ("H100", "qwen3_next", {}, "graph_tokens", 1),
        ("H100", "qwen2_5_vl", {}, "graph_tokens", 1),
        ("H100", "qwen3_next", {}, "overlap", True),
        ("B200", "qwen3_next", {}, "block_tokens", 64),
        ("H20", "deepseek_v3", {"tensor_parallel_size": 8}, "fused_all_reduce", True),
        ("H100", "nemotron_h", {"tensor_parallel_size": 2}, "fused_all_reduce", True),
        ("H100", "llama", EAGLE, "overlap", True),
        ("H100", "llama", NGRAM, "overlap", True),
        ("L4", "llama", {"max_num_seqs": 20}, "graph_sizes", (1, 2, 4, 8, 12, 16, 20)),
    ],
    "0.5.23": [
        ("L4", "llama", {}, "token_budget", 4096),
        ("L4", "llama", {}, "graph_requests", 48),
        ("T4", "llama", {}, "token_budget", 2048),
        ("L40S", "llama", {}, "graph_requests", 32),
        ("H200", "deepseek_v3", {}, "graph_tokens", 8192),
        ("B200", "deepseek_v3", {}, "graph_tokens", 1),
        ("B200", "deepseek_v32", {}, "graph_tokens", 8192),
        ("B200", "deepseek_v32", {}, "kv_cache_dtype", "fp8"),
        ("H200", "deepseek_v32", {}, "kv_cache_dtype", "auto"),
        ("H200", "qwen3_moe", REPLICAS, "graph_tokens", 1024),
        ("H200", "kimi_linear", {}, "graph_tokens", 1),
        ("B200", "nemotron_h", {}, "block_tokens", 64),
        ("H100", "llama", {}, "max_requests", 2048),
        ("H100", "llama", TREE, "overlap", True),
        ("H100", "llama", {}, "admission_share", 0.7),
        ("H200", "llama", REPLICAS, "admission_share", 0.7 * 0.3),
        ("H100", "llama", {"schedule_conservativeness": 2.0}, "admission_share", 1.0),
        ("H200", "llama", REPLICAS | {"max_num_seqs": 64}, "graph_requests", 8),
    ],
}


@pytest.mark.parametrize(
    ("release", "gpu", "model", "flags", "field", "value"),
    [(release, *fact) for release, facts in FACTS.items() for fact in facts],
)
def test_a_release_runs_what_its_source_says(release, gpu, model, flags, field, value):
    found = resolved(release, gpu, model, **flags)
    assert getattr(found, field) == value


def test_trees_of_drafts_stop_the_overlap_in_two_releases_alone():
    overlaps = [resolved(r, **TREE).overlap for r in ("0.5.10", "0.5.11", "0.5.12", "0.5.13")]
    assert overlaps == [False, False, False, True]
    assert resolved("0.5.11", **EAGLE).overlap


@pytest.mark.parametrize(
    ("release", "model", "algorithm", "tokens", "passes"),
    [
        ("0.5.5", "qwen3", "EAGLE3", 7, 5),
        ("0.5.5", "deepseek_v3", "EAGLE", 3, 3),
        ("0.5.5", "glm4_moe", "EAGLE", 7, 5),
        ("0.5.6", "glm4_moe", "EAGLE", 3, 3),
        ("0.5.8", "qwen3", "EAGLE3", 3, 3),
        ("0.5.23", "llama", "EAGLE3", 7, 5),
        ("0.5.23", "minimax_m2", "EAGLE3", 3, 3),
        ("0.5.23", "llama", "NGRAM", 11, 0),
    ],
)
def test_drafts_that_nobody_asked_for_go_by_release_and_model(
    release, model, algorithm, tokens, passes
):
    flags = {"speculative_config": algorithm}
    if algorithm == "EAGLE3":
        flags["speculative_draft_model_path"] = "draft"
    drafts = resolved(release, model=model, **flags).speculation
    assert (drafts.tokens, drafts.passes) == (tokens, passes)


@pytest.mark.parametrize(
    ("release", "gpu", "flags", "mib"),
    [
        # 512 for the rest, 1.5 a prompt token, 2 a graph's request, 1024 a GPU of eight.
        ("0.5.9", "B200", {}, 512 + 16384 * 1.5 + 512 * 2 + 128),
        # 74 numbers of prompt tokens up to 16,384, 8 each.
        ("0.5.23", "B200", {}, 512 + 16384 * 1.5 + 512 * 2 + 128 + 74 * 8),
        ("0.5.9", "B200", EAGLE, 512 + 16384 * 1.5 + 512 * 2 + 128 + 2048),
        ("0.5.10", "B200", EAGLE, 512 + 16384 * 1.5 + 512 * 2 + 128 + 4096),
        ("0.5.9", "B200", REPLICAS, 512 + 16384 * 1.5 + 512 * 2 + 1024 + 512 * 8 * 4.5),
        ("0.5.9", "H100", {}, 512 + 8192 * 1.5 + 256 * 2 + 128),
        ("0.5.23", "H100", {"max_num_batched_tokens": 2048}, 10 * 1024),
        ("0.5.23", "H100", {"moe_a2a_backend": "deepep", "tensor_parallel_size": 4},
         512 + 8192 * 1.5 + 512 * 2 + 512 + 58 * 8 + 1024 + 2048),
    ],
)  # fmt: skip
def test_memory_that_is_left_out_adds_up(release, gpu, flags, mib):
    found = resolved(release, gpu, **flags)
    assert left_out_mib(found, gpu) == pytest.approx(max(mib, 10 * 1024), abs=100)


SMALL = 48 * 1024


@pytest.mark.parametrize(
    ("release", "memory", "sizes", "prompts", "latent", "drafts", "deepep", "mib"),
    [
        # 512, 1.5 a prompt token, 2 a decode of the largest graph, 1024 for eight GPUs.
        ((0, 5, 9), SMALL, (4096, 160, 1, 0), 0, False, "", False, 512 + 6144 + 320 + 128),
        ((0, 5, 9), SMALL, (1000, 160, 8, 0), 0, False, "", False, 512 + 3072 + 320 + 1024),
        # Each attention replica 3 a decode, 4.5 beyond 300.
        ((0, 5, 9), SMALL, (2048, 300, 8, 4), 0, False, "", False, 512 + 3072 + 600 + 1024 + 3600),
        ((0, 5, 9), SMALL, (2048, 301, 8, 4), 0, False, "", False, 512 + 3072 + 602 + 1024 + 5418),
        # Graphs of prompts: 8 for each of 58 numbers up to 8,192, 1536 of latent attention.
        ((0, 5, 10), SMALL, (2048, 8, 8, 0), 8192, False, "", False, 512 + 3072 + 16 + 1024 + 464),
        ((0, 5, 10), SMALL, (2048, 8, 8, 0), 8192, True, "", False, 512 + 3072 + 16 + 1024 + 1536),
        # DeepEP: 2048 from 0.5.15 on, 1024 more for graphs of prompts from 0.5.17 on.
        ((0, 5, 14), SMALL, (2048, 8, 8, 0), 0, False, "", True, 512 + 3072 + 16 + 1024),
        ((0, 5, 15), SMALL, (2048, 8, 8, 0), 0, False, "", True, 512 + 3072 + 16 + 1024 + 2048),
        ((0, 5, 16), SMALL, (2048, 8, 8, 0), 64, True, "", True, 4624 + 1536 + 2048),
        ((0, 5, 17), SMALL, (2048, 8, 8, 0), 64, True, "", True, 4624 + 1536 + 1024 + 2048),
        # At least 10 GiB beyond 60 GiB; drafts come on top.
        ((0, 5, 9), 60 * 1024, (2048, 8, 8, 0), 0, False, "", False, 4624),
        ((0, 5, 9), 60 * 1024 + 1, (2048, 8, 8, 0), 0, False, "", False, 10240),
        ((0, 5, 9), 80 * 1024, (2048, 8, 8, 0), 0, False, "NGRAM", False, 10240),
        ((0, 5, 9), 80 * 1024, (2048, 8, 8, 0), 0, False, "EAGLE", False, 10240 + 2048),
        ((0, 5, 10), 80 * 1024, (2048, 8, 8, 0), 0, False, "EAGLE3", False, 10240 + 4096),
        ((0, 5, 13), 80 * 1024, (2048, 8, 8, 0), 0, False, "STANDALONE", False, 10240 + 6144),
        ((0, 5, 14), 80 * 1024, (2048, 8, 8, 0), 0, False, "STANDALONE", False, 10240),
    ],
)
def test_each_part_of_what_sglang_leaves_out(
    release, memory, sizes, prompts, latent, drafts, deepep, mib
):
    users = MemoryUsers(*sizes, prompts, latent, drafts, deepep)
    assert reserve_mib(release, memory, users) == mib


def test_decodes_of_graphs_are_denser_where_they_are_few():
    """Every 8th up to 256, every 16th up to 512, every 32nd beyond; with drafts denser."""
    plain = sglang_sizes(600)
    assert plain[:7] == (1, 2, 4, 8, 12, 16, 24)
    assert plain[-21:-18] == (248, 256, 272)
    assert plain[-6:] == (480, 496, 512, 544, 576, 600)
    drafted = sglang_sizes(300, drafts=True)
    assert drafted[:12] == (*range(1, 9), 10, 12, 14, 16)
    assert [size for size in drafted if 28 <= size <= 88] == [
        28, 30, 32, 40, 44, 48, 52, 56, 60, 64, 72, 80, 88,
    ]  # fmt: skip
    assert drafted[-4:] == (256, 272, 288, 300)
    assert 64 not in sglang_sizes(300, drafts=True, release=(0, 5, 3))


def test_nothing_of_sglang_is_assumed_but_what_no_source_has():
    found = resolved("")
    assert set(found.assumed) <= {"fused_quantization"}
    assert found.origins["max_requests"].kind == found.origins["moe_kernels"].kind == DEFAULT
