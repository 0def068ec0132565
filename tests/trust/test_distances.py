"""Distances from measured kernels, and their cache."""

import numpy as np
import pytest

from pinn.engines.deployment import Deployment
from pinn.errors import PinnError
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.uncertainty import intervals as located
from pinn.surrogate.uncertainty.distance import gpu_is_known, locate, outside_inputs
from pinn.surrogate.uncertainty.held_out import kernel_distance


def deployment(model="meta-llama/Llama-3.1-8B", gpu="H100", tp=1):
    return Deployment(load_model(model), load_gpu(gpu), ServingSpec(tensor_parallel_size=tp))


def test_parts_add_up_and_none_is_negative(h100_kernels):
    found = kernel_distance(h100_kernels, deployment("openai/gpt-oss-20b"))
    assert sum(found.by_operator.values()) == pytest.approx(found.total)
    assert min(found.by_operator.values()) >= 0
    assert "experts" in found.by_operator


def test_a_batch_beyond_the_measured_contexts_is_farther(h100_kernels):
    near = kernel_distance(h100_kernels, deployment(), "16 decode @ 2000")
    far = kernel_distance(h100_kernels, deployment(), "16 decode @ 20000000")
    assert far.by_operator["decode_attention"] > near.by_operator["decode_attention"] + 1
    assert far.total > near.total


def test_kernels_of_another_gpu_count_as_far_as_their_datasheets_differ(h100_kernels):
    own, other = (kernel_distance(h100_kernels, deployment(gpu=gpu)) for gpu in ("H100", "B200"))
    assert own.elsewhere == 0.0
    assert other.elsewhere == pytest.approx(1.0)
    h100, b200 = load_gpu("H100"), load_gpu("B200")
    gap = max(
        abs(np.log(b200.memory_bandwidth_bytes_per_s / h100.memory_bandwidth_bytes_per_s)),
        abs(np.log(b200.peak_flop_per_s["bf16"] / h100.peak_flop_per_s["bf16"])),
    )
    assert other.total >= gap - 1e-9


def test_a_step_without_kernels_has_no_distance(h100_kernels):
    with pytest.raises(PinnError, match="batch"):
        kernel_distance(h100_kernels, deployment(), "0 decode @ 1")


@pytest.fixture
def checkpoint(tmp_path, monkeypatch, checkpoint_path, h100_kernels):
    """Return a checkpoint with kernels beside it and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "pinn.safetensors"
    path.write_bytes(checkpoint_path.read_bytes())
    h100_kernels.save(tmp_path / "kernels" / "all")
    return path


def test_a_distance_is_looked_up_once(checkpoint, h100_kernels, monkeypatch):
    expected = kernel_distance(h100_kernels, deployment())
    assert locate(checkpoint, deployment()) == expected
    monkeypatch.setattr("pinn.kernels.surrogates.KernelSurrogates.load", None)
    assert locate(checkpoint, deployment()) == expected
    with pytest.raises(TypeError):
        locate(checkpoint, deployment(), "3 decode @ 5")


def test_a_damaged_cache_entry_is_computed_anew(checkpoint, tmp_path):
    before = locate(checkpoint, deployment())
    (cached,) = (tmp_path / "cache/pinn/surrogate.uncertainty.distance._distances").iterdir()
    cached.write_text("[")
    assert locate(checkpoint, deployment()) == before


def test_inputs_beyond_the_training_range_are_named(checkpoint):
    assert outside_inputs(checkpoint, deployment()) == {}
    away = outside_inputs(checkpoint, deployment("meta-llama/Llama-3.1-405B", tp=8))
    assert away
    assert outside_inputs(checkpoint, deployment("meta-llama/Llama-3.1-405B", tp=8)) == away
    assert sorted(map(abs, away.values()), reverse=True) == [abs(x) for x in away.values()]


def test_gpus_whose_serving_data_taught_the_checkpoint_are_known(checkpoint):
    assert gpu_is_known(checkpoint, deployment())
    assert not gpu_is_known(checkpoint, deployment(gpu="B200"))


def test_without_kernels_the_distance_is_unknown(checkpoint, monkeypatch):
    monkeypatch.setattr(located.files, "find_kernels", lambda *_: None)
    with pytest.raises(PinnError, match="the checkpoint's folder has no kernel surrogates"):
        locate(checkpoint, deployment())
