import json
from functools import partial

import numpy as np
import pytest

from pinn.kernels.composition import compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.physics.batch_sums import sample_batches
from pinn.specs.gpu import load_gpu
from pinn.training import composed
from pinn.training.composed import compose_all, remembered_steps
from pinn.training.synthetic import synthetic_deployments


@pytest.fixture
def deployments(monkeypatch):
    monkeypatch.setattr(composed, "SHARD_DEPLOYMENTS", 3)
    return synthetic_deployments(7, [load_gpu("H100")], 0)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_rebuild_is_bit_identical(h100_kernels, deployments, tmp_path):
    first = compose_all(h100_kernels, deployments, tmp_path / "a")
    compose_all(h100_kernels, deployments, tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert first.parts.shape[:2] == (7, 96)


def test_no_shard_depends_on_what_was_looked_up_before(h100_kernels, deployments, tmp_path):
    """Networks differ in the last bits with the rows they are asked for together."""
    together = compose_all(h100_kernels, deployments, tmp_path / "together").parts
    h100_kernels.save(tmp_path)
    for i in reversed(range(len(deployments))):
        fresh = KernelSurrogates.load(tmp_path)
        alone = compose_many(fresh, deployments[i : i + 1], [sample_batches(i)])
        np.testing.assert_array_equal(alone[0], together[i])


def test_more_facts_stand_in_the_manifest(h100_kernels, deployments, tmp_path):
    for drawn in (7, 8):
        compose_all(h100_kernels, deployments, tmp_path, about={"drawn": drawn})
        assert json.loads((tmp_path / "manifest.json").read_text())["drawn"] == drawn


def test_an_interrupted_build_goes_on(h100_kernels, deployments, tmp_path):
    whole = compose_all(h100_kernels, deployments, tmp_path)
    before = files(tmp_path)
    (tmp_path / "steps-000003.parquet").unlink()
    made = []
    again = compose_all(
        h100_kernels, deployments, tmp_path, progress=lambda d, n: made.append((d, n))
    )
    assert made == [(3, 3)]
    assert files(tmp_path) == before
    np.testing.assert_array_equal(whole.parts, again.parts)


def test_shards_of_other_deployments_seeds_or_code_are_made_anew(
    h100_kernels, deployments, tmp_path, monkeypatch
):
    compose_all(h100_kernels, deployments, tmp_path / "other")
    made = []
    for changed in (
        partial(compose_all, h100_kernels, deployments[:3]),
        partial(compose_all, h100_kernels, deployments[:3], seed=1),
    ):
        changed(tmp_path / "other", progress=lambda *counts: made.append(counts))
        changed(tmp_path / "fresh")
        assert files(tmp_path / "other") == files(tmp_path / "fresh")
    assert made == [(1, 1), (1, 1)]
    monkeypatch.setattr(composed, "code_digest", lambda _: "other code")
    changed(tmp_path / "other", progress=lambda *counts: made.append(counts))
    assert len(made) == 3


def test_remembered_steps_go_on_after_an_interruption(
    h100_kernels, deployments, tmp_path, monkeypatch
):
    whole = compose_all(h100_kernels, deployments, tmp_path / "whole")
    compose_shard, done = composed._compose_shard, []

    def cut(*arguments):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(compose_shard(*arguments))

    with monkeypatch.context() as patched:
        patched.setattr(composed, "_compose_shard", cut)
        with pytest.raises(KeyboardInterrupt):
            remembered_steps(h100_kernels, deployments, 0, tmp_path)
    made = []
    for _ in range(2):
        again = remembered_steps(
            h100_kernels, deployments, 0, tmp_path, progress=lambda *counts: made.append(counts)
        )
        np.testing.assert_array_equal(again.parts, whole.parts)
    assert made == [(3, 3)]
    shards = {name: text for name, text in files(tmp_path / "whole").items() if "steps" in name}
    (folder,) = (tmp_path / "training.composed.compose_shards").iterdir()
    assert shards.items() <= files(folder).items()
