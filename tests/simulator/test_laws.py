"""Laws of every run: conservation, equal results in compiled and plain code, directions."""

from __future__ import annotations

import dataclasses
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_cases import Case, cases, crowded, latency_of
from simulator_helpers import deployment, load

from pinn.engines.engine_spec import EngineSpec
from pinn.memory.kv_cache import kv_layout
from pinn.simulator import scheduler
from pinn.simulator.loop import DONE, compiled_advance
from pinn.simulator.metric_features import (
    features_spent,
    request_delay_features,
    request_feature_sums,
)
from pinn.simulator.scheduler import _preempt
from pinn.simulator.setup import check_run, set_up
from pinn.simulator.simulate import simulate


@given(cases())
@example(crowded())
@settings(max_examples=150)
def test_conservation(case):
    run = case.run()
    r, steps = run.requests, run.steps
    assert len(r) == case.requests
    assert set(r.status) <= {"finished", "timed_out"}
    done = r.finished
    assert (r.output_tokens[done] == run.workload.output_tokens[done]).all()
    # Tokens computed = tokens needed + recomputed; the last token of an answer is not computed.
    if not (run.workload.transferred_tokens > 0).any():
        needed = r.prompt_tokens + r.output_tokens - 1
        calm = done & (r.preemptions == 0)
        assert (r.computed_tokens[calm] + r.reused_tokens[calm] == needed[calm]).all()
        assert (r.computed_tokens[done] + r.reused_tokens[done] >= needed[done]).all()
    assert r.computed_tokens.sum() == steps["tokens"].sum()
    assert (steps["used_blocks"] <= run.kv_blocks * case.serving["data_parallel_size"]).all()
    together = case.serving["data_parallel_size"] if case.model == "mixture" else 1
    assert (steps["tokens"] <= case.serving["max_num_batched_tokens"] * together).all()
    for group in np.unique(steps["group"]):
        assert (np.diff(steps["start_s"][steps["group"] == group]) > 0).all()
    _times_are_in_order(r)


@given(cases())
@example(crowded())
@settings(max_examples=60)
def test_every_block_is_free_at_the_end(case):
    target, workload, spec = case.build()
    layout = kv_layout(target, spec)
    state = set_up(target, workload, spec, layout, check_run(target, workload, spec, layout))
    assert compiled_advance(state, latency_of(target).compile(apart=False)) == DONE
    replicas = state.replicas
    assert (replicas["free_blocks"] == state.config.blocks).all()
    assert (replicas["held_blocks"] == 0).all()
    assert (state.cache["references"] == 0).all()


@given(cases())
@example(crowded())
@settings(max_examples=12)
def test_tokens_computed_are_those_needed_and_those_that_preemptions_lost(case):
    lost = np.zeros(case.requests, np.int64)

    def preempt(engine, replica, r):
        lost[r] += engine.requests[r].computed
        _preempt(engine, replica, r)

    with patch.object(scheduler, "_preempt", preempt):
        run = case.run(compiled=False)
    r = run.requests
    needed = r.prompt_tokens + r.output_tokens - 1
    brought = r.computed_tokens + r.reused_tokens
    counted = r.finished & (run.workload.transferred_tokens == 0)
    assert (brought[counted] == (needed + lost)[counted]).all()


def _times_are_in_order(r):
    started = ~np.isnan(r.first_token_s)
    moments = np.stack([r.arrival_s, r.handed_s, r.queued_s, r.scheduled_s, r.first_token_s])
    assert (np.diff(moments[:, started], axis=0) >= 0).all()
    assert (r.finish_s[r.finished] >= r.first_token_s[r.finished]).all()


@given(cases())
@example(crowded())
@settings(max_examples=12)
def test_compiled_and_plain_code_agree(case):
    fast, slow = case.run(compiled=True), case.run(compiled=False)
    for field in dataclasses.fields(fast.requests):
        a, b = getattr(fast.requests, field.name), getattr(slow.requests, field.name)
        if field.name.endswith("_state"):
            a, b = (np.stack(list(vars(state).values())) for state in (a, b))
        if field.name.endswith(("_s", "_state")):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-15, err_msg=field.name)
        else:
            assert (a == b).all(), field.name
    np.testing.assert_allclose(fast.steps.table, slow.steps.table, rtol=1e-9, atol=1e-15)
    gaps = [np.sort(np.repeat(run.gaps.seconds, run.gaps.count)) for run in (fast, slow)]
    np.testing.assert_allclose(*gaps, rtol=1e-9, atol=1e-15)


