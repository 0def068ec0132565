"""Disaggregated prefill/decode: two pools on one clock, by hand and by law."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import latency_of
from simulator_helpers import Recorder, deployment, load

from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.simulator.pools import Link, Pool, default_link, simulate_pools
from pinn.simulator.simulate import simulate
from pinn.simulator.statistics import run_statistics
from pinn.specs.gpu import load_gpu, network_bytes_per_s

#: Bytes of a token's keys and values: 4 layers x 2 x 4 heads x 64 x 2 bytes.
TOKEN_BYTES = 4096
#: A link that takes one second for eight tokens on one GPU.
SLOW, INSTANT = Link(8 * TOKEN_BYTES), Link(float("inf"))


def by_hand(workers=1, recorder=None, engine=None, **serving):
    """Servers with steps of a second, one batch in flight."""
    spec = EngineSpec(replicas=workers, **(engine or {}))
    return Pool(deployment(async_scheduling=False, **serving), recorder or Recorder(), spec)


def linear(workers=1, engine=None, **serving):
    """Servers as compiled code runs them."""
    target = deployment(**serving)
    return Pool(target, latency_of(target), EngineSpec(replicas=workers, **(engine or {})))


def test_a_closed_loop_by_hand():
    prompts, answers = Recorder(), Recorder()
    got = simulate_pools(
        by_hand(recorder=prompts),
        by_hand(recorder=answers),
        load([8, 3, 5], [3, 2, 4], concurrency=2),
        SLOW,
    )
    # Both prompts end at 1 s. The first one's keys and values arrive at 2 s, the second's 3/8 s
    # later, in the middle of a step. Both answers end at 5 s; then the third is sent.
    assert prompts.batches == [["8@0", "3@0"], ["5@0"]]
    assert answers.batches[:4] == [["1@7"], ["1@8", "1@2"], ["1@9", "1@3"], ["1@4"]]
    r, moved = got.decode.requests, got.transfers
    assert moved.left_s.tolist() == [1.0, 1.0, 6.0]
    assert moved.ready_s.tolist() == [2.0, 2.375, 6.625]
    assert moved.link_s.tolist() == [1.0, 0.375, 0.625]
    assert moved.waited_s.tolist() == [0.0, 1.0, 0.0]
    assert (moved.link_bytes == np.array([8, 3, 5]) * TOKEN_BYTES).all()
    assert r.arrival_s.tolist() == [0.0, 0.0, 5.0]
    assert r.scheduled_s.tolist() == [0.0, 0.0, 5.0]
    assert r.first_token_s.tolist() == [3.0, 4.0, 7.625]
    assert r.finish_s.tolist() == [5.0, 5.0, 10.625]


def test_a_lone_request_takes_one_step_more_than_on_one_server():
    """The prompt's last token is recomputed where its answer begins."""
    together = simulate(
        deployment(async_scheduling=False), load([8], [3]), Recorder(), EngineSpec()
    )
    apart = simulate_pools(by_hand(), by_hand(), load([8], [3]), INSTANT).decode
    assert together.requests.e2e_s.tolist() == [3.0]
    assert apart.requests.e2e_s.tolist() == [4.0]


def test_delays_of_both_servers_reach_the_client():
    recorder = Recorder(queueing_s=0.25, scheduling_s=0.1, output_s=0.01, completion_s=0.5)
    got = simulate_pools(
        by_hand(recorder=recorder), by_hand(recorder=recorder), load([4], [3]), INSTANT
    )
    prompt_s = 0.25 + 1 + 0.01 + 0.1 + 0.5
    np.testing.assert_allclose(got.transfers.left_s, prompt_s)
    r = got.decode.requests
    np.testing.assert_allclose(r.first_token_s, prompt_s + 0.25 + 1 + 0.1 + 0.01)
    np.testing.assert_allclose(r.finish_s, prompt_s + 0.25 + 3 + 0.1 + 0.01 + 0.5)


def test_two_decode_servers_share_the_link_of_one_prefill_server():
    got = simulate_pools(by_hand(), by_hand(2), load([8, 8], [1, 1]), SLOW)
    assert got.decode.requests.replica.tolist() == [0, 1]
    assert got.transfers.ready_s.tolist() == [2.0, 3.0]


