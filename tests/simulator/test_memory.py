"""KV blocks from memory, and what does not fit."""

from __future__ import annotations

import dataclasses

import pytest
from parameter_counts import count_parameters
from simulator_helpers import DENSE, MIXTURE, Recorder, deployment, load

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.memory.kv_cache import kv_cache_bytes, kv_layout, memory_fit
from pinn.memory.ledger import memory_ledger
from pinn.memory.weights import gpu_weight_bytes
from pinn.simulator.simulate import simulate
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.units import GIB


def test_a_published_run_has_the_blocks_that_it_reported():
    # CodeLlama-34B on 2 H100, as its server (0.15.1) logged: 26,602 blocks, the null one in.
    serving = ServingSpec(
        engine_version="0.15.1",
        tensor_parallel_size=2,
        max_num_batched_tokens=2048,
        max_num_seqs=128,
        max_model_len=4096,
    )
    target = Deployment(load_model("codellama/CodeLlama-34b-hf"), load_gpu("H100"), serving)
    assert kv_layout(target, EngineSpec()).blocks == pytest.approx(26_601, rel=2e-3)


@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_weights_are_every_parameter_once(model):
    parameters = count_parameters(model).total
    assert gpu_weight_bytes(deployment(model)) == pytest.approx(2 * parameters, rel=0.01)
    halves = gpu_weight_bytes(deployment(model, tensor_parallel_size=2))
    assert halves == pytest.approx(parameters, rel=0.02)


def test_experts_are_spread_over_ranks_with_and_without_expert_parallelism():
    cut = gpu_weight_bytes(deployment(MIXTURE, data_parallel_size=2))
    spread = deployment(MIXTURE, data_parallel_size=2, enable_expert_parallel=True)
    assert cut == gpu_weight_bytes(spread) < gpu_weight_bytes(deployment(MIXTURE))


def test_a_block_holds_keys_and_values_of_every_layer():
    # 4 layers x 2 x 4 heads x 64 x 2 bytes x 4 tokens.
    assert kv_layout(deployment(), EngineSpec()).block_bytes == 4 * 2 * 4 * 64 * 2 * 4
    halved = deployment(tensor_parallel_size=2)
    assert kv_layout(halved, EngineSpec()).block_bytes == 2 * 2 * 4 * 64 * 2 * 4
    replicated = deployment(tensor_parallel_size=8)
    assert kv_layout(replicated, EngineSpec()).block_bytes == 1 * 2 * 4 * 64 * 2 * 4


def test_windowed_layers_hold_a_window_of_each_request():
    full, windowed = DENSE.layer_groups[0], DENSE.layer_groups[0]
    attention = dataclasses.replace(windowed.attention, window_tokens=16)
    mixed = dataclasses.replace(
        DENSE,
        layer_groups=(
            dataclasses.replace(full, count=2),
            dataclasses.replace(windowed, count=6, attention=attention),
        ),
    )
    layout = kv_layout(deployment(mixed), EngineSpec())
    assert (layout.full_groups, layout.window_groups, layout.window_blocks) == (1, 3, 5)
    assert layout.block_bytes == 2 * 2 * 4 * 64 * 2 * 4
    assert layout.request_blocks(8, 4) == 2 + 3 * 2
    assert layout.request_blocks(40, 4) == 10 + 3 * 5


@pytest.mark.parametrize(
    ("full", "windowed", "release", "groups", "layers"),
    [
        (10, 12, "0.17.1", (1, 1), 12),  # 12 < 1.25 x 10: two layers of padding
        (8, 10, "0.17.1", (1, 2), 8),  # 10 is not below 1.25 x 8
        (8, 10, "0.18.0", (1, 1), 10),  # but below 1.5 x 8
        (11, 8, "0.33.0", (1, 1), 11),
        (8, 12, "0.33.0", (1, 2), 8),  # 12 is not below 1.5 x 8
    ],
)
def test_groups_are_padded_up_to_the_ratio_of_the_release(full, windowed, release, groups, layers):
    """``max_num_layers < min_num_layers * 1.25``, from 0.18.0 on 1.5.

    kv_cache_utils.py: _get_kv_cache_groups_uniform_page_size of 0.17.1 and 0.18.0, and
    kv_cache_planning.py of 0.33.0.
    """
    layer = DENSE.layer_groups[0]
    window = dataclasses.replace(layer.attention, window_tokens=16)
    mixed = dataclasses.replace(
        DENSE,
        layer_groups=(
            dataclasses.replace(layer, count=full),
            dataclasses.replace(layer, count=windowed, attention=window),
        ),
    )
    layout = kv_layout(deployment(mixed, engine_version=release), EngineSpec())
    assert (layout.full_groups, layout.window_groups) == groups
    assert layout.block_bytes == layers * 2 * 4 * 64 * 2 * 4


