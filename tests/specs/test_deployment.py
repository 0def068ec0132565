import warnings

import pytest

from pinn.engines.configurations import make_deployment
from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec


def deploy(name, **serving):
    return Deployment(load_model(name), load_gpu("H100"), ServingSpec(**serving))


@pytest.mark.parametrize(
    ("name", "serving", "message"),
    [
        ("Qwen2.5-7B", {"tensor_parallel_size": 8}, r"size 8 does not divide the 28 attention"),
        ("Phi-3-medium", {"tensor_parallel_size": 4}, r"size 4 neither divides .* 10 KV heads"),
        (
            "Llama-3.1-8B",
            {"pipeline_parallel_size": 33},
            r"size must be at most the 32 layers of .*, got 33",
        ),
        (
            "Mixtral-8x7B",
            {"data_parallel_size": 16, "enable_expert_parallel": True},
            r"over 16 GPUs exceeds the 8 experts",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(name, serving, message):
    with pytest.raises(PinnError, match=message) as error:
        deploy(name, **serving)
    assert "\n" not in str(error.value)


def test_kv_heads_fewer_than_ranks_are_replicated():
    assert deploy("Qwen2.5-7B", tensor_parallel_size=4).serving.tensor_parallel_size == 4
    assert deploy("Qwen3-30B-A3B", tensor_parallel_size=8).model.layers == 48


@pytest.mark.parametrize(
    ("name", "flag", "expected"),
    [
        ("Llama-3.1-8B", "auto", "bf16"),
        ("Llama-2-7b", "auto", "fp16"),
        ("nvidia/Kimi-K2.5-NVFP4", "auto", "fp8"),
        ("nvidia/Kimi-K2.5-NVFP4", "bf16", "bf16"),
        ("Llama-3.1-8B", "fp8_e4m3", "fp8"),
    ],
)
def test_the_kv_cache_flag_goes_before_the_checkpoint(name, flag, expected):
    assert deploy(name, kv_cache_dtype=flag).kv_cache_precision.name == expected


def test_deployments_are_hashable_and_equal_by_value():
    assert len({deploy("DeepSeek-V3"), deploy("DeepSeek-V3")}) == 1


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"tensor_parallel_size": 16}, "tensor parallelism spans 16 GPUs"),
        (
            {"data_parallel_size": 16, "enable_expert_parallel": True},
            "exchange|spans 16 GPUs",
        ),
        ({"data_parallel_size": 16}, "exchange|spans 16 GPUs"),
    ],
)
def test_exchanges_that_leave_a_machine_are_warned_of(flags, what):
    served = {"model": "Qwen/Qwen3-30B-A3B", "gpu": "H100"} | flags
    with pytest.warns(UserWarning, match=what):
        make_deployment(served)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_deployment(served | {"gpu": "GB200"})
        make_deployment({"model": "Qwen/Qwen3-32B", "gpu": "H100", "data_parallel_size": 8})
