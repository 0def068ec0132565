import numpy as np
import torch

from pinn.kernels.operator import TrainingPlan, train

PLAN = TrainingPlan(rows=1000, epochs=60, batch=50, width=32, depth=2, bound=2.0, weight_decay=0)


def data(rows=400):
    x = np.random.default_rng(0).normal(size=(rows, 3))
    return x, np.sin(x[:, 0]) + 0.3 * x[:, 1]


def test_it_learns_a_small_set():
    x, y = data()
    assert np.abs(train(x, y, PLAN, seed=0).predict(x) - y).mean() < 0.05


def test_same_rows_and_seed_give_the_same_weights():
    x, y = data()
    first, second = (train(x, y, PLAN, seed=3).predict(x) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_training_leaves_the_global_generator_alone():
    x, y = data(50)
    state = torch.get_rng_state()
    train(x, y, PLAN, seed=0)
    assert torch.equal(state, torch.get_rng_state())


def test_outside_the_training_range_it_is_flat_and_bounded():
    x, y = data()
    network = train(x, 100 * y, PLAN, seed=0)
    far, farther = x.max(0) + 10, x.max(0) + 1000
    edge = network.predict(np.stack([far, farther]))
    assert edge[0] == edge[1]
    assert np.abs(network.predict(x)).max() <= PLAN.bound


def test_the_clamp_in_standard_deviations():
    x, y = data()
    network = train(x, y, TrainingPlan(**{**vars(PLAN), "clamp": 1.0, "epochs": 2}), seed=0)
    assert (network.high <= 1).all()
    assert (network.low >= -1).all()
