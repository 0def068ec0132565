"""Runs that draft and verify: the schedule by hand, conservation, and what is drawn at random."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import cases, latency_of
from simulator_helpers import DENSE, deployment, load, play

from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import kv_layout
from pinn.memory.weights import gpu_weight_bytes
from pinn.simulator.draws import uniform_number
from pinn.simulator.loop import DONE, compiled_advance
from pinn.simulator.metric_features import request_feature_sums
from pinn.simulator.setup import check_run, set_up
from pinn.simulator.simulate import simulate
from pinn.simulator.statistics import run_statistics


def drafting(method="mtp", tokens=2, acceptance="0.7"):
    config = f'{{"method": "{method}", "num_speculative_tokens": {tokens}}}'
    return {"speculative_config": config, "speculative_acceptance": acceptance}


@st.composite
def drafting_cases(draw):
    flags = drafting(
        draw(st.sampled_from(["mtp", "ngram", "eagle"])),
        draw(st.integers(1, 5)),
        draw(st.sampled_from(["0", "0.5", "0.9", "1"])),
    )
    case = draw(cases())
    return dataclasses.replace(case, serving=case.serving | flags | {"pipeline_parallel_size": 1})


def test_all_accepted_by_hand():
    run = play(load([4], [7]), **drafting(acceptance="1"))
    assert run.batches == [["4@0"], ["3@4"], ["3@7"]]
    assert run.run.gaps.tokens.repeat(run.run.gaps.count).tolist() == [3, 3]
    r = run.run.requests
    assert (r.drafted_tokens[0], r.accepted_tokens[0], r.computed_tokens[0]) == (4, 4, 10)


def test_none_accepted_by_hand():
    run = play(load([4], [4]), **drafting(acceptance="0"))
    assert run.batches == [["4@0"], ["3@4"], ["3@5"], ["3@6"]]
    assert run.run.requests.computed_tokens[0] == 7


def test_a_batch_in_flight_counts_its_drafts():
    """With a batch planned ahead a decode is scheduled as if all before it were accepted."""
    run = play(
        load([4], [5]), engine={"async_scheduling": True}, **drafting(tokens=1, acceptance="0")
    )
    assert run.batches[:4] == [["4@0"], ["2@4"], ["2@6"], ["2@7"]]
    assert run.run.requests.output_tokens[0] == 5


def test_a_budget_cuts_drafts_off():
    run = play(load([4, 4], [4, 4]), max_num_batched_tokens=5, **drafting(acceptance="1"))
    assert run.batches[:3] == [["4@0", "1@0"], ["3@4", "2@1"], ["1@3"]]


@given(drafting_cases())
@settings(max_examples=25)
def test_tokens_are_conserved(case):
    """As without drafts: each output has its length, and what was rejected was not computed."""
    case = dataclasses.replace(case, engine=case.engine | {"async_scheduling": False})
    run = case.run()
    r, gaps = run.requests, run.gaps
    done = r.finished
    assert (r.output_tokens[done] == run.workload.output_tokens[done]).all()
    calm = done & (r.preemptions == 0) & (run.workload.transferred_tokens == 0)
    needed = r.prompt_tokens + r.output_tokens - 1
    assert (r.computed_tokens + r.reused_tokens == needed)[calm].all()
    assert (r.computed_tokens + r.reused_tokens >= needed)[
        done & (run.workload.transferred_tokens == 0)
    ].all()
    assert gaps.count @ gaps.tokens == np.maximum(r.output_tokens - 1, 0).sum()
    assert (r.accepted_tokens <= r.drafted_tokens).all()
    assert (run.steps["tokens"] <= case.serving["max_num_batched_tokens"] * 3).all()


@given(drafting_cases())
@settings(max_examples=4)
def test_compiled_and_plain_code_agree(case):
    fast, slow = case.run(compiled=True), case.run(compiled=False)
    for name in ("finish_s", "first_token_s", "output_tokens", "computed_tokens",
                 "drafted_tokens", "accepted_tokens", "preemptions"):  # fmt: skip
        a, b = getattr(fast.requests, name), getattr(slow.requests, name)
        np.testing.assert_allclose(a, b, rtol=1e-9, err_msg=name)
    np.testing.assert_allclose(fast.steps.table, slow.steps.table, rtol=1e-9, atol=1e-15)
    assert (fast.gaps.tokens == slow.gaps.tokens).all()


@given(drafting_cases())
@settings(max_examples=20)
def test_every_block_is_free_at_the_end(case):
    target, workload, spec = case.build()
    layout = kv_layout(target, spec)
    state = set_up(target, workload, spec, layout, check_run(target, workload, spec, layout))
    assert compiled_advance(state, latency_of(target).compile(apart=False)) == DONE
    assert (state.replicas["free_blocks"] == state.config.blocks).all()
    assert (state.cache["references"] == 0).all()


@given(st.integers(0, 10**6), st.sampled_from(["mtp", "ngram", "eagle3"]), st.integers(1, 6))
@settings(max_examples=5)
def test_a_run_that_accepts_nothing_is_never_faster(seed, method, tokens):
    rng = np.random.default_rng(seed)
    workload = load(rng.integers(1, 20, 6), rng.integers(1, 12, 6))
    runs = []
    for flags in ({}, drafting(method, tokens, "0")):
        # Graphs of the same size, since those of a run that drafts cover more tokens by default.
        target = deployment(max_num_batched_tokens=512, max_cudagraph_capture_size=64, **flags)
        runs.append(simulate(target, workload, latency_of(target, request_s=0.0), compiled=False))
    plain, drafted = runs
    assert (drafted.requests.e2e_s >= plain.requests.e2e_s * (1 - 1e-12)).all()


@pytest.mark.parametrize("flags", [
    {"engine": "sglang", "speculative_config": "EAGLE", "speculative_num_steps": 2,
     "speculative_num_draft_tokens": 3, "max_num_batched_tokens": 64, "max_num_seqs": 8},
    {"engine": "trtllm", "speculative_config":
     '{"decoding_type": "MTP", "num_nextn_predict_layers": 2}'},
])  # fmt: skip
def test_other_engines_verify_too(flags):
    workload = load([8] * 6, [20] * 6)
    target = deployment(enable_prefix_caching=False, speculative_acceptance="0.8", **flags)
    run = simulate(target, workload, latency_of(target), compiled=False)
    assert run.requests.finished.all()
    assert run.requests.accepted_tokens.sum() > 0
    decodes = run.steps["prefill_requests"] == 0
    assert (run.steps["tokens"][decodes] == 3 * run.steps["requests"][decodes]).all()


def test_tokens_per_step_are_what_the_closed_form_says():
    chances = "0.9,0.7,0.5"
    flags = drafting(tokens=3, acceptance=chances)
    target = deployment(max_model_len=2048, block_size=64, **flags)
    workload = load([8] * 20, [700] * 20)
    run = simulate(target, workload, latency_of(target), compiled=True)
    expected = target.recipe.speculation.tokens_per_step
    found = run_statistics(run)
    steps = run.gaps.count.sum()
    assert steps > 3000
    # A request's tokens in a step are 1 to 4: their standard deviation is at most 1.5.
    assert abs(found["tokens_per_decode"] - expected) < 4 * 1.5 / steps**0.5 + 4 / 700
    assert found["itl_mean_ms"] * found["tokens_per_decode"] == pytest.approx(
        found["step_itl_mean_ms"]
    )
    assert found["acceptance_rate"] == pytest.approx((expected - 1) / 3, abs=0.03)


def test_runs_that_are_compared_draw_the_same_numbers():
    workload = load([8] * 4, [40] * 4)
    accepted = []
    for gpu_memory_s in (1.0, 30.0):
        target = deployment(async_scheduling=False, **drafting(tokens=3))
        latency = latency_of(target)
        latency = dataclasses.replace(latency, beta=latency.beta * gpu_memory_s)
        engine = EngineSpec()
        run = simulate(target, workload, latency, engine, compiled=False)
        accepted.append(run.requests.accepted_tokens)
    assert (accepted[0] == accepted[1]).all()


def test_drawn_numbers_are_even_and_unrelated():
    numbers = np.array([[uniform_number(r, place) for place in range(200)] for r in range(200)])
    shares = np.histogram(numbers, bins=20, range=(0, 1))[0] / numbers.size
    np.testing.assert_allclose(shares, 0.05, atol=0.005)
    for one, next_one in ((numbers[:-1], numbers[1:]), (numbers[:, :-1], numbers[:, 1:])):
        assert abs(np.corrcoef(one.ravel(), next_one.ravel())[0, 1]) < 0.02


def test_drafts_take_memory():
    plain, own = deployment(), deployment(**drafting("eagle3"))
    assert gpu_weight_bytes(own) > gpu_weight_bytes(plain)
    assert kv_layout(own, EngineSpec()).blocks < kv_layout(plain, EngineSpec()).blocks
    layers = DENSE.layers
    ratio = kv_layout(own, EngineSpec()).block_bytes / kv_layout(plain, EngineSpec()).block_bytes
    assert ratio == pytest.approx((layers + 1) / layers)


def test_sums_of_features_give_the_measured_times():
    target = deployment(**drafting(tokens=3))
    workload = load([20, 30, 12], [16, 9, 20], [0.0, 1e-4, 2e-4])
    latency = latency_of(target)
    run = simulate(target, workload, latency, compiled=False)
    (_, last), r = request_feature_sums(latency, run), run.requests
    np.testing.assert_allclose(last @ latency.beta, r.engine_finish_s - r.handed_s, rtol=1e-7)
