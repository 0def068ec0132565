"""Resolved engine configuration: flags and defaults, each field with its origin."""

from __future__ import annotations

import pytest

from pinn.engines.configurations import canonical, make_deployment
from pinn.engines.recipe import DEFAULT, FLAG, Origin, all_defaults, engine_default
from pinn.engines.recipe_rules import effective_recipe
from pinn.errors import PinnError
from pinn.physics.costs import step_costs
from pinn.specs.flags import flags_of
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

R1 = "deepseek_v3"
#: Lines of the table that no flag of that name sets, and whose values are no switches.
_NO_FLAGS = ("sampler_bytes", "padded_width", "counted_graphs",
    "oldest_engine_version", "async_scheduling_drafted", "fuse_all_reduce_most_mib",
    "latent_state_block",
)  # fmt: skip


def recipe(gpu="B200", model_type=R1, **flags):
    return effective_recipe(ServingSpec(**flags), load_gpu(gpu), model_type)


def test_every_default_names_a_source_and_reads_as_its_flag():
    flags = {flag.name: flag for flag in flags_of(ServingSpec)}
    for line in all_defaults():
        assert line.source
        if line.flag in flags:
            flags[line.flag].check(flags[line.flag].read(line.value))
        elif line.flag == "prompt_graph_tokens":
            assert line.value == "chunk" or int(line.value) >= 0
        elif line.flag == "all_reduce_latency":
            assert 0 < float(line.value) <= 1
        else:
            assert line.value in ("yes", "no") or line.flag in _NO_FLAGS


@pytest.mark.parametrize(
    ("gpu", "tokens", "requests"),
    [("H100", 8192, 1024), ("A100-SXM-80GB", 2048, 256), ("L4", 2048, 256)],
)
def test_vllm_goes_by_the_memory_and_not_on_an_a100(gpu, tokens, requests):
    found = recipe(gpu)
    assert (found.token_budget, found.max_requests) == (tokens, requests)
    assert found.graph_tokens == min(2 * requests, 512)


def test_models_share_a_recipe_where_no_default_asks_for_their_type():
    gpt_oss, llama = (recipe(tensor_parallel_size=8, model_type=t) for t in ("gpt_oss", "llama"))
    assert gpt_oss is llama
    flags = {"engine": "sglang", "tensor_parallel_size": 8}
    gpt_oss, llama = (recipe(model_type=t, **flags) for t in ("gpt_oss", "llama"))
    assert (gpt_oss.fused_all_reduce, llama.fused_all_reduce) == (True, False)


def test_a_recipe_shows_a_number_as_it_was_given_whatever_was_asked_before():
    given = [recipe(max_num_seqs=number).max_requests for number in (64, 64.0, 64)]
    assert list(map(repr, given)) == ["64", "64.0", "64"]


@pytest.mark.parametrize(
    ("gpu", "chunk", "graphs"),
    [("L4", 4096, 48), ("L40S", 4096, 32), ("H100", 8192, 256), ("B200", 16384, 512)],
)
def test_sglang_goes_by_the_memory(gpu, chunk, graphs):
    found = recipe(gpu, engine="sglang")
    assert (found.token_budget, found.graph_requests) == (chunk, graphs)
    assert found.origins["token_budget"].kind == DEFAULT


def test_a_version_decides_what_a_newer_one_does_not():
    older = recipe("L4", engine="sglang", engine_version="0.5.3.post1")
    assert (older.graph_requests, recipe("L4", engine="sglang").graph_requests) == (16, 48)
    assert not recipe(engine_version="0.13.0").overlap
    assert recipe(engine_version="0.14.0").overlap
    fused = {"engine": "sglang", "tensor_parallel_size": 8}
    assert [
        recipe(gpu, engine_version=version, **fused).fused_all_reduce
        for gpu in ("B200", "H200")
        for version in ("0.5.4", "0.5.6", "0.5.7")
    ] == [False, True, True, False, False, True]


def test_each_field_says_what_set_it():
    found = effective_recipe(
        ServingSpec(engine="sglang", max_num_batched_tokens=32768, kv_cache_dtype="fp8"),
        load_gpu("B200"), R1,
    )  # fmt: skip
    origins = found.origins
    assert (origins["token_budget"].kind, origins["token_budget"].text) == (
        FLAG, "--chunked-prefill-size",
    )  # fmt: skip
    assert origins["kv_cache_dtype"].text == "--kv-cache-dtype"
    assert origins["max_requests"].kind == DEFAULT
    assert "fused_quantization" in found.assumed
    assert set(found.described()) == set(origins)
    # A default may also have been given, so its origin does not deny that.
    assert origins["tensor_parallel_size"] == Origin(DEFAULT, "default of --tensor-parallel-size")


