"""Costs, lower bounds and features of published models, computed by hand from config.json."""

import numpy as np
import pytest
from batch_work import batch_work

from pinn.engines.deployment import Deployment
from pinn.physics import cost_facts
from pinn.physics.costs import UNCOMPILED, step_costs
from pinn.physics.step_values import PIECES, hit_expert_read_s
from pinn.specs.batch import Batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.model_variants import with_precision
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import STEP_FEATURES, step_features
from pinn.surrogate.surrogate import batch_floor_seconds

# The H100 SXM datasheet: 3.35 TB/s, 989.4 TFLOP/s bf16, 450 GB/s NVLink one way, PCIe 64 GB/s.
BANDWIDTH, BF16, LINK, PCIE = 3.35e12, 989.4e12, 450e9, 64e9
GIB = 2**30


def deploy(name, **flags):
    return Deployment(load_model(name), load_gpu("H100"), ServingSpec(**flags))


def costs(name, **flags):
    found = step_costs([deploy(name, **flags)])
    return {key: float(value[0]) for key, value in vars(found).items()}


def features(deployment, batch):
    values = step_features(*batch_work(deployment, [batch]))[0]
    return dict(zip(STEP_FEATURES, values.tolist(), strict=True))


# Llama-3.1-8B: hidden 4096, 32 layers, 32 heads and 8 KV heads of 128, FFN 14336, vocabulary
# 128256, bf16. Weights of a layer:
#   qkv 4096 x (32 + 2 x 8) x 128 = 25,165,824      o 4096 x 4096 = 16,777,216
#   gate_up 4096 x 28672 = 117,440,512              down 14336 x 4096 = 58,720,256
# together 218,103,808, times 32 layers 6,979,321,856; output head 128256 x 4096 = 525,336,576.
LAYERS_8B, HEAD_8B = 6_979_321_856, 525_336_576


@pytest.mark.parametrize("tp", [1, 2])
def test_llama_8b_weights_and_arithmetic_are_divided_by_tensor_parallelism(tp):
    found = costs("Llama-3.1-8B", tensor_parallel_size=tp, fuse_all_reduce=False)
    assert found["gemm_weights_s"] == pytest.approx(2 * (LAYERS_8B + HEAD_8B) / tp / BANDWIDTH)
    assert found["gemm_token_s"] == pytest.approx(2 * LAYERS_8B / tp / BF16)
    assert found["head_sequence_s"] == pytest.approx(2 * HEAD_8B / tp / BF16)
    # Keys and values of a token: 2 x 8 heads x 128 x 2 bytes x 32 layers = 131,072 bytes.
    assert found["kv_read_s"] == pytest.approx(131_072 / tp / BANDWIDTH)
    # A pair: scores and values, 2 x 2 x 128 FLOP for each of 32 heads in 32 layers.
    assert found["decode_pair_s"] == pytest.approx(4 * 128 * 32 * 32 / tp / BF16)
    assert found["prefill_pair_s"] == found["decode_pair_s"]
    assert (found["layers"], found["moe_layers"], found["experts"]) == (32, 0, 0)
    assert found["parallel_layers"] == (32 if tp > 1 else 0)


def test_llama_8b_logits_go_through_the_sampler_on_every_rank():
    # 128,256 logits: 10 bytes each for the likeliest token take 1.4 times as long as at the full
    # bandwidth. Drawing moves 32 more (1.2 times), its top-p 210 more (2.1 times).
    each = 10 * 1.4 + 32 * 1.2 + 210 * 2.1
    found = costs("Llama-3.1-8B")
    assert found["sampled_request_s"] == pytest.approx(128_256 * each / BANDWIDTH)
    step = 1.1e-5 + 1.1e-5 + 7.5e-5 + 128_256 * (2.5e-11 + 2.7e-10 + 7.8e-10)
    assert found["sampled_step_s"] == pytest.approx(step)
    greedy = {"override_generation_config": '{"temperature": 0}', "tensor_parallel_size": 8}
    found = costs("Llama-3.1-8B", **greedy)
    assert found["sampled_request_s"] == pytest.approx(128_256 * 14 / BANDWIDTH)


