"""Steps with drafts and verification: by hand, and laws on random deployments."""

from dataclasses import replace

import numpy as np
import pytest
from assumed_priors import prior_coefficients
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import batches, deployments

from pinn.engines.configurations import make_deployment
from pinn.errors import PinnError
from pinn.export.blis_model import check_expressible
from pinn.physics.batch_sums import sum_batches, uniform_sums
from pinn.physics.costs import step_costs
from pinn.specs.batch import Batch
from pinn.surrogate.deployment_features import deployment_features, drafting_features
from pinn.surrogate.step_features import STEP_FEATURES, step_features
from pinn.surrogate.surrogate import batch_floor_seconds, batch_seconds

BETA = prior_coefficients(1).beta[0]
NAMES = list(STEP_FEATURES)


def drafting(deployment, method, tokens):
    config = f'{{"method": "{method}", "num_speculative_tokens": {tokens}}}'
    serving = replace(deployment.serving, speculative_config=config, pipeline_parallel_size=1)
    return replace(deployment, serving=serving)


def plain_of(deployment):
    return replace(deployment, serving=replace(deployment.serving, pipeline_parallel_size=1))


@given(deployments(), st.lists(batches(), min_size=1, max_size=3), st.sampled_from(
    ["ngram", "eagle", "eagle3", "mtp"]
), st.integers(1, 6))  # fmt: skip
@settings(max_examples=40)
def test_a_step_takes_longer_the_more_it_drafts(deployment, work, method, tokens):
    """With an acceptance of 0 a step yields one token, like a plain one, and is never faster."""
    plain = plain_of(deployment)
    times = [batch_seconds(BETA, plain, work)]
    times += [
        batch_seconds(BETA, drafting(deployment, method, k), work) for k in (tokens, tokens + 1)
    ]
    assert (times[0] <= times[1] * (1 + 1e-12)).all()
    assert (times[1] <= times[2] * (1 + 1e-12)).all()
    for k in (tokens, tokens + 1):
        own = drafting(deployment, method, k)
        assert (batch_floor_seconds(own, work) <= batch_seconds(BETA, own, work)).all()


@given(deployments(), st.lists(batches(), min_size=1, max_size=3))
@settings(max_examples=20)
def test_without_speculation_features_are_the_plain_ones(deployment, work):
    sums = sum_batches(work, deployment.model.window_tokens)
    plain = step_features(step_costs([deployment]), sums)
    assert (deployment_features(deployment, sums) == plain).all()
    assert (drafting_features(deployment, sums) == 0).all()


def test_costs_alone_refuse_a_deployment_that_drafts():
    deployment = make_deployment({"model": "meta-llama/Llama-3.1-8B", "gpu": "H100"})
    with pytest.raises(PinnError, match="does not support speculative decoding"):
        step_costs([drafting(deployment, "ngram", 2)])


def test_an_mtp_step_by_hand():
    """10 decodes after 999 tokens, 3 drafted: 40 rows verified, 40 and 2 x 10 through the draft."""
    flags = {"model": "deepseek-ai/DeepSeek-R1", "gpu": "H200", "tensor_parallel_size": 8}
    plain = make_deployment(flags)
    own = make_deployment(
        flags | {"speculative_config": '{"method": "mtp", "num_speculative_tokens": 3}'}
    )
    sums = sum_batches([Batch.decode(10, 999)])
    costs, found = step_costs([plain]), deployment_features(own, sums)[0]
    draft, gpu = drafting_features(own, sums)[0], plain.gpu
    rows = uniform_sums(decode_requests=np.array([40.0]), decode_context=999.0)
    for name in ("gemm", "experts_hit", "activations", "sampling", "all_reduce"):
        i = NAMES.index(name)
        assert found[i] - draft[i] == pytest.approx(step_features(costs, rows)[0, i], rel=1e-9)
    reading = costs.kv_read_s[0]
    i = NAMES.index("kv_read")
    assert found[i] - draft[i] == pytest.approx(reading * 10 * 1003)
    a_layer = reading / plain.model.layers
    assert draft[i] == pytest.approx(a_layer * (10 * 1003 + 2 * 10 * 1000))
    assert draft[NAMES.index("layer")] == 3
    # One layer's dense weights, the head and the projection of two hidden states, three times.
    group = own.draft.model.layer_groups[0]
    single = replace(plain, model=replace(plain.model, layer_groups=(group,)))
    weights_s = step_costs([single]).gemm_weights_s[0]
    projection_s = 2 * 7168**2 * 2 / gpu.memory_bandwidth_bytes_per_s
    assert draft[NAMES.index("gemm_weights")] == pytest.approx(3 * (weights_s + projection_s))
    once = [NAMES.index(name) for name in ("step", "request")]
    assert found[once].tolist() == [1, 10]
    assert draft[once].tolist() == [0, 0]


def test_a_tree_carries_every_branch_on():
    flags = {
        "model": "meta-llama/Llama-3.1-8B", "gpu": "H100", "engine": "sglang",
        "speculative_config": "EAGLE3", "speculative_num_steps": 3,
        "speculative_num_draft_tokens": 4,
    }  # fmt: skip
    chain, tree = (
        make_deployment(flags | {"speculative_eagle_topk": branches}) for branches in (1, 4)
    )
    sums = sum_batches([Batch.decode(16, 1000)])
    thin, wide = (drafting_features(own, sums)[0, NAMES.index("kv_read")] for own in (chain, tree))
    assert wide == pytest.approx(thin * (1 + 4 + 4) / 3, rel=1e-3)


def test_blis_refuses_it_with_a_reason():
    own = make_deployment(
        {
            "model": "meta-llama/Llama-3.1-8B", "gpu": "H100",
            "speculative_config": '{"method": "ngram", "num_speculative_tokens": 2}',
        }
    )  # fmt: skip
    with pytest.raises(PinnError, match="BLIS decodes one token per request and step"):
        check_expressible(own)