@pytest.mark.parametrize(("release", "bytes_"), [("0.15.1", 38.5), ("0.19.0", 14), ("0.21.0", 10)])
def test_the_sampler_holds_more_while_the_release_sorts_logits(release, bytes_):
    """256 requests of 128,256 logits: more than 256 tokens in a layer of Llama-3.1-8B."""
    few = _llama_8b(max_num_batched_tokens=256, max_num_seqs=256, engine_version=release)
    assert memory_ledger(few).reserve.sampler == 256 * 128_256 * bytes_


def test_the_larger_of_both_peaks_counts():
    few = _llama_8b(max_num_batched_tokens=256, max_num_seqs=256)
    found = memory_ledger(few).reserve
    assert found.sampler > found.forward
    assert found.total == found.context + found.sampler + found.graphs
    wide = memory_ledger(_llama_8b(max_num_batched_tokens=65536, max_num_seqs=1)).reserve
    assert wide.total == wide.context + wide.forward + wide.graphs


@pytest.mark.parametrize(
    ("gpu", "release", "padded"),
    # Hidden size 2,880 padded to 3,072; a slice of 2,880 to itself, 2,944 and 3,072.
    [("H100", "0.11.0", 2880), ("H200", "0.22.1", 2944), ("A100-80GB", "0.19.0", 2944),
     ("B200", "0.22.1", 3072)],
)  # fmt: skip
def test_mxfp4_experts_are_padded_for_their_kernels(gpu, release, padded):
    serving = ServingSpec(engine_version=release)
    served = Deployment(load_model("openai/gpt-oss-20b"), load_gpu(gpu), serving)
    experts = 24 * 32 * 3 * served.model.precisions.experts.bytes_per_weight
    plain = replaced_experts(served)
    assert gpu_weight_bytes(served) - plain == pytest.approx(experts * 3072 * padded, rel=1e-6)


def replaced_experts(served):
    """Weights without experts."""
    none = dataclasses.replace(served.model.moe, experts=0)
    groups = tuple(dataclasses.replace(g, ffn=none) for g in served.model.layer_groups)
    bare = dataclasses.replace(served.model, layer_groups=groups)
    routers = 24 * 32 * 2880 * 2
    return gpu_weight_bytes(dataclasses.replace(served, model=bare)) + routers


def test_graphs_are_taken_off_where_the_release_estimates_them():
    def graphs(release, model="openai/gpt-oss-120b", **flags):
        serving = ServingSpec(engine_version=release, **flags)
        served = Deployment(load_model(model), load_gpu("H200"), serving)
        return memory_ledger(served).reserve.graphs

    assert graphs("0.19.0") == 0
    assert graphs("0.22.1") == pytest.approx(1.04 * GIB, abs=0.02 * GIB)  # 1.03 to 1.05 logged
    assert graphs("0.22.1", enforce_eager=True) == 0
    # The second runner, which dense models get first, estimates graphs from 0.29 on.
    dense = ("0.22.1", "0.28.0", "0.29.0")
    assert [graphs(r, "meta-llama/Llama-3.1-8B") > 0 for r in dense] == [False, False, True]
    few_experts = "deepseek-ai/DeepSeek-V2-Lite"
    assert [graphs(r, few_experts) > 0 for r in ("0.23.0", "0.28.0", "0.29.0")] == [
        True,
        False,
        True,
    ]


def test_tokens_are_counted_as_the_release_logs_them():
    """Llama's requests of any length fill the same blocks; gpt-oss's windows end."""
    for release, more in (("0.19.0", False), ("0.22.1", True)):
        serving = ServingSpec(engine_version=release, max_model_len=16_384)
        mixed = Deployment(load_model("openai/gpt-oss-20b"), load_gpu("H200"), serving)
        blocks = kv_layout(mixed, EngineSpec()).blocks
        by_groups = blocks // 2 * mixed.recipe.block_tokens
        assert (memory_fit(mixed).kv_tokens > 1.1 * by_groups) is more
        plain = _llama_8b(engine_version=release, max_model_len=16_384)
        blocks = kv_layout(plain, EngineSpec()).blocks
        expected = blocks * plain.recipe.block_tokens
        assert memory_fit(plain).kv_tokens == pytest.approx(expected, rel=1e-3)


