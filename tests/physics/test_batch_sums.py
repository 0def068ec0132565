"""Sums over requests, compared with counts one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import batches

from pinn.errors import PinnError
from pinn.physics.batch_sums import causal_pairs, sum_batches, uniform_sums
from pinn.specs.batch import Batch, parse_batch


def test_a_mixed_batch_by_hand():
    # A chunk of 3 tokens after 2 cached ones: its tokens see 3, 4 and 5 keys.
    # Two decodes after 10 tokens: each sees 11 keys.
    sums = sum_batches([Batch.prefill(1, 3, 2) + Batch.decode(2, 10)])
    assert (sums.prefill_requests[0], sums.decode_requests[0]) == (1, 2)
    assert (sums.tokens[0], sums.requests[0]) == (5, 3)
    assert sums.prefill_pairs[0] == 3 + 4 + 5
    assert sums.prefill_cached[0] == 2
    assert sums.decode_context[0] == 22
    assert sums.windowed_prefill_pairs[0] == 12  # equal to the full count without a window


def test_the_longest_chunk_counts_cached_and_new_tokens():
    chunks = Batch.prefill(2, 3, 2) + Batch.prefill(1, 1, 90) + Batch.decode(1, 500)
    sums = sum_batches([chunks, Batch.decode(4, 700), Batch()])
    assert sums.longest_prefill.tolist() == [91, 0, 0]


def test_a_window_limits_what_each_token_sees():
    # Window 4: the tokens of the chunk see 3, 4 and 4 keys, each decode 4.
    sums = sum_batches([Batch.prefill(1, 3, 2) + Batch.decode(2, 10)], window=4)
    assert sums.windowed_prefill_pairs[0] == 3 + 4 + 4
    assert sums.windowed_decode_context[0] == 8
    assert sums.windowed_prefill_cached[0] == 2
    assert (sums.prefill_pairs[0], sums.decode_context[0]) == (12, 22)


@given(st.integers(1, 200), st.integers(0, 200), st.one_of(st.none(), st.integers(1, 150)))
def test_pairs_are_those_counted_one_by_one(new, cached, window):
    limit = np.inf if window is None else window
    counted = sum(min(cached + i + 1, limit) for i in range(new))
    assert float(causal_pairs(new, cached, limit)) == counted


@given(st.integers(0, 50), st.integers(0, 9000), st.integers(0, 9), st.integers(1, 9000))
def test_batches_of_alike_requests_sum_like_any_other(decodes, context, chunks, tokens):
    batch = Batch.decode(decodes, context) + Batch.prefill(chunks, tokens, context)
    listed = sum_batches([batch], window=1000)
    alike = uniform_sums(
        decode_requests=[decodes],
        decode_context=context,
        prefill_requests=chunks,
        prefill_tokens=tokens,
        prefill_cached=context,
        window=1000,
    )
    for name, value in vars(listed).items():
        assert value[0] == pytest.approx(getattr(alike, name)[0], rel=1e-12)


def test_decodes_are_padded_to_the_next_graph_by_hand():
    several = [Batch.decode(n, 10) for n in (1, 3, 4, 5, 9)] + [Batch()]
    sums = sum_batches(several).padded((1, 2, 4, 8))
    assert sums.padding.tolist() == [0, 1, 0, 3, 0, 0]
    assert sums.tokens.tolist() == [1, 4, 4, 8, 9, 0]
    assert sums.requests.tolist() == [1, 3, 4, 5, 9, 0]
    mixed = sum_batches([Batch.decode(3, 10) + Batch.prefill(1, 2)])
    for name, value in vars(mixed.padded((4, 8))).items():
        assert value == getattr(mixed, name)


@given(st.lists(batches(), min_size=1, max_size=3), st.sets(st.integers(1, 60)))
def test_a_padded_batch_stays_as_it_is_when_padded_again(several, sizes):
    once = sum_batches(several).padded(sorted(sizes))
    for name, value in vars(once.padded(sorted(sizes))).items():
        assert (value == getattr(once, name)).all()


@given(st.lists(batches(), max_size=3))
def test_sums_of_several_batches_are_those_of_each(several):
    together = sum_batches([*several, Batch()], window=77)
    for i, batch in enumerate([*several, Batch()]):
        alone = sum_batches([batch], window=77)
        for name, value in vars(together).items():
            assert value[i] == getattr(alone, name)[0]


@pytest.mark.parametrize(
    ("new", "cached"), [((0,), (5,)), ((-1,), (5,)), ((1,), (-1,)), ((1, 2), (0,))]
)
def test_impossible_token_counts_are_refused(new, cached):
    with pytest.raises(PinnError) as error:
        Batch(new, cached, (True,) * len(new))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "-3 decode @ 5", "3 decode @ -5", "3 decode", "1 prefill @ 0", "1 decode @ 2 +"]
)
def test_a_batch_that_cannot_be_read_is_named(text):
    with pytest.raises(PinnError, match=r"the part .* of the batch cannot be read"):
        parse_batch(text)
