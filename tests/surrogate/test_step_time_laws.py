"""Laws of step times for every model, GPU, configuration and batch, with any weights."""

from dataclasses import replace

import numpy as np
import pytest
from batch_work import batch_work
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches, decodes, deployments, networks, samplings

from pinn.specs.batch import Batch
from pinn.surrogate.step_features import STEP_FEATURES, step_features, step_time
from pinn.surrogate.surrogate import batch_floor_seconds, predict_coefficients
from pinn.training.synthetic import weight_bytes
from pinn.units import GIB

#: Relative difference of sums of the same terms in another order.
ROUNDING = 1e-12


def seconds(network, deployment, *of_batches):
    """Return step times of rows as given; decodes are not padded to the size of a CUDA graph."""
    beta = predict_coefficients(network, [deployment]).beta[0]
    return step_time(step_features(*batch_work(deployment, of_batches)), beta)


def assert_not_slower(after, before):
    assert after <= before * (1 + ROUNDING)


@given(networks(), st.lists(deployments(), min_size=1, max_size=3))
def test_coefficients_are_finite_and_not_negative(network, several):
    found = predict_coefficients(network, several)
    for values in (found.beta, found.alpha):
        assert np.isfinite(values).all()
        assert (values >= 0).all()


@given(networks(), deployments(), batches())
def test_a_step_takes_at_least_its_physical_floor(network, deployment, batch):
    floor = batch_floor_seconds(deployment, [batch])[0]
    assert floor > 0
    assert_not_slower(floor, seconds(network, deployment, batch)[0])


def test_an_empty_batch_takes_no_time(llama_8b_h100):
    assert batch_floor_seconds(llama_8b_h100, [Batch()])[0] == 0
    assert not step_features(*batch_work(llama_8b_h100, [Batch()])).any()


@given(networks(), deployments(), batches(), batches())
def test_another_request_never_speeds_a_step_up(network, deployment, batch, more):
    before, after = seconds(network, deployment, batch, batch + more)
    assert_not_slower(before, after)


@given(networks(), deployments(), batches(), samplings())
def test_no_sampling_is_cheaper_than_a_greedy_one(network, deployment, batch, sampling):
    model = replace(deployment.model, sampling=sampling)
    serving = replace(deployment.serving, override_generation_config="")
    own = replace(deployment, model=model, serving=serving)
    greedy = replace(own, model=replace(model, sampling=replace(sampling, temperature=0.0)))
    assert_not_slower(seconds(network, greedy, batch)[0], seconds(network, own, batch)[0])


@given(networks(), deployments(), batches(), st.integers(1, 20_000), st.data())
def test_more_cached_tokens_never_speed_a_step_up(network, deployment, batch, more, data):
    which = data.draw(st.integers(0, len(batch.new_tokens) - 1))
    longer = list(batch.cached_tokens)
    longer[which] += more
    grown = replace(batch, cached_tokens=tuple(longer))
    before, after = seconds(network, deployment, batch, grown)
    assert_not_slower(before, after)


@given(
    networks(), deployments(), decodes(), st.integers(1, 9000), st.integers(0, 9000),
    st.integers(1, 9000),
)  # fmt: skip
def test_more_prompt_tokens_never_speed_a_step_up(network, deployment, others, new, cached, more):
    short, long = (others + Batch.prefill(1, n, cached) for n in (new, new + more))
    before, after = seconds(network, deployment, short, long)
    assert_not_slower(before, after)


@given(deployments(one_gpu=True), batches())
def test_one_gpu_communicates_with_nobody(deployment, batch):
    values = step_features(*batch_work(deployment, [batch]))[0]
    features = dict(zip(STEP_FEATURES, values, strict=True))
    communication = {name for name, f in STEP_FEATURES.items() if f.resource == "link"}
    assert {"all_reduce", "expert_exchange", "pipeline"} <= communication
    for name in (*communication, "parallel_layer", "large_all_reduce"):
        assert features[name] == 0


@given(
    networks(), deployments(), batches(),
    st.sets(st.sampled_from(["memory", "link", "pcie", "bf16", "fp8", "int8", "fp4"]), min_size=1),
)  # fmt: skip
def test_a_faster_gpu_never_slows_a_step(network, deployment, batch, doubled):
    before = seconds(network, deployment, batch)[0]
    assert_not_slower(seconds(network, faster(deployment, doubled), batch)[0], before)


