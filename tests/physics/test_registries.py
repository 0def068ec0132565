"""The two ordered registries, and features that are never negative."""

import numpy as np
import pytest
from assumed_priors import prior_coefficients
from batch_work import batch_work
from hypothesis import given
from strategies import batches, deployments

from pinn.errors import PinnError
from pinn.kernels.composition import COMPOSED_PARTS
from pinn.surrogate.coefficients import Coefficients
from pinn.surrogate.request_features import (
    PHASES,
    REQUEST_FEATURES,
    phase_mask,
    request_features,
)
from pinn.surrogate.step_features import STEP_FEATURES, step_features
from pinn.training.breakdown import PARTS
from pinn.training.teacher import EXPLAINED_BY, OVERHEADS

RESOURCES = {"host", "bandwidth", "peak", "roofline", "link", "pcie"}


@pytest.mark.parametrize("name", STEP_FEATURES)
def test_a_step_feature_is_well_defined(name):
    feature = STEP_FEATURES[name]
    assert feature.name == name
    assert feature.unit == "1" or feature.unit.split("/")[0] == "s"
    assert feature.resource in RESOURCES
    # A count of host work has a beta in seconds; a datasheet time has a plain multiplier. Part of
    # sampling does not depend on any rate, so it is bounded like host work.
    assert (feature.unit == "1") == (feature.resource != "host" or name == "sampling")
    assert 0 <= feature.lower_bound <= feature.prior
    assert feature.lower_bound == (1 if feature.resource in ("roofline", "pcie") else 0)
    assert feature.meaning.endswith(".")
    assert feature.part in {*PARTS, "gemm"}
    assert set(feature.explains) <= set(COMPOSED_PARTS)


def test_what_no_kernel_holds_is_written_once():
    overheads = {n: f.overhead for n, f in STEP_FEATURES.items() if f.overhead is not None}
    assert overheads == OVERHEADS
    held = {name for names in EXPLAINED_BY.values() for name in names}
    for name, feature in STEP_FEATURES.items():
        # Kernels can only add to features that explain them; an overhead is added to the others.
        assert name in held or feature.kernel_prior == 0 or name in ("pipeline", "cpu_offload")
        assert name in held or feature.overhead is not None or name in ("pipeline", "cpu_offload")


@pytest.mark.parametrize("name", REQUEST_FEATURES)
def test_a_request_feature_is_well_defined(name):
    feature = REQUEST_FEATURES[name]
    assert name == feature.name
    assert name.split(".")[0] == feature.phase
    assert feature.phase in PHASES
    assert feature.prior > 0  # a feature of prior 0 would do nothing
    assert feature.source


def test_phases_come_in_order_and_share_nothing():
    order = [PHASES.index(f.phase) for f in REQUEST_FEATURES.values()]
    assert order == sorted(order)
    assert sum(phase_mask(phase) for phase in PHASES).tolist() == [1.0] * len(REQUEST_FEATURES)


@given(deployments(), batches())
def test_features_are_finite_and_not_negative(deployment, batch):
    values = step_features(*batch_work(deployment, [batch]))
    assert values.shape == (1, len(STEP_FEATURES))
    assert np.isfinite(values).all()
    assert (values >= 0).all()


def test_request_features_by_hand():
    found = request_features(np.array([700.0, 20.0]))
    assert found.shape == (2, len(REQUEST_FEATURES))
    named = dict(zip(REQUEST_FEATURES, found.T.tolist(), strict=True))
    assert named.pop("arrival_to_queue.prompt_token") == [700, 20]
    assert set(map(tuple, named.values())) == {(1.0, 1.0)}


def test_priors_are_coefficients():
    prior = prior_coefficients(3)
    assert len(prior) == 3
    assert len(prior.take(1)) == 1
    assert prior.beta[0].tolist() == [f.prior for f in STEP_FEATURES.values()]


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_impossible_coefficients_are_refused_by_name(bad):
    prior = prior_coefficients(2)
    beta = prior.beta.copy()
    beta[1, list(STEP_FEATURES).index("gemm")] = bad
    with pytest.raises(PinnError, match="beta 'gemm' of deployment 1 must be finite"):
        Coefficients(beta, prior.alpha)
    with pytest.raises(PinnError, match="alpha must be an array"):
        Coefficients(prior.beta, prior.alpha[:, :-1])
