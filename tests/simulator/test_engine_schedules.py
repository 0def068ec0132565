"""Schedules of SGLang and TensorRT-LLM, worked out by hand; every step takes a second."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import latency_of
from simulator_helpers import DENSE, MIXTURE, Recorder, deployment, load, scheduled

from pinn.errors import PinnError
from pinn.physics.costs import UNCOMPILED
from pinn.simulator.simulate import simulate
from pinn.surrogate.step_features import STEP_FEATURES

#: By hand as 0.5.9 schedules; from 0.5.22 on it counts whole outputs (test_sglang_parity.py).
SGLANG = {
    "engine": "sglang",
    "engine_version": "0.5.9",
    "block_size": 1,
    "cudagraph_padding": False,
}
TRTLLM = {"engine": "trtllm", "block_size": 4, "cudagraph_padding": True, "max_model_len": 32}


def serve(workload, serving, ahead=False, **engine):
    """The batches of a run, and the run."""
    recorder = Recorder()
    target = deployment(**({"enable_prefix_caching": False} | serving))
    target, spec = scheduled(target, {"async_scheduling": ahead} | engine)
    return simulate(target, workload, recorder, spec), recorder.batches


def test_sglang_runs_prompts_first_and_frees_a_place_one_decode_late():
    """Three places, chunks of 8: requests that have ended keep theirs until decodes run again."""
    workload = load([5, 4, 12, 3, 10, 2], [3, 4, 2, 2, 3, 1], [0, 0, 0, 0, 5.5, 6.2])
    run, batches = serve(workload, SGLANG | {"max_num_batched_tokens": 8, "max_num_seqs": 3})
    assert batches == [
        ["5@0", "3@0"],  # the second prompt is cut
        ["1@3", "7@0"],  # it goes on, and the third is cut
        ["5@7"],  # the fourth finds no place
        ["1@5", "1@4", "1@12"],  # the third ends
        ["1@6", "1@5"],  # the first ends
        ["3@0"],  # the third's place is free now, the first's not yet
        ["1@6", "1@3"],  # both end; the fifth has found no place
        ["8@0"],  # one place: those of the two that ended still count
        ["2@8"],
        ["1@10"],
        ["2@0"],  # the sixth, which ends with its prompt
        ["1@11"],
    ]
    assert run.steps["start_s"].tolist() == list(range(12))
    assert run.requests.finish_s.tolist() == [5, 7, 4, 7, 12, 11]


def test_sglang_plans_ahead_and_runs_a_request_that_has_just_ended_once_more():
    workload = load([10, 6, 30, 3], [4, 3, 5, 1], [0.0, 0.0, 0.5, 2.5])
    run, batches = serve(workload, SGLANG | {"max_num_batched_tokens": 16}, ahead=True)
    assert batches == [
        ["10@0", "6@0"],
        ["1@10", "1@6"],  # planned with the first
        ["16@0"],  # planned at 1 s
        ["14@16"],
        ["3@0"],
        ["1@11", "1@7", "1@30", "1@3"],  # the last ends with its prompt, which nobody knows yet
        ["1@12", "1@8", "1@31"],  # nor that the second has ended
        ["1@13", "1@32"],
        ["1@33"],
        ["1@34"],
    ]
    assert run.requests.finish_s.tolist() == [7, 6, 9, 5]


def test_sglang_looks_at_its_queue_once_in_so_many_decode_steps():
    workload = load([4, 2, 2], [12, 1, 1], [0.0, 1.5, 5.5])
    serving = SGLANG | {"scheduler_recv_interval": 3}
    run, batches = serve(workload, serving)
    assert batches[:4] == [["4@0"], ["1@4"], ["1@5"], ["1@6"]]
    assert batches[4] == ["2@0"]  # after three decodes
    # A step of prompts makes it look at once, then three decodes pass.
    assert batches[5:8] == [["1@7"], ["1@8"], ["1@9"]]
    assert run.requests.queued_s.tolist() == [0, 4, 8]
    assert len(batches) == 14


def test_sglang_retracts_who_has_written_least_and_the_longest_prompt_of_those():
    """24 tokens of memory, of which 18 seem free when the second request asks for 14."""
    memory = {"enable_prefix_caching": True, "max_model_len": 24, "schedule_conservativeness": 0.1}
    workload = load([5, 6], [12, 8], [0.0, 0.5])
    run, batches = serve(workload, SGLANG | memory, num_gpu_blocks_override=25)
    assert batches == [
        ["5@0"],
        ["6@0"],
        *([f"1@{5 + i}", f"1@{6 + i}"] for i in range(6)),
        ["1@11"],  # one token is free: the second goes, and now outputs are expected in full
        ["1@12"],
        ["1@13"],
        ["1@14"],
        ["1@15"],  # the first ends
        ["7@6"],  # the second's prompt is still there; what it wrote is computed anew
    ]
    assert run.requests.preemptions.tolist() == [0, 1]
    assert run.requests.finish_s.tolist() == [13, 14]


def test_trtllm_fuses_whole_prompts_with_room_for_whole_outputs():
    """9 blocks of 4 tokens, 16 tokens a step, graphs of 1, 2 and 4 decodes."""
    workload = load([6, 9, 5, 3, 14, 2], [4, 3, 5, 2, 2, 6], [0, 0, 0, 0, 0, 4.5])
    serving = TRTLLM | {"max_num_batched_tokens": 16, "max_num_seqs": 4}
    run, batches = serve(workload, serving, num_gpu_blocks_override=10)
    assert batches == [
        ["6@0", "9@0"],  # the third prompt does not fit whole
        ["1@6", "1@9", "5@0"],  # no block is left for the fourth
        ["1@7", "1@10", "1@5"],  # the second ends
        ["1@8", "1@6", "3@0"],  # the fifth, of 14 tokens, does not fit beside them
        ["1@7", "1@3", "14@0"],
        ["1@8", "1@14", "2@0"],
        ["1@2"],
        ["1@3"],
        ["1@4"],
        ["1@5"],
        ["1@6"],
    ]
    assert run.requests.finish_s.tolist() == [4, 3, 6, 5, 6, 11]
    assert not run.requests.preemptions.any()


def test_trtllm_cuts_prompts_at_whole_blocks_where_it_may():
    serving = TRTLLM | {"max_num_batched_tokens": 10, "enable_chunked_prefill": True}
    _, batches = serve(load([3, 17], [8, 2]), serving)
    assert batches[:4] == [["3@0", "4@0"], ["1@3", "8@4"], ["1@4", "5@12"], ["1@5", "1@17"]]


def test_trtllm_lets_prompts_wait_for_more_of_them_while_decodes_go_on():
    """Three steps at most, or until decodes and prompts make 15 of 16 tokens."""
    waits = {"batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.9}
    workload = load([4, 2, 3, 13, 2], [10, 3, 2, 3, 2], [0.0, 1.5, 3.5, 6.5, 15.5])
    run, batches = serve(workload, TRTLLM | waits | {"max_num_batched_tokens": 16})
    assert batches == [
        ["4@0"],  # nothing is decoded, so it need not wait
        ["1@4"],
        ["1@5"],  # the second prompt waits
        ["1@6"],
        ["1@7"],  # and the third with it
        ["1@8", "2@0", "3@0"],
        ["1@9", "1@2", "1@3"],  # the third ends
        ["1@10", "1@3", "13@0"],  # 15 tokens, worth a step at once
        ["1@11", "1@13"],
        ["1@12", "1@14"],
        ["2@0"],
        ["1@2"],
    ]
    assert run.requests.finish_s.tolist() == [10, 8, 7, 10, 17.5]


def test_trtllm_balances_prompts_over_its_attention_ranks():
    """A prompt waits until the other rank has one, too, or one step in four lets it through."""
    serving = TRTLLM | {
        "enable_dp_attention": True, "tensor_parallel_size": 2, "model": MIXTURE,
        "attention_dp_timeout_iters": 4,
    }  # fmt: skip
    workload = load([4] * 5, [12, 12, 2, 2, 2], [0.0, 0.0, 1.5, 6.5, 6.6])
    run, _ = serve(workload, serving)
    assert run.requests.scheduled_s.tolist() == [0, 0, 4, 7, 7]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 60])
def test_balanced_ranks_serve_everybody(steps, ahead):
    """Prompts wait, and more steps of it never make the first tokens come sooner on average."""
    draw = np.random.default_rng(steps)
    workload = load(
        draw.integers(1, 12, 30).tolist(), draw.integers(1, 9, 30).tolist(),
        np.sort(draw.uniform(0, 40, 30)).tolist(),
    )  # fmt: skip
    serving = TRTLLM | {
        "enable_dp_attention": True, "tensor_parallel_size": 4, "model": MIXTURE, "max_num_seqs": 3,
    }  # fmt: skip
    run, _ = serve(workload, serving | {"attention_dp_timeout_iters": steps}, ahead)
    at_once, _ = serve(workload, serving, ahead)
    assert run.requests.finished.all()
    assert run.requests.ttft_s.mean() >= at_once.requests.ttft_s.mean()


def test_without_a_wait_prompts_run_as_soon_as_they_fit():
    workload = load([4, 2, 3], [10, 3, 2], [0.0, 1.5, 3.5])
    run, _ = serve(workload, TRTLLM | {"batch_wait_max_tokens_ratio": 0.9})
    assert run.requests.scheduled_s.tolist() == [0, 2, 4]


def test_trtllm_refuses_a_prompt_beyond_its_budget():
    with pytest.raises(PinnError, match="a prompt of 17 tokens exceeds max_num_tokens 10"):
        serve(load([17], [2]), TRTLLM | {"max_num_batched_tokens": 10})


@pytest.mark.parametrize("engine", [SGLANG, TRTLLM])
def test_attention_replicas_step_together_and_the_largest_takes_longest(engine):
    """Two ranks; routed in turn or to the emptier one, one rank has the long prompt."""
    size = {"data_parallel_size": 2} if engine is SGLANG else {}
    serving = engine | size | {"enable_dp_attention": True, "tensor_parallel_size": 2}
    run, _ = serve(load([20, 4], [3, 3]), serving | {"model": MIXTURE})
    assert len(run.steps) == 3
    assert sorted(run.requests.replica.tolist()) == [0, 1]
    assert run.steps["tokens"][0] == 24


def test_decodes_beyond_the_largest_graph_are_launched_one_by_one():
    """Six decodes run in a graph of eight, or layer by layer where graphs end at four."""
    latency, seconds = latency_of(deployment(**TRTLLM), request_s=0.0), {}  # all arrive together
    for limit in (8, 4):
        target = deployment(**(TRTLLM | {"max_cudagraph_capture_size": limit, "max_num_seqs": 8}))
        latency = replace(latency, deployment=target)
        seconds[limit] = simulate(target, load([2] * 6, [4] * 6), latency).steps["duration_s"][2]
    step, request, layer = (
        latency.beta[list(STEP_FEATURES).index(name)]
        for name in ("step", "request", "launched_layer")
    )
    one_by_one = UNCOMPILED * DENSE.layers * layer
    assert seconds[8] < seconds[4] == pytest.approx(step + 6 * request + one_by_one)


@st.composite
def engines(draw):
    engine = draw(st.sampled_from(["sglang", "trtllm"]))
    serving = {
        "engine": engine,
        "max_num_batched_tokens": draw(st.sampled_from([40, 64])),
        "max_num_seqs": draw(st.sampled_from([1, 3, 8])),
        "block_size": draw(st.sampled_from([1, 4])),
        "enable_prefix_caching": draw(st.booleans()),
    }
    if engine == "trtllm":
        serving["batch_wait_timeout_iters"] = draw(st.sampled_from([0, 3]))
        serving["batch_wait_max_tokens_ratio"] = draw(st.sampled_from([0.2, 1.0]))
    if engine == "sglang":
        serving["scheduler_recv_interval"] = draw(st.sampled_from([1, 5]))
        serving["max_num_batched_tokens"] = draw(st.sampled_from([4, 16]))
    blocks = draw(st.sampled_from([100, 400])) // (4 if serving["block_size"] == 4 else 1)
    engine_flags = {"async_scheduling": draw(st.booleans()), "num_gpu_blocks_override": blocks}
    return serving, engine_flags, draw(st.integers(0, 10**6))


@settings(max_examples=15, deadline=None)
@given(engines())
def test_laws_of_both_schedules(case):
    serving, engine, seed = case
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 20))
    prompts, outputs = rng.integers(1, 40, n), rng.integers(1, 24, n)
    workload = load(prompts, outputs, np.cumsum(rng.exponential(2e-4, n)))
    target, spec = scheduled(deployment(DENSE, **serving), engine)
    latency = latency_of(target)
    run = simulate(target, workload, latency, spec)
    plain = simulate(target, workload, latency, spec, compiled=False)
    np.testing.assert_allclose(run.requests.finish_s, plain.requests.finish_s, rtol=1e-9)
    assert (run.requests.status == "finished").all()
    assert run.requests.output_tokens.tolist() == outputs.tolist()
    steps = run.steps
    if serving["engine"] == "sglang":
        assert not ((steps["prefill_requests"] > 0) & (steps["decode_requests"] > 0)).any()
        chunk = target.recipe.token_budget
        assert (steps["tokens"][steps["prefill_requests"] > 0] <= chunk).all()
    else:
        assert not run.requests.preemptions.any()
        assert (run.requests.computed_tokens >= prompts + outputs - 1 - 40).all()
        assert (steps["tokens"] <= target.recipe.token_budget).all()
    assert (steps["running"] <= serving["max_num_seqs"]).all()
    assert (steps["used_blocks"] <= run.kv_blocks).all()
