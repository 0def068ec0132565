"""Monotone interpolation: how a surrogate becomes a time that never falls when work is added.

A network may dip. Its values on a lattice of sizes are therefore replaced by monotone envelopes
along every axis, and other sizes are interpolated between the nodes, linearly in logarithms. Both
keep the order, so the result is non-decreasing in every axis; and it costs a few look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

Nodes = tuple[Float[np.ndarray, " nodes"], ...]


def node_points(axes: Nodes) -> list[np.ndarray]:
    """Coordinates of all nodes of a lattice, one flat array per axis, last axis fastest."""
    return [grid.ravel() for grid in np.meshgrid(*axes, indexing="ij")]


def monotone(values: Float[np.ndarray, "lattices *nodes"]) -> Float[np.ndarray, "lattices *nodes"]:
    """Non-decreasing along every axis but the first: half-way between two envelopes.

    The running maximum from the left alone would spread every upward error to all larger sizes,
    the running minimum from the right every downward one to all smaller sizes.

    >>> monotone(np.array([[1.0, 3.0, 2.0, 4.0]]))
    array([[1. , 2.5, 2.5, 4. ]])
    """
    for axis in range(1, values.ndim):
        upper = np.maximum.accumulate(values, axis=axis)
        lower = np.flip(np.minimum.accumulate(np.flip(values, axis), axis=axis), axis)
        values = (upper + lower) / 2
    return values


def interpolate(
    values: Float[np.ndarray, "lattices *nodes"],
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
    corners = [(lattice, np.ones(len(lattice)))]
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