def test_attention_replicas_come_from_among_the_gpus():
    found = recipe(
        engine="sglang", tensor_parallel_size=8, data_parallel_size=4, enable_dp_attention=True,
        ep_size=2,
    )  # fmt: skip
    assert (found.tensor_parallel_size, found.data_parallel_size) == (2, 4)
    assert (found.expert_parallel_size, found.expert_tensor_parallel_size) == (2, 4)
    assert found.token_budget == 16384 // 4
    whole = recipe(engine="trtllm", tensor_parallel_size=8, enable_dp_attention=True)
    assert (whole.tensor_parallel_size, whole.data_parallel_size) == (1, 8)


def test_trtllm_captures_few_sizes_without_padding():
    padded = recipe(engine="trtllm", cudagraph_padding=True, max_num_seqs=64)
    assert (padded.graph_sizes[-1], padded.graph_sizes[3:6]) == (64, (8, 16, 24))
    assert recipe(engine="trtllm").graph_requests == 32
    assert recipe(engine="trtllm", enforce_eager=True).graph_tokens == 0


def test_eager_modules_are_not_compiled():
    assert recipe().compiled
    eager = recipe(enforce_eager=True)
    assert not eager.compiled
    assert eager.origins["compiled"] == Origin(FLAG, "--enforce-eager")
    assert not any(recipe(engine=name).compiled for name in ("sglang", "trtllm"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"engine": "sglang", "data_parallel_size": 2}, "start 2 independent servers"),
        ({"engine": "sglang", "tensor_parallel_size": 4, "ep_size": 3}, "--ep-size 3 does not"),
        ({"ep_size": 2}, "vllm has no flag --ep-size"),
        ({"engine": "trtllm", "scheduler_recv_interval": 4}, "trtllm has no flag --scheduler-recv"),
        ({"disaggregation_mode": "prefill"}, "describe both pools: pinn simulate --prefill"),
        ({"engine_version": "nightly"}, "must be a release"),
        ({"engine": "lmdeploy"}, "use one of vllm, sglang, trtllm"),
    ],
)
def test_what_is_not_modelled_is_refused(flags, message):
    with pytest.raises(PinnError, match=message):
        recipe(**flags)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"chunked_prefill_size": "4096"}, "max_num_batched_tokens", 4096),
        ({"--max-running-requests": 64}, "max_num_seqs", 64),
        ({"mem-fraction-static": 0.8}, "gpu_memory_utilization", 0.8),
        ({"max_num_tokens": 9000}, "max_num_batched_tokens", 9000),
        ({"max_batch_size": 32}, "max_num_seqs", 32),
        ({"disable_radix_cache": "true"}, "enable_prefix_caching", False),
        ({"enable_block_reuse": "no"}, "enable_prefix_caching", False),
        ({"enable_attention_dp": "yes"}, "enable_dp_attention", True),
        ({"disable_cuda_graph_padding": True}, "cudagraph_padding", False),
    ],
)
def test_an_engines_own_spelling_is_the_same_flag(given, name, value):
    assert canonical(given) == {name: value}


def test_deepep_sends_a_token_to_its_experts_and_a_gather_to_every_gpu():
    wide = {"engine": "sglang", "tensor_parallel_size": 32, "data_parallel_size": 32}
    flags = wide | {"model": "deepseek-ai/DeepSeek-R1", "gpu": "GB200", "enable_dp_attention": True}
    gathers = make_deployment(flags | {"ep_size": 32})
    sends = make_deployment(flags | {"moe_a2a_backend": "deepep"})
    assert sends.recipe.expert_parallel_size == gathers.recipe.expert_parallel_size == 32
    assert (gathers.recipe.expert_exchange, sends.recipe.expert_exchange) == (
        "gather",
        "all_to_all",
    )
    assert sends.recipe.origins["expert_exchange"] == Origin(FLAG, "--moe-a2a-backend")
    times = [step_costs([each]).exchange_token_s.item() for each in (gathers, sends)]
    assert times[0] == pytest.approx(4 * times[1])  # 32 ranks, and 8 experts of a token


def test_vllm_predictions_depend_on_the_sizes_alone():
    """A recipe of vLLM without flags has every default that was in force before there were any."""
    flags = {"model": "Llama-3.1-8B", "gpu": "H100", "engine_version": "0.15.1"}
    found = make_deployment(flags).recipe
    assert (found.block_tokens, found.memory_share, found.chunked_prefill) == (16, 0.9, True)
    assert (found.graph_requests, found.graph_sizes[:5]) == (0, (1, 2, 4, 8, 16))
    assert found.expert_exchange == "all_to_all"
    assert engine_default("vllm", "max_num_seqs", "0.15.1", load_gpu("H100")).value == "1024"