@given(cases())
@settings(max_examples=25)
def test_sums_of_features_give_the_measured_times(case):
    case = dataclasses.replace(
        case,
        serving=case.serving | {"pipeline_parallel_size": 1},
        engine=case.engine | {"v1_multiprocessing": True},
    )
    target, _, _ = case.build()
    run, latency = case.run(), latency_of(target)
    r, beta = run.requests, latency.beta
    first, last = request_feature_sums(latency, run)
    spent = features_spent(latency, run.steps.table)[-1]
    np.testing.assert_allclose(spent @ beta, run.steps["duration_s"].sum(), rtol=1e-9)
    if (run.workload.transferred_tokens > 0).any():
        return  # a request whose keys and values are on their way waits for no step
    np.testing.assert_allclose(
        first @ beta, r.engine_first_token_s - r.handed_s, rtol=1e-7, atol=1e-12
    )
    np.testing.assert_allclose(last @ beta, r.engine_finish_s - r.handed_s, rtol=1e-7, atol=1e-12)


#: A request is taken in while the engine, in the same process, waits for that before it hands out
#: a token; and one has all its tokens in flight when an empty batch preempts it.
ONE_PROCESS = Case(
    231429, 8, "dense", {"max_num_batched_tokens": 4, "max_num_seqs": 1},
    {"async_scheduling": True, "num_gpu_blocks_override": 24, "v1_multiprocessing": False},
    None, False, 5e-4,
)  # fmt: skip
EMPTY_BATCH = Case(
    300746, 21, "dense", {"max_num_batched_tokens": 16, "max_num_seqs": 3},
    {"async_scheduling": True, "num_gpu_blocks_override": 18}, 4, True, 5e-4,
)  # fmt: skip


@given(cases(), st.sampled_from([1.0, 0.01]))
@example(crowded(), 0.01)
@example(ONE_PROCESS, 1.0)
@example(EMPTY_BATCH, 1.0)
@settings(max_examples=40)
def test_delays_beside_the_steps_are_no_more_than_the_server_had_to_do(case, request_s):
    """A task of the API server comes after the first of those that it waits for."""
    serving = case.serving | {"data_parallel_size": 1}
    engine = case.engine | {"api_server_count": 1}
    case = dataclasses.replace(case, serving=serving, engine=engine)
    target, workload, spec = case.build()
    latency = latency_of(target, request_s)
    run, alpha = simulate(target, workload, latency, spec), latency.alpha
    r = run.requests
    first, last = (features @ alpha for features in request_delay_features(run))
    met_idle = (r.handed_work[:, 0] == 1) & (r.handed_work[:, 2] == 0)
    for most, work, engine_s, client_s in (
        (first, r.first_work, r.engine_first_token_s, r.first_token_s),
        (last, r.last_work, r.engine_finish_s, np.where(r.finished, r.finish_s, np.nan)),
    ):
        delay = client_s - r.arrival_s - (engine_s - r.handed_s)
        known = ~np.isnan(delay)
        assert (delay <= most * (1 + 1e-9) + 1e-12)[known].all()
        alone = known & met_idle & (work[:, 0] == 0) & (work[:, 2] == 1)
        np.testing.assert_allclose(delay[alone], most[alone], rtol=1e-7, atol=1e-12)


def test_a_run_depends_on_nothing_but_its_arguments():
    first, second = crowded().run(), crowded().run()
    assert (first.steps.table == second.steps.table).all()
    assert (first.requests.finish_s == second.requests.finish_s).all()


def _busy_run(engine=None, request_s=1.0, **serving):
    rng = np.random.default_rng(5)
    workload = load(
        rng.integers(4, 40, 60), rng.integers(1, 24, 60), np.sort(rng.random(60)) * 1e-2
    )
    target = deployment(**serving)
    latency = latency_of(target, request_s)
    return simulate(target, workload, latency, EngineSpec(**(engine or {})))


