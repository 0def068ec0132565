"""A step takes the host's own time and the longer of launching and the GPU's work."""

import numpy as np
import pytest
from batch_work import batch_work
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, deployments

from pinn.specs.batch import Batch
from pinn.surrogate.step_features import (
    GPU,
    HOST,
    LAUNCHING,
    STEP_FEATURES,
    overlapped,
    seconds_by_feature,
    step_features,
    step_time,
)

NAMES = list(STEP_FEATURES)


@st.composite
def betas(draw):
    """Near the priors; launching nothing, about the GPU's work, or far more."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    prior = np.array([f.prior for f in STEP_FEATURES.values()])
    beta = prior * rng.uniform(1, 2, len(prior))
    beta[LAUNCHING] *= draw(st.sampled_from((0.0, 0.1, 1.0, 100.0)))
    return beta


def features_of(deployment, *of_batches):
    return step_features(*batch_work(deployment, of_batches))


def by_hand(features, beta):
    seconds = dict(zip(NAMES, features * beta, strict=True))
    launching = seconds.pop("launched_layer")
    host = seconds.pop("step") + seconds.pop("request")
    return host + max(launching, sum(seconds.values()))


def test_every_feature_is_the_hosts_launching_or_the_gpus():
    assert (HOST.astype(int) + LAUNCHING + GPU == 1).all()
    assert [NAMES[i] for i in np.flatnonzero(HOST)] == ["step", "request"]
    assert [NAMES[i] for i in np.flatnonzero(LAUNCHING)] == ["launched_layer"]


@given(deployments(), batches(), betas())
def test_a_step_waits_for_the_longer_one(deployment, batch, beta):
    features = features_of(deployment, batch)
    expected = by_hand(features[0], beta)
    assert step_time(features, beta) == pytest.approx(expected, rel=1e-9)
    assert overlapped(features, beta) @ beta == pytest.approx(expected, rel=1e-9)
    seconds = seconds_by_feature(features, beta)
    assert seconds.sum() == pytest.approx(expected, rel=1e-9)
    assert (seconds >= 0).all()
    np.testing.assert_array_equal(seconds[:, ~LAUNCHING], (features * beta)[:, ~LAUNCHING])


@given(deployments(), batches(), batches(), betas())
def test_another_request_never_speeds_a_step_up(deployment, batch, more, beta):
    before, after = step_time(features_of(deployment, batch, batch + more), beta)
    assert after >= before * (1 - 1e-12)


@given(deployments(), batches(), betas(), st.integers(1, 9000), st.integers(1, 9000))
def test_another_token_never_speeds_a_step_up(deployment, others, beta, tokens, more):
    short, long = (others + Batch.prefill(1, n) for n in (tokens, tokens + more))
    before, after = step_time(features_of(deployment, short, long), beta)
    assert after >= before * (1 - 1e-12)


@given(deployments(), st.lists(batches(), min_size=1, max_size=4), betas())
def test_steps_side_by_side_take_what_each_takes_alone(deployment, several, beta):
    """Each has its own longer side, also under coefficients of its own."""
    features = features_of(deployment, *several)
    alone = [by_hand(each, beta) for each in features]
    np.testing.assert_allclose(step_time(features, beta), alone, rtol=1e-9)
    own = beta * np.linspace(0.5, 2, len(features))[:, None]
    alone = [by_hand(*pair) for pair in zip(features, own, strict=True)]
    np.testing.assert_allclose(step_time(features, own), alone, rtol=1e-9)
    np.testing.assert_allclose(seconds_by_feature(features, own).sum(-1), alone, rtol=1e-9)
