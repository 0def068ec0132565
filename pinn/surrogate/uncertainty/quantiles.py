"""Quantiles of held-out errors in which every group counts once (split conformal prediction)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

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


def weighted_quantile(values: Values, weight: Values, level: float) -> float:
    """Smallest value up to which at least a share ``level`` of the weight lies.

    >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.6)
    2.0
    """
    order = np.argsort(values)
    reached = np.cumsum(weight[order]) / weight.sum()
    first = int(np.searchsorted(reached, level - 1e-12))
    return float(values[order][min(first, len(values) - 1)])
