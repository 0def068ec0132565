"""Distance of a deployment from the measured ones."""

from dataclasses import replace

import numpy as np
import pytest

from pinn.specs.gpu import load_gpu
from pinn.surrogate.checkpoint import Checkpoint
from pinn.surrogate.featurizer import DESCRIPTORS, RATES
from pinn.surrogate.uncertainty.training_space import training_space


def test_a_measured_deployment_is_its_own_nearest(measured):
    surrogate, deployments = measured
    located = training_space(surrogate.checkpoint).locate(deployments)
    assert located.nearest.tolist() == list(range(len(deployments)))
    assert located.distance == pytest.approx(0, abs=1e-5)
    assert all(located.outside_names(i) == {} for i in range(len(deployments)))


def test_distance_is_euclidean_over_standardized_inputs(measured):
    surrogate, deployments = measured
    space = training_space(surrogate.checkpoint)
    other = replace(deployments[0], serving=replace(deployments[0].serving, kv_cache_dtype="fp8"))
    located = space.locate([other])
    # Only kv_bytes differs, by one bit of log2; its scale is the smallest allowed, 0.25.
    assert located.distance[0] == pytest.approx(1 / 0.25)
    assert located.outside_names(0) == {"kv_bytes": pytest.approx(-4.0)}


def test_a_gpu_outside_the_range_is_named_by_what_leaves_it(measured):
    surrogate, deployments = measured
    located = training_space(surrogate.checkpoint).locate(
        [replace(deployments[0], gpu=load_gpu("L4"))]
    )
    outside = located.outside_names(0)
    assert outside["memory_bandwidth"] < 0
    assert outside["sm_count"] < 0
    assert list(map(abs, outside.values())) == sorted(map(abs, outside.values()), reverse=True)
    assert set(outside) <= {*DESCRIPTORS, *RATES}


def test_held_out_distances_are_to_other_models(measured):
    surrogate, deployments = measured
    space = training_space(surrogate.checkpoint)
    found = space.held_out_distances()
    assert found.shape == (len(deployments),)
    models = [d.model.name for d in deployments]
    at = space.anchors
    for i, name in enumerate(models):
        others = [np.linalg.norm(at[i] - at[j]) for j, n in enumerate(models) if n != name]
        assert found[i] == pytest.approx(min(others))


def test_a_checkpoint_without_measured_deployments_knows_no_distance(untrained, llama_8b_h100):
    space = training_space(Checkpoint(untrained.weights()))
    located = space.locate([llama_8b_h100])
    assert located.nearest.tolist() == [-1]
    assert np.isnan(located.distance).all()
    assert space.held_out_distances().size == 0
