import json

import numpy as np
import pytest

from pinn.errors import PinnError
from pinn.kernels.composition import compose_many
from pinn.kernels.surrogates import KernelSurrogates
from pinn.specs.gpu_catalog import load_gpu
from pinn.teacher import composed
from pinn.teacher.batches import sample_batches
from pinn.teacher.composed import compose_all
from pinn.teacher.synthetic import synthetic_deployments


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


def test_more_facts_stand_in_the_manifest_and_bind(h100_kernels, deployments, tmp_path):
    compose_all(h100_kernels, deployments, tmp_path, about={"drawn": 7})
    assert json.loads((tmp_path / "manifest.json").read_text())["drawn"] == 7
    with pytest.raises(PinnError, match="name another folder"):
        compose_all(h100_kernels, deployments, tmp_path, about={"drawn": 8})


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


def test_shards_of_other_deployments_are_not_mixed_in(h100_kernels, deployments, tmp_path):
    compose_all(h100_kernels, deployments, tmp_path)
    with pytest.raises(PinnError, match="other kernels, deployments or batches"):
        compose_all(h100_kernels, deployments[:3], tmp_path)