def test_a_worker_with_half_the_gpus_sends_half_as_fast():
    prompts, answers = by_hand(tensor_parallel_size=2), by_hand(tensor_parallel_size=4)
    moved = simulate_pools(prompts, answers, load([8], [1]), SLOW).transfers
    assert moved.link_s.tolist() == [0.5]  # 8 tokens over 2 GPUs of the prefill server
    back = simulate_pools(answers, prompts, load([8], [1]), SLOW).transfers
    assert back.link_s.tolist() == [0.5]  # and into 2 of the decode server


def test_a_prefix_that_the_decode_server_has_is_not_sent_again():
    load_ = load([16, 16], [1, 1], [0.0, 20.0], shares_with=[-1, 0], shared_tokens=[0, 12])
    moved = simulate_pools(by_hand(), by_hand(), load_, SLOW).transfers
    assert moved.tokens.tolist() == [16, 4]


def test_stages_wait_for_the_decode_pool():
    stages = {"stage": [0, 1], "stages_wait": True, "stage_gap_s": 1.0}
    r = simulate_pools(
        by_hand(), by_hand(), load([2, 2], [5, 1], **stages), INSTANT
    ).decode.requests
    assert r.finish_s[0] == 6.0
    assert r.arrival_s[1] == 7.0


@pytest.mark.parametrize(("patience_s", "came"), [(0.5, False), (2.5, True)])
def test_clients_give_up_in_either_pool(patience_s, came):
    workload = load([4, 4], [8, 2], concurrency=1, timeout_s=[patience_s, np.inf])
    got = simulate_pools(by_hand(), by_hand(), workload, INSTANT)
    r = got.decode.requests
    assert r.status.tolist() == ["timed_out", "finished"]
    assert r.finish_s[0] == patience_s
    assert r.arrival_s[1] == patience_s
    assert (got.transfers.tokens > 0).tolist() == [came, True]


def test_what_either_pool_has_no_context_for_is_rejected_at_once():
    engine = {"reject_long_requests": True}
    workload = load([60, 30, 10], [2, 40, 2])
    pools = by_hand(engine=engine, max_model_len=48), by_hand(engine=engine)
    got = simulate_pools(*pools, workload, INSTANT)
    assert got.decode.requests.status.tolist() == ["rejected", "rejected", "finished"]


def _random_load(seed, clients, n=60):
    rng = np.random.default_rng(seed)
    arrivals = np.zeros(n) if clients else np.sort(rng.uniform(0, 2e-2, n))
    patience = np.where(rng.random(n) < 0.1, rng.uniform(1e-4, 1e-2, n), np.inf)
    return load(
        rng.integers(4, 40, n),
        rng.integers(1, 24, n),
        arrivals,
        concurrency=clients,
        timeout_s=patience,
    )


@given(
    st.integers(0, 10**6),
    st.sampled_from([None, 1, 9]),
    st.integers(1, 3),
    st.integers(1, 3),
    # Over a slow link, prompts that are on their way would fill a small cache for good.
    st.sampled_from([(INSTANT, None), (INSTANT, 40), (Link(1e9, 1e-4), 60), (Link(1e7), None)]),
)
@settings(max_examples=40, deadline=None)
def test_tokens_are_conserved_and_events_follow_their_causes(
    seed, clients, prompts, answers, link_and_blocks
):
    link, blocks = link_and_blocks
    workload = _random_load(seed, clients)
    engine = {"num_gpu_blocks_override": blocks}
    got = simulate_pools(linear(prompts), linear(answers, engine), workload, link)
    r, moved, done = got.decode.requests, got.transfers, got.decode.requests.finished
    assert set(r.status) <= {"finished", "timed_out"}
    assert done[np.isinf(workload.timeout_s)].all()
    assert (r.output_tokens[done] == workload.output_tokens[done]).all()
    assert got.decode.gaps.count.sum() == (r.output_tokens - 1)[r.output_tokens > 0].sum()
    tokens = got.prefill.steps["tokens"].sum() + got.decode.steps["tokens"].sum()
    assert r.computed_tokens.sum() == tokens
    # Every token of a prompt once, its last one twice, and the answer but for its last token.
    calm = done & (r.preemptions == 0)
    needed = r.prompt_tokens + 1 + r.output_tokens - 1
    assert (r.computed_tokens[calm] + r.reused_tokens[calm] == needed[calm]).all()
    moments = [r.arrival_s, r.handed_s, r.queued_s, r.scheduled_s, moved.left_s]
    moments += [moved.loading_s, moved.ready_s, r.first_token_s, r.finish_s]
    assert (np.diff(np.stack(moments)[:, done], axis=0) >= -1e-12).all()
    assert (moved.waited_s[done] >= -1e-12).all()
    if link is INSTANT:
        assert (moved.ready_s == moved.loading_s)[done].all()
    if clients:
        for i, moment in enumerate(r.arrival_s):
            assert (r.finish_s[: i + 1] > moment).sum() <= clients, i