def test_llama_8b_all_reduces_on_two_gpus():
    # 2 per layer and 1 after the embedding: 65 messages of 4096 x 2 bytes per token. A ring of two
    # moves each of them 2 x (2 - 1) / 2 = 1 time over each link.
    found = costs("Llama-3.1-8B", tensor_parallel_size=2)
    assert found["all_reduce_token_s"] == pytest.approx(65 * 8192 / LINK)
    assert costs("Llama-3.1-8B")["all_reduce_token_s"] == 0


def test_a_full_width_norm_adds_an_all_reduce_to_each_layer_but_no_message_of_its_size():
    # MiniMax-M2.5: 62 layers, hidden 3072; its q/k norms sum a square or two per token over ranks.
    # 2 x 62 + 1 messages of 3072 x 2 bytes per token, each moved 2 x 3 / 4 times by a ring of four.
    found = costs("MiniMaxAI/MiniMax-M2.5", tensor_parallel_size=4, fuse_all_reduce=False)
    assert found["all_reduces"] == 125
    assert found["all_reduce_token_s"] == pytest.approx(125 * 6144 * 1.5 / LINK)
    # Each layer has the usual two all-reduces, and one more that takes about as long as both.
    assert found["parallel_layers"] == 62 + 62
    fused = costs("MiniMaxAI/MiniMax-M2.5", tensor_parallel_size=4, fuse_all_reduce=True)
    # The kernel that fuses takes 0.68 of the latency of the one that does not.
    assert fused["parallel_layers"] == pytest.approx(0.68 * (62 * 0.7 + 62))
    assert costs("MiniMaxAI/MiniMax-M2.5")["parallel_layers"] == 0


def test_kv_heads_fewer_than_ranks_are_kept_whole():
    # 16 ranks over 8 KV heads: each keeps one head, 2 x 128 x 2 bytes x 32 layers.
    found = costs("Llama-3.1-8B", tensor_parallel_size=16)
    assert found["kv_read_s"] == pytest.approx(2 * 128 * 2 * 32 / BANDWIDTH)
    # qkv is then (2 + 2 x 1) heads wide instead of 3 = 48 / 16.
    qkv, rest = 4096 * 4 * 128, (16_777_216 + 117_440_512 + 58_720_256) / 16
    assert found["gemm_token_s"] == pytest.approx(2 * 32 * (qkv + rest) / BF16)


def test_llama_8b_decode_floor_is_reading_weights_and_cache():
    # Weights 15,009,316,864 bytes; 32 x 700 cached tokens of 131,072 bytes: 17,945,329,664 bytes.
    floor = batch_floor_seconds(deploy("Llama-3.1-8B"), [Batch.decode(32, 700)])[0]
    assert floor == pytest.approx(17_945_329_664 / BANDWIDTH)
    assert floor == pytest.approx(5.357e-3, rel=1e-3)


def test_llama_8b_prefill_floor_is_arithmetic():
    # 2048 tokens x 13,958,643,712 FLOP, one row of the head, and 2048 x 2049 / 2 = 2,098,176
    # causal pairs of 524,288 FLOP: 28.89 + 0.001 + 1.112 ms.
    floor = batch_floor_seconds(deploy("Llama-3.1-8B"), [Batch.prefill(1, 2048)])[0]
    flop = 2048 * 2 * LAYERS_8B + 2 * HEAD_8B + 2_098_176 * 524_288
    assert floor == pytest.approx(flop / BF16)
    assert floor == pytest.approx(30.007e-3, rel=1e-3)


