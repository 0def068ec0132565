"""Groups of parts of a step on which the network is trained separately."""

import numpy as np
import pytest

from pinn.kernels.composition import COMPOSED_PARTS
from pinn.surrogate.step_features import HOST, LAUNCHING, STEP_FEATURES
from pinn.training.teacher import FEATURE_GROUPS, PART_GROUPS, Scalars, group_seconds, prior_scalars


def some_steps(seed):
    draw = np.random.default_rng(seed)
    parts = draw.lognormal(-8, 1, (4, 7, len(COMPOSED_PARTS)))
    features = draw.lognormal(0, 1, (4, 7, len(STEP_FEATURES)))
    multipliers = draw.lognormal(0, 0.1, len(COMPOSED_PARTS))
    return parts, features, Scalars(multipliers, prior_scalars().overheads)


def test_every_part_is_in_one_group():
    assert sorted(sum(PART_GROUPS, ())) == sorted(COMPOSED_PARTS)


def test_a_feature_is_in_the_group_of_every_part_that_it_explains():
    for feature, groups in zip(STEP_FEATURES.values(), FEATURE_GROUPS, strict=True):
        (group,) = np.flatnonzero(groups)
        assert set(feature.explains) <= set(PART_GROUPS[group])


@pytest.mark.parametrize("longer", [1.0, 1e3])
def test_a_step_is_the_host_and_the_longer_of_launching_and_the_others(longer):
    parts, features, scalars = some_steps(0)
    features[..., LAUNCHING] *= longer
    groups = group_seconds(scalars, parts, features)
    assert groups.shape == (4, 7, len(PART_GROUPS))
    host = (features * scalars.overheads)[..., HOST].sum(-1)
    launching = groups[..., -2]
    work = groups.sum(-1) - launching - host
    whole = host + np.maximum(launching, work)
    np.testing.assert_allclose(scalars.step_seconds(parts, features), whole, rtol=1e-12)
    assert (launching > work).any() == (longer > 1)


def test_a_part_moves_its_own_group_alone():
    parts, features, scalars = some_steps(1)
    before = group_seconds(scalars, parts, features)
    for i, part in enumerate(COMPOSED_PARTS):
        longer = parts.copy()
        longer[..., i] *= 2
        moved = (group_seconds(scalars, longer, features) != before).any((0, 1))
        assert [part in group for group in PART_GROUPS] == moved.tolist()
