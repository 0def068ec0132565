import re

import numpy as np
import pytest

from pinn.kernels.composition import compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import sample_batches
from pinn.specs.gpu import load_gpu
from pinn.training import composed
from pinn.training.composed import remembered_steps
from pinn.training.synthetic import synthetic_deployments


@pytest.fixture
def deployments(monkeypatch):
    monkeypatch.setattr(composed, "SHARD_DEPLOYMENTS", 3)
    return synthetic_deployments(7, [load_gpu("H100")], 0)


def shards(root):
    folders = (root / "training.composed.compose_shards").iterdir()
    return [{p.name: p.read_bytes() for p in folder.glob("steps-*")} for folder in folders]


def test_a_rebuild_is_bit_identical(h100_kernels, deployments, tmp_path):
    first = remembered_steps(h100_kernels, deployments, 0, tmp_path / "a")
    remembered_steps(h100_kernels, deployments, 0, tmp_path / "b")
    assert shards(tmp_path / "a") == shards(tmp_path / "b")
    assert first.parts.shape[:2] == (7, 96)


def test_no_shard_depends_on_what_was_looked_up_before(h100_kernels, deployments, tmp_path):
    """Check shards for bits: networks' last bits depend on the rows that are evaluated together."""
    together = remembered_steps(h100_kernels, deployments, 0, tmp_path / "together").parts
    h100_kernels.save(tmp_path)
    for i in reversed(range(len(deployments))):
        fresh = KernelSurrogates.load(tmp_path)
        alone = compose_many(fresh, deployments[i : i + 1], [sample_batches(i)])
        np.testing.assert_array_equal(alone[0], together[i])


@pytest.fixture
def made(monkeypatch):
    """Return a list of the shards composed from now on: the number of each, and of all."""
    found = []
    monkeypatch.setattr(
        composed, "doing", lambda text: found.append(tuple(map(int, re.findall(r"\d+", text))))
    )
    return found


def test_steps_of_other_deployments_or_seeds_are_others(h100_kernels, deployments, tmp_path, made):
    for some, seed in ((deployments, 0), (deployments[:3], 0), (deployments[:3], 1)):
        remembered_steps(h100_kernels, some, seed, tmp_path)
    assert made == [(1, 3), (2, 3), (3, 3), (1, 1), (1, 1)]
    assert len(shards(tmp_path)) == 3


def test_steps_go_on_after_an_interruption(h100_kernels, deployments, tmp_path, monkeypatch, made):
    whole = remembered_steps(h100_kernels, deployments, 0, tmp_path / "whole")
    composed_table, done = composed._composed_table, []

    def cut(*arguments):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(arguments)
        return composed_table(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(composed, "_composed_table", cut)
        with pytest.raises(KeyboardInterrupt):
            remembered_steps(h100_kernels, deployments, 0, tmp_path)
    made.clear()
    for _ in range(2):
        again = remembered_steps(h100_kernels, deployments, 0, tmp_path)
        np.testing.assert_array_equal(again.parts, whole.parts)
    assert made == [(3, 3)]
    assert shards(tmp_path) == shards(tmp_path / "whole")
