"""The steps of a closed-loop benchmark: by hand, and what every benchmark keeps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinn.errors import PinnError
from pinn.observations import closed_loop
from pinn.observations.closed_loop import WAVES, ClosedLoop, closed_loop_steps


def work(load):
    """Of each step: chunks, prompt tokens, decodes, keys read; then the two shares."""
    steps = closed_loop_steps(load)
    sums = steps.sums
    columns = (
        sums.prefill_requests,
        sums.prefill_tokens,
        sums.decode_requests,
        sums.decode_context,
        steps.tpot_share,
        steps.ttft_share,
    )
    return np.stack(columns, axis=1)


@pytest.fixture
def fixed_lengths(monkeypatch):
    monkeypatch.setattr(closed_loop, "SHORTEST_SHARE", 1.0)
    closed_loop_steps.cache_clear()
    yield
    closed_loop_steps.cache_clear()


@pytest.mark.usefixtures("fixed_lengths")
def test_two_clients_by_hand(monkeypatch):
    # Two clients, one request each: prompts of 10 tokens, outputs of 3, a budget of 16 per step.
    monkeypatch.setattr(closed_loop, "WAVES", 1)
    rows = work(ClosedLoop(2, 10, 3, max_num_batched_tokens=16))
    np.testing.assert_allclose(
        rows,
        [
            # Step 0: the whole first prompt and 6 tokens of the second. Both wait for it: of the
            # mean over 2 requests each counts half, so TTFT has this step once.
            [2, 16, 0, 0, 0, 1],
            # Step 1: the first request's second token, over 10 + 1 keys, beside the last 4 tokens
            # of the second prompt. The second waits on. A decode step is half of the first
            # request's two intervals, and a quarter of the mean.
            [1, 4, 1, 11, 0.25, 0.5],
            # Step 2: both decode, over 10 + 2 and 10 + 1 keys; the first ends.
            [0, 0, 2, 23, 0.5, 0],
            # Step 3: the second alone, over 12 keys.
            [0, 0, 1, 12, 0.25, 0],
        ],
    )


@pytest.mark.usefixtures("fixed_lengths")
def test_the_next_request_comes_a_step_after_one_ended(monkeypatch):
    # One client, two requests with outputs of 2: prefill, decode, a step of nobody, and again.
    monkeypatch.setattr(closed_loop, "WAVES", 2)
    rows = work(ClosedLoop(1, 5, 2, max_num_batched_tokens=100))
    np.testing.assert_allclose(rows, [[1, 5, 0, 0, 0, 0.5], [0, 0, 1, 6, 0.5, 0]] * 2)


LOADS = st.builds(
    ClosedLoop,
    concurrency=st.integers(1, 10),
    prompt_tokens=st.integers(1, 2000),
    output_tokens=st.integers(1, 60),
    max_num_batched_tokens=st.sampled_from([64, 512, 2048]),
    window_tokens=st.sampled_from([None, 128]),
    seed=st.integers(0, 3),
)


@settings(max_examples=15)
@given(LOADS)
def test_shares_of_decode_intervals_sum_to_one(load):
    # If every step took a second, the mean interval between tokens would be a second.
    assert closed_loop_steps(load).tpot_share.sum() == pytest.approx(1.0, rel=1e-9)


@settings(max_examples=15)
@given(LOADS)
def test_every_request_waits_for_a_step_at_least(load):
    assert closed_loop_steps(load).ttft_share.sum() >= 1 - 1e-9


@settings(max_examples=15)
@given(LOADS)
def test_every_prompt_token_is_computed_once(load):
    requests = WAVES * load.concurrency
    draw = np.random.default_rng(load.seed)
    shortest = max(int(closed_loop.SHORTEST_SHARE * load.prompt_tokens), 1)
    prompts = draw.integers(shortest, load.prompt_tokens + 1, requests)
    sums = closed_loop_steps(load).sums
    assert sums.prefill_tokens.sum() == prompts.sum()
    # Causal attention of all prompts, in whatever chunks.
    pairs = (prompts * (prompts + 1) / 2).sum()
    assert sums.prefill_pairs.sum() == pytest.approx(pairs, rel=1e-9)


@settings(max_examples=15)
@given(LOADS)
def test_no_step_exceeds_clients_or_budget(load):
    sums = closed_loop_steps(load).sums
    assert (sums.prefill_tokens + sums.decode_requests <= load.max_num_batched_tokens).all()
    assert (sums.prefill_requests + sums.decode_requests <= load.concurrency).all()


@settings(max_examples=20)
@given(st.integers(1, 24), st.integers(1, 500), st.integers(0, 3))
def test_outputs_of_two_tokens_decode_once_per_request(concurrency, prompt, seed):
    # Each request has one interval, so the shares count decodes: one per request.
    steps = closed_loop_steps(ClosedLoop(concurrency, prompt, 2, 2048, seed=seed))
    assert steps.tpot_share.sum() * WAVES * concurrency == pytest.approx(WAVES * concurrency)


def test_a_window_bounds_the_keys_that_windowed_layers_read():
    wide = closed_loop_steps(ClosedLoop(4, 1000, 50)).sums
    narrow = closed_loop_steps(ClosedLoop(4, 1000, 50, window_tokens=128)).sums
    np.testing.assert_array_equal(wide.windowed_decode_context, wide.decode_context)
    np.testing.assert_array_equal(narrow.decode_context, wide.decode_context)
    assert (narrow.windowed_decode_context <= 128 * narrow.decode_requests).all()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 10, 10), "concurrency must be at least 1, got 0"),
        ((1, -5, 10), "prompt_tokens must be at least 1, got -5"),
        ((64, 10, 10, 64), "budget of 64 tokens per step leaves no room"),
    ],
)
def test_impossible_loads_are_refused(values, message):
    with pytest.raises(PinnError, match=message):
        ClosedLoop(*values)