def test_one_h100_does_not_start_gpt_oss_120b_with_its_default_context():
    """As two public start-ups of vLLM 0.11.0 show; with 16,000 tokens it starts."""

    def fit(length):
        serving = ServingSpec(
            engine_version="0.11.0", max_model_len=length, gpu_memory_utilization=0.95
        )
        return memory_fit(Deployment(load_model("openai/gpt-oss-120b"), load_gpu("H100"), serving))

    assert not fit(131_072).fits
    assert "--max-model-len" in fit(131_072).reason
    assert fit(16_000).fits


def test_offload_makes_room_and_overrides_hold():
    plain, offloaded = deployment(), deployment(cpu_offload_gb=0.005)
    assert kv_cache_bytes(offloaded, EngineSpec()) - kv_cache_bytes(
        plain, EngineSpec()
    ) == pytest.approx(0.005 * GIB)
    fixed = EngineSpec(kv_cache_memory_bytes=1 * GIB)
    layout = kv_layout(plain, fixed)
    assert layout.blocks == GIB // layout.block_bytes - 1
    reserve = memory_ledger(plain).reserve.total
    more = EngineSpec(activation_reserve_bytes=reserve + GIB)
    assert kv_cache_bytes(plain, EngineSpec()) - kv_cache_bytes(plain, more) == pytest.approx(GIB)


def _llama_8b(**serving):
    return Deployment(
        load_model("meta-llama/Llama-3.1-8B"), load_gpu("H100"), ServingSpec(**serving)
    )


def _llama_70b(**serving):
    return Deployment(
        load_model("meta-llama/Llama-3.1-70B"), load_gpu("H100"), ServingSpec(**serving)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: kv_layout(_llama_70b(), EngineSpec()),
            r"weights take 131\.\d\d GiB.*72\.\d\d GiB",
        ),
        (
            lambda: kv_layout(_llama_70b(tensor_parallel_size=2), EngineSpec()),
            r"--max-model-len 131072 needs 8,192 KV cache blocks .* use --max-model-len \d+",
        ),
        (lambda: _serve([60, 8], [5, 1]), "request 0 has 60 prompt and 5 output tokens, 65 tog"),
        (
            lambda: _serve([8], [1], enable_chunked_prefill=False, max_num_batched_tokens=32),
            "32 is",
        ),
        (lambda: _serve([8], [1], num_gpu_blocks_override=8), "needs 16 KV cache blocks"),
        (lambda: _serve([8], [1], num_gpu_blocks_override=1), "at least 2"),
        (lambda: _serve([8], [1], data_parallel_routing="random"), "least_loaded, round_robin"),
        (lambda: _serve([8], [1], long_prefill_token_threshold=-1), "got -1"),
        (lambda: _serve([8], [1], kv_transfer_bytes_per_s=0.0), "must be positive, got 0.0"),
        (lambda: _serve([8], [1], recorder=Recorder(step_s=0.0)), "returned 0.0 s for a step"),
        (
            lambda: _serve([8], [1], recorder=Recorder(step_s=float("nan"))),
            "returned nan s for a step",
        ),
        (lambda: _serve([8], [1], recorder=object()), "lacks step_time, queueing_time, output_"),
        (lambda: _serve([8], [1], compiled=True), "a compiled simulation needs a LinearLatency"),
    ],
)
def test_what_cannot_run_is_refused_with_its_number(make, message):
    with pytest.raises(PinnError, match=message):
        make()


def _serve(prompts, outputs, recorder=None, compiled=None, **flags):
    names = {field.name for field in dataclasses.fields(EngineSpec)}
    engine = EngineSpec(**{name: value for name, value in flags.items() if name in names})
    serving = {name: value for name, value in flags.items() if name not in names}
    latency = recorder or Recorder()
    return simulate(
        deployment(**serving), load(prompts, outputs), latency, engine, compiled=compiled
    )
