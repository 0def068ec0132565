"""Schedules worked out by hand from vLLM's rules; a step takes one second, blocks hold 4 tokens."""

from __future__ import annotations

import numpy as np
import pytest
from simulator_helpers import Recorder, load, play


def test_a_prompt_is_cut_at_the_token_budget():
    got = play(load([10], [2]), max_num_batched_tokens=4)
    assert got.batches == [["4@0"], ["4@4"], ["2@8"], ["1@10"]]
    assert got.run.requests.first_token_s[0] == 3
    assert got.run.requests.finish_s[0] == 4


def test_a_prompt_of_whole_chunks_has_no_empty_last_chunk():
    assert play(load([8], [1]), max_num_batched_tokens=4).batches == [["4@0"], ["4@4"]]


def test_chunks_fill_what_earlier_requests_leave_of_the_budget():
    got = play(load([3, 6], [4, 1]), max_num_batched_tokens=4)
    assert got.batches == [["3@0", "1@0"], ["1@3", "3@1"], ["1@4", "2@4"], ["1@5"]]


def test_running_requests_come_first_in_their_order():
    got = play(load([1, 1, 1], [3, 3, 1]), max_num_batched_tokens=2)
    assert got.batches == [["1@0", "1@0"], ["1@1", "1@1"], ["1@2", "1@2"], ["1@0"]]


def test_max_num_seqs_limits_the_running_requests():
    got = play(load([2, 2, 2], [2, 1, 1]), max_num_seqs=2)
    assert got.batches == [["2@0", "2@0"], ["1@2", "2@0"]]


def test_long_prefill_threshold_cuts_chunks_below_the_budget():
    threshold = {"long_prefill_token_threshold": 3}
    got = play(load([7, 3], [1, 1]), engine=threshold, engine_version="0.30.0")
    assert got.batches == [["3@0", "3@0"], ["3@3"], ["1@6"]]
    # From 0.31 on the only request there is goes on whole.
    newest = play(load([7, 3], [1, 1]), engine=threshold)
    assert newest.batches == [["3@0", "3@0"], ["4@3"]]


def test_without_chunking_a_prompt_waits_for_a_whole_budget_and_blocks_the_line():
    got = play(
        load([40, 30, 2], [1, 1, 1]), enable_chunked_prefill=False, max_num_batched_tokens=64
    )
    assert got.batches == [["40@0"], ["30@0", "2@0"]]


def test_a_cached_prompt_of_whole_blocks_recomputes_its_last_block():
    same = {"shares_with": [-1, 0], "shared_tokens": [0, 8]}
    got = play(load([8, 8], [1, 1], [0.0, 2.0], **same))
    assert got.batches == [["8@0"], ["4@4"]]
    assert got.run.requests.cached_tokens.tolist() == [0, 4]


def test_a_cached_prompt_recomputes_what_lies_beyond_its_last_full_block():
    same = {"shares_with": [-1, 0], "shared_tokens": [0, 9]}
    assert play(load([9, 9], [1, 1], [0.0, 2.0], **same)).batches == [["9@0"], ["1@8"]]


def test_only_whole_shared_blocks_are_reused():
    group = {"shares_with": [-1, 0], "shared_tokens": [0, 7]}
    assert play(load([12, 12], [1, 1], [0.0, 2.0], **group)).batches == [["12@0"], ["8@4"]]


def test_a_conversation_reuses_the_blocks_of_its_answer():
    # 6 prompt and 7 output tokens: 12 are computed, the last one is not.
    turns = {"shares_with": [-1, 0], "shared_tokens": [0, 13]}
    got = play(load([6, 20], [7, 1], [0.0, 20.0], **turns))
    assert got.batches[-1] == ["8@12"]


def test_requests_of_one_step_share_blocks():
    same = {"shares_with": [-1, 0], "shared_tokens": [0, 9]}
    assert play(load([9, 9], [1, 1], **same)).batches == [["9@0", "1@8"]]


def test_nothing_is_reused_without_prefix_caching():
    same = {"shares_with": [-1, 0], "shared_tokens": [0, 9]}
    got = play(load([9, 9], [1, 1], [0.0, 2.0], **same), enable_prefix_caching=False)
    assert got.batches == [["9@0"], ["9@0"]]


def test_the_tail_of_the_oldest_prefix_is_evicted_first():
    # 5 blocks. A (12 tokens) leaves 3 cached blocks, B (8 tokens) takes the 2 never used, C (8
    # tokens, unlike both) takes A's last two: A again finds its first block only.
    again = {"shares_with": [-1, -1, -1, 0], "shared_tokens": [0, 0, 0, 12]}
    got = play(
        load([12, 8, 8, 12], [1, 1, 1, 1], [0.0, 2.0, 4.0, 6.0], **again),
        engine={"num_gpu_blocks_override": 6},
        max_model_len=16,
    )
    assert got.batches == [["12@0"], ["8@0"], ["8@0"], ["8@4"]]


def test_blocks_are_taken_by_whole_blocks():
    got = play(load([5], [6]))
    # 5, 6, 7, 8, 9, 10 tokens computed at the end of each step.
    assert got.run.steps["used_blocks"].tolist() == [2, 2, 2, 2, 3, 3]


