from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import nnls

from pinn.engines.deployment import Deployment
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.physics.batch_sums import sample_batches
from pinn.physics.costs import step_costs
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec
from pinn.surrogate.step_features import (
    HOST,
    LAUNCHING,
    STEP_FEATURES,
    step_features,
    step_time,
)
from pinn.training.teacher import EXPLAINED_BY, prior_scalars, project

NAMES = list(STEP_FEATURES)


@pytest.fixture
def features():
    model = load_model("openai/gpt-oss-20b")
    deployment = Deployment(model, load_gpu("H100"), ServingSpec(tensor_parallel_size=2))
    sums = sample_batches(0, 80, 40, 80).sums(model.window_tokens)
    return step_features(step_costs([deployment]), sums)


def test_steps_made_of_features_are_reproduced(features):
    draw = np.random.default_rng(0)
    betas = np.zeros((len(COMPOSED_PARTS), len(NAMES)))
    for row, operator in enumerate(COMPOSED_PARTS):
        for name in EXPLAINED_BY[operator]:
            feature = STEP_FEATURES[name]
            betas[row, NAMES.index(name)] = feature.lower_bound + feature.prior * draw.uniform(1, 2)
    parts = features @ betas.T
    found = project(features, parts)
    np.testing.assert_allclose(features @ found.T, parts, rtol=1e-6, atol=1e-12)


def test_betas_keep_their_lower_bounds(features):
    parts = np.repeat(features.sum(-1, keepdims=True) * 1e-3, len(COMPOSED_PARTS), axis=1)
    found = project(features, parts)
    for row, operator in enumerate(COMPOSED_PARTS):
        for name in EXPLAINED_BY[operator]:
            column = NAMES.index(name)
            if features[:, column].any():
                assert found[row, column] >= STEP_FEATURES[name].lower_bound


def test_every_step_counts_by_its_relative_error(features):
    """Check that a step ten times as long in all its parts gives an equal projection.

    Betas may differ: some features are proportional to others (layers and the weights of one
    deployment).
    """
    draw = np.random.default_rng(0)
    parts = features.sum(-1, keepdims=True) * draw.uniform(
        0.5, 2, (len(features), len(COMPOSED_PARTS))
    )
    longer = draw.uniform(0.1, 10, (len(features), 1))
    found = project(features * longer, parts * longer)
    explained = features @ project(features, parts).T
    step = parts.sum(-1, keepdims=True)
    np.testing.assert_allclose(features @ found.T / step, explained / step, atol=1e-9)


def test_parts_make_up_for_each_other_in_the_whole_step(features):
    """Check that the whole step's error is smaller than that of parts explained one by one."""
    draw = np.random.default_rng(0)
    parts = features.sum(-1, keepdims=True) * draw.uniform(
        0.5, 2, (len(features), len(COMPOSED_PARTS))
    )
    whole = parts.sum(-1)
    together = project(features, parts)
    alone = np.zeros_like(together)
    for row, operator in enumerate(COMPOSED_PARTS):
        mine = [NAMES.index(name) for name in EXPLAINED_BY[operator]]
        mine = [column for column in mine if features[:, column].any()]
        least = np.array([STEP_FEATURES[NAMES[column]].lower_bound for column in mine])
        basis = features[:, mine] / whole[:, None]
        above, _ = nnls(basis / basis.max(0), parts[:, row] / whole - basis @ least)
        alone[row, mine] = least + above / basis.max(0)
    errors = [
        np.sqrt(np.mean((features @ betas.sum(0) / whole - 1) ** 2)) for betas in (together, alone)
    ]
    assert errors[0] < 0.95 * errors[1]


def test_a_deployment_s_betas_are_its_parts_times_multipliers_plus_overheads(features):
    draw = np.random.default_rng(0)
    projected = draw.uniform(1, 2, (3, len(COMPOSED_PARTS), len(NAMES)))
    scalars = replace(prior_scalars(), multipliers=np.linspace(0.8, 1.3, len(COMPOSED_PARTS)))
    projected[..., HOST | LAUNCHING] = 0.0  # kernels' time is the GPU's
    betas = scalars.betas(projected)
    parts = np.einsum("nf,mof->mno", features, projected)
    for found, of in zip(betas, parts, strict=True):
        np.testing.assert_allclose(step_time(features, found), scalars.step_seconds(of, features))
    none = scalars.betas(0 * projected)
    bounds = [f.lower_bound for f in STEP_FEATURES.values()]
    np.testing.assert_array_equal(none, np.tile(np.maximum(bounds, scalars.overheads), (3, 1)))