def test_llama_8b_features_of_a_mixed_step():
    # One fused pass: 512 + 16 tokens share the weights, 17 sequences are sampled.
    found = features(deploy("Llama-3.1-8B"), Batch.prefill(1, 512) + Batch.decode(16, 600))
    compute = (528 * 2 * LAYERS_8B + 17 * 2 * HEAD_8B) / BF16
    assert found["gemm"] == pytest.approx(compute)  # 7.47 ms, above the 4.48 ms of reading
    assert found["gemm_weights"] == pytest.approx(15_009_316_864 / BANDWIDTH)
    assert found["request"] == 17
    each = 10 * 1.4 + 32 * 1.2 + 210 * 2.1
    alone = 9.7e-5 + 128_256 * 1.075e-9
    assert found["sampling"] == pytest.approx(alone + 17 * 128_256 * each / BANDWIDTH)
    assert found["layer"] == found["prefill_layer"] == 32
    # A decode reads its own new key too: 16 x 601 tokens.
    assert found["kv_read"] == pytest.approx(16 * 601 * 131_072 / BANDWIDTH)
    assert found["prefill_attention"] == pytest.approx(512 * 513 / 2 * 524_288 / BF16)


def test_offloaded_gibibytes_cross_pcie():
    found = costs("Llama-3.1-8B", cpu_offload_gb=4.0)
    assert found["offload_s"] == pytest.approx(4 * GIB / PCIE)


def test_offload_beyond_the_weights_counts_the_weights():
    # 15,009,316,864 bytes; on each of two stages half of them.
    found = costs("Llama-3.1-8B", cpu_offload_gb=100.0)
    assert found["offload_s"] == pytest.approx(15_009_316_864 / PCIE)
    found = costs("Llama-3.1-8B", cpu_offload_gb=100.0, pipeline_parallel_size=2)
    assert found["offload_s"] == pytest.approx(15_009_316_864 / 2 / PCIE)
    # Offloaded weights include a mixture's experts, hit or not.
    found = costs("Mixtral-8x7B", cpu_offload_gb=100.0, tensor_parallel_size=8)
    dense = found["gemm_weights_s"] * BANDWIDTH
    assert found["offload_s"] == pytest.approx((dense + 8 * 2 * EXPERT_MIXTRAL / 8) / PCIE)


def test_fp8_weights_take_half_the_bytes_and_run_at_the_fp8_rate():
    model = with_precision(load_model("Llama-3.1-8B"), "fp8")
    found = step_costs([Deployment(model, load_gpu("H100"), ServingSpec())])
    # The head stays in bf16.
    assert found.gemm_weights_s[0] == pytest.approx((LAYERS_8B + 2 * HEAD_8B) / BANDWIDTH)
    assert found.gemm_token_s[0] == pytest.approx(2 * LAYERS_8B / 1978.9e12)
    assert found.quantized_layers[0] == 32


# Mixtral-8x7B: hidden 4096, 32 layers, 8 experts of 14336, top 2. One expert is
# 3 x 4096 x 14336 = 176,160,768 weights in a layer, 5,637,144,576 in all layers.
EXPERT_MIXTRAL = 5_637_144_576


def test_mixtral_reads_the_experts_that_are_hit():
    deployment = deploy("Mixtral-8x7B")
    work, sums = batch_work(deployment, [Batch.decode(4, 100)])
    assert work.expert_read_s[0] == pytest.approx(2 * EXPERT_MIXTRAL / BANDWIDTH)
    # Four tokens that pick 2 of 8: 8 x (1 - 0.75^4) = 5.46875 experts.
    hit = 5.46875 * 2 * EXPERT_MIXTRAL / BANDWIDTH
    assert hit_expert_read_s(work, sums.tokens)[0] == pytest.approx(hit)
    found = features(deployment, Batch.decode(4, 100))
    topk = 2 * 2 * EXPERT_MIXTRAL / BANDWIDTH
    assert found["experts"] == pytest.approx(topk)
    assert found["experts_hit"] == pytest.approx(hit - topk)
    assert found["expert_compute"] == pytest.approx(4 * 2 * 2 * EXPERT_MIXTRAL / BF16)
    assert found["moe_layer"] == 32


