import pytest

from pinn.specs.gpu_catalog import load_gpu
from pinn.specs.serving_defaults import default_max_num_batched_tokens, default_max_num_seqs


@pytest.mark.parametrize("name", ["H100", "H200", "B200", "GB300", "H100-NVL"])
def test_large_gpus(name):
    gpu = load_gpu(name)
    assert (default_max_num_batched_tokens(gpu), default_max_num_seqs(gpu)) == (8192, 1024)


@pytest.mark.parametrize("name", ["A100-SXM-80GB", "A100-PCIe-80GB", "A100-SXM-40GB", "L40S", "L4"])
def test_a100_and_small_gpus(name):
    gpu = load_gpu(name)
    assert (default_max_num_batched_tokens(gpu), default_max_num_seqs(gpu)) == (2048, 256)
