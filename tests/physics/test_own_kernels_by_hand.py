"""Features of engines that run other kernels than vLLM, by hand; floors know no kernels."""

from __future__ import annotations

import pytest

from pinn.coefficients.surrogate import batch_floor_seconds, batch_work
from pinn.engines.deployment import Deployment
from pinn.physics.costs import draft_costs
from pinn.physics.step import STEP_FEATURES, step_features
from pinn.specs.batch import Batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.model import Sampling
from pinn.specs.serving import ServingSpec


def features(deployment, batch):
    values = step_features(*batch_work(deployment, [batch]))[0]
    return dict(zip(STEP_FEATURES, values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("model", "gpu", "flags", "factor"),
    [
        ("Llama-3.1-8B", "H100", {"engine": "trtllm"}, 1.12),
        ("Llama-3.1-8B", "H200", {"engine": "trtllm", "kv_cache_dtype": "fp8"}, 0.66),
        # On Blackwell vLLM runs TensorRT-LLM's kernels, on Hopper SGLang vLLM's.
        ("Llama-3.1-8B", "B200", {"engine": "trtllm", "kv_cache_dtype": "fp8"}, 1.0),
        ("Llama-3.1-8B", "H100", {"engine": "sglang", "kv_cache_dtype": "fp8"}, 1.0),
        # Of latent attention whole modules were timed.
        ("deepseek-ai/DeepSeek-V3", "H200", {"engine": "trtllm", "tensor_parallel_size": 8}, 1.0),
    ],
)
def test_an_engines_own_decode_attention_takes_as_long_as_it_was_timed(model, gpu, flags, factor):
    vllm, own = (
        Deployment(load_model(model), load_gpu(gpu), ServingSpec(**flags | each))
        for each in ({"engine": "vllm"}, {})
    )
    decodes, prompt = Batch.decode(64, 2000), Batch.prefill(2, 700)
    theirs, mine = features(vllm, decodes), features(own, decodes)
    for name in ("decode_layer", "decode_attention", "kv_read"):
        assert theirs[name] > 0
        assert mine[name] == pytest.approx(factor * theirs[name]), name
    assert mine["gemm"] == theirs["gemm"]
    attention = [name for name in STEP_FEATURES if name.startswith("prefill")]
    theirs, mine = features(vllm, prompt), features(own, prompt)
    assert [mine[name] for name in attention] == [theirs[name] for name in attention]
    assert batch_floor_seconds(own, [decodes]) == batch_floor_seconds(vllm, [decodes])


@pytest.mark.parametrize(
    ("model", "gpu", "flags", "times"),
    [
        ("openai/gpt-oss-120b", "H200", {"engine": "trtllm"}, (1.16, 1.61)),
        ("openai/gpt-oss-20b", "H100", {"engine": "sglang"}, (1.47, 1.77)),
        # On Blackwell all serve mxfp4 by the same kernels; Marlin's are the same everywhere.
        ("openai/gpt-oss-120b", "B200", {"engine": "trtllm"}, (1.0, 1.0)),
        ("openai/gpt-oss-120b", "H200", {"engine": "trtllm", "moe_backend": "marlin"}, (1.0, 1.0)),
        # Other formats by other kernels are not timed apart, or as descriptors.
        ("Qwen/Qwen3-235B-A22B-FP8", "H200", {"engine": "trtllm", "ep_size": 4}, (1.0, 1.0)),
    ],
)
def test_an_engines_own_experts_take_as_long_as_they_were_timed(model, gpu, flags, times):
    flags = flags | {"tensor_parallel_size": 4}
    vllms = {name: flags[name] for name in set(flags) - {"engine", "ep_size"}}
    vllms["enable_expert_parallel"] = "ep_size" in flags
    vllm, own = (
        Deployment(load_model(model), load_gpu(gpu), ServingSpec(**each)) for each in (vllms, flags)
    )
    reading, computing = times
    decodes, prompt = Batch.decode(2, 2000), Batch.prefill(4, 4096)
    theirs, mine = features(vllm, decodes), features(own, decodes)
    for name in ("experts", "experts_hit"):
        assert theirs[name] > 0
        assert mine[name] == pytest.approx(reading * theirs[name]), name
    assert mine["gemm"] == theirs["gemm"]
    theirs, mine = features(vllm, prompt), features(own, prompt)
    for name in ("experts", "expert_compute", "expert_activations"):
        assert mine[name] == pytest.approx(computing * theirs[name]), name
    for batch in (decodes, prompt):
        assert batch_floor_seconds(own, [batch]) == batch_floor_seconds(vllm, [batch])


def test_a_draft_of_another_format_takes_what_its_own_experts_do():
    model, gpu = load_model("openai/gpt-oss-120b"), load_gpu("H200")
    served = Deployment(model, gpu, ServingSpec(engine="trtllm"))
    for draft, times in (("openai/gpt-oss-20b", (1.16, 1.61)), ("Qwen/Qwen3-30B-A3B", (1.0, 1.0))):
        found = draft_costs(served, load_model(draft), Sampling(temperature=0.0))
        assert (found.expert_reading_time[0], found.expert_computing_time[0]) == times
