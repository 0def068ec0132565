"""Monotone interpolation: how a surrogate becomes a time that never falls when work is added.

A network may dip. Its values on a lattice of sizes are therefore replaced by monotone envelopes
along every axis, and other sizes are interpolated between the nodes, linearly in logarithms. Both
keep the order, so the result is non-decreasing in every axis; and it costs a few look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

Nodes = tuple[Float[np.ndarray, "..."], ...]


def octaves(low: int, high: int, parts: int) -> Float[np.ndarray, " nodes"]:
    """Sizes from ``low`` to ``high``, ``parts`` to each doubling, equally spaced inside it.

    >>> octaves(1, 8, 2).tolist()
    [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]
    """
    starts = low * 2.0 ** np.arange(round(np.log2(high / low)))
    return np.append(np.outer(starts, 1 + np.arange(parts) / parts).ravel(), high)


def node_points(axes: Nodes) -> list[Float[np.ndarray, " nodes"]]:
    """Coordinates of all nodes of a lattice, one flat array per axis, last axis fastest."""
    return [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]


def isotonic(values: Float[np.ndarray, "series nodes"]) -> Float[np.ndarray, "series nodes"]:
    """The non-decreasing series closest to each given one, by least squares.

    Min-max formula (Robertson, Wright and Dykstra, Order Restricted Statistical Inference, theorem
    1.4.4): the i-th value is the largest over a <= i of the smallest over b >= i of the mean from a
    to b. A running maximum instead would spread every upward error to all larger sizes.

    >>> isotonic(np.array([[1.0, 3.0, 2.0, 4.0]]))
    array([[1. , 2.5, 2.5, 4. ]])
    """
    count = values.shape[1]
    sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    lengths = np.arange(1, count + 1)[None, :] - np.arange(count)[:, None]
    means = (sums[:, None, 1:] - sums[:, :-1, None]) / np.where(lengths > 0, lengths, 1)
    means[:, lengths <= 0] = np.inf
    from_i = np.flip(np.minimum.accumulate(np.flip(means, 2), axis=2), 2)
    best = np.where(np.tri(count, dtype=bool).T, from_i, -np.inf).max(axis=1)
    # Sums in another order differ in their last digits; the law must hold to the digit.
    return np.maximum.accumulate(best, axis=1)


def monotone(values: Float[np.ndarray, "lattices ..."]) -> Float[np.ndarray, "lattices ..."]:
    """Non-decreasing along every axis but the first: isotonic along one axis after the other.

    Isotonic regression keeps the order of series that lie above one another, so a later axis does
    not undo an earlier one; the running maxima at the end make that exact.
    """
    for axis in range(1, values.ndim):
        moved = np.moveaxis(values, axis, -1)
        flat = moved.reshape(-1, moved.shape[-1])
        parts = [isotonic(flat[i : i + 4096]) for i in range(0, len(flat), 4096)]
        values = np.moveaxis(np.concatenate(parts).reshape(moved.shape), -1, axis)
    for axis in range(1, values.ndim):
        values = np.maximum.accumulate(values, axis=axis)
    return values


def interpolate(
    values: Float[np.ndarray, "lattices ..."],
    axes: Nodes,
    lattice: Int[np.ndarray, " rows"],
    points: Sequence[Float[np.ndarray, " rows"]],
) -> Float[np.ndarray, " rows"]:
    """Multilinear interpolation in the logarithms of the axes; points outside are clamped.

    Args:
        values: Values at the nodes.
        axes: Increasing positive node positions per axis.
        lattice: Which lattice each row reads.
        points: Position of each row, one array per axis.
    """
    result = np.zeros(len(lattice))
    flat, stride = values.reshape(len(values), -1), values[0].size if len(values) else 1
    offset = np.zeros(len(lattice), dtype=np.int64)
    corners = [(offset, np.ones(len(lattice)))]
    for nodes, point in zip(axes, points, strict=True):
        stride //= len(nodes)
        clamped = np.clip(point, nodes[0], nodes[-1])
        left = np.clip(np.searchsorted(nodes, clamped, side="right") - 1, 0, len(nodes) - 2)
        share = np.log(clamped / nodes[left]) / np.log(nodes[left + 1] / nodes[left])
        corners = [
            (base + (left + step) * stride, weight * (share if step else 1.0 - share))
            for base, weight in corners
            for step in (0, 1)
        ]
    for index, weight in corners:
        result += weight * flat[lattice, index]
    return result