def test_mixtral_floor_counts_the_experts_of_one_token_only():
    # Any routing may send all tokens to the same two experts. The rest: attention 41,943,040
    # weights and a router of 4096 x 8 per layer, the head 32000 x 4096.
    rest = 2 * (32 * (41_943_040 + 32_768) + 131_072_000)
    floor = batch_floor_seconds(deploy("Mixtral-8x7B"), [Batch.decode(4, 100)])[0]
    cache = 4 * 100 * 131_072
    assert floor == pytest.approx((rest + 2 * 2 * EXPERT_MIXTRAL + cache) / BANDWIDTH)


@pytest.mark.parametrize("spread", [False, True])
def test_mixtral_experts_over_two_gpus(spread):
    found = costs("Mixtral-8x7B", tensor_parallel_size=2, enable_expert_parallel=spread)
    # Whole experts: 4 per GPU, and half of a token's 2 copies. Slices: 8 halves, 2 copies.
    assert found["experts"] == (4 if spread else 8)
    size = EXPERT_MIXTRAL if spread else EXPERT_MIXTRAL / 2
    assert found["expert_read_s"] == pytest.approx(2 * size / BANDWIDTH)
    assert found["expert_token_s"] == pytest.approx(2 * EXPERT_MIXTRAL * 2 / 2 / BF16)


# DeepSeek-V3: hidden 7168, 61 layers of latent attention with 128 heads (128 + 64 wide queries,
# values of 128), ranks 1536 and 512.
@pytest.mark.parametrize("tp", [1, 8])
def test_deepseek_v3_caches_one_latent_vector_that_ranks_do_not_divide(tp):
    found = costs("DeepSeek-V3", tensor_parallel_size=tp)
    # (512 + 64) x 2 bytes x 61 layers = 70,272 bytes per token, on every rank.
    assert found["kv_read_s"] == pytest.approx(70_272 / BANDWIDTH)
    # Decode in the latent space: scores over 576, values over 512, for each of 128 / tp heads.
    assert found["decode_pair_s"] == pytest.approx(2 * (576 + 512) * 128 / tp * 61 / BF16)
    # Prefill with whole heads: queries and keys of 192, values of 128.
    assert found["prefill_pair_s"] == pytest.approx(2 * (192 + 128) * 128 / tp * 61 / BF16)
    assert found["moe_layers"] == 58


def test_deepseek_v3_decode_attention_is_bound_by_arithmetic():
    # 2176 x 128 FLOP against 1152 bytes per key and layer: 242 FLOP per byte. The H100 computes 295
    # FLOP per byte that it reads, so reading (0.84 us per 1000 keys and layer) takes slightly
    # longer.
    found = features(deploy("DeepSeek-V3", tensor_parallel_size=1), Batch.decode(1, 999))
    assert found["decode_attention"] == found["kv_read"]
    assert found["kv_read"] == pytest.approx(1000 * 70_272 / BANDWIDTH)


# gpt-oss-120b: 36 layers, 64 heads and 8 KV heads of 64; every second layer sees 128 tokens only.
def test_gpt_oss_reads_at_most_its_window_in_half_the_layers():
    deployment = deploy("gpt-oss-120b")
    found = costs("gpt-oss-120b")
    # 2 x 8 x 64 x 2 bytes x 18 layers = 36,864 bytes per token, in either kind of layer.
    assert found["kv_read_s"] == found["windowed_kv_read_s"] == pytest.approx(36_864 / BANDWIDTH)
    values = features(deployment, Batch.decode(1, 1000))
    assert values["kv_read"] == pytest.approx((1001 + 128) * 36_864 / BANDWIDTH)
    # Arithmetic of a prompt of 1000: all 500,500 pairs, and with the window
    # 128 x 129 / 2 + 872 x 128 = 119,872; 4 x 64 FLOP x 64 heads x 18 layers each.
    pair = 4 * 64 * 64 * 18 / BF16
    values = features(deployment, Batch.prefill(1, 1000))
    assert values["prefill_attention"] == pytest.approx((500_500 + 119_872) * pair)


