"""A checkpoint restores the network bit for bit, or is refused with a reason in one line."""

import json
from errno import ENOSPC

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors import safe_open
from safetensors.torch import save_file
from strategies import deployments, networks

from pinn.errors import PinnError
from pinn.surrogate.architecture import NetworkSettings
from pinn.surrogate.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from pinn.surrogate.featurizer import DESCRIPTORS, RATES
from pinn.surrogate.surrogate import predict_coefficients


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(network=networks(), deployment=deployments())
def test_a_round_trip_keeps_every_bit(tmp_path, network, deployment):
    anchors = np.random.default_rng(0).normal(size=(3, len(DESCRIPTORS) + len(RATES)))
    before = Checkpoint(network.weights(), {"date": "2026-11-21"}, anchors, ("a", "b", "c"))
    save_checkpoint(before, tmp_path / "network.safetensors")
    after = load_checkpoint(tmp_path / "network.safetensors")
    assert (after.metadata, after.anchor_names) == (before.metadata, before.anchor_names)
    np.testing.assert_array_equal(after.anchors, anchors)
    old, new = (predict_coefficients(c.network, [deployment]) for c in (before, after))
    np.testing.assert_array_equal(new.beta, old.beta)
    np.testing.assert_array_equal(new.alpha, old.alpha)


@pytest.fixture
def saved(tmp_path, untrained):
    save_checkpoint(Checkpoint(untrained.weights()), tmp_path / "network.safetensors")
    return tmp_path / "network.safetensors"


def change_header(path, **changes):
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["pinn"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"pinn": json.dumps(header | changes)})


def assert_refused(path, *words):
    with pytest.raises(PinnError) as error:
        load_checkpoint(path)
    message = str(error.value)
    assert "\n" not in message
    for word in (str(path), *words):
        assert word in message


def test_a_missing_file_is_refused(tmp_path):
    assert_refused(tmp_path / "none.safetensors", "train a checkpoint with 'python train.py'")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_file_is_refused(saved, share):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(share * len(content))])
    assert_refused(saved, "cut off")


def test_another_file_is_refused(saved):
    save_file({"x": torch.zeros(1)}, saved)
    assert_refused(saved, "not a readable checkpoint")


def test_another_format_version_is_refused(saved):
    change_header(saved, format_version=99)
    assert_refused(saved, "99")


def test_another_registry_is_refused_by_the_names_that_differ(saved):
    with safe_open(saved, framework="pt") as file:
        registry = json.loads(file.metadata()["pinn"])["registry"]
    registry["step_features"][0] = "warp_drive [s]"
    change_header(saved, registry=registry)
    assert_refused(saved, "step features", "warp_drive")


def test_another_order_of_the_registry_is_refused(saved):
    with safe_open(saved, framework="pt") as file:
        registry = json.loads(file.metadata()["pinn"])["registry"]
    registry["descriptors"].reverse()
    change_header(saved, registry=registry)
    assert_refused(saved, "descriptors", "the order")


def test_weights_of_another_size_are_refused(saved):
    change_header(saved, settings={"hidden": 7})
    assert_refused(saved, "weights", "trunk.0.bias has shape [128], expected [7]")


def test_a_missing_array_is_refused(saved):
    with safe_open(saved, framework="np") as file:
        metadata, names = file.metadata(), set(file.keys()) - {"beta_base"}
        save_file(
            {name: torch.from_numpy(file.get_tensor(name)) for name in names}, saved, metadata
        )
    assert_refused(saved, "weights of this version's network (beta_base is missing)")


def test_a_checkpoint_from_before_the_alpha_head_gives_all_deployments_one_alpha(saved):
    with safe_open(saved, framework="np") as file:
        metadata, names = file.metadata(), set(file.keys()) - {"alpha_head"}
        save_file(
            {name: torch.from_numpy(file.get_tensor(name)) for name in names}, saved, metadata
        )
    assert not load_checkpoint(saved).network.arrays["alpha_head"].any()


def test_no_pickled_code_is_loaded(tmp_path):
    torch.save({"harm": print}, tmp_path / "network.safetensors")
    assert_refused(tmp_path / "network.safetensors", "not a readable checkpoint")


def test_writing_leaves_nothing_half_written(tmp_path, untrained, monkeypatch):
    path = tmp_path / "network.safetensors"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError(ENOSPC, "disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(Checkpoint(untrained.weights()), path)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_the_default_network_is_small(untrained):
    assert untrained.settings == NetworkSettings()
    assert untrained.parameter_count <= 100_000
