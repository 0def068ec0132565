import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pinn.kernels.operator import interpolate, monotone, node_points

VALUES = st.floats(-5, 5, width=32).map(float)


@given(*[arrays(np.float64, (3, 9), elements=VALUES)] * 2)
def test_no_rising_series_is_closer_along_one_axis(values, others):
    def distance(series):
        return ((series - values) ** 2).sum(axis=1)

    assert (distance(monotone(values)) <= distance(np.sort(others)) + 1e-9).all()
    assert (distance(monotone(values)) <= distance(np.maximum.accumulate(values, 1)) + 1e-9).all()


def test_a_dip_along_one_axis_is_shared_between_its_neighbours():
    np.testing.assert_allclose(monotone(np.array([[1.0, 3.0, 2.0, 4.0]])), [[1.0, 2.5, 2.5, 4.0]])


@given(arrays(np.float64, (2, 4, 5, 3), elements=VALUES))
def test_monotone_rises_along_every_axis_exactly(values):
    fitted = monotone(values)
    for axis in (1, 2, 3):
        assert (np.diff(fitted, axis=axis) >= 0).all()


def test_means_of_equal_values_that_rounding_tells_apart_rise_exactly_too():
    """In one of thirty such lattices, isotonic regression alone leaves a fall of 1e-17."""
    tenths = 0.1 * np.random.default_rng(0).integers(0, 4, (1000, 2, 3, 3))
    fitted = monotone(tenths)
    assert all((np.diff(fitted, axis=axis) >= 0).all() for axis in (1, 2, 3))


def test_monotone_leaves_what_rises_already():
    values = np.add.outer(np.arange(4.0), np.arange(5.0))[None]
    np.testing.assert_allclose(monotone(values), values)


def test_interpolation_is_exact_at_nodes_linear_in_logs_and_clamped():
    axes = (np.array([1.0, 2.0, 8.0]), np.array([1.0, 10.0]))
    first, second = node_points(axes)
    values = (2 * np.log(first) + 3 * np.log(second)).reshape(1, 3, 2)
    at = [np.array([1.0, 4.0, 100.0]), np.array([5.0, 10.0, 0.1])]
    found = interpolate(values, axes, np.zeros(3, dtype=np.int64), at)
    expected = 2 * np.log([1.0, 4.0, 8.0]) + 3 * np.log([5.0, 10.0, 1.0])
    assert found == pytest.approx(expected)


@given(
    arrays(np.float64, (1, 3, 4), elements=VALUES),
    st.tuples(st.floats(0.5, 20), st.floats(0.5, 20)),
    st.tuples(st.floats(0, 9), st.floats(0, 9)),
)
def test_interpolation_keeps_the_order(values, start, step):
    axes = (np.array([1.0, 3.0, 9.0]), np.array([1.0, 2.0, 4.0, 16.0]))
    points = [np.array([s, s + d]) for s, d in zip(start, step, strict=True)]
    low, high = interpolate(monotone(values), axes, np.zeros(2, dtype=np.int64), points)
    assert high >= low - 1e-12
