"""Quantiles of held-out errors in which every group counts once (split conformal prediction)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    pass

# Quantiles of errors of left-out groups, in which every group counts once.
#
# A group is a model on a GPU; models of equal shape are one. Its rows differ only in load and
# share their error, so each group counts once, however many rows it has and however many splits
# left it out.
#
# What so few groups guarantee: split conformal prediction covers a new exchangeable group with
# 90 % only from nine groups on (``ceil(0.9 (n + 1)) <= n``), and a dozen of model x GPU are not
# exchangeable, since they share a few models. So 90 % holds on average over groups like these,
# not for each of them; an unseen model can lie outside in half of its rows.

#: Share of values that intervals are to cover.
LEVEL = 0.9

#: Half of such an interval over the standard deviation, where errors are normal.
NORMAL_QUANTILE = 1.645

Values = Float[np.ndarray, " n"]


def group_weights(groups: Iterable[Hashable], splits: Iterable[Hashable]) -> Values:
    """Weights that add up to 1: groups count the same, in a group its splits, in a split its rows.

    >>> group_weights(["a", "a", "a", "b"], [1, 1, 2, 1]).tolist()
    [0.125, 0.125, 0.25, 0.5]
    """
    group, split = _numbered(groups), _numbered(splits)
    part = _numbered(zip(group.tolist(), split.tolist(), strict=True))
    rows_of_part = np.bincount(part)[part]
    _, first_of_part = np.unique(part, return_index=True)
    parts_of_group = np.bincount(group[first_of_part])[group]
    weight = 1.0 / (rows_of_part * parts_of_group)
    return weight / weight.sum()


def _numbered(names: Iterable[Hashable]) -> Int[np.ndarray, " n"]:
    """Equal names get equal numbers, from 0 on."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(name, len(seen)) for name in names], dtype=np.int64)


def weighted_quantile(values: Values, weight: Values, level: float) -> float:
    """Smallest value up to which at least a share ``level`` of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.6)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    first = int(np.searchsorted(reached, level - 1e-12))
    return float(values[order][min(first, len(values) - 1)])