@pytest.mark.parametrize("clients", [None, 5])
def test_compiled_and_plain_code_agree(clients):
    pools = linear(2), linear(engine={"num_gpu_blocks_override": 40})
    fast, slow = (
        simulate_pools(*pools, _random_load(3, clients, 16), Link(1e9), compiled=compiled)
        for compiled in (True, False)
    )
    for name in ("arrival_s", "scheduled_s", "first_token_s", "finish_s"):
        pair = (getattr(run.decode.requests, name) for run in (fast, slow))
        np.testing.assert_allclose(*pair, rtol=1e-9, err_msg=name)
    for pool in ("prefill", "decode"):
        tables = (getattr(run, pool).steps.table for run in (fast, slow))
        np.testing.assert_allclose(*tables, rtol=1e-9, atol=1e-15)


def _busy(prefill=None, decode=None, link=INSTANT):
    rng = np.random.default_rng(5)
    arrivals = np.sort(rng.uniform(0, 6e-3, 200))
    workload = load(rng.integers(30, 40, 200), rng.integers(4, 24, 200), arrivals)
    found = simulate_pools(prefill or linear(), decode or linear(8), workload, link)
    return run_statistics(found.decode)


def test_more_prefill_servers_never_lengthen_the_first_token():
    found = [_busy(linear(workers)) for workers in (1, 2, 4, 8)]
    for figure in ("ttft_mean_ms", "ttft_p50_ms", "ttft_p95_ms"):
        values = [each[figure] for each in found]
        assert values == sorted(values, reverse=True), figure
        assert values[0] > 1.2 * values[-1]


def test_a_slower_link_never_shortens_the_first_token():
    values = [_busy(link=Link(rate))["ttft_mean_ms"] for rate in (np.inf, 1e10, 1e9, 1e8)]
    assert values == sorted(values)


def test_prompts_do_not_lengthen_the_gaps_between_tokens():
    """Disaggregation keeps prompts out of decode steps."""
    rng = np.random.default_rng(2)
    workload = load(rng.integers(30, 40, 200), rng.integers(8, 24, 200), concurrency=6)
    together = linear()
    mixed = simulate(together.deployment, workload, together.latency, together.engine)
    apart = simulate_pools(linear(), linear(), workload, INSTANT).decode
    assert run_statistics(apart)["itl_p99_ms"] < run_statistics(mixed)["itl_p99_ms"]
    # The most that a decode step of six requests takes, two of them overlapped by what is planned.
    assert apart.steps["prefill_requests"].sum() == 0


def test_pools_that_do_not_fit_together_are_refused():
    workload = load([8], [2])
    with pytest.raises(PinnError, match="--block-size 4, but the decode workers 8"):
        simulate_pools(by_hand(), by_hand(block_size=8), workload)
    with pytest.raises(PinnError, match="format of the KV cache bf16, but the decode workers fp8"):
        simulate_pools(by_hand(), by_hand(kv_cache_dtype="fp8"), workload)
    with pytest.raises(PinnError, match="transferred_tokens"):
        simulate_pools(by_hand(), by_hand(), load([8], [2], transferred_tokens=[8]))
    with pytest.raises(PinnError, match="positive bandwidth, got 0"):
        Link(0.0)


def test_a_port_is_as_fast_as_the_pcie_link_fills():
    rates = {name: network_bytes_per_s(load_gpu(name)) for name in ("A100", "H100", "H200", "L4")}
    assert rates == {"A100": 25e9, "H100": 50e9, "H200": 50e9, "L4": 25e9}
    slow = dataclasses.replace(deployment(), gpu=load_gpu("A100"))
    pool = by_hand()
    assert default_link(pool, dataclasses.replace(pool, deployment=slow)).bytes_per_s == 25e9