def test_gpt_oss_experts_are_stored_in_four_bits():
    # One expert: 3 x 2880 x 2880 weights of 4.25 bits in each of 36 layers.
    found = costs("gpt-oss-120b")
    assert found["expert_read_s"] == pytest.approx(3 * 2880**2 * 36 * 4.25 / 8 / BANDWIDTH)
    assert (found["experts"], found["expert_share"]) == (128, 4 / 128)


def test_small_kernels_move_norms_whole_and_the_rest_by_rank():
    # Two norms a layer, 4 x 4096 each; 2 x (32 + 2 x 8) x 128 after qkv; 1.5 x 2 x 14336 after
    # gate_up: 32768 + 12288 + 43008 = 88,064 elements of 2 bytes in each of 32 layers.
    found = costs("Llama-3.1-8B")
    assert found["activation_token_s"] == pytest.approx(88_064 * 32 * 2 / BANDWIDTH)
    # Llama-3.1-70B over 8 GPUs: norms of 8192, 65536; 8 + 2 x 1 heads of 128, 2560; a width of
    # 3584, 10752: 78,848 in each of 80 layers.
    found = costs("Llama-3.1-70B", tensor_parallel_size=8)
    assert found["activation_token_s"] == pytest.approx(78_848 * 80 * 2 / BANDWIDTH)


def test_static_scales_are_written_by_the_kernels_before():
    # Static scales save a byte per input, half an element: qkv and gate_up 8192 each, o 8 x 128,
    # down 3584, together 20,992 / 2.
    found = costs("nvidia/Llama-3.1-70B-Instruct-FP8", tensor_parallel_size=8)
    assert found["activation_token_s"] == pytest.approx((78_848 - 10_496) * 80 * 2 / BANDWIDTH)


def test_expert_traffic_is_a_tokens_copies_and_three_times_the_width():
    # A token's two copies go in and out of an expert (2 x 4096) and through its width three times.
    found = costs("Mixtral-8x7B")
    passes = 2 * (2 * 4096 + 3 * 14336) * 32
    assert found["expert_activation_token_s"] == pytest.approx(passes * 2 / BANDWIDTH)


@pytest.mark.parametrize(("spread", "copies"), [(True, 2), (False, 4)])
def test_mixtral_tokens_go_to_their_experts_and_back(spread, copies):
    # Four replicas: 3 / 4 of the copies leave their GPU, once to go and once to come back. Whole
    # experts receive a token's top-2 copies, slices of experts receive every token.
    found = costs("Mixtral-8x7B", data_parallel_size=4, enable_expert_parallel=spread)
    moved = 32 * 2 * copies * 3 / 4 * 4096 * 2
    assert found["exchange_token_s"] == pytest.approx(moved / LINK)
    assert costs("Mixtral-8x7B", tensor_parallel_size=4)["exchange_token_s"] == 0


def test_three_stages_hand_a_token_on_twice():
    found = costs("Llama-3.1-8B", pipeline_parallel_size=3)
    assert found["pipeline_token_s"] == pytest.approx(2 * 8192 / LINK)


def test_a_later_chunk_reads_what_is_cached():
    # 16 tokens hide behind 15,009,316,864 bytes of weights; 8000 cached tokens of 131,072 bytes.
    floor = batch_floor_seconds(deploy("Llama-3.1-8B"), [Batch.prefill(1, 16, 8000)])[0]
    assert floor == pytest.approx((15_009_316_864 + 8000 * 131_072) / BANDWIDTH)
    found = features(deploy("Llama-3.1-8B"), Batch.prefill(1, 16, 8000))
    assert found["prefill_kv_read"] == pytest.approx(8000 * 131_072 / BANDWIDTH)
    # Queries in and outputs out: 2 x 32 heads x 128 x 2 bytes x 32 layers for each token.
    assert found["prefill_tokens"] == pytest.approx(16 * 524_288 / BANDWIDTH)