def test_less_cache_never_lowers_preemptions():
    counts = [
        _busy_run({"num_gpu_blocks_override": blocks}).requests.preemptions.sum()
        for blocks in (200, 80, 60, 40, 30, 20)
    ]
    assert counts == sorted(counts)
    assert counts[0] == 0 < counts[-1]


def _twins(gpu=None, **columns):
    """Two requests that start apart and decode together, 32 prompt tokens each."""
    workload = load([33, 33], [24, 24], [0.0, 1e-4], **columns)
    target = deployment()
    target = dataclasses.replace(target, gpu=gpu or target.gpu)
    return simulate(target, workload, latency_of(target)).steps


def test_keys_that_two_decodes_share_are_read_once():
    shared = _twins(shares_with=[-1, 0], shared_tokens=[0, 32])
    apart = _twins()
    both = (shared["decode_requests"] == 2) & (shared["prefill_requests"] == 0)
    assert both.any()
    assert (shared["reread_tokens"][both] == 32).all()
    assert (shared["reread_tokens"][shared["decode_requests"] < 2] == 0).all()
    assert (apart["reread_tokens"] == 0).all()
    whole, once = shared["decode_context"], shared.sums.decode_context
    np.testing.assert_allclose(whole - once, shared["reread_tokens"])
    assert (once >= shared["decode_requests"]).all()


def test_a_cache_too_small_for_a_head_saves_less():
    columns = {"shares_with": [-1, 0], "shared_tokens": [0, 32]}
    gpu = dataclasses.replace(deployment().gpu, l2_bytes=10 * 2 * 64 * 2)
    small, large = _twins(gpu, **columns), _twins(**columns)
    assert 0 < small["reread_tokens"].max() < large["reread_tokens"].max()


def test_sharing_keys_saves_no_arithmetic():
    """At a low peak attention is bound by arithmetic, and nothing is gained."""
    columns = {"shares_with": [-1, 0], "shared_tokens": [0, 32]}
    gpu = dataclasses.replace(deployment().gpu, peak_flop_per_s={"bf16": 1e12})
    assert (_twins(gpu, **columns)["reread_tokens"] == 0).all()


def test_a_smaller_token_budget_never_shortens_a_long_prefill():
    """Where all steps are launched alike: chunks that CUDA graphs cover can pay."""
    workload = load([60, 3], [1, 4])
    first = []
    for budget in (64, 32, 16, 8, 4):
        target = deployment(max_num_batched_tokens=budget, enforce_eager=True)
        run = simulate(target, workload, latency_of(target, request_s=0.0))
        first.append(run.requests.first_token_s[0])
    assert first == sorted(first)
    assert first[0] < first[-1]


def test_a_smaller_max_model_len_never_admits_a_longer_request():
    workload = load([10, 20, 30, 40], [4, 4, 4, 4])
    longest = []
    for limit in (64, 40, 30, 20):
        target = deployment(max_model_len=limit)
        engine = EngineSpec(reject_long_requests=True)
        r = simulate(target, workload, latency_of(target), engine).requests
        longest.append((r.prompt_tokens + 4)[r.finished].max())
        assert (r.status[r.prompt_tokens + 4 > limit] == "rejected").all()
    assert longest == sorted(longest, reverse=True)


@pytest.mark.parametrize("gib", [0.001, 0.01])
def test_offload_never_speeds_a_run_up(gib):
    # An API server that takes no time: else the last answer waits for it, whatever the steps take.
    slow, fast = (_busy_run(request_s=0.0, cpu_offload_gb=size) for size in (gib, 0.0))
    assert slow.requests.e2e_s.mean() > fast.requests.e2e_s.mean()
    assert slow.requests.finish_s.max() > fast.requests.finish_s.max()


def test_ranks_that_share_experts_step_together():
    case = crowded(model="mixture", serving={"data_parallel_size": 2, "max_num_batched_tokens": 16})
    run = case.run()
    assert set(run.steps["group"]) == {0.0}
    assert set(run.requests.replica) == {0, 1}
