"""Whether a model fits, against the memory model that the simulator runs with."""

from pinn.engines.configurations import canonical, make_deployment
from pinn.memory.kv_cache import memory_fit, smallest_tensor_parallel_size


def deployment(model, gpu="H100", **flags):
    return make_deployment(canonical({"model": model, "gpu": gpu, **flags}))


def test_a_published_run_has_its_cache():
    """CodeLlama-34B on two H100 with 2048 tokens a step: 26,602 blocks of 16 tokens were logged."""
    flags = {"tp": 2, "max_num_batched_tokens": 2048, "max_model_len": 4096, "max_num_seqs": 128}
    flags["engine_version"] = "0.15.1"
    found = memory_fit(deployment("codellama/CodeLlama-34b-hf", **flags))
    assert abs(found.kv_tokens / (26_602 * 16) - 1) < 0.001


def test_more_gpus_and_fewer_bits_hold_more():
    sizes = [memory_fit(deployment("Llama-3.1-70B", tp=tp)).kv_tokens for tp in (4, 8)]
    assert sizes[0] < sizes[1]
    assert smallest_tensor_parallel_size(deployment("Llama-3.1-70B")) == 4
    assert smallest_tensor_parallel_size(deployment("Llama-3.1-70B", q="fp8")) == 2


def test_what_fits_nowhere_and_sizes_that_do_not_divide():
    assert smallest_tensor_parallel_size(deployment("DeepSeek-V3", "L4")) is None
    found = memory_fit(deployment("DeepSeek-V3", "L4"))
    assert not found.fits
    assert "does not fit" in found.reason
    # 40 heads: sizes of 16 and 32 are none, and the search passes over them.
    assert smallest_tensor_parallel_size(deployment("Qwen2.5-14B", max_model_len=4096)) == 1
