"""Numbers of experts that a step's tokens hit, compared with randomly drawn routings."""

import numpy as np
import pytest

from pinn.kernels.tables.work import (
    experts_hit_balanced,
    experts_hit_busiest,
    experts_hit_random,
)


def drawn(tokens, experts, top_k, ranks, draws=400):
    """Return the mean number of experts hit on a rank, and on the busiest one, over drawn routings.

    The ``top_k`` largest Gumbel values are a draw without replacement.
    """
    draw = np.random.default_rng(0)
    mean, most = [], []
    for _ in range(draws):
        keys = draw.gumbel(size=(tokens, experts))
        chosen = np.unique(np.argpartition(-keys, top_k, axis=1)[:, :top_k])
        of_rank = np.bincount(chosen // (experts // ranks), minlength=ranks)
        mean.append(of_rank.mean())
        most.append(of_rank.max())
    return np.mean(mean), np.mean(most)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("tokens", [2, 8, 32, 128])
@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (128, 4), (384, 8)])
def test_the_busiest_rank_is_hit_as_often_as_in_drawn_routings(experts, top_k, tokens, ranks):
    mean, most = drawn(tokens, experts, top_k, ranks)
    assert experts_hit_random(tokens, experts, top_k, ranks) == pytest.approx(mean, rel=0.02)
    assert experts_hit_busiest(tokens, experts, top_k, ranks) == pytest.approx(most, rel=0.1)


def test_one_rank_is_the_busiest():
    args = np.array([1, 7, 300]), 64, 4, 1
    np.testing.assert_array_equal(experts_hit_busiest(*args), experts_hit_random(*args))


@pytest.mark.parametrize("ranks", [2, 3, 16, 128])
def test_more_tokens_hit_no_fewer_experts_and_never_more_than_there_are(ranks):
    hit = experts_hit_busiest(np.arange(1, 4097), 384, 8, ranks)
    assert (np.diff(hit) >= -1e-9).all()
    assert hit[-1] == pytest.approx(384 / ranks)
    assert (hit >= experts_hit_random(np.arange(1, 4097), 384, 8, ranks)).all()
    assert (experts_hit_balanced(np.arange(1, 4097), 384, 8, ranks) <= 384 / ranks).all()


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (16, 1), (256, 8)])
def test_one_token_hits_its_own_experts_and_a_thousand_hit_all_but_few(experts, top_k):
    assert experts_hit_random(1, experts, top_k, 1) == pytest.approx(top_k)
    assert experts_hit_random(1024, experts, top_k, 1) == pytest.approx(experts, rel=1e-6)