def test_the_last_running_request_is_preempted_and_recomputes():
    # 5 blocks of 2 tokens. After the prompts 1 block is free. The first request takes it, the
    # second finds none and preempts itself; its last block is taken at step 3, so it comes back
    # with its first block and computes the other 3 of its 5 tokens again.
    got = play(
        load([4, 4], [5, 5]),
        engine={"num_gpu_blocks_override": 6},
        block_size=2,
        max_model_len=10,
    )
    assert got.batches == [
        ["4@0", "4@0"], ["1@4"], ["1@5"], ["1@6"], ["1@7"],
        ["3@2"], ["1@5"], ["1@6"], ["1@7"],
    ]  # fmt: skip
    assert got.run.requests.preemptions.tolist() == [0, 1]
    assert got.run.requests.computed_tokens.tolist() == [8, 10]
    assert got.run.requests.reused_tokens.tolist() == [0, 2]


def test_preempted_requests_return_in_their_old_order():
    # 6 blocks of 2 tokens, three requests of 2 blocks each. The first one's third block costs the
    # last request its place; the second one takes the other block that this freed. When the first
    # needs its fourth, the second goes too, and waits before the third.
    got = play(
        load([4, 4, 4], [6, 6, 6]),
        engine={"num_gpu_blocks_override": 7},
        block_size=2,
        max_model_len=10,
        enable_prefix_caching=False,
    )
    assert got.batches == [
        ["4@0", "4@0", "4@0"], ["1@4", "1@4"], ["1@5", "1@5"], ["1@6"], ["1@7"], ["1@8"],
        ["7@0"], ["1@7"], ["1@8"], ["5@0"], ["1@5"], ["1@6"], ["1@7"], ["1@8"],
    ]  # fmt: skip


def test_no_waiting_request_starts_in_a_step_that_preempted():
    # The waiting request of 1 block would fit beside the preempted one's 2 freed blocks.
    got = play(
        load([4, 4, 1], [5, 5, 1], [0.0, 0.0, 0.5]),
        engine={"num_gpu_blocks_override": 6},
        block_size=2,
        max_model_len=10,
    )
    assert got.batches[1] == ["1@4"]


def test_asynchronous_scheduling_plans_a_batch_before_the_last_one_ended():
    # A batch starts at every full second; the one that starts at 1 was planned at 0, so a request
    # that comes at 0.5 is planned at 1, starts at 2 and has its token at 3.
    got = play(load([4, 4], [4, 2], [0.0, 0.5]), engine={"async_scheduling": True})
    assert got.batches == [["4@0"], ["1@4"], ["1@5", "4@0"], ["1@6", "1@4"]]
    assert got.run.requests.scheduled_s.tolist() == [0.0, 1.0]
    assert got.run.requests.first_token_s.tolist() == [1.0, 3.0]


def test_without_it_the_request_starts_at_the_next_step():
    got = play(load([4, 4], [4, 2], [0.0, 0.5]))
    assert got.run.requests.first_token_s.tolist() == [1.0, 2.0]


def test_asynchronous_scheduling_plans_no_step_beyond_the_last_token():
    got = play(load([4], [3]), engine={"async_scheduling": True})
    assert got.batches == [["4@0"], ["1@4"], ["1@5"]]
    assert got.run.requests.finish_s[0] == 3


def test_a_request_preempted_in_flight_keeps_the_token_of_its_last_batch():
    # As in the synchronous case, but the second request is preempted while its prompt runs: the
    # token of that batch still counts, and 3 of 5 tokens are recomputed.
    got = play(
        load([4, 4], [5, 5]),
        engine={"num_gpu_blocks_override": 6, "async_scheduling": True},
        block_size=2,
        max_model_len=10,
    )
    assert got.batches[:2] == [["4@0", "4@0"], ["1@4"]]
    assert got.run.requests.first_token_s.tolist() == [1.0, 1.0]
    assert any("3@2" in batch for batch in got.batches)
    assert got.run.requests.finished.all()


def test_a_client_that_hangs_up_frees_its_blocks():
    got = play(
        load([16, 16], [8, 2], timeout_s=[3.5, np.inf]),
        engine={"num_gpu_blocks_override": 7},
        max_model_len=24,
    )
    # 6 blocks: the first request holds 4, then 5, so the second waits until 3.5 s have passed.
    assert got.batches == [["16@0"], ["1@16"], ["1@17"], ["1@18"], ["16@0"], ["1@16"]]
    assert got.run.requests.status.tolist() == ["timed_out", "finished"]
    assert got.run.requests.finish_s.tolist() == [3.5, 6.0]
    assert got.run.requests.output_tokens.tolist() == [3, 2]


def test_a_closed_loop_sends_when_a_request_has_ended():
    # The next batch is on its way before the client has answered.
    got = play(load([2, 2, 2], [2, 1, 1], concurrency=2))
    assert got.batches == [["2@0", "2@0"], ["1@2"], ["2@0"]]
    assert got.run.requests.arrival_s.tolist() == [0.0, 0.0, 1.0]