def test_gpt_oss_floor_counts_what_is_cached_inside_its_windows():
    # A decode's own new key is written, not read: 1000 tokens, or 127 where the window is 128.
    floor = batch_floor_seconds(deploy("gpt-oss-120b"), [Batch.decode(1, 1000)])[0]
    found = costs("gpt-oss-120b")
    weights = found["gemm_weights_s"] + 4 * found["expert_read_s"]
    assert floor == pytest.approx(weights + (1000 + 127) * 36_864 / BANDWIDTH)
    # A chunk after 1000 cached tokens counts a whole window of them, one key more than needed.
    floor = batch_floor_seconds(deploy("gpt-oss-120b"), [Batch.prefill(1, 1, 1000)])[0]
    assert floor == pytest.approx(weights + (1000 + 128) * 36_864 / BANDWIDTH)


def test_large_prompts_are_launched_layer_by_layer():
    # Graphs cover up to 512 tokens. A share of a prompt's launches is between graph pieces.
    # Eager modules are not compiled, so each of their layers takes longer to launch.
    graphs, eager = deploy("Llama-3.1-8B"), deploy("Llama-3.1-8B", enforce_eager=True)
    for batch, share in (
        (Batch.decode(64, 700), 0),
        (Batch.prefill(1, 1), PIECES),
        (Batch.prefill(1, 128) + Batch.decode(64, 700), PIECES),
        (Batch.prefill(1, 512), PIECES),
        (Batch.prefill(1, 500) + Batch.decode(44, 700), 0.5),  # half of the eighth above 512
        (Batch.prefill(1, 576), 1),
        (Batch.prefill(1, 4096), 1),
        (Batch.decode(600, 700), 1),
    ):
        assert features(graphs, batch)["launched_layer"] == pytest.approx(32 * share)
        assert features(eager, batch)["launched_layer"] == 32 * UNCOMPILED
    assert features(eager, Batch())["launched_layer"] == 0


def test_layers_of_experts_and_latent_attention_launch_more_kernels():
    """DeepSeek-V3: 61 latent layers, 58 with routed and shared experts, all of them quantized."""
    costs = step_costs([deploy("deepseek-ai/DeepSeek-V3"), deploy("Llama-3.1-8B")])
    expected = np.array([61 + (0.8 + 0.4) * 58 + 0.8 * 61 + 0.3 * 61, 32])
    assert costs.launched_layers.tolist() == pytest.approx(expected)
    sglang = step_costs(
        [
            deploy("deepseek-ai/DeepSeek-V3", engine="sglang"),
            deploy("Llama-3.1-8B", engine="sglang"),
        ]
    )
    assert sglang.launched_layers.tolist() == pytest.approx(UNCOMPILED * expected)


def test_recurrent_layers_launch_three_and_a_half_times_the_kernels():
    """Qwen3.5-35B-A3B: 40 layers with routed and shared experts, 30 of them recurrent."""
    costs = step_costs([deploy("Qwen/Qwen3.5-35B-A3B")])
    assert costs.launched_layers.tolist() == pytest.approx([40 + (0.8 + 0.4) * 40 + 2.5 * 30])


def test_modules_that_are_not_compiled_take_twice_as_long_to_launch():
    graphs, eager = (costs("Qwen/Qwen3.5-35B-A3B", enforce_eager=eager) for eager in (False, True))
    assert eager["launched_layers"] == pytest.approx(2.1 * graphs["launched_layers"])