@pytest.mark.parametrize("rate", ["memory", "link", "pcie", "bf16", "fp8", "int8", "fp4"])
@given(network=networks(), deployment=deployments(), batch=batches())
def test_doubling_one_rate_never_slows_a_step(rate, network, deployment, batch):
    before = seconds(network, deployment, batch)[0]
    assert_not_slower(seconds(network, faster(deployment, {rate}), batch)[0], before)


def faster(deployment, doubled):
    gpu = deployment.gpu
    peaks = {k: v * (1 + (k in doubled)) for k, v in gpu.peak_flop_per_s.items()}
    return replace(
        deployment,
        gpu=replace(
            gpu,
            peak_flop_per_s=peaks,
            memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s
            * (1 + ("memory" in doubled)),
            link_bandwidth_bytes_per_s=gpu.link_bandwidth_bytes_per_s * (1 + ("link" in doubled)),
            pcie_bandwidth_bytes_per_s=gpu.pcie_bandwidth_bytes_per_s * (1 + ("pcie" in doubled)),
        ),
    )


def offloading(deployment, bytes_):
    """Return the deployment with so many bytes of weights in host memory."""
    return replace(
        deployment, serving=replace(deployment.serving, cpu_offload_gb=float(bytes_ / GIB))
    )


@given(networks(), deployments(), batches(), st.floats(0, 1), st.floats(0, 1))
def test_offloaded_weights_cross_pcie_in_every_step(network, deployment, batch, few, more):
    held = weight_bytes(deployment) / deployment.serving.pipeline_parallel_size
    few, more = sorted((few, more))
    before = seconds(network, offloading(deployment, few * held), batch)[0]
    after = seconds(network, offloading(deployment, more * held), batch)[0]
    assert after >= before * (1 - ROUNDING)
    # The transfer hides behind launching that takes longer, but no step is shorter than it.
    assert after >= more * held / deployment.gpu.pcie_bandwidth_bytes_per_s * (1 - ROUNDING)


@given(networks(), deployments(), batches(), st.floats(1, 1e6))
def test_no_more_than_all_weights_are_offloaded(network, deployment, batch, beyond):
    held = weight_bytes(deployment) / deployment.serving.pipeline_parallel_size
    everything = offloading(deployment, held)
    more = offloading(deployment, held * beyond)
    assert seconds(network, more, batch)[0] == pytest.approx(
        seconds(network, everything, batch)[0], rel=ROUNDING
    )


@given(networks(), deployments(), batches())
def test_eager_is_never_faster_than_graphs(network, deployment, batch):
    graphs, eager = (
        replace(deployment, serving=replace(deployment.serving, enforce_eager=flag))
        for flag in (False, True)
    )
    before = seconds(network, graphs, batch)[0]
    assert_not_slower(before, seconds(network, eager, batch)[0])


@given(deployments(), st.integers(1, 30_000), st.integers(0, 30_000), st.data())
def test_cutting_a_prompt_into_chunks_keeps_its_attention_work(deployment, tokens, cached, data):
    cuts = data.draw(st.lists(st.integers(0, tokens), max_size=6))
    ends = sorted({*cuts, tokens} - {0})
    starts = [0, *ends[:-1]]
    chunks = [Batch.prefill(1, b - a, cached + a) for a, b in zip(starts, ends, strict=True)]
    _, whole = batch_work(deployment, [Batch.prefill(1, tokens, cached)])
    _, parts = batch_work(deployment, chunks)
    for sums in ("prefill_pairs", "windowed_prefill_pairs"):
        assert getattr(parts, sums).sum() == pytest.approx(getattr(whole, sums).sum(), rel=1e-9)


@given(deployments(), batches(), st.integers(0, 2**32 - 1))
def test_a_step_is_convex_in_its_coefficients(deployment, batch, seed):
    """Linear but for the longer of launching and the GPU's work."""
    rng = np.random.default_rng(seed)
    one, other = rng.uniform(0, 2, (2, len(STEP_FEATURES)))
    features = step_features(*batch_work(deployment, [batch]))
    assert step_time(features, 3 * one) == pytest.approx(3 * step_time(features, one), rel=1e-9)
    apart = step_time(features, one) + step_time(features, other)
    assert_not_slower(step_time(features, one + other)[0], apart[0])