def test_a_stage_opens_when_the_one_before_has_ended():
    got = play(load([2, 2], [5, 1], [0.0, 0.5], stage=[0, 1], stages_wait=True, stage_gap_s=1.0))
    assert got.run.requests.arrival_s.tolist() == [0.0, 6.5]


def test_stages_by_the_clock_open_whatever_runs():
    stages = {"stage": [0, 1], "stage_starts_s": (0.0, 2.0)}
    got = play(load([2, 2], [5, 1], [0.0, 0.5], **stages))
    assert got.run.requests.arrival_s.tolist() == [0.0, 2.5]


def test_transferred_keys_and_values_wait_for_the_network_not_for_the_line():
    # 8 tokens at 4,096 bytes each (2 x 4 heads x 64 x 2 bytes x 4 layers) take 2 s; the request
    # behind starts at once, and one token is left to compute.
    got = play(
        load([8, 3], [2, 1], transferred_tokens=[8, 0]),
        engine={"kv_transfer_bytes_per_s": 4 * 4096.0},
    )
    assert got.batches == [["3@0"], ["1@7"], ["1@8"]]
    assert got.run.requests.first_token_s.tolist() == [3.0, 1.0]


def test_pipeline_stages_overlap_batches():
    got = play(load([4, 4], [2, 2]), pipeline_parallel_size=2, max_num_batched_tokens=4)
    assert got.run.steps["start_s"].tolist() == [0.0, 0.5, 1.0, 1.5]
    assert got.run.requests.first_token_s.tolist() == [1.0, 1.5]


def test_replicas_of_a_dense_model_run_on_their_own():
    got = play(load([4, 4, 4], [2, 2, 2], [0.0, 0.2, 0.4]), data_parallel_size=2)
    assert got.run.requests.replica.tolist() == [0, 1, 0]
    assert sorted(got.run.steps["start_s"].tolist()) == [0.0, 0.2, 1.0, 1.2, 2.0]


@pytest.mark.parametrize(("moment", "replica"), [(0.09, 0), (0.11, 1)])
def test_the_balancer_hears_of_the_queues_every_tenth_of_a_second(moment, replica):
    """At 0.03 s the second replica is idle again, which is known from 0.1 s on."""
    got = play(
        load([1, 1, 1], [50, 1, 1], [0.0, 0.01, moment]),
        recorder=Recorder(step_s=0.02),
        data_parallel_size=2,
    )
    assert got.run.requests.replica.tolist() == [0, 1, replica]


def test_delays_beside_the_steps_reach_the_client_alone():
    recorder = Recorder(queueing_s=0.25, scheduling_s=0.1, output_s=0.01, completion_s=0.5)
    got = play(load([4], [3]), recorder=recorder)
    requests = got.run.requests
    np.testing.assert_allclose(requests.first_token_s, 0.25 + 1 + 0.1 + 0.01)
    # The API server has sent a token before the next one comes.
    np.testing.assert_allclose(requests.finish_s, 0.25 + 3 + 0.1 + 0.01 + 0.5)
    np.testing.assert_allclose(requests.mean_itl_s, 1.0)
    assert got.run.steps["start_s"].tolist() == [0.25, 1.25, 2.25]


def test_a_model_without_the_methods_that_interfaces_differ_in_has_no_such_delays():
    class Steps:
        """Step, queueing and output token: what every interface has."""

        def step_time(self, batch):
            return 0.5 + 0.1 * len(batch)

        def queueing_time(self, _):
            return 0.25

        def output_token_processing_time(self):
            return 0.01

    requests = play(load([4], [3]), recorder=Steps()).run.requests
    np.testing.assert_allclose(requests.first_token_s, 0.25 + 0.6 + 0.01)
    np.testing.assert_allclose(requests.finish_s, 0.25 + 3 * 0.6 + 0.01)


def test_a_preemption_delays_what_its_client_sees():
    got = play(
        load([4, 4], [5, 5]),
        recorder=Recorder(preemption_s=0.5),
        engine={"num_gpu_blocks_override": 6},
        block_size=2,
        max_model_len=10,
    )
    assert got.run.requests.finish_s.tolist() == [5.0, 9.5]
    gaps = got.run.gaps
    assert sorted(np.repeat(gaps.seconds, gaps.count).tolist()) == [1.0] * 7 + [5.5]


def test_a_shared_prefix_is_read_once_by_the_decodes_among_those_that_hold_it():
    """Two answers share 16 tokens; while a prompt runs beside them, it may be one of the two."""
    got = play(
        load(
            [17, 17, 60], [6, 6, 2], [0, 0, 1.5], shares_with=[-1, 0, -1], shared_tokens=[0, 16, 0]
        ),
        max_num_batched_tokens=34,
        max_model_len=80,
    )
    assert got.batches[1:4] == [["1@17"] * 2, ["1@18"] * 2 + ["32@0"], ["1@19"] * 2 + ["28@32"]]
    reread = got.run.steps["reread_tokens"][1:6]
    np.testing.assert_allclose(reread, [16, 16 * 2 / 3, 16 * 2 / 3, 16, 16])