def test_arithmetic_beyond_a_tile_and_beyond_a_wave():
    token = costs("Llama-3.1-8B")["gemm_token_s"]
    for tokens in (100, 1000, 3000):
        found = features(deploy("Llama-3.1-8B"), Batch.prefill(1, tokens))
        assert found["gemm_beyond_128"] == pytest.approx(token * max(tokens - 128, 0))
        assert found["gemm_beyond_1024"] == pytest.approx(token * max(tokens - 1024, 0))
    # Experts see the tokens of both replicas.
    found = features(deploy("Mixtral-8x7B", data_parallel_size=2), Batch.prefill(1, 1000))
    expert = costs("Mixtral-8x7B", data_parallel_size=2)["expert_token_s"]
    assert found["expert_compute"] == pytest.approx(2000 * expert)
    assert found["expert_compute_beyond_1024"] == pytest.approx((2000 - 1024) * expert)


def test_messages_of_an_all_reduce_change_their_way_at_256_kib():
    # 8 KiB per token: 32 tokens fill 256 KiB, 1024 tokens 8 MiB.
    flags = {"tensor_parallel_size": 2, "fuse_all_reduce": False}
    deployment = deploy("Llama-3.1-8B", **flags)
    token = costs("Llama-3.1-8B", **flags)["all_reduce_token_s"]
    assert costs("Llama-3.1-8B", **flags)["one_shot_bytes"] == 256 * 1024
    for tokens in (16, 32, 33, 2000):
        found = features(deployment, Batch.decode(tokens, 10))
        assert found["all_reduce"] == pytest.approx(token * tokens)
        assert found["all_reduce_first_256k"] == pytest.approx(token * min(tokens, 32))
        assert found["all_reduce_first_8m"] == pytest.approx(token * min(tokens, 1024))
        assert found["large_all_reduce"] == (65 if tokens > 32 else 0)


@pytest.mark.parametrize(("tp", "mib", "tokens"), [(4, 2, 256), (8, 0.5, 64)])
def test_messages_that_are_fused_change_their_way_where_fusing_ends(tp, mib, tokens):
    # vLLM 0.19 fuses up to so many MiB on H100; 8 KiB per token.
    flags = {"tensor_parallel_size": tp, "engine_version": "0.19.0", "fuse_all_reduce": True}
    deployment = deploy("Llama-3.1-8B", **flags)
    found = costs("Llama-3.1-8B", **flags)
    assert found["one_shot_bytes"] == mib * 2**20
    # The kernel that fuses takes 0.68 of the latency; bytes beyond small messages take as long.
    assert found["small_all_reduce_token_s"] == pytest.approx(0.68 * found["all_reduce_token_s"])
    small = found["small_all_reduce_token_s"]
    for size in (tokens, tokens + 1):
        values = features(deployment, Batch.decode(size, 10))
        large = 0.68 * 65 if size > tokens else 0
        assert values["large_all_reduce"] == pytest.approx(large)
        # What a small message takes more ends at 256 KiB and 8 MiB whatever is fused.
        assert values["all_reduce_first_256k"] == pytest.approx(small * 32)
        assert values["all_reduce_first_8m"] == pytest.approx(small * size)


def test_skewed_routing_hits_the_experts_of_a_tenth_of_the_tokens():
    # Twenty tokens hit as many as two: 8 x (1 - 0.75^2) = 3.5 of 8, 2 of them counted already.
    found = features(deploy("Mixtral-8x7B"), Batch.decode(20, 100))
    assert found["experts_hit_tenth"] == pytest.approx(1.5 * 2 * EXPERT_MIXTRAL / BANDWIDTH)
    one = features(deploy("Mixtral-8x7B"), Batch.decode(1, 100))
    assert one["experts_hit"] == pytest.approx(0, abs=1e-12)
    assert one["experts_hit_tenth"] == 0


def test_a_fact_that_is_not_declared_is_refused(monkeypatch):
    declared = cost_facts._expert_facts
    monkeypatch.setattr(
        cost_facts, "_expert_facts", lambda *given: declared(*given) | {"spare_experts": 1.0}
    )
    cost_facts.fact_row.cache_clear()
    with pytest.raises(TypeError, match="the class CostFacts has no fields spare_experts"):
        step_costs([deploy("Llama-3.1-8B")])
