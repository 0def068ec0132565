"""Features of engines with kernels other than vLLM's, by hand; lower bounds are unchanged."""

from __future__ import annotations

import pytest
from batch_work import batch_work

from pinn.engines.deployment import Deployment
from pinn.specs.batch import Batch
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import STEP_FEATURES, step_features
from pinn.surrogate.surrogate import batch_floor_seconds


def features(deployment, batch):
    values = step_features(*batch_work(deployment, [batch]))[0]
    return dict(zip(STEP_FEATURES, values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("model", "gpu", "flags", "factor"),
    [
        ("Llama-3.1-8B", "H100", {"engine": "trtllm"}, 1.12),
        ("Llama-3.1-8B", "H200", {"engine": "trtllm", "kv_cache_dtype": "fp8"}, 0.66),
        # On Blackwell vLLM runs TensorRT-LLM's kernels; on Hopper SGLang runs vLLM's.
        ("Llama-3.1-8B", "B200", {"engine": "trtllm", "kv_cache_dtype": "fp8"}, 1.0),
        ("Llama-3.1-8B", "H100", {"engine": "sglang", "kv_cache_dtype": "fp8"}, 1.0),
        # For latent attention, only whole modules were timed.
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
