"""Conversations: turns that wait for the answer before them and repeat all that was said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from assumed_priors import prior_coefficients
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_helpers import load, play

from pinn.engines.deployment import Deployment
from pinn.engines.engine_spec import EngineSpec
from pinn.errors import PinnError
from pinn.planning.problem import replica_load
from pinn.simulator.linear_latency import LinearLatency
from pinn.simulator.run import request_table
from pinn.simulator.setup import block_keys
from pinn.simulator.simulate import simulate
from pinn.simulator.workloads.load import LoadFlags, load_workload
from pinn.simulator.workloads.rates import at_rate, mean_rate_per_s, repeated, thinned
from pinn.specs.catalog import load_model
from pinn.specs.gpu import load_gpu
from pinn.specs.serving import ServingSpec

FLAGS = LoadFlags(
    input_len=300, turn_len=60, output_len=20, turns=3, think_time=4.0, tool_calls=1, tool_len=50,
    tool_delay=1.0, prefix_len=512, num_prompts=240, range_ratio=0.4,
)  # fmt: skip


def serve(workload, compiled=None, **serving):
    server = Deployment(load_model("Qwen/Qwen3-8B"), load_gpu("H100"), ServingSpec(**serving))
    prior = prior_coefficients(1)
    latency = LinearLatency(server, prior.beta[0], prior.alpha[0])
    return simulate(server, workload, latency, EngineSpec(), compiled=compiled)


def before(run):
    """Turns that follow another, and those that they follow."""
    later = np.flatnonzero(~run.workload.starts)
    return later, run.workload.follows[later]


def test_a_conversation_by_hand():
    # Steps of a second. The second turn comes 1.5 s after the first answer, in the middle of a
    # step of nobody's: it has 4 + 3 + 2 tokens, of which the blocks of 4 before hold one.
    columns = {"follows": [-1, 0], "shares_with": [-1, 0], "shared_tokens": [0, 7]}
    got = play(load([4, 9], [3, 2], [0.0, 1.5], **columns))
    r = got.run.requests
    assert r.arrival_s.tolist() == [0.0, 4.5]
    assert r.finish_s.tolist() == [3.0, 6.5]
    assert r.cached_tokens.tolist() == [0, 4]
    assert got.batches[3] == ["5@4"]


def test_a_place_is_a_conversations_until_its_last_answer():
    got = play(load([4] * 3, [1] * 3, [0.0, 5.0, 0.0], concurrency=1, follows=[-1, 0, -1]))
    assert got.run.requests.arrival_s.tolist() == [0.0, 6.0, 7.0]


def test_a_client_that_hung_up_goes_on_after_its_pause():
    got = play(load([4, 4], [9, 1], [0.0, 2.0], follows=[-1, 0], timeout_s=[2.5, np.inf]))
    assert got.run.requests.arrival_s.tolist() == [0.0, 4.5]
    assert got.run.requests.status.tolist() == ["timed_out", "finished"]


@pytest.mark.parametrize("closed", [True, False])
def test_turns_wait_for_answers_and_find_them_in_the_cache(closed):
    flags = FLAGS if not closed else LoadFlags(**(FLAGS.given | {"concurrency": 5}))
    workload = flags.draw(None if closed else 8.0, 3)
    run = serve(workload)
    r, (later, donor) = run.requests, before(run)
    assert r.finished.all()
    assert len(later) == 240 - 40
    np.testing.assert_allclose(
        r.arrival_s[later], r.finish_s[donor] + workload.offset_s[later], rtol=1e-12
    )
    assert request_table(run)["turn"].to_pylist() == [*range(6)] * 40
    known = workload.prompt_tokens + workload.output_tokens
    assert (workload.prompt_tokens[later] > known[donor]).all()
    assert (workload.shared_tokens[later] == known[donor]).all()
    # All but the last token was computed, and whole blocks of 16 are found again.
    assert (r.cached_tokens[later] == (known[donor] - 1) // 16 * 16).all()
    begins = np.flatnonzero(workload.starts)[1:]
    assert (r.cached_tokens[begins][-20:] == 512).all()  # the system prompt
    if closed:
        moments = np.sort(r.arrival_s)
        ends = np.zeros(40)
        np.maximum.at(ends, workload.conversations, r.finish_s)
        begun = r.arrival_s[workload.starts]
        active = [((begun <= m) & (ends > m)).sum() for m in moments]
        assert max(active) == 5
    else:
        assert mean_rate_per_s(workload) == pytest.approx(8.0)


def test_compiled_and_plain_code_see_the_same_conversations():
    flags = LoadFlags(**(FLAGS.given | {"num_prompts": 36, "concurrency": 3}))
    workload = flags.draw(None, 1)
    runs = [serve(workload, compiled, max_num_seqs=2) for compiled in (True, False)]
    for name in ("arrival_s", "finish_s", "cached_tokens"):
        one, other = (getattr(run.requests, name) for run in runs)
        np.testing.assert_allclose(one, other, rtol=1e-9, err_msg=name)


def test_a_pool_of_prefill_servers_serves_conversations_too():
    from pinn.simulator.pools import Pool, simulate_pools

    prior = prior_coefficients(1)
    server = Deployment(load_model("Qwen/Qwen3-8B"), load_gpu("H100"), ServingSpec())
    latency = LinearLatency(server, prior.beta[0], prior.alpha[0])
    workload = replace(FLAGS.draw(8.0, 3), warmup_requests=50)
    pool = Pool(server, latency, EngineSpec())
    run = simulate_pools(pool, pool, workload).decode
    measured = run.requests.warmup == 0
    assert measured.sum() == 240 - 50
    assert run.gaps.count.sum() == (workload.output_tokens - 1)[measured].sum()
    later, donor = before(run)
    assert run.requests.finished.all()
    np.testing.assert_allclose(
        run.requests.arrival_s[later],
        run.requests.finish_s[donor] + workload.offset_s[later],
        rtol=1e-9,
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30))
def test_keys_are_equal_where_all_tokens_so_far_are(seed, n):
    """Whatever shares a place, a request's keys are those of a table that copies them."""
    rng = np.random.default_rng(seed)
    prompts, outputs = rng.integers(1, 40, n), rng.integers(0, 12, n)
    donors = np.array([rng.integers(-1, i) if i else -1 for i in range(n)])
    whole = prompts + np.maximum(outputs, 1)
    shared = np.where(rng.random(n) < 0.6, whole[donors], rng.integers(0, 40, n))
    workload = load(
        prompts, outputs, shares_with=donors, shared_tokens=np.where(donors >= 0, shared, 0)
    )
    keys, first, count = block_keys(workload, 4)
    copied: list[list[int]] = []
    fresh = 0
    for r in range(n):
        same = copied[donors[r]][: shared[r] // 4] if donors[r] >= 0 else []
        mine = same[: whole[r] // 4]
        for _ in range(whole[r] // 4 - len(mine)):
            mine = [*mine, fresh]
            fresh += 1
        copied.append(mine)
        assert keys[first[r] : first[r] + whole[r] // 4].tolist() == mine
    assert count == fresh


def test_a_conversation_has_its_keys_once():
    workload = LoadFlags(input_len=64, output_len=16, turns=10, num_prompts=100).draw(1.0, 0)
    keys, _, count = block_keys(workload, 16)
    assert (
        len(keys) == count == (workload.prompt_tokens + workload.output_tokens)[9::10].sum() // 16
    )


def test_a_file_says_what_flags_say(tmp_path):
    path = tmp_path / "chat.yaml"
    path.write_text(
        "{prompt_tokens: 812, shared_tokens: 512, turn_tokens: 60, output_tokens: 20, turns: 3, "
        "think_time_s: 4, tool_calls: 1, tool_tokens: 50, tool_delay_s: 1, concurrency: 5, "
        "requests: 240}"
    )
    flags = {**FLAGS.given, "range_ratio": 0.0, "concurrency": 5}
    one, other = load_workload(path, 3), LoadFlags(**flags).draw(None, 3)
    for name in ("prompt_tokens", "output_tokens", "follows", "shares_with", "shared_tokens"):
        assert (getattr(one, name) == getattr(other, name)).all(), name
    pauses = [load.offset_s[~load.starts].mean() for load in (one, other)]
    assert pauses == pytest.approx([2.2, 2.2], rel=0.2)
    stages = "stages: [{rate: 6, duration: 50}, {rate: 12, duration: 50}]"
    path.write_text(path.read_text().replace("concurrency: 5, requests: 240", stages))
    staged = load_workload(path)
    assert np.bincount(staged.stage).tolist() == [300, 600]
    assert len(serve(staged).requests) == 900


def test_several_system_prompts_are_shared_within_their_groups(tmp_path):
    path = tmp_path / "chat.yaml"
    path.write_text(
        "{prompt_tokens: 100, shared_tokens: 64, groups: 3, output_tokens: 8, turns: 2, "
        "concurrency: 4, requests: 40}"
    )
    got = load_workload(path)
    begins = np.flatnonzero(got.starts)
    assert got.shares_with[begins].tolist() == [-1, -1, -1, *begins[:-3]]


def test_a_rate_moves_beginnings_and_leaves_pauses():
    slow = FLAGS.draw(4.0, 0)
    fast = at_rate(slow, 8.0)
    later = ~slow.starts
    assert (fast.offset_s[later] == slow.offset_s[later]).all()
    assert fast.offset_s[~later] == pytest.approx(slow.offset_s[~later] / 2)
    twice = repeated(slow, 2 * len(slow))
    assert (twice.follows[240:][later] == slow.follows[later] + 240).all()
    assert mean_rate_per_s(twice) == pytest.approx(4.0, rel=0.1)


def test_conversations_are_left_out_whole():
    whole = FLAGS.draw(4.0, 0)
    part = replica_load(whole, 0, most=len(whole), keep_all=False)
    assert len(set(part.order.tolist())) == len(whole)
    kept = thinned(whole, part.order < 90)
    sizes = np.bincount(kept.conversations)
    assert sizes.tolist() == [6] * 15
    with pytest.raises(PinnError, match="is kept without the turn before: keep all earlier turns"):
        thinned(whole, np.arange(len(whole)) != 1)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"think_time": 3}, "--think-time applies only to conversations: give --turns"),
        ({"turns": 2, "tool_delay": 3}, "without tool calls: give the number"),
        ({"turns": 2, "tool_calls": 1}, "tool calls are given without results"),
        ({"turns": 10**6, "tool_calls": 10, "tool_len": 5}, "at most 1,000,000"),
    ],
)
def test_flags_that_make_no_conversation_are_refused(flags, says):
    with pytest.raises(PinnError, match=says):
        LoadFlags(input_len=9, output_len=9, **flags).draw(1.0, 0)


@pytest.mark.parametrize(
    ("follows", "stage", "says"),
    [
        ([-1, 1, -1], [0, 0, 0], "request 1 follows request 1, which is not an earlier request"),
        ([-1, 0, 0], [0, 0, 0], "two requests follow request 0"),
        ([-1, -1, 0], [0, 1, 1], "which is not an earlier request of the same stage"),
    ],
)
def test_turns_out_of_line_are_refused(follows, stage, says):
    with pytest.raises(PinnError, match=says):
        load(
            [4] * 3, [1] * 3, follows=follows, stage=stage, stage_starts_s=(0.0,) * (stage[-1] + 1)
        )


def test_a_short_cache_forgets_turns_and_serves_them_all_the_same():
    got = play(
        load(
            [8, 8, 12, 12], [3, 3, 1, 1], [0.0] * 4, follows=[-1, -1, 0, 1],
            shares_with=[-1, -1, 0, 1], shared_tokens=[0, 0, 11, 11],
        ),
        engine={"num_gpu_blocks_override": 6},
        max_model_len=16,
    )  # fmt: skip
    assert got.run.requests.finished.all()
    assert got.run.requests.cached_tokens[2:].max() <= 8
